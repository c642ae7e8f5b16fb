"""Names on the broker: queues, Celery tasks, bells, and the shape of a hint message.

A hint message has the kwargs `{"v": 1, "hints": [[task, session], ...]}`, ids as strings. It says only that the tasks
may be runnable; the claim in Postgres decides. A readable form, for Flower and logs, is in the message's `kwargsrepr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.model.ids import SessionId, TaskId

BRAIN_QUEUE = "brain.default"
HANDS_QUEUE = "hands.default"
BRAIN_TASK = "brain.advance"
HANDS_TASK = "hands.advance"
RELAY_BELL = "brainhands:bell:relay"


def session_topic(session_id: SessionId) -> str:
    """The channel on which observers of a session hear that something was committed."""
    return f"brainhands:session:{session_id}"


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
