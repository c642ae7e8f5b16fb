"""How many tokens a request has: what the provider counted last, and an estimate of what has come since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brainhands.brain import prompt
from brainhands.shared.model.event import ModelOutput, Usage
from brainhands.shared.rules.tokens import estimate_json


def count_request(body: dict[str, Any], events: Sequence[prompt.ContextEvent]) -> int:
    """About how many tokens the body has that was rendered from these events."""
    counted = _last_counted(events)
    if counted is None:
        return estimate_json(body)
    messages = body["messages"]
    said = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    # What it thought before it spoke is counted as output, and not sent again.
    spoken = max(0, counted.tokens_out - counted.tokens_reasoning)
    return counted.tokens_in + spoken + estimate_json(messages[said + 1 :])


def _last_counted(events: Sequence[prompt.ContextEvent]) -> Usage | None:
    """The use of the last reply that is part of the context; what was counted before a compaction is not its length."""
    compacted = prompt.newest_compaction(events)
    for event in reversed(events):
        if compacted is not None and event.seq < compacted.seq:
            return None
        if isinstance(event.payload, ModelOutput) and prompt.is_shown(event.payload):
            return event.payload.usage
    return None
