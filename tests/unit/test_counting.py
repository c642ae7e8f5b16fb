"""How many tokens a request is taken to have."""

from __future__ import annotations

import pytest

from brainhands.brain.counting import count_request
from brainhands.shared.model.event import (
    ContextCompacted,
    ModelCall,
    ModelOutput,
    Payload,
    ToolCallSuccess,
    Usage,
    UserMessage,
)
from brainhands.shared.rules.tokens import estimate_json
from tests.unit.test_prompt import body, log, prompt, user

CALL = ModelCall(call_id="c1", provider_id="c1", name="send", arguments="{}")
RESULT = ToolCallSuccess(
    call_id="c1", tool="send", version=1, arguments={}, operation_id=None, replay=None, result="r" * 400
)


def said(*, text: str = "Yes.", usage: Usage, refusal: str | None = None, calls: tuple[ModelCall, ...] = ()) -> Payload:
    return ModelOutput(
        text=text,
        calls=list(calls),
        finish_reason="tool_calls" if calls else "stop",
        refusal=refusal,
        model="m",
        usage=usage,
        request_digest="d",
    )


def count(*payloads: Payload) -> int:
    events = log(*payloads)
    return count_request(body(events), events)


def test_without_a_reply_the_whole_request_is_estimated() -> None:
    events = log(prompt(), user("a" * 4000))

    assert count_request(body(events), events) == estimate_json(body(events))
    assert 1000 < count_request(body(events), events) < 1100


@pytest.mark.promise("E10")
def test_what_the_provider_counted_is_taken_and_only_what_came_since_is_estimated() -> None:
    usage = Usage(tokens_in=50_000, tokens_out=700, tokens_reasoning=600)

    assert count(prompt(), user("short"), said(usage=usage), user("b" * 400)) == pytest.approx(
        50_000 + 100 + 100, abs=15
    )
    assert count(user(), said(usage=usage, calls=(CALL,)), RESULT) == pytest.approx(50_000 + 100 + 100, abs=25)


def test_a_reply_that_is_not_shown_counts_for_nothing() -> None:
    good, bad = Usage(tokens_in=1000, tokens_out=10), Usage(tokens_in=9000, tokens_out=10)

    assert count(user(), said(usage=good), user(), said(usage=bad, refusal="No.")) == pytest.approx(1010, abs=15)
    assert count(user(), said(usage=good), user(), said(usage=bad, text="  ")) == pytest.approx(1010, abs=15)


@pytest.mark.promise("E10")
def test_what_was_counted_before_a_compaction_is_not_the_length_after_it() -> None:
    before = said(usage=Usage(tokens_in=9000, tokens_out=10))
    compacted = ContextCompacted(upto=1, summary="s", tokens_before=9000, tokens_after=10, model="m", usage=Usage())
    after = said(usage=Usage(tokens_in=80, tokens_out=5))

    assert count(UserMessage(text="old", submission="s"), user(), before, compacted) < 100
    assert count(user(), user(), before, compacted, user(), after) == 85


def test_reasoning_that_exceeds_the_output_takes_nothing_away() -> None:
    usage = Usage(tokens_in=100, tokens_out=5, tokens_reasoning=50)

    assert count(user(), said(usage=usage)) == 100 + estimate_json([])
