"""The draft of a commit: what a step, a submission or the sweep wants stored, filled under the session's lock.

The draft keeps the session's head, its events and its tasks. What it is told by subject (questions, signals, inbox,
documents, ends) are functions over it in modules of their own, which add rows by `write`. `closing.freeze` settles what
follows from all of it and gives the commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias, TypeVar

from brainhands.shared.errors import OlderWorkers
from brainhands.shared.model import prices
from brainhands.shared.model.commit import (
    AttemptsGone,
    AttemptStep,
    NewAttempt,
    NewTask,
    NewWait,
    SlotsHandedOn,
    TaskChange,
    Use,
    Write,
)
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import ModelUse, Payload, TaskCreated, Usage
from brainhands.shared.model.ids import ConversationId, SubmissionId, TaskId, WorkerId
from brainhands.shared.model.json import Json, storable_text
from brainhands.shared.model.session import Session
from brainhands.shared.model.task import Attempt, Outcome, Requirement, Status, Task, Transition
from brainhands.shared.rules import chain, moves
from brainhands.shared.store.locked import Locked


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who writes: recorded in every event."""

    worker_id: WorkerId | None = None
    pool: str | None = None
    environment: str | None = None


NOBODY = Origin()

MANY_CLAIMS = 8
"""A task with such a fence was claimed a few times: of one that wakes again and again not every attempt is kept."""


Total = TypeVar("Total", Session, Use)
Row = TypeVar("Row", bound=Write)


def _with_use(total: Total, usage: Usage | Use) -> Total:
    return replace(
        total,
        tokens_in=total.tokens_in + usage.tokens_in,
        tokens_out=total.tokens_out + usage.tokens_out,
        cost=prices.added(total.cost, usage.cost),
    )


