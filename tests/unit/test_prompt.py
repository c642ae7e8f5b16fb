"""How events become the request a model gets."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from brainhands.brain.prompt import (
    LONGEST_RESULT,
    ContextEvent,
    OpenCall,
    UnreadableEvent,
    call_ids,
    render,
    request_digest,
)
from brainhands.shared.model.event import (
    ContextCompacted,
    HumanApprovalAnswered,
    HumanApprovalRequested,
    ModelCall,
    ModelError,
    ModelInterrupted,
    ModelOutput,
    ModelRequest,
    Payload,
    RedactedPayload,
    SystemPromptSet,
    ToolCallError,
    ToolCallInterrupted,
    ToolCallSettled,
    ToolCallSuccess,
    UnknownPayload,
    Usage,
    UserMessage,
)
from brainhands.shared.model.json import Json
from brainhands.shared.model.tool import ToolSpec
from deploy.demo.model_server import transcript_problem

SEND = ToolSpec(
    kind="tool:send",
    name="send",
    version=2,
    description="Send it.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}}},
    pool="hands.default",
)


def log(*payloads: Payload) -> list[ContextEvent]:
    return [
        ContextEvent(seq=seq, type=payload.event_type, version=payload.event_version, payload=payload)
        for seq, payload in enumerate(payloads, start=1)
    ]


def body(events: list[ContextEvent], *, cutoff: int = 10_000, specs: tuple[ToolSpec, ...] = ()) -> dict[str, Any]:
    request = ModelRequest(agent="a", agent_version=1, model="m", options={"temperature": 0}, tools=[], cutoff=cutoff)
    return render(events, request, specs)


def messages(*payloads: Payload) -> list[dict[str, Any]]:
    rendered = body(log(*payloads))["messages"]
    assert transcript_problem(rendered) is None
    return list(rendered)


def prompt(text: str = "Be kind.") -> SystemPromptSet:
    return SystemPromptSet(agent="a", agent_version=1, instructions=text)


def user(text: str = "Hello.") -> UserMessage:
    return UserMessage(text=text, submission="s")


def output(*calls: ModelCall, text: str = "", finish_reason: str = "stop", refusal: str | None = None) -> ModelOutput:
    return ModelOutput(
        text=text,
        calls=list(calls),
        finish_reason=finish_reason,
        refusal=refusal,
        model="m",
        usage=Usage(),
        request_digest="",
    )


def call(id: str, arguments: str = "{}", name: str = "send") -> ModelCall:
    return ModelCall(call_id=id, provider_id=f"raw-{id}", name=name, arguments=arguments)


def told(id: str | None) -> dict[str, Any]:
    return {"call_id": id, "tool": "send", "version": 2, "arguments": {}, "operation_id": "o", "replay": "unsafe"}


def success(id: str | None, result: Json = "sent") -> ToolCallSuccess:
    return ToolCallSuccess(**told(id), result=result)


def error(id: str, text: str = "no such address") -> ToolCallError:
    return ToolCallError(**told(id), error=text)


def interrupted(id: str, partial: str = "") -> ToolCallInterrupted:
    return ToolCallInterrupted(**told(id), partial=partial, error="the worker was killed")


def test_the_body_carries_model_options_messages_and_the_offered_tools() -> None:
    rendered = body(log(prompt(), user()), specs=(SEND,))

    function = {"name": "send", "description": "Send it.", "parameters": SEND.parameters}
    assert rendered == {
        "temperature": 0,
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}],
        "tools": [{"type": "function", "function": function}],
    }


def test_without_tools_none_are_mentioned() -> None:
    assert "tools" not in body(log(user()))


def test_the_last_system_prompt_stands_first() -> None:
    said = messages(prompt("old"), user(), output(text="Hi."), prompt("new"), user("More."))

    assert [message["content"] for message in said] == ["new", "Hello.", "Hi.", "More."]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]


@pytest.mark.promise("E11", "F9")
@pytest.mark.case("anthropics/claude-code#39830")
def test_each_call_is_followed_by_its_own_result_in_the_order_of_the_calls() -> None:
    calls = (call("a", '{"to": "x"}'), call("b"), call("c"))

    said = messages(user(), output(*calls), interrupted("c", "half"), error("b"), success("a", {"z": 1, "a": "é"}))

    assert said[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "send", "arguments": '{"to": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "send", "arguments": "{}"}},
            {"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}},
        ],
    }
    assert [(message["role"], message["tool_call_id"]) for message in said[2:]] == [
        ("tool", "a"),
        ("tool", "b"),
        ("tool", "c"),
    ]
    assert said[2]["content"] == '{"a":"é","z":1}'
    assert said[3]["content"] == "error: no such address"
    assert "unknown" in said[4]["content"]
    assert said[4]["content"].endswith("half")


@pytest.mark.promise("E11")
@pytest.mark.case("Yanyutin753/LambChat#496")
def test_a_message_stored_between_a_call_and_its_result_comes_after_the_result() -> None:
    said = messages(user(), output(call("a"), text="Sending."), user("Wait!"), success("a"))

    assert [message["role"] for message in said] == ["user", "assistant", "tool", "user"]
    assert said[1]["content"] == "Sending."


@pytest.mark.promise("E11")
@pytest.mark.case("langchain-ai/langgraph#4289")
def test_a_call_without_result_stops_the_request() -> None:
    events = log(user(), output(call("a"), call("b")), success("a"))

    with pytest.raises(OpenCall) as raised:
        body(events)

    assert raised.value.call_id == "b"


@pytest.mark.promise("E11")
@pytest.mark.parametrize(("finish_reason", "shown"), [("length", ["Now"]), ("content_filter", [])])
@pytest.mark.case("pydantic/pydantic-ai#3118")
def test_calls_of_a_cut_reply_were_never_run_and_are_not_replayed(finish_reason: str, shown: list[str]) -> None:
    said = messages(user(), output(call("a"), text="Now", finish_reason=finish_reason), user("Go on."))

    assert said[1:-1] == [{"role": "assistant", "content": text} for text in shown]


@pytest.mark.promise("E11", "E12")
@pytest.mark.case("pydantic/pydantic-ai#2961")
def test_a_reply_that_said_nothing_is_not_replayed() -> None:
    said = messages(user(), output(), output(text=" "), output(refusal="No."), user("Please."))

    assert [message["role"] for message in said] == ["user", "user"]


@pytest.mark.promise("E11")
@pytest.mark.case("pydantic/pydantic-ai#4430")
@pytest.mark.parametrize("arguments", ['{"to": "x', "", "null", "[1]"])
def test_arguments_that_are_no_object_are_replayed_as_an_empty_one(arguments: str) -> None:
    said = messages(user(), output(call("a", arguments)), error("a"))

    assert said[1]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.promise("E11")
@pytest.mark.parametrize(("name", "replayed"), [("send mail!", "send_mail_"), ("", "_"), ("x" * 99, "x" * 64)])
def test_a_name_that_no_tool_can_have_is_replayed_in_a_form_that_providers_read(name: str, replayed: str) -> None:
    said = messages(user(), output(call("a", name=name)), error("a"))

    assert said[1]["tool_calls"][0]["function"]["name"] == replayed


@pytest.mark.promise("E11")
def test_each_call_has_one_result_and_what_is_known_wins_over_what_was_unknown() -> None:
    said = messages(
        user(), output(call("a"), call("b")), interrupted("a"), success("b"), success("a", "late"), error("b")
    )

    assert [message["content"] for message in said[2:]] == ["late", "sent"]


def test_results_of_calls_that_a_flow_made_are_no_part_of_the_dialogue() -> None:
    assert len(messages(user(), success(None), output(text="Hi."))) == 2


@pytest.mark.promise("E4", "B8")
def test_interrupted_and_failed_attempts_are_not_in_the_context() -> None:
    said = messages(
        user(),
        ModelInterrupted(text="I will", reason="cut", usage=Usage()),
        ModelError(error="500"),
        output(text="Hi."),
    )

    assert [message["content"] for message in said] == ["Hello.", "Hi."]


@pytest.mark.promise("B8")
@pytest.mark.hazard(24)
def test_an_event_of_a_newer_version_is_never_left_out_in_silence() -> None:
    events = [
        *log(user()),
        ContextEvent(seq=2, type="tool_call_deferred", version=3, payload=UnknownPayload(content={})),
    ]

    with pytest.raises(UnreadableEvent, match=r"event 2 \(tool_call_deferred version 3\)"):
        body(events)


@pytest.mark.promise("E2")
def test_what_came_after_the_cutoff_does_not_change_the_request() -> None:
    events = log(prompt(), user(), output(call("a")), success("a"), user("Later."), prompt("Later."))

    assert request_digest(body(events, cutoff=4)) == request_digest(body(events[:4]))
    assert request_digest(body(events, cutoff=5)) != request_digest(body(events[:4]))


@pytest.mark.promise("E2", "B8")
def test_the_digest_depends_on_what_is_said_and_not_on_the_order_of_keys() -> None:
    rendered = body(log(prompt(), user()))

    assert request_digest(rendered) == request_digest(json.loads(json.dumps(dict(reversed(rendered.items())))))


@pytest.mark.promise("E11")
def test_whatever_order_the_results_arrive_in_the_request_is_the_same() -> None:
    results = (success("a"), error("b"), interrupted("c"))
    opened = (user(), output(call("a"), call("b"), call("c")))

    rendered = {json.dumps(body(log(*opened, *order))) for order in itertools.permutations(results)}

    assert len(rendered) == 1


def redacted(events: list[ContextEvent], *seqs: int) -> list[dict[str, Any]]:
    """The messages for a log in which these events were redacted."""
    rendered = body([replace(each, payload=RedactedPayload()) if each.seq in seqs else each for each in events])
    assert transcript_problem(rendered["messages"]) is None
    return list(rendered["messages"])


@pytest.mark.promise("E11", "I3")
def test_what_was_redacted_is_shown_as_such_and_leaves_no_call_without_result() -> None:
    events = log(user(), output(call("a"), call("b"), text="Sending."), success("a"), error("b"), output(text="Done."))

    assert [message["content"] for message in redacted(events, 1)[:2]] == ["[redacted]", "Sending."]
    assert [message["content"] for message in redacted(events, 3)[2:4]] == ["[redacted]", "error: no such address"]
    assert [message["content"] for message in redacted(events, 3, 4)[2:4]] == ["[redacted]", "[redacted]"]
    assert redacted(events, 2) == [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "[redacted]"},
        {"role": "assistant", "content": "Done."},
    ]
    assert [message["content"] for message in redacted(events, 1, 2, 3, 4, 5)] == ["[redacted]"] * 3


@pytest.mark.promise("E11")
def test_a_redacted_result_of_an_earlier_reply_does_not_hide_an_open_call() -> None:
    events = log(user(), output(call("a")), success("a"), output(call("b")))

    with pytest.raises(OpenCall):
        redacted(events, 3)


def test_the_id_of_a_call_whose_reply_was_redacted_is_still_known_from_its_result() -> None:
    events = log(user(), output(call("a")), success("a"), output(call("b")), success("b"), success(None))
    events[1] = replace(events[1], payload=RedactedPayload())

    assert call_ids(events) == {"a", "b"}


def compacted(upto: int, summary: str = "They met.", unanswered: str | None = None) -> ContextCompacted:
    return ContextCompacted(
        upto=upto, summary=summary, unanswered=unanswered, tokens_before=9, tokens_after=1, model="m", usage=Usage()
    )


@pytest.mark.promise("B8", "E10")
def test_a_summary_stands_in_place_of_all_up_to_its_cut_and_the_instructions_stay() -> None:
    said = messages(prompt(), user("old"), output(call("a")), success("a"), user("new"), compacted(4))

    assert [message["role"] for message in said] == ["system", "user", "user"]
    assert said[0]["content"] == "Be kind."
    assert "They met." in said[1]["content"]
    assert said[2]["content"] == "new"


@pytest.mark.promise("B8", "E10")
def test_the_newest_compaction_within_the_cutoff_counts_and_one_beyond_it_does_not() -> None:
    events = log(user("1"), user("2"), compacted(1, "first"), user("3"), compacted(2, "second"), user("4"))

    newest = body(events)["messages"]
    assert ["second" in newest[0]["content"], *(message["content"] for message in newest[1:])] == [True, "3", "4"]
    earlier = body(events, cutoff=4)["messages"]
    assert ["first" in earlier[0]["content"], *(message["content"] for message in earlier[1:])] == [True, "2", "3"]
    assert body(events, cutoff=2)["messages"] == [{"role": "user", "content": text} for text in "12"]


@pytest.mark.promise("E10")
def test_behind_a_cut_in_the_middle_of_a_turn_the_users_words_stay() -> None:
    said = messages(
        user("do it"),
        output(call("a")),
        success("a"),
        output(call("b")),
        success("b"),
        compacted(3, unanswered="do it"),
    )

    assert [message["role"] for message in said] == ["user", "assistant", "tool"]
    assert said[0]["content"].endswith("\n\ndo it")


def question(call_id: str | None, approval: str = "q") -> HumanApprovalRequested:
    return HumanApprovalRequested(
        **told(call_id),
        approval=approval,
        question="approval",
        about="a rule asks",
        answer_by=datetime(2026, 10, 1, tzinfo=UTC),
        default_answer="denied",
    )


def answered(answer: str, approval: str = "q", **said: Any) -> HumanApprovalAnswered:
    return HumanApprovalAnswered(approval=approval, question="approval", answer=answer, **said)


@pytest.mark.promise("F13")
@pytest.mark.parametrize(
    ("answers", "notes"),
    [
        ([answered("approved")], []),
        ([answered("approved", answered_by="ann")], []),
        ([answered("approved", answered_by="ann", comment="go")], ["note: ann answered approved; comment: go"]),
        (
            [answered("approved", edited_arguments={"b": 1, "a": "é"})],
            ['note: a person answered approved with these arguments instead: {"a":"é","b":1}'],
        ),
        (
            [answered("pending", edited_arguments={"a": 1}, comment="try"), answered("approved", comment="well")],
            ["well"],
        ),
        ([answered("happened", comment="seen")], ["note: a person answered happened; comment: seen"]),
        ([answered("did_not_happen", comment="no")], ["note: a person answered did not happen; comment: no"]),
        ([answered("approved", comment="sent")], []),
        ([answered("approved", approval="of another call", comment="go")], []),
    ],
)
def test_what_people_changed_and_said_on_the_way_stands_before_the_result(
    answers: list[HumanApprovalAnswered], notes: list[str]
) -> None:
    said = messages(user(), output(call("a"), call("b")), question("a"), *answers, success("a"), success("b"))

    *before, result = said[2]["content"].splitlines()
    assert result == "sent"
    assert len(before) == len(notes)
    assert all(line.endswith(note) for line, note in zip(before, notes, strict=True))
    assert said[3]["content"] == "sent"


@pytest.mark.promise("F13", "I3")
def test_what_a_person_said_about_a_call_is_gone_once_it_is_redacted() -> None:
    events = log(user(), output(call("a")), question("a"), answered("approved", comment="private"), success("a"))

    assert [message["content"] for message in redacted(events, 4)][-1] == "sent"
    assert [message["content"] for message in redacted(events, 3)][-1] == "sent"


@pytest.mark.promise("F6", "E10")
def test_what_was_found_out_about_a_call_that_only_the_summary_tells_of_is_said_on_its_own() -> None:
    settled = ToolCallSettled(
        call_id="a",
        tool="send",
        version=2,
        arguments={"to": "me"},
        operation_id="o",
        replay="unsafe",
        approval="q",
        answer="happened",
        result="sent",
    )
    told = messages(user("old"), output(call("a")), interrupted("a"), user("new"), compacted(3), settled)
    shown = messages(user("old"), output(call("a")), interrupted("a"), settled)

    assert 'About your earlier call of send with {"to":"me"}: a person found out' in told[-1]["content"]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool"]


LONG = "z" * (LONGEST_RESULT + 1)
CALLED: dict[str, Any] = {
    "call_id": "c",
    "tool": "send",
    "version": 1,
    "arguments": {},
    "operation_id": None,
    "replay": None,
}


@pytest.mark.promise("E15")
@pytest.mark.parametrize(
    "result",
    [
        ToolCallSuccess(**CALLED, result=LONG),
        ToolCallSuccess(**CALLED, result={"answer": [LONG]}),
        ToolCallError(**CALLED, error=LONG),
        ToolCallInterrupted(**CALLED, partial=LONG, error="cut"),
        ToolCallSettled(**CALLED, approval="a", answer="happened", result=LONG),
    ],
    ids=["an answer", "a value", "an error", "what was shown before a cut", "what a person found out"],
)
def test_a_result_of_any_kind_is_shown_up_to_a_limit_with_word_of_where_all_of_it_is(result: Payload) -> None:
    call = ModelCall(call_id="c", provider_id="c", name="send", arguments="{}")

    *_, shown = messages(user(), output(call), result)

    text, cut = shown["content"].split("\n[cut: ")
    assert len(text) == LONGEST_RESULT
    assert cut.startswith(f"the first {LONGEST_RESULT:,} of ")
    assert cut.endswith("event 3 of this session has the whole result]")


@pytest.mark.promise("E15")
def test_a_result_just_within_the_limit_is_shown_whole() -> None:
    call = ModelCall(call_id="c", provider_id="c", name="send", arguments="{}")

    *_, shown = messages(user(), output(call), ToolCallSuccess(**CALLED, result=LONG[1:]))

    assert shown["content"] == LONG[1:]
