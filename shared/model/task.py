"""Tasks: durable units of work, and the small closed set of what a phase may return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Literal, TypeAlias

from brainhands.shared.model.ids import ConversationId, SessionId, SubmissionId, TaskId, WorkerId
from brainhands.shared.model.json import Json


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    SLEEPING = "sleeping"
    COMPLETING = "completing"
    DONE = "done"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class Priority(IntEnum):
    """Whose turn it is sooner where both wait; neither starves the other."""

    INTERACTIVE = 0
    """Somebody waits for it."""
    BATCH = 1


PriorityName: TypeAlias = Priority | Literal["interactive", "batch"]
"""A priority as callers write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """What a worker must offer to run a task: `agent:notices` at version 3, or at any version (None)."""

    name: str
    version: int | None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task as stored; times are aware UTC by the database's clock."""

    id: TaskId
    session_id: SessionId
    conversation_id: ConversationId | None
    owner_id: TaskId | None
    submission_id: SubmissionId | None
    kind: str
    version: int
    requires: Requirement
    input: Json
    cause: int
    """Seq of the event that this task answers."""
    priority: Priority
    status: Status
    outcome: Outcome | None = None
    phase: str
    checkpoint: Json = field(default_factory=dict)
    result: Json = None
    error: str | None = None
    fence: int = 0
    step: int = 0
    """Commits made by owners of this task."""
    phase_attempts: int = 0
    """Claims of the present phase that no commit of that phase has answered yet."""
    worker_id: WorkerId | None = None
    lease_until: datetime | None = None
    deadline: datetime | None = None
    """When the present phase must have ended; no lease is renewed past it."""
    wake_at: datetime | None = None
    signal_name: str | None = None
    signal_key: str | None = None
    """The signal that a waiting task waits for, until `wake_at`."""
    blocked: str | None = None
    refused_by: tuple[str, ...] = ()
    """The worker hosts that could not read what the present phase needs; they do not try it again."""
    cancel_wanted: bool = False
    """The task shall end; while it runs, its owner is told."""
    holds_slots: bool = False
    """Its claim took slots, which are freed with it."""
    created_at: datetime

    @property
    def causes(self) -> list[int]:
        """The event that this task answers, as causes of what comes of it; none for input that was only accepted."""
        return [self.cause] if self.cause else []

    @property
    def is_open(self) -> bool:
        return self.status is not Status.DONE


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One claim of a task: what it showed while it ran, and its result if that came too late to be applied."""

    task_id: TaskId
    fence: int
    worker_id: WorkerId
    phase: str
    started_at: datetime
    deadline: datetime
    progress: str
    late_result: Json


@dataclass(frozen=True, slots=True)
class Next:
    """Go on with `phase` at once. `checkpoint` replaces the stored one; None keeps it."""

    phase: str
    checkpoint: Json = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Go on with `phase` no sooner than `seconds` from now (or at `until`), holding nothing meanwhile."""

    seconds: float
    phase: str
    checkpoint: Json = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on with `phase` when all `tasks` have ended. An empty or already ended list goes on at once.

    With `fail_fast`, the first of them that does not succeed cancels those that the waiting task owns, and the task
    goes on when they have wound up.
    """

    tasks: Sequence[TaskId]
    phase: str
    checkpoint: Json = None
    fail_fast: bool = False


@dataclass(frozen=True, slots=True)
class WaitSignal:
    """Go on with `phase` when the signal comes or has come, or without it after `seconds`."""

    name: str
    phase: str
    seconds: float
    key: str = ""
    checkpoint: Json = None


@dataclass(frozen=True, slots=True)
class Done:
    """The task succeeded with `result`."""

    result: Json = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The task failed for sure, and `error` says why."""

    error: str
    result: Json = None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The task ends with an unknown effect."""

    error: str


Transition: TypeAlias = Next | Sleep | Wait | WaitSignal | Done | Fail | Interrupt

Final: TypeAlias = Done | Fail | Interrupt
"""What ends the task, also one that is to be cancelled: a completion that comes first wins."""