class Draft:
    """A write set in the making.

    Unless it may write `any_format`, an event that not every live worker could read is refused with OlderWorkers.
    """

    def __init__(self, locked: Locked, origin: Origin, *, new_session: bool = False, any_format: bool = False) -> None:
        self.locked = locked
        self.now = locked.now
        self.session = locked.session
        self.new_session = new_session
        self._origin = origin
        self._any_format = any_format or new_session
        self._before: dict[TaskId, Task] = dict(locked.tasks)
        self.changed: dict[TaskId, Task] = {}
        self.made: dict[TaskId, Task] = {}
        self.finishing: dict[TaskId, tuple[Outcome, Json, str | None]] = {}
        """Tasks whose outcome is decided, with result and error; `freeze` ends them."""
        self.waits: dict[TaskId, list[NewWait]] = {}
        self.waits_over: list[TaskId] = []
        self.hint_delays: dict[TaskId, float] = {}
        """Seconds before a pending task's hint is due, where that is not at once."""
        self.used: dict[SubmissionId, Use] = {}
        self.documents: dict[str, tuple[StoredDocument | None, StoredDocument]] = {}
        """Changed documents, each as it was and as it shall be."""
        self._attempts: dict[tuple[TaskId, int], NewAttempt] = {}
        self._writes: list[Write] = []
        self.handed_on: tuple[Task, Decide] | None = None
        """A new task that the worker of this step shall go on with at once, with the step of its first phase."""

    def write(self, *rows: Write) -> None:
        """Add rows to the commit."""
        self._writes += rows

    def of(self, kind: type[Row]) -> list[Row]:
        """The rows of a kind so far."""
        return [row for row in self._writes if type(row) is kind]

    @property
    def writes(self) -> list[Write]:
        """All rows so far, but for tasks and what `freeze` makes of them."""
        return [*self._writes, *self._attempts.values()]

    @property
    def tasks(self) -> list[NewTask | TaskChange]:
        """The tasks that are made, and those that are changed, by id: so all commits write them in one order."""
        return [
            *(NewTask(task) for task in self.made.values()),
            *(
                TaskChange(before=self._before[task_id], after=after)
                for task_id, after in sorted(self.changed.items())
                if after is not self._before[task_id]
            ),
        ]

    def task(self, task_id: TaskId) -> Task:
        """The task as this draft leaves it so far."""
        return self.made.get(task_id) or self.changed.get(task_id) or self._before[task_id]

    def load(self, tasks: Iterable[Task]) -> None:
        """Make tasks known that were read under the lock."""
        for task in tasks:
            self._before.setdefault(task.id, task)

    def event(
        self,
        payload: Payload,
        *,
        causes: Iterable[int],
        task: Task | None = None,
        conversation_id: ConversationId | None = None,
    ) -> int:
        """Append a fact and return its seq; conversation and fence are the task's where it has them.

        What a model call used is added to the totals of the session and of the task's submission. Raises OlderWorkers.
        """
        newer = payload.log_format > self.session.log_format
        if newer and not self._any_format and payload.log_format > self.locked.fleet_format():
            raise OlderWorkers(payload.log_format)
        usage = payload.usage if isinstance(payload, ModelUse) else None
        self.session, event = chain.append(
            self.session,
            payload,
            causes=causes,
            now=self.now,
            salt=os.urandom(16),
            conversation_id=conversation_id or (task.conversation_id if task else None),
            task=task,
            worker_id=self._origin.worker_id,
            pool=self._origin.pool,
            environment=self._origin.environment,
            tokens_in=usage.tokens_in if usage else None,
            tokens_out=usage.tokens_out if usage else None,
        )
        self.write(event)
        if usage is not None:
            self.session = _with_use(self.session, usage)
            if task is not None and task.submission_id is not None:
                self.used[task.submission_id] = _with_use(self.used.get(task.submission_id, Use()), usage)
        return event.seq

    def used_for(self, submission_id: SubmissionId) -> Use:
        """What model calls have used for a submission, this draft's included."""
        return _with_use(self.locked.submission_use(submission_id), self.used.get(submission_id, Use()))

    def add(self, task: Task) -> None:
        """Make a task."""
        self.made[task.id] = task

    def hand_on(self, task: Task, first_step: Decide) -> None:
        """Make a task and let the worker of this step claim it in the same commit, unless it drains."""
        self.add(task)
        self.handed_on = (task, first_step)

    def spawn(self, task: Task) -> Task:
        """Make a task that the present one owns, with the event that says so as its cause."""
        payload = TaskCreated(task=str(task.id), kind=task.kind, kind_version=task.version)
        owner = self.task(task.owner_id) if task.owner_id else None
        seq = self.event(payload, causes=[task.cause], task=owner, conversation_id=task.conversation_id)
        spawned = replace(task, cause=seq)
        self.add(spawned)
        return spawned

    def change(self, after: Task) -> None:
        """Record a task as a move left it."""
        if after.id in self.made:
            self.made[after.id] = after
        else:
            self.changed[after.id] = after

    def claim(self, task: Task, *, worker_id: WorkerId, lease_seconds: float, phase_seconds: float) -> Task:
        """Give the task to a worker, as a new attempt."""
        claimed = moves.claim(
            task, worker_id=worker_id, now=self.now, lease_seconds=lease_seconds, phase_seconds=phase_seconds
        )
        assert claimed.deadline is not None
        self.change(claimed)
        attempt = Attempt(
            task_id=task.id,
            fence=claimed.fence,
            worker_id=worker_id,
            phase=task.phase,
            started_at=self.now,
            deadline=claimed.deadline,
            progress="",
            late_result=None,
        )
        self._attempts[task.id, claimed.fence] = NewAttempt(attempt=attempt, step=0, ended=False)
        if task.fence >= MANY_CLAIMS and task.phase_attempts == 0:
            # The last attempt stays, since a repeated COMMIT looks for its step there.
            self.write(AttemptsGone(task.id, before=task.fence - 1, phase=task.phase))
        return claimed

    def running_claim(self) -> Task | None:
        """The task that this draft claims and leaves running."""
        claimed = (self.task(task_id) for task_id, _ in self._attempts if task_id not in self.finishing)
        return next((task for task in claimed if task.status is Status.RUNNING), None)

    def hold_slots(self, task: Task) -> None:
        """The claim of a running task has taken slots, which whatever ends it frees."""
        self.change(replace(task, holds_slots=True))

    def pass_slots_on(self, task: Task, onward: Task) -> None:
        """Let a running task, whose work another one takes up in this commit, leave it the slots that it holds."""
        self.write(SlotsHandedOn(task.id, onward.id))
        self.hold_slots(onward)

    def record_step(self, owned: Task, *, progress: str | None, deadline: datetime | None) -> None:
        """Note in the attempt of `owned` that it committed a step, which is how a repeated try finds itself done.

        `deadline` is the next phase's, where the attempt goes on; None ends it.
        """
        step = owned.step + 1
        new = self._attempts.get((owned.id, owned.fence))
        if new is None:
            self.write(
                AttemptStep(task_id=owned.id, fence=owned.fence, step=step, progress=progress, deadline=deadline)
            )
        else:
            # The row of an attempt that this commit makes is written once, with its last step.
            attempt = replace(new.attempt, deadline=deadline or new.attempt.deadline)
            self._attempts[owned.id, owned.fence] = NewAttempt(attempt=attempt, step=step, ended=deadline is None)

    def record_end(self, owned: Task) -> None:
        """Note in the attempt of `owned` that it ends with no step, and not by the end of its process."""
        self.write(AttemptStep(task_id=owned.id, fence=owned.fence, step=None, progress=None, deadline=None))

    def finish(self, task: Task, outcome: Outcome, *, result: Json = None, error: str | None = None) -> None:
        """Decide the task's outcome; it is done now, or completing until the work it owns has ended."""
        self.finishing[task.id] = (outcome, result, None if error is None else storable_text(error))

    def wait(self, waiter: Task, dependencies: Sequence[TaskId], *, fail_fast: bool = False) -> None:
        """Let a waiting task wait for others of its session; what has ended already is not waited for."""
        self.waits[waiter.id] = [
            NewWait(waiter_id=waiter.id, dependency_id=each, fail_fast=fail_fast)
            for each in dict.fromkeys(dependencies)
        ]

    def wait_also(self, waiter_id: TaskId, new_task_id: TaskId) -> None:
        """Let a task that waits already wait for a new one too, made by this draft."""
        self.waits[waiter_id] = [NewWait(waiter_id=waiter_id, dependency_id=new_task_id, fail_fast=False)]

    def end_wait(self, waiter: Task) -> None:
        """Nothing that the task waits for is open any more."""
        self.change(moves.ready(waiter))
        self.waits_over.append(waiter.id)

    def require(self, task_id: TaskId, requirement: Requirement) -> Task:
        """Raise what a task asks of the worker that goes on with it."""
        task = replace(self.task(task_id), requires=requirement)
        self.change(task)
        return task


Decide: TypeAlias = Callable[[Draft], Transition]
"""Fills the draft of a step's commit and says where its task goes."""
