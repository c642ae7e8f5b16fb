"""A commit: the whole write set of one step, stored together or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import ApprovalId, SignalId, SubmissionId, TaskId
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Attempt, Outcome, Status, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """What an owner's commit must still find: its fence and the step it starts from."""

    task_id: TaskId
    fence: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskChange:
    """A task as it was read and as it shall be; stored only if status and fence are still those of `before`."""

    before: Task
    after: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class NewAttempt:
    """A claim made by this commit, and the last step that it commits at once (0 if none)."""

    attempt: Attempt
    step: int
    ended: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptStep:
    """A step that an attempt committed, with what it had shown until then."""

    task_id: TaskId
    fence: int
    step: int | None
    progress: str | None
    """Text shown so far; None leaves what is stored."""
    deadline: datetime | None
    """The next phase's deadline, when the attempt goes on; None ends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewWait:
    """A task that goes on when another has ended; `fail_fast` cancels what it owns if that one does not succeed."""

    waiter_id: TaskId
    dependency_id: TaskId
    fail_fast: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalChange:
    """A question as it was read and as it shall be; stored only if answer and use are still those of `before`."""

    before: Approval
    after: Approval


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxEntry:
    """Input put into a conversation's inbox."""

    submission: Submission
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmissionEnd:
    """The end of a submission; `output_text` is canonical JSON."""

    submission_id: SubmissionId
    outcome: Outcome
    output_text: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Redaction:
    """Content that a commit takes out of the store: of events, and where rows hold it a second time."""

    whole: bool = False
    """All that the session has; the rest need not be named then."""
    seqs: tuple[int, ...] = ()
    tasks: tuple[TaskId, ...] = ()
    """Ended tasks: input, checkpoint, result and error, and what their attempts showed."""
    inputs: tuple[SubmissionId, ...] = ()
    outputs: tuple[SubmissionId, ...] = ()
    approvals: tuple[ApprovalId, ...] = ()
    signals: tuple[SignalId, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmissionUse:
    """What model calls used for a submission: what a commit adds to its totals, or the totals."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The write set. `session` is the head after it; what is not named is not touched."""

    at: datetime
    """The database's time under the lock."""
    asked_at: float
    """This process's monotonic time before it asked for the lock, so no later than `at`."""
    session: Session
    new_session: bool = False
    conversations: tuple[Conversation, ...] = ()
    events: tuple[Event, ...] = ()
    documents: tuple[StoredDocument, ...] = ()
    new_tasks: tuple[Task, ...] = ()
    changes: tuple[TaskChange, ...] = ()
    waits: tuple[NewWait, ...] = ()
    waits_over: tuple[TaskId, ...] = ()
    """Waiters whose waits are settled."""
    attempts: tuple[NewAttempt, ...] = ()
    attempt_steps: tuple[AttemptStep, ...] = ()
    new_submissions: tuple[Submission, ...] = ()
    submissions_started: tuple[SubmissionId, ...] = ()
    submissions_ended: tuple[SubmissionEnd, ...] = ()
    submissions_used: dict[SubmissionId, SubmissionUse] = field(default_factory=dict)
    new_approvals: tuple[Approval, ...] = ()
    approvals: tuple[ApprovalChange, ...] = ()
    new_signals: tuple[tuple[Signal, bytes], ...] = ()
    """New signals, each with the digest of its request."""
    signals_taken: tuple[tuple[SignalId, TaskId], ...] = ()
    inbox: tuple[InboxEntry, ...] = ()
    inbox_taken: tuple[SubmissionId, ...] = ()
    redaction: Redaction | None = None
    slots_passed_on: tuple[tuple[TaskId, TaskId], ...] = ()
    """Slots that go over from the first task to the second, which goes on with its work."""
    hint_delays: dict[TaskId, float] = field(default_factory=dict)
    """Seconds before a pending task's hint is due, where that is not at once."""

    @property
    def pending(self) -> tuple[Task, ...]:
        """Tasks that this commit leaves runnable: each gets its hint row."""
        tasks = (*self.new_tasks, *(change.after for change in self.changes))
        return tuple(task for task in tasks if task.status is Status.PENDING and task.blocked is None)

    @property
    def no_longer_pending(self) -> tuple[TaskId, ...]:
        """Tasks whose hint row goes with this commit."""
        return tuple(
            change.after.id
            for change in self.changes
            if change.before.status is Status.PENDING
            and (change.after.status is not Status.PENDING or change.after.blocked is not None)
        )

    @property
    def slots_freed(self) -> tuple[TaskId, ...]:
        """Tasks whose claim ends with this commit, and with it the slots that it took."""
        passed_on = {from_task for from_task, _ in self.slots_passed_on}
        return tuple(
            change.after.id
            for change in self.changes
            if change.before.holds_slots and not change.after.holds_slots and change.after.id not in passed_on
        )

    def task(self, task_id: TaskId) -> Task | None:
        """The task as this commit leaves it, if the commit touches it."""
        for task in (*self.new_tasks, *(change.after for change in self.changes)):
            if task.id == task_id:
                return task
        return None
