"""The life of a task: every legal move is a row of TASK_MOVES; a move that is not there is refused.

A task runs only under a claim. Whoever ends a claim (the owner by a commit, a release, the sweep at the end of a lease)
gives the task a new fence, so that writes under the old one are refused. `phase_attempts` counts the claims of a phase
that no commit of that phase has answered: raised by the claim, reset by the phase's commit, given back by a release.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from brainhands.shared.errors import StaleWrite
from brainhands.shared.model.ids import WorkerId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.rules.times import later

MOST_REFUSALS = 200
"""Refusals that a task remembers, the newest; hosts come and go while it is blocked."""


class Move(StrEnum):
    CLAIM = "claim"
    NEXT = "next"
    RELEASE = "release"
    EXPIRE = "expire"
    SLEEP = "sleep"
    WAKE = "wake"
    WAIT = "wait"
    READY = "ready"
    COMPLETE = "complete"
    END = "end"
    BLOCK = "block"
    UNBLOCK = "unblock"
    CANCEL = "cancel"


TASK_MOVES: dict[tuple[Status, Move], Status] = {
    (Status.PENDING, Move.CLAIM): Status.RUNNING,
    (Status.PENDING, Move.BLOCK): Status.PENDING,
    (Status.PENDING, Move.UNBLOCK): Status.PENDING,
    (Status.RUNNING, Move.NEXT): Status.RUNNING,
    (Status.RUNNING, Move.RELEASE): Status.PENDING,
    (Status.RUNNING, Move.EXPIRE): Status.PENDING,
    (Status.RUNNING, Move.SLEEP): Status.SLEEPING,
    (Status.RUNNING, Move.WAIT): Status.WAITING,
    (Status.RUNNING, Move.COMPLETE): Status.COMPLETING,
    (Status.RUNNING, Move.END): Status.DONE,
    (Status.RUNNING, Move.CANCEL): Status.RUNNING,
    (Status.SLEEPING, Move.WAKE): Status.PENDING,
    (Status.WAITING, Move.READY): Status.PENDING,
    (Status.COMPLETING, Move.END): Status.DONE,
    # A cancel ends a task in whatever status it finds it, without a worker.
    (Status.PENDING, Move.COMPLETE): Status.COMPLETING,
    (Status.PENDING, Move.END): Status.DONE,
    (Status.SLEEPING, Move.COMPLETE): Status.COMPLETING,
    (Status.SLEEPING, Move.END): Status.DONE,
    (Status.WAITING, Move.COMPLETE): Status.COMPLETING,
    (Status.WAITING, Move.END): Status.DONE,
}


def claim(task: Task, *, worker_id: WorkerId, now: datetime, lease_seconds: float, phase_seconds: float) -> Task:
    """The task owned by a worker under a new fence until the lease ends, which is never after the phase's deadline."""
    deadline = later(now, phase_seconds)
    return _move(
        task,
        Move.CLAIM,
        fence=task.fence + 1,
        phase_attempts=task.phase_attempts + 1,
        worker_id=worker_id,
        deadline=deadline,
        lease_until=min(later(now, lease_seconds), deadline),
        blocked=None,
    )


def go_on(
    task: Task, *, phase: str, checkpoint: Json, now: datetime, lease_seconds: float, phase_seconds: float
) -> Task:
    """The same owner enters the next phase, with a deadline of its own."""
    deadline = later(now, phase_seconds)
    return _move(
        task,
        Move.NEXT,
        step=task.step + 1,
        phase=phase,
        checkpoint=checkpoint,
        phase_attempts=1,
        refused_by=(),
        deadline=deadline,
        lease_until=min(later(now, lease_seconds), deadline),
    )


def release(task: Task, *, phase: str, checkpoint: Json, stepped: bool) -> Task:
    """The owner gives the task back: after a commit (`stepped`), or unstarted, which gives the attempt back too."""
    return _give_up(
        task,
        Move.RELEASE,
        phase=phase,
        checkpoint=checkpoint,
        step=task.step + stepped,
        phase_attempts=0 if stepped else max(0, task.phase_attempts - 1),
        refused_by=() if stepped else task.refused_by,
    )


def expire(task: Task) -> Task:
    """The lease ended without a commit: the task is pending again in its stored phase, its attempt counted."""
    return _give_up(task, Move.EXPIRE)


def sleep(task: Task, *, phase: str, checkpoint: Json, wake_at: datetime) -> Task:
    return _give_up(
        task,
        Move.SLEEP,
        step=task.step + 1,
        phase=phase,
        checkpoint=checkpoint,
        phase_attempts=0,
        refused_by=(),
        wake_at=wake_at,
    )


def wake(task: Task) -> Task:
    return _move(task, Move.WAKE, wake_at=None)


def wait(task: Task, *, phase: str, checkpoint: Json) -> Task:
    return _give_up(
        task, Move.WAIT, step=task.step + 1, phase=phase, checkpoint=checkpoint, phase_attempts=0, refused_by=()
    )


def wait_for_signal(task: Task, *, phase: str, checkpoint: Json, name: str, key: str, until: datetime) -> Task:
    waiting = wait(task, phase=phase, checkpoint=checkpoint)
    return replace(waiting, signal_name=name, signal_key=key, wake_at=until)


def ready(task: Task) -> Task:
    return _move(task, Move.READY)


def signalled(task: Task, signal: Json) -> Task:
    """The task goes on with a signal, or without one (None), which its next phase finds in the checkpoint."""
    checkpoint = {**task.checkpoint, "signal": signal}
    return _move(task, Move.READY, checkpoint=checkpoint, signal_name=None, signal_key=None, wake_at=None)


def complete(task: Task, *, outcome: Outcome, result: Json, error: str | None) -> Task:
    """The outcome is decided, but owned work is still open."""
    return _decide(task, Move.COMPLETE, outcome, result, error)


def end(task: Task, *, outcome: Outcome, result: Json, error: str | None) -> Task:
    """The task is done with its outcome; a completing one keeps the outcome it had."""
    if task.status is Status.COMPLETING:
        return _move(task, Move.END)
    return _decide(task, Move.END, outcome, result, error)


def want_cancel(task: Task) -> Task:
    """A running task shall end: its owner is told, and can only end it now."""
    return _move(task, Move.CANCEL, cancel_wanted=True)


def block(task: Task, reason: str, *, refused_by: str | None = None) -> Task:
    """Nobody can go on with a pending task, for a stated reason; `refused_by` is a host that tried."""
    refusals = task.refused_by if refused_by is None else (*task.refused_by, refused_by)
    return _move(task, Move.BLOCK, blocked=reason, refused_by=refusals[-MOST_REFUSALS:])


def unblock(task: Task) -> Task:
    return _move(task, Move.UNBLOCK, blocked=None)


def _decide(task: Task, move: Move, outcome: Outcome, result: Json, error: str | None) -> Task:
    owned = task.status is Status.RUNNING
    return _give_up(
        task,
        move,
        step=task.step + owned,
        phase_attempts=0,
        outcome=outcome,
        result=result,
        error=error,
        wake_at=None,
        signal_name=None,
        signal_key=None,
        blocked=None,
    )


def _give_up(task: Task, move: Move, **changes: Any) -> Task:
    return _move(
        task,
        move,
        fence=task.fence + 1,
        worker_id=None,
        lease_until=None,
        deadline=None,
        holds_slots=False,
        **changes,
    )


def _move(task: Task, move: Move, **changes: Any) -> Task:
    status = TASK_MOVES.get((task.status, move))
    if status is None:
        raise StaleWrite(f"task {task.id} is {task.status} and cannot {move}")
    return replace(task, status=status, **changes)
