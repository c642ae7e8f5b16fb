"""Where a context is cut: between whole turns, or between rounds of a very long one, and never inside of a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brainhands.brain.cutting import UNANSWERED_CHARACTERS, Cut, cut, shorten
from brainhands.brain.prompt import ContextEvent, render
from brainhands.shared.model.event import (
    ContextCompacted,
    ModelCall,
    ModelOutput,
    ModelRequest,
    Payload,
    RedactedPayload,
    TaskGiven,
    ToolCallInterrupted,
    ToolCallSettled,
    ToolCallSuccess,
    Usage,
)
from deploy.demo.model_server import transcript_problem
from tests.unit.test_prompt import log, prompt, user

FIELDS: dict[str, Any] = {"tool": "send", "version": 1, "arguments": {}, "operation_id": None, "replay": None}


def answer(text: str = "Done.") -> ModelOutput:
    return ModelOutput(text=text, calls=[], finish_reason="stop", model="m", usage=Usage(), request_digest="d")


def calls(*ids: str, text: str = "") -> ModelOutput:
    made = [ModelCall(call_id=id, provider_id=id, name="send", arguments="{}") for id in ids]
    return ModelOutput(text=text, calls=made, finish_reason="tool_calls", model="m", usage=Usage(), request_digest="d")


def result(id: str, size: int = 10) -> ToolCallSuccess:
    return ToolCallSuccess(call_id=id, **FIELDS, result="r" * size)


def compacted(upto: int, unanswered: str | None = None, summary: str = "They met.") -> ContextCompacted:
    return ContextCompacted(
        upto=upto, summary=summary, unanswered=unanswered, tokens_before=9, tokens_after=1, model="m", usage=Usage()
    )


def made(*payloads: Payload) -> Cut:
    found = cut(log(*payloads))
    assert found is not None
    return found


@pytest.mark.promise("E10")
def test_whole_turns_stay_that_make_up_half_of_the_context() -> None:
    turns = [part for size in (400, 400, 300, 300) for part in (user("u" * size), answer())]

    found = made(prompt(), *turns, user("now"))

    assert found.upto == 5
    assert [text[:6] for text in found.texts] == ["User: ", "Assist", "User: ", "Assist"]
    assert found.unanswered is None


@pytest.mark.promise("E10")
def test_a_turn_of_more_than_half_is_cut_between_its_rounds_and_what_the_user_asked_for_stays_word_for_word() -> None:
    rounds = [part for id in "abcd" for part in (calls(id), result(id, 500))]

    found = made(user("hello"), answer(), user("do it all"), *rounds)

    assert found.upto == 7
    assert found.unanswered == "do it all"
    assert len([text for text in found.texts if text.startswith("Result of send: rrr")]) == 2


@pytest.mark.promise("E10")
@pytest.mark.case("datakurre/graph-agent#85")
def test_a_call_and_its_result_never_part() -> None:
    both = calls("a", "b")

    assert cut(log(user("go"), both, result("a", 9000))) is None
    found = made(user("u" * 100), calls("x"), result("x", 500), both, result("a"), result("b", 9000))
    assert found.upto == 3


@pytest.mark.case("datakurre/graph-agent#85")
def test_nothing_is_cut_behind_a_call_whose_result_comes_only_after_the_cut() -> None:
    late = [user("u" * 900), calls("a"), user("meanwhile"), result("a"), answer(), user("next")]

    found = made(*late)

    assert found.upto == 5


@pytest.mark.parametrize(
    "payloads",
    [
        (user("u" * 9000),),
        (prompt(), user("u" * 9000), calls("a"), result("a", 9000)),
        (compacted(0), user("u" * 9000)),
        (compacted(0), user("u" * 9000), calls("a"), result("a", 9000)),
    ],
)
def test_the_present_input_the_last_round_and_a_summary_alone_are_nothing_to_cut(payloads: tuple[Payload, ...]) -> None:
    assert cut(log(*payloads)) is None


@pytest.mark.promise("E10")
def test_an_earlier_summary_is_part_of_what_is_summarised_and_what_it_replaced_is_not() -> None:
    found = made(user("forgotten"), answer("forgotten"), user("u" * 500), answer(), compacted(2), user("now"))

    assert found.upto == 5
    assert "They met." in found.texts[0]
    assert not any("forgotten" in text for text in found.texts)


@pytest.mark.promise("E10")
def test_a_turn_that_is_cut_twice_still_has_what_the_user_asked_for() -> None:
    rounds = [part for id in "ab" for part in (calls(id), result(id, 500))]

    found = made(user("do it all"), answer("never shown"), compacted(2, unanswered="do it all"), *rounds)
    steered = made(compacted(0, unanswered="do it all"), user("and quickly"), *rounds)

    assert found.unanswered == "do it all"
    assert steered.unanswered == "do it all\n\nand quickly"


def test_a_long_request_of_the_user_is_shortened_in_its_middle() -> None:
    rounds = [part for id in "ab" for part in (calls(id), result(id, 30_000))]

    found = made(user("begin" + "u" * 20_000 + "end"), *rounds)

    assert found.unanswered is not None
    assert found.unanswered.startswith("begin")
    assert found.unanswered.endswith("end")
    assert len(found.unanswered) < UNANSWERED_CHARACTERS + 50


def test_what_a_person_found_out_is_what_the_summary_is_told() -> None:
    interrupted = ToolCallInterrupted(call_id="a", **FIELDS, partial="", error="lost")
    settled = ToolCallSettled(call_id="a", **FIELDS, approval="q", answer="happened", result="sent")

    found = made(user("u" * 200), calls("a"), interrupted, answer(), user("and"), settled)

    assert any("a person found out that this call took effect" in text for text in found.texts)


@st.composite
def conversations(draw: st.DrawFn) -> list[ContextEvent]:
    """Turns of rounds with parallel calls, with input that joins between rounds, and the last turn under way."""
    payloads: list[Payload] = [prompt()]
    for turn in range(draw(st.integers(1, 5))):
        payloads.append(user("u" * draw(st.integers(1, 300))))
        for round in range(draw(st.integers(0, 4))):
            ids = [f"{turn}.{round}.{place}" for place in range(draw(st.integers(1, 3)))]
            payloads.append(calls(*ids))
            payloads.extend(result(id, draw(st.integers(0, 300))) for id in draw(st.permutations(ids)))
            if draw(st.integers(0, 3)) == 0:
                payloads.append(user("joins"))
        payloads.append(answer("a" * draw(st.integers(1, 300))))
    return log(*(payloads[:-1] if draw(st.booleans()) else [*payloads, user("and now?")]))


@pytest.mark.promise("E10", "E11")
@pytest.mark.case("datakurre/graph-agent#85")
@given(events=conversations())
def test_behind_any_cut_there_is_a_transcript_that_a_provider_takes(events: list[ContextEvent]) -> None:
    found = cut(events)
    if found is None:
        return
    seq = events[-1].seq + 1
    cutoff = events[-1].seq + 2
    event = ContextEvent(seq=seq, type="context_compacted", version=1, payload=compacted(found.upto, found.unanswered))
    request = ModelRequest(agent="a", agent_version=1, model="m", options={}, tools=[], cutoff=cutoff)

    whole = render([*events, event], request, [])
    behind = [each for each in events if each.seq > found.upto or each.type == "system_prompt_set"]

    assert transcript_problem(whole["messages"]) is None
    assert render([*behind, event], request, []) == whole
    kept = [each for each in behind if each.type != "system_prompt_set"]
    assert found.unanswered or kept[0].type == "user_message"


@given(texts=st.lists(st.text("x", max_size=200), max_size=20), room=st.integers(0, 2000))
def test_texts_are_shortened_only_as_far_as_they_must(texts: list[str], room: int) -> None:
    short = shorten(texts, room)

    marks = sum(len("[1,000 characters left out]") + 2 for text, cut in zip(texts, short, strict=True) if text != cut)
    assert sum(map(len, short)) <= room + marks
    if sum(map(len, texts)) <= room:
        assert short == texts


@pytest.mark.promise("E10", "A10")
def test_what_another_agent_asked_for_is_a_turn_like_a_users() -> None:
    rounds = [part for id in "abcd" for part in (calls(id), result(id, 500))]

    assert made(TaskGiven(text="look into it", by="lead"), *rounds).unanswered == "look into it"


@pytest.mark.promise("E10", "I3")
@pytest.mark.parametrize("gone", [1, 2, 3, 4])
def test_what_was_redacted_does_not_keep_a_context_from_being_cut(gone: int) -> None:
    events = log(user("u" * 50), calls("a"), result("a", 500), answer(), user("and now"), answer(), user("then"))
    events[gone - 1] = replace(events[gone - 1], payload=RedactedPayload())

    found = cut(events)

    assert found is not None
    assert found.upto == 4
