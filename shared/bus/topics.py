"""Names on the broker: queues, Celery tasks, bells, and the shape of a hint message.

A hint message has the kwargs `{"v": 1, "hints": [[task, session], ...]}`, ids as strings. It says only that the tasks
may be runnable; the claim in Postgres decides. A readable form, for Flower and logs, is in the message's `kwargsrepr`.

Whoever can write to Redis can put anything into a queue, so a reader takes the ids of an entry, and its readable form
for display, and makes a message of its own from these: no time, limit, callback or type mark of an entry is looked at.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brainhands.shared.model.ids import SessionId, TaskId, new_uuid

BRAIN_QUEUE = "brain.default"
HANDS_QUEUE = "hands.default"
BRAIN_TASK = "brain.advance"
HANDS_TASK = "hands.advance"
RELAY_BELL = "brainhands:bell:relay"

ENTRY_BYTES = 64 * 1024
"""No message is longer: 256 hints take half of it."""

_READABLE = re.compile(r"[\w:.@= -]{1,200}", re.ASCII)


def task_name(queue: str) -> str:
    """The Celery task of the messages on a pool's queue."""
    return BRAIN_TASK if queue.startswith("brain.") else HANDS_TASK


def session_topic(session_id: SessionId) -> str:
    """The channel on which observers of a session hear that something was committed."""
    return f"brainhands:session:{session_id}"


def session_of_topic(topic: bytes) -> SessionId:
    return SessionId(UUID(topic.decode().rpartition(":")[2]))


class HintMessage(BaseModel):
    """The kwargs of a hint."""

    model_config = ConfigDict(extra="forbid")
    v: int = Field(ge=1, le=1)
    hints: list[tuple[UUID, UUID]] = Field(max_length=256)


def write_hints(hints: Sequence[tuple[TaskId, SessionId]]) -> dict[str, Any]:
    return {"v": 1, "hints": [[str(task), str(session)] for task, session in hints]}


def read_hints(kwargs: dict[str, Any]) -> list[tuple[TaskId, SessionId]]:
    """The hints of a message; an empty list if it is none of ours (forged, or of another version)."""
    try:
        message = HintMessage.model_validate(kwargs)
    except ValidationError:
        return []
    return [(TaskId(task), SessionId(session)) for task, session in message.hints]


def read_entry(entry: bytes) -> list[tuple[TaskId, SessionId]]:
    """The hints of what lies in a queue, if Celery wrote it; an empty list for anything else."""
    return read_hints(_parts(entry)[0])


def own_entry(entry: bytes, queue: str) -> str | None:
    """What lies in a queue, written anew from its ids and nothing else; None if it has none."""
    kwargs, readable = _parts(entry)
    hints = read_hints(kwargs)
    if not hints:
        return None
    body = json.dumps([[], write_hints(hints), {}])
    message_id = str(new_uuid())
    message = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "task": task_name(queue),
            "id": message_id,
            "argsrepr": "()",
            "kwargsrepr": readable or f"session={hints[0][1]}",
        },
        "properties": {
            "body_encoding": "base64",
            "correlation_id": message_id,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": message_id,
        },
    }
    return json.dumps(message)


def _parts(entry: bytes) -> tuple[dict[str, Any], str | None]:
    """The kwargs of an entry and their readable form, neither of them judged; empty for what Celery did not write."""
    if len(entry) > ENTRY_BYTES:
        return {}, None
    try:
        message = json.loads(entry)
        _, kwargs, _ = json.loads(base64.b64decode(message["body"]))
        readable = message["headers"].get("kwargsrepr")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}, None
    shown = isinstance(readable, str) and _READABLE.fullmatch(readable)
    return kwargs, readable if shown else None
