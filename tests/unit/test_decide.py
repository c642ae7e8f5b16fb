"""What follows from a model's reply: each odd reply has its one stated outcome."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pytest

from brainhands.brain.decide import MAX_CALLS, Answer, AskAgain, CallTools, Decision, GiveUp, PlannedCall, decide
from brainhands.brain.models.reply import RawCall, Reply
from brainhands.shared.model.event import Usage
from brainhands.shared.model.tool import ToolSpec


def spec(name: str) -> ToolSpec:
    return ToolSpec(
        kind=f"tool:{name}", name=name, version=1, description="", parameters={"type": "object"}, pool="hands.default"
    )


def reply(*calls: RawCall, text: str = "", finish_reason: str = "tool_calls", refusal: str | None = None) -> Reply:
    return Reply(
        text=text,
        calls=calls,
        finish_reason=finish_reason,
        refusal=refusal,
        usage=Usage(),
        model="m",
        response_id=None,
    )


def call(name: str = "send", arguments: str = "{}", id: str = "call_a") -> RawCall:
    return RawCall(provider_id=id, name=name, arguments=arguments)


def decided(
    given: Reply,
    *,
    offered: Sequence[ToolSpec] = (spec("send"), spec("find")),
    used_ids: Collection[str] | None = (),
    empty_replies: int = 0,
) -> Decision:
    return decide(given, offered=offered, used_ids=used_ids, empty_replies=empty_replies, prefix="call_7")


def planned(given: Reply, used_ids: Collection[str] | None = ()) -> tuple[PlannedCall, ...]:
    decision = decided(given, used_ids=used_ids)
    assert isinstance(decision, CallTools)
    return decision.planned


def test_text_without_calls_is_the_answer() -> None:
    assert decided(reply(text="Done.", finish_reason="stop")) == Answer("Done.")


@pytest.mark.parametrize("finish_reason", ["tool_calls", "stop"])
def test_calls_run_whether_the_reply_ended_for_them_or_not(finish_reason: str) -> None:
    (one,) = planned(reply(call(arguments='{"to": "a"}'), text="Sending.", finish_reason=finish_reason))

    assert (one.spec, one.arguments, one.error) == (spec("send"), {"to": "a"}, None)
    assert one.call.arguments == '{"to": "a"}'


@pytest.mark.promise("E12")
@pytest.mark.case("openai/openai-agents-python#2204")
def test_an_unknown_tool_gets_an_error_that_names_the_valid_ones_and_its_siblings_run() -> None:
    unknown, known = planned(reply(call("delete_all", id="a"), call("find", id="b")))

    assert unknown.spec is None
    assert unknown.arguments is None
    assert unknown.error == "there is no tool 'delete_all'; the tools are: send, find"
    assert known.error is None


@pytest.mark.promise("E12")
@pytest.mark.parametrize("arguments", ["", "  ", "null", '""', "{}"])
def test_every_way_to_give_no_arguments_is_the_empty_object(arguments: str) -> None:
    (one,) = planned(reply(call(arguments=arguments)))

    assert (one.arguments, one.error) == ({}, None)


@pytest.mark.promise("E12")
@pytest.mark.case("pydantic/pydantic-ai#6979")
@pytest.mark.parametrize(
    "arguments", ['{"to": "a', "[1]", "7", '"text"', "{'to': 'a'}", '{"n": NaN}', '{"n": 1e5000}', "[" * 100_000]
)
def test_arguments_that_are_no_json_object_get_an_error_and_are_kept_as_they_came(arguments: str) -> None:
    (one,) = planned(reply(call(arguments=arguments)))

    assert one.arguments is None
    assert one.error
    assert one.error.startswith("not run: the arguments")
    assert one.call.arguments == arguments


@pytest.mark.promise("E12")
def test_of_too_many_calls_the_surplus_gets_errors() -> None:
    plan = planned(reply(*(call(id=f"call_{place}") for place in range(MAX_CALLS + 3))))

    assert [one.error is None for one in plan] == [True] * MAX_CALLS + [False] * 3
    assert all(one.error and str(MAX_CALLS) in one.error for one in plan[MAX_CALLS:])


@pytest.mark.promise("E12")
def test_a_call_id_that_was_used_in_the_conversation_or_the_reply_is_renamed_and_the_raw_one_kept() -> None:
    plan = planned(reply(call(id="old"), call(id="new"), call(id="new"), call(id="")), used_ids={"old"})

    assert [one.call.call_id for one in plan] == ["call_7_0", "new", "call_7_2", "call_7_3"]
    assert [one.call.provider_id for one in plan] == ["old", "new", "new", ""]


@pytest.mark.promise("E12")
def test_behind_a_compaction_no_id_of_the_provider_is_taken_for_new() -> None:
    plan = planned(reply(call(id="a"), call(id="")), used_ids=None)

    assert [each.call.call_id for each in plan] == ["call_7_0", "call_7_1"]
    assert [each.call.provider_id for each in plan] == ["a", ""]


@pytest.mark.promise("E12")
def test_made_ids_avoid_ids_that_a_provider_made_alike() -> None:
    plan = planned(reply(call(id="call_7_1"), call(id="")), used_ids={"call_7_0"})

    assert len({one.call.call_id for one in plan} | {"call_7_0"}) == 3


@pytest.mark.promise("E12")
@pytest.mark.case("pydantic/pydantic-ai#729")
@pytest.mark.parametrize("text", ["", " \n"])
@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls"])
def test_an_empty_reply_is_asked_again_twice_and_then_given_up(text: str, finish_reason: str) -> None:
    empty = reply(text=text, finish_reason=finish_reason)

    outcomes = [decided(empty, empty_replies=before) for before in range(3)]

    assert [type(outcome) for outcome in outcomes] == [AskAgain, AskAgain, GiveUp]


@pytest.mark.promise("E12")
@pytest.mark.case("openai/openai-agents-python#3055")
def test_a_refusal_is_given_up_with_its_text() -> None:
    assert decided(reply(finish_reason="stop", refusal="I will not.")) == GiveUp("the model refused: I will not.")


@pytest.mark.promise("E12")
@pytest.mark.case("pydantic/pydantic-ai#3118")
@pytest.mark.parametrize("finish_reason", ["length", "content_filter", "abort"])
def test_of_a_reply_that_was_not_finished_no_call_runs(finish_reason: str) -> None:
    cut = reply(call(arguments='{"to": "a"}'), text="Sending", finish_reason=finish_reason)

    assert isinstance(decided(cut), GiveUp)


@pytest.mark.promise("E5", "E12")
def test_the_same_reply_is_always_planned_the_same() -> None:
    given = reply(call(id=""), call("nothing", id="x"), call(arguments=json.dumps({"a": [1, 2]}), id="x"))

    assert planned(given, used_ids={"y"}) == planned(given, used_ids={"y"})
