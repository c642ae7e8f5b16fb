"""Entries of queues: what is read of them, and what a worker makes of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from brainhands.shared.bus.topics import own_entry, read_entry, write_hints
from brainhands.shared.model.ids import new_session_id, new_task_id

HINT = (new_task_id(), new_session_id())


def written(kwargs: object, **headers: Any) -> dict[str, Any]:
    """A message as Celery writes it."""
    body = base64.b64encode(json.dumps([[], kwargs, {"chain": None}]).encode()).decode()
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "brain.advance", "id": "given", "kwargsrepr": "note session=1", **headers},
        "properties": {"body_encoding": "base64", "reply_to": "somebody", "priority": 9},
    }


@pytest.mark.parametrize("shown", ["note session=1", "note\x1b[2J session=1", "x" * 1000, 7, None])
def test_an_entry_is_written_anew_from_its_ids_and_a_plain_readable_form_only(shown: object) -> None:
    foreign = written(write_hints([HINT]), eta="2999", timelimit=[1, 1], expires=1, kwargsrepr=shown, shadow="other")
    own = json.loads(own_entry(json.dumps(foreign).encode(), "hands.gpu") or "")

    assert read_entry(json.dumps(own).encode()) == [HINT]
    assert json.loads(base64.b64decode(own["body"])) == [[], write_hints([HINT]), {}]
    readable = shown if shown == "note session=1" else f"session={HINT[1]}"
    assert own["headers"].pop("id") == own["properties"]["delivery_tag"] != "given"
    assert own["headers"] == {"task": "hands.advance", "argsrepr": "()", "kwargsrepr": readable}
    assert own["properties"]["delivery_info"] == {"exchange": "", "routing_key": "hands.gpu"}


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"hint",
        b"\xff",
        b"null",
        b"[" * 100_000,
        json.dumps({"body": 1, "headers": {}}).encode(),
        json.dumps({"body": "[" * 10, "headers": {}}).encode(),
        json.dumps(written(write_hints([HINT])) | {"headers": []}).encode(),
        json.dumps(written([1, 2])).encode(),
        json.dumps(written(write_hints([]))).encode(),
        json.dumps(written({**write_hints([HINT]), "v": {"__type__": "bytes", "__value__": 3}})).encode(),
        json.dumps(written(write_hints([HINT] * 257))).encode(),
        json.dumps(written(write_hints([HINT]), padding="x" * 70_000)).encode(),
    ],
)
def test_an_entry_that_is_no_hint_is_none(entry: bytes) -> None:
    assert own_entry(entry, "brain.default") is None
    assert read_entry(entry) == []
