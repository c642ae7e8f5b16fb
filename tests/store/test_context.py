"""A context that is too long is compacted by a task of its own, or its input fails clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from brainhands.brain import compaction
from brainhands.brain.history import read_context
from brainhands.shared.model.submission import Mode
from brainhands.shared.model.task import Outcome, Status
from deploy.demo.model_scripts import Call, Fault, Reply
from tests.instruments import invariants
from tests.store.desk import Desk, desk_of, echoes
from tests.store.stage import Gone, Stage

LONG = "x" * 900


@pytest.fixture
def desk(shared_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with desk_of(shared_stage, monkeypatch) as desk:
        yield desk
        invariants.check(shared_stage.database_url, at_rest=True)


def filled(desk: Desk, *, window: int = 4400) -> Any:
    """A session of two turns; a third input is too much for the window."""
    session = desk.turn(f"first {LONG}", f"one {LONG}").session_id
    desk.turn(f"second {LONG}", f"two {LONG}", session=session)
    desk.window = window
    return session


def too_long(desk: Desk, text: str = "third") -> Any:
    """A session whose generation waits for a compaction that has not begun."""
    session = filled(desk)
    receipt = desk.submit(f"{text} {LONG}", session=session)
    desk.play(until="compaction")
    return receipt


@pytest.mark.promise("E10", "B8")
def test_an_overflow_is_voided_compacted_and_asked_again_with_less(desk: Desk) -> None:
    session = filled(desk)
    receipt = desk.turn(f"third {LONG}", "done", session=session)

    assert desk.stage.client.submission(receipt.submission_id).output == "done"
    (compacted,) = desk.payloads(session, "context_compacted")
    refused, answered = desk.asked[2]["messages"], desk.asked[-1]["messages"]
    assert len(json.dumps(answered)) < len(json.dumps(refused))
    assert [message["role"] for message in answered] == ["system", "user"]
    assert "They talked." in answered[1]["content"]
    assert answered[1]["content"].endswith(f"\n\nthird {LONG}")
    assert compacted["tokens_after"] < compacted["tokens_before"]
    types = desk.stage.types(session)
    voided = types.index("model_request_voided")
    assert types[voided - 1 : voided + 2] == ["model_request", "model_request_voided", "task_created"]
    assert types[types.index("context_compacted") + 1] == "model_request"
    assert types.count("user_message") == 3
    assert desk.task(session, "compaction").owner_id == desk.task(session, "generation").id
    assert desk.stage.client.verify(session) is None


@pytest.mark.promise("E10", "I2")
def test_the_log_says_what_led_to_what(desk: Desk) -> None:
    session = filled(desk)
    desk.turn(f"third {LONG}", "done", session=session)

    events = {event.type: event for event in desk.stage.client.events(session)}
    assert events["context_compacted"].causes == (events["task_created"].seq,)
    assert events["task_created"].causes == (events["model_request_voided"].seq,)
    assert events["context_compacted"].seq in events["model_request"].causes


@pytest.mark.promise("E10", "I10")
def test_what_lies_before_a_cut_is_not_read_again_and_is_summarised_in_the_next_summary(desk: Desk) -> None:
    session = filled(desk)
    desk.turn(f"third {LONG}", f"three {LONG}", session=session)
    (first,) = desk.payloads(session, "context_compacted")

    generation = desk.task(session, "generation")
    read = read_context(desk.stage.database, generation, 10_000)
    assert all(event.seq > first["upto"] or event.type == "system_prompt_set" for event in read)
    assert [event.type for event in read].count("context_compacted") == 1

    desk.window = 2700
    desk.turn(f"fourth {LONG}", "four", session=session)
    first, second = desk.payloads(session, "context_compacted")
    assert second["upto"] > first["upto"]
    asked = next(each for each in reversed(desk.asked) if each["messages"][0]["content"] == compaction.INSTRUCTIONS)
    assert "They talked." in asked["messages"][1]["content"]
    assert "first" not in asked["messages"][1]["content"]


@pytest.mark.promise("E10", "E11")
@pytest.mark.case("datakurre/graph-agent#85")
def test_a_long_turn_is_cut_between_its_rounds_and_its_calls_get_ids_that_are_new(desk: Desk) -> None:
    desk.window = 4000
    rounds = [echoes(f"{place} {LONG}", id=f"call_{place % 2}") for place in range(4)]
    receipt = desk.turn("do it all", *rounds, "done")

    assert desk.stage.client.submission(receipt.submission_id).output == "done"
    outputs = desk.payloads(receipt.session_id, "model_output")
    ids = [call["call_id"] for output in outputs for call in output["calls"]]
    assert len(set(ids)) == 4
    (compacted, *_) = desk.payloads(receipt.session_id, "context_compacted")
    assert compacted["unanswered"] == "do it all"
    assert "do it all" in desk.asked[-1]["messages"][1]["content"]


@pytest.mark.promise("E10")
def test_with_a_stated_window_the_provider_is_not_asked_in_vain(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk_of(shared_stage, monkeypatch, context_tokens=1000) as desk:
        session = filled(desk)
        receipt = desk.turn(f"third {LONG}", "done", session=session)

        assert desk.stage.client.submission(receipt.submission_id).output == "done"
        (voided,) = desk.payloads(session, "model_request_voided")
        assert "more than the 1,000 of context_tokens" in voided["reason"]
        assert len(desk.asked) == 4


@pytest.mark.promise("E10")
@pytest.mark.parametrize("window", [3200, 2000])
def test_a_second_overflow_fails_and_the_session_goes_on(desk: Desk, window: int) -> None:
    session = filled(desk, window=window)
    failed = desk.turn("third" + "x" * window, session=session)

    done = desk.stage.client.submission(failed.submission_id)
    assert done.outcome is Outcome.FAILED
    assert "too long, also after it was compacted: The messages exceed" in (done.error or "")
    assert len(desk.payloads(session, "context_compacted")) == 1
    assert desk.payloads(session, "model_error")[-1]["code"] == "context_length_exceeded"
    desk.window = 100_000
    again = desk.turn("fourth", "goes on", session=session)
    assert desk.stage.client.submission(again.submission_id).output == "goes on"


@pytest.mark.promise("E10")
@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        (Reply(text="y" * 5000), "the summary has 5,000 characters, what it would replace"),
        (Reply(text="A sum", fault=Fault.LENGTH), "no summary: the reply was cut at the length limit"),
        (Reply(refusal="I will not."), "no summary: the model refused: I will not."),
        (Reply(fault=Fault.UNAUTHORIZED), "The key is not valid."),
    ],
)
def test_a_summary_that_is_none_fails_the_input_with_the_reason_and_is_paid_for(
    desk: Desk, summary: Reply, reason: str
) -> None:
    session = filled(desk)
    used = desk.stage.client.session(session).tokens_in
    desk.summaries.append(summary)
    receipt = desk.turn(f"third {LONG}", session=session)

    done = desk.stage.client.submission(receipt.submission_id)
    assert (done.outcome, desk.payloads(session, "context_compacted")) == (Outcome.FAILED, [])
    assert f"the context is too long, and could not be compacted: {reason}" in (done.error or "")
    assert (desk.stage.client.session(session).tokens_in > used) is (summary.fault is not Fault.UNAUTHORIZED)


@pytest.mark.promise("E10")
def test_where_there_is_nothing_to_cut_the_input_fails_and_nobody_is_asked(desk: Desk) -> None:
    desk.window = 500
    receipt = desk.turn(LONG)

    done = desk.stage.client.submission(receipt.submission_id)
    assert done.outcome is Outcome.FAILED
    assert "there is nothing to summarise" in (done.error or "")
    assert len(desk.asked) == 1


@pytest.mark.promise("E10", "E6")
def test_a_summary_is_asked_for_again_after_a_durable_wait(desk: Desk) -> None:
    receipt = too_long(desk)
    desk.says("done")
    desk.summaries.extend([Reply(fault=Fault.RATE_LIMIT, retry_after=30), Reply(text=" "), Reply(text="Short.")])
    desk.advance(desk.task(receipt.session_id, "compaction"))

    asleep = desk.task(receipt.session_id, "compaction")
    assert (asleep.status, asleep.phase, asleep.checkpoint["retries"]) == (Status.SLEEPING, "retry", 1)
    desk.play()
    assert desk.stage.client.submission(receipt.submission_id).output == "done"
    assert desk.payloads(receipt.session_id, "context_compacted")[0]["summary"] == "Short."


@pytest.mark.promise("E10")
def test_an_older_part_that_is_itself_too_long_is_shown_with_its_longest_messages_shortened(desk: Desk) -> None:
    receipt = too_long(desk)
    desk.says("done")
    desk.window = 3500
    desk.play()

    assert desk.stage.client.submission(receipt.submission_id).output == "done"
    *_, refused, taken, _ = desk.asked
    assert refused["messages"][0] == taken["messages"][0]
    assert "characters left out" in taken["messages"][1]["content"]
    assert "first" in taken["messages"][1]["content"]


def die(*_: object) -> NoReturn:
    raise Gone


@pytest.mark.promise("E10", "C4", "E13")
@pytest.mark.hazard(50)
def test_a_compaction_whose_worker_dies_is_done_again_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = too_long(desk)
    task = desk.task(receipt.session_id, "compaction")
    desk.says("done")
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_ask", die)
        with pytest.raises(Gone):
            desk.advance(task)
    desk.stage.lose(task.id)
    desk.play()

    assert desk.stage.client.submission(receipt.submission_id).output == "done"
    assert desk.stage.types(receipt.session_id).count("context_compacted") == 1
    (lost,) = desk.payloads(receipt.session_id, "model_interrupted")
    assert lost["usage"]["estimated"]
    assert lost["usage"]["tokens_in"] > 1000


@pytest.mark.promise("E10", "C10")
def test_a_compaction_that_keeps_crashing_ends_and_its_input_with_its_cause(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = too_long(desk)
    task = desk.task(receipt.session_id, "compaction")
    monkeypatch.setattr(compaction, "_ask", die)
    for _ in range(3):
        with pytest.raises(Gone):
            desk.advance(task)
        desk.stage.lose(task.id)
    desk.play()

    done = desk.stage.client.submission(receipt.submission_id)
    assert done.outcome is Outcome.FAILED
    assert "could not be compacted: stopped after 3 attempts in phase request" in (done.error or "")


@pytest.mark.promise("E10", "A9")
def test_input_that_shall_join_does_so_when_the_request_is_prepared_anew(desk: Desk) -> None:
    receipt = too_long(desk)
    steer = desk.submit("and quickly", session=receipt.session_id, mode=Mode.STEER)
    later = desk.submit("later", session=receipt.session_id)
    desk.says("both", "the later one")
    desk.play()

    outputs = [desk.stage.client.submission(each.submission_id).output for each in (receipt, steer, later)]
    assert outputs == ["both", "both", "the later one"]
    both = next(each for each in desk.asked if each["messages"][-1]["content"].endswith("\n\nand quickly"))
    assert "\n\nthird" in both["messages"][-1]["content"]


@pytest.mark.promise("E10", "A9")
def test_input_that_had_joined_before_the_overflow_ends_with_the_work(desk: Desk) -> None:
    session = filled(desk, window=5000)
    desk.says(echoes("hello"))
    receipt = desk.submit(f"third {LONG}", session=session)
    desk.play(until="tool:echo")
    steer = desk.submit(f"and quickly {LONG}", session=session, mode=Mode.STEER)
    desk.says("both")
    desk.play()

    assert [desk.stage.client.submission(each.submission_id).output for each in (receipt, steer)] == ["both", "both"]
    assert desk.stage.types(session).count("context_compacted") == 1


@pytest.mark.promise("E10", "C12")
def test_cancelling_the_input_cancels_the_compaction_first(desk: Desk) -> None:
    receipt = too_long(desk)
    desk.stage.client.cancel(submission=receipt.submission_id, reason="no longer needed")

    assert desk.stage.client.submission(receipt.submission_id).outcome is Outcome.CANCELLED
    ended = [desk.task(receipt.session_id, kind) for kind in ("compaction", "generation")]
    assert [task.outcome for task in ended] == [Outcome.CANCELLED] * 2
    assert not desk.payloads(receipt.session_id, "tool_call_error")
    desk.window = 100_000
    again = desk.turn("fourth", "goes on", session=receipt.session_id)
    assert desk.stage.client.submission(again.submission_id).output == "goes on"


@pytest.mark.promise("E10", "C12")
def test_a_compaction_that_is_cancelled_alone_fails_its_input(desk: Desk) -> None:
    receipt = too_long(desk)
    desk.stage.client.cancel(task=desk.task(receipt.session_id, "compaction").id)
    desk.play()

    done = desk.stage.client.submission(receipt.submission_id)
    assert (done.outcome, done.error) == (
        Outcome.FAILED,
        "the context is too long, and could not be compacted: cancelled",
    )


@pytest.mark.promise("B8", "I3")
def test_redacting_a_message_names_the_summary_that_stands_for_it(desk: Desk) -> None:
    session = filled(desk)
    desk.turn(f"third {LONG}", "done", session=session)
    seqs = {event.type: event.seq for event in reversed(desk.stage.client.events(session))}

    told = desk.stage.client.redact(session, [seqs["user_message"]], reason="why")

    assert seqs["context_compacted"] in told.repeated_in
    desk.stage.client.redact(session, [seqs["context_compacted"]], reason="why")
    assert desk.stage.client.verify(session) is None


@pytest.mark.promise("B8", "I7")
def test_a_fork_goes_on_with_the_summary_of_its_past(desk: Desk) -> None:
    session = filled(desk)
    desk.turn(f"third {LONG}", "done", session=session)
    fork = desk.stage.client.fork(session, at=desk.stage.client.session(session).session.last_seq)

    desk.turn("and in the fork", "done there", session=fork.session_id)

    messages = desk.asked[-1]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "They talked." in messages[1]["content"]
    used = [desk.stage.client.session(id) for id in (session, fork.session_id)]
    assert used[0].tokens_in < used[1].tokens_in


@pytest.mark.promise("E2", "E12")
def test_a_session_whose_requests_are_refused_for_its_past_goes_on_in_plain_words(desk: Desk) -> None:
    called = Reply(calls=(Call(name="echo", arguments={"text": "hello"}),))
    session = desk.turn(f"first {LONG}", called, "one").session_id
    desk.turn(f"second {LONG}", called, "two", session=session)
    refused = desk.turn("third", Reply(fault=Fault.BAD_REQUEST), session=session)
    assert desk.stage.client.submission(refused.submission_id).outcome is Outcome.FAILED

    saved = desk.turn("fourth", Reply(fault=Fault.BAD_REQUEST), "well then", session=session)

    assert desk.stage.client.submission(saved.submission_id).output == "well then"
    (voided,) = desk.payloads(session, "model_request_voided")
    assert "refused for good" in voided["reason"]
    assert [each["plain"] for each in desk.payloads(session, "model_request")][-2:] == [False, True]
    assert "They talked." in desk.asked[-1]["messages"][1]["content"]
    assert all("tool_calls" not in message for message in desk.asked[-1]["messages"])
    assert desk.stage.client.verify(session) is None


@pytest.mark.promise("E12")
def test_a_session_too_short_to_be_summarised_is_put_in_plain_words_all_the_same(desk: Desk) -> None:
    refused = Reply(fault=Fault.BAD_REQUEST)
    session = desk.turn("first", refused).session_id

    saved = desk.turn("second", refused, "well then", session=session)

    assert desk.stage.client.submission(saved.submission_id).output == "well then"
    assert desk.payloads(session, "model_request")[-1]["plain"] is True


@pytest.mark.promise("E12")
def test_plain_words_are_tried_once_and_then_the_refusal_stands(desk: Desk) -> None:
    refused = Reply(fault=Fault.BAD_REQUEST)
    session = desk.turn("first", refused).session_id

    failed = desk.turn("second", refused, refused, session=session)

    done = desk.stage.client.submission(failed.submission_id)
    assert (done.outcome, done.error) == (Outcome.FAILED, "The request is not valid.")
    assert len(desk.payloads(session, "model_request")) == 3


@pytest.mark.promise("E2", "E12")
def test_what_was_got_past_in_plain_words_stays_plain_until_a_summary_stands_for_it(desk: Desk) -> None:
    called = Reply(calls=(Call(name="echo", arguments={"text": "hello"}),))
    refused = Reply(fault=Fault.BAD_REQUEST)
    session = desk.turn("first", called, "one").session_id
    desk.turn("second", refused, session=session)
    desk.turn(f"third {LONG}", refused, f"well then {LONG}", session=session)
    fork = desk.stage.client.fork(session, at=desk.stage.client.session(session).session.last_seq).session_id

    for each in (session, fork):
        before = len(desk.asked)
        desk.turn(f"fourth {LONG}", "go on", session=each)
        (asked,) = desk.asked[before:]
        assert all("tool_calls" not in message for message in asked["messages"])

    desk.window = 2_600
    desk.turn(f"fifth {LONG}", called, "done", session=session)
    assert "They talked." in desk.asked[-1]["messages"][1]["content"]
    assert "tool_calls" in desk.asked[-1]["messages"][-2]
    assert desk.payloads(session, "model_output")[-1]["plain"] is False


@pytest.mark.promise("E6")
@pytest.mark.parametrize("fault", [Fault.UNAUTHORIZED, Fault.INSUFFICIENT_QUOTA])
def test_what_is_refused_for_another_reason_than_its_words_is_not_put_in_others(desk: Desk, fault: Fault) -> None:
    session = desk.turn("first", Reply(fault=fault)).session_id

    desk.turn("second", Reply(fault=fault), session=session)

    assert [each["plain"] for each in desk.payloads(session, "model_request")] == [False, False]
