"""The Responses API as pure functions: the request translated, the response judged, the looks spread over time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brainhands import Agent
from brainhands.brain.background import FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS, look_seconds
from brainhands.brain.models.provider import estimated_usage
from brainhands.brain.models.reply import Interrupted, ProviderError, RawCall, Reply
from brainhands.brain.models.responses import Response, reply_of, request_of
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.event import Usage
from deploy.demo.model_responses import as_chat

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order": 7}'}}
BODY = {"model": "m", "input": []}


def chat(*messages: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **options}


def said(text: str, **part: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, **part}]}


def answer(*output: Any, status: str = "completed", **fields: Any) -> Response:
    return Response(content={"id": "resp_1", "model": "m", "status": status, "output": list(output), **fields})


def reply(*output: Any, **fields: Any) -> Reply:
    return reply_of(answer(*output, **fields), BODY)


@pytest.mark.promise("E7")
@pytest.mark.case("openai/openai-agents-python#4278")
def test_a_dialogue_becomes_instructions_and_items() -> None:
    body = request_of(
        chat(
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Where is order 7?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "on its way"},
            {"role": "assistant", "content": "On its way."},
        )
    )

    assert body == {
        "model": "m",
        "instructions": "Be kind.",
        "input": [
            {"type": "message", "role": "user", "content": "Where is order 7?"},
            {"type": "message", "role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"order": 7}'},
            {"type": "function_call_output", "call_id": "c1", "output": "on its way"},
            {"type": "message", "role": "assistant", "content": "On its way."},
        ],
    }


def test_what_is_translated_says_the_same_to_a_provider() -> None:
    second = {**CALL, "id": "c2"}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Both."},
        {"role": "assistant", "content": None, "tool_calls": [CALL, second]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]

    assert as_chat(request_of(chat(*messages)))["messages"] == messages


def test_tools_are_flat_and_as_lenient_as_they_are_in_chat_completions() -> None:
    function = {"name": "find", "description": "Find it.", "parameters": {"type": "object"}}

    body = request_of(chat(tools=[{"type": "function", "function": function}]))

    assert body["tools"] == [{"type": "function", "strict": False, **function}]


@pytest.mark.promise("E2")
@pytest.mark.parametrize(
    ("options", "translated"),
    [
        ({"temperature": 0.2, "top_p": 1, "seed": 7}, {"temperature": 0.2, "top_p": 1, "seed": 7}),
        ({"max_completion_tokens": 9}, {"max_output_tokens": 9}),
        ({"max_tokens": 9}, {"max_output_tokens": 9}),
        ({"max_output_tokens": 9}, {"max_output_tokens": 9}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"reasoning": {"summary": "auto"}, "reasoning_effort": "low"},
            {"reasoning": {"summary": "auto", "effort": "low"}},
        ),
        (
            {"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
            {"reasoning": {"summary": "auto", "effort": "low"}},
        ),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}, "strict": True}},
                "verbosity": "low",
            },
            {
                "text": {
                    "format": {"type": "json_schema", "name": "s", "schema": {}, "strict": True},
                    "verbosity": "low",
                }
            },
        ),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        ({"logprobs": True, "top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"logprobs": False}, {}),
        (
            {"include": ["reasoning.encrypted_content"], "logprobs": True},
            {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
        ),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "find"}}},
            {"tool_choice": {"type": "function", "name": "find"}},
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "find"}}]},
                }
            },
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "find"}],
                }
            },
        ),
    ],
)
def test_options_that_both_have_get_their_names_and_the_others_are_passed_on(
    options: dict[str, Any], translated: dict[str, Any]
) -> None:
    assert request_of(chat(**options)) == {"model": "m", "input": [], **translated}


def test_a_request_is_not_changed_by_its_translation() -> None:
    options = {"reasoning": {"summary": "auto"}, "reasoning_effort": "low", "include": ["a"], "logprobs": True}
    body = chat({"role": "user", "content": "Hello."}, **options)

    assert request_of(body) == request_of(body)
    assert (body["reasoning"], body["include"]) == ({"summary": "auto"}, ["a"])


@pytest.mark.parametrize("key", ["background", "store", "input", "instructions", "previous_response_id"])
def test_an_agent_cannot_set_what_the_adapter_sets(key: str) -> None:
    with pytest.raises(BadDefinition, match=f"not an option in the background: {key}"):
        Agent(name="a", version=1, instructions="", background=True, options={key: "x"})


def test_a_completed_response_is_a_reply_with_all_its_parts() -> None:
    logprobs = [{"token": "On ", "logprob": -0.5}, {"token": "it", "logprob": -0.25, "top_logprobs": []}]
    counted = {
        "input_tokens": 70,
        "output_tokens": 30,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens_details": {"reasoning_tokens": 20},
    }

    given = reply(said("On it", logprobs=logprobs), usage=counted)

    assert given == Reply(
        text="On it",
        calls=(),
        finish_reason="stop",
        refusal=None,
        usage=Usage(tokens_in=70, tokens_out=30, tokens_cached=64, tokens_reasoning=20),
        model="m",
        response_id="resp_1",
        logprobs=(("On ", -0.5), ("it", -0.25)),
    )


@pytest.mark.promise("E13")
@pytest.mark.parametrize("usage", [None, {"input_tokens": None, "output_tokens": "many"}, 7])
def test_tokens_are_estimated_where_the_provider_does_not_count(usage: Any) -> None:
    assert reply(said("A word or two."), usage=usage).usage == estimated_usage(BODY, "A word or two.")


@pytest.mark.promise("E12")
def test_parallel_calls_keep_their_ids_and_their_arguments_as_they_came() -> None:
    given = reply(
        said("I look."),
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "find", "arguments": '{"half": '},
        {"type": "function_call", "id": "fc_2", "call_id": None, "name": "find", "arguments": {"order": 7}},
    )

    assert given.calls == (
        RawCall(provider_id="a", name="find", arguments='{"half": '),
        RawCall(provider_id="", name="find", arguments='{"order": 7}'),
    )
    assert (given.text, given.finish_reason) == ("I look.", "tool_calls")


@pytest.mark.case("pydantic/pydantic-ai#6401")
def test_items_and_parts_of_kinds_that_nobody_knows_are_left_out() -> None:
    given = reply(
        {"type": "reasoning", "summary": []},
        {"type": "from_the_future", "content": 7, "call_id": []},
        {"type": "message", "content": [{"type": "hologram", "text": 7}, {"type": "output_text", "text": "So"}]},
        {"content": "no type"},
        said("be it."),
    )

    assert (given.text, given.calls, given.finish_reason) == ("So\n\nbe it.", (), "stop")


def test_texts_are_storable() -> None:
    assert reply(said("\ud83c\udf89\x00")).text == "\U0001f389\ufffd"


@pytest.mark.promise("E12")
def test_a_refusal_is_told_apart_from_an_answer() -> None:
    given = reply({"type": "message", "content": [{"type": "refusal", "refusal": "I will not."}]})

    assert (given.text, given.refusal) == ("", "I will not.")


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "mood"}, "mood"),
        ({}, "incomplete"),
        (None, "incomplete"),
    ],
)
def test_an_incomplete_response_says_where_it_was_cut(details: Any, reason: str) -> None:
    given = reply(said("and then"), status="incomplete", incomplete_details=details)

    assert (given.text, given.finish_reason) == ("and then", reason)


@pytest.mark.promise("E6")
@pytest.mark.parametrize(
    ("error", "heals", "overflow"),
    [
        ({"code": "server_error", "message": "Failed."}, True, False),
        ({"code": "rate_limit_exceeded", "message": "Slow down."}, True, False),
        ({"code": "invalid_prompt", "message": "No."}, False, False),
        ({"code": "context_length_exceeded", "message": "Too long."}, False, True),
        ({"code": "insufficient_quota", "message": "Pay."}, False, False),
        (None, True, False),
        ("odd", True, False),
    ],
)
def test_a_failed_response_is_an_error_that_heals_or_not(error: Any, heals: bool, overflow: bool) -> None:
    with pytest.raises(ProviderError) as raised:
        reply(status="failed", error=error)

    assert (raised.value.heals, raised.value.overflow, raised.value.status) == (heals, overflow, None)


@pytest.mark.promise("E4", "E13")
@pytest.mark.parametrize(("code", "heals"), [("server_error", True), ("bio_policy", False)])
def test_what_a_failed_response_had_said_and_cost_is_kept(code: str, heals: bool) -> None:
    with pytest.raises(Interrupted) as raised:
        reply(
            said("Half of"),
            status="failed",
            error={"code": code, "message": "Failed."},
            usage={"input_tokens": 5, "output_tokens": 2},
        )

    assert (raised.value.text, raised.value.usage) == ("Half of", Usage(tokens_in=5, tokens_out=2))
    assert (raised.value.heals, raised.value.reason) == (heals, "the response failed: Failed.")


@pytest.mark.promise("E7")
@pytest.mark.parametrize(("status", "heals"), [("cancelled", False), ("expired", True)])
def test_a_response_that_somebody_else_ended_is_no_reply(status: str, heals: bool) -> None:
    with pytest.raises(Interrupted) as raised:
        reply(said("Half"), status=status)

    assert (raised.value.text, raised.value.heals) == ("Half", heals)


@pytest.mark.parametrize(
    "output", [[7], ["text"], 7, [{"type": "message", "content": [{"type": "output_text", "text": 7}]}]]
)
def test_an_output_that_makes_no_sense_is_no_reply(output: Any) -> None:
    with pytest.raises(Interrupted, match="makes no sense"):
        reply_of(Response(content={"id": "r", "status": "completed", "output": output}), BODY)


@pytest.mark.promise("E7")
@pytest.mark.parametrize("status", ["queued", "in_progress", "thinking_hard", None])
def test_a_response_is_pending_until_a_known_end(status: str | None) -> None:
    assert Response(content={"id": "r", "status": status}).pending


@given(looks=st.integers(0, 10_000), asked=st.none() | st.floats(0, 3600), spread=st.floats(0, 1))
def test_looks_become_rarer_up_to_a_limit_and_are_never_sooner_than_asked(
    looks: int, asked: float | None, spread: float
) -> None:
    seconds = look_seconds(looks, asked_for=asked, spread=spread)

    assert seconds >= max(FIRST_LOOK_SECONDS, asked or 0)
    assert seconds <= max(LONGEST_LOOK_SECONDS, asked or 0) * 1.25
    assert asked is not None or seconds <= look_seconds(looks + 1, asked_for=None, spread=spread)
