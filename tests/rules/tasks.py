"""Tasks in each status, as the kernel's tests need them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from brainhands.shared.model.ids import SessionId, TaskId, WorkerId
from brainhands.shared.model.task import Outcome, Requirement, Status, Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = WorkerId(UUID(int=9))

LAWFUL: dict[Status, dict[str, Any]] = {
    Status.PENDING: {},
    Status.RUNNING: {
        "fence": 3,
        "worker_id": WORKER,
        "lease_until": NOW + timedelta(seconds=30),
        "deadline": NOW + timedelta(seconds=60),
    },
    Status.WAITING: {"fence": 4},
    Status.SLEEPING: {"fence": 4, "wake_at": NOW},
    Status.COMPLETING: {"fence": 4, "outcome": Outcome.CANCELLED, "result": "decided"},
    Status.DONE: {"fence": 4, "outcome": Outcome.SUCCEEDED, "result": "done"},
}


def task(status: Status = Status.PENDING, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": TaskId(UUID(int=1)),
        "session_id": SessionId(UUID(int=2)),
        "conversation_id": None,
        "owner_id": None,
        "submission_id": None,
        "kind": "play",
        "version": 1,
        "requires": Requirement(name="play", version=1),
        "input": {},
        "cause": 1,
        "priority": 0,
        "status": status,
        "phase": "first",
        "checkpoint": {"at": "first"},
        "step": 5,
        "phase_attempts": 2,
        "created_at": NOW,
    }
    return Task(**{**fields, **LAWFUL[status], **changes})
