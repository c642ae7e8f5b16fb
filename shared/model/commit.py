"""A commit: the whole write set of one step, a list of rows that are stored together or not at all.

What is stored as it is (an event, a document) is its own row here; what changes a row has a class of its own. How each
class is written, and in which order, stands in shared/store/writes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias, TypeVar

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import ApprovalId, SignalId, SubmissionId, TaskId
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Attempt, Outcome, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """What an owner's commit must still find: its fence and the step it starts from."""

    task_id: TaskId
    fence: int
    step: int


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is made."""

    after: Task


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


@dataclass(frozen=True, slots=True)
class AttemptsGone:
    """Attempts of a task before a fence that have nothing to tell: of a phase, ended by a commit, without any trace."""

    task_id: TaskId
    before: int
    phase: str


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


@dataclass(frozen=True, slots=True)
class WaitsOver:
    """Tasks whose waits are settled."""

    waiters: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """The hint row of a task that this commit leaves runnable, due after so many seconds."""

    task: Task
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class HintsGone:
    """Tasks whose hint row goes with this commit."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class SlotsHandedOn:
    """The slots of a task go over to another one, which goes on with its work."""

    from_task: TaskId
    to_task: TaskId


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Tasks whose claim ends with this commit, and with it the slots that it took."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalChange:
    """A question as it was read and as it shall be; stored only if answer and use are still those of `before`."""

    before: Approval
    after: Approval


@dataclass(frozen=True, slots=True)
class NewSignal:
    """A signal, with the digest of the request that sent it."""

    signal: Signal
    request_digest: bytes


@dataclass(frozen=True, slots=True)
class TakenSignal:
    """A stored signal goes to a task that waited for it."""

    signal_id: SignalId
    task_id: TaskId


@dataclass(frozen=True, slots=True)
class NewInput:
    """Input put into a conversation's inbox."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class TakenInput:
    """Input that leaves its inbox."""

    submission_id: SubmissionId


@dataclass(frozen=True, slots=True)
class SubmissionStart:
    """The work on a submission begins, if it has not yet."""

    submission_id: SubmissionId


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """What model calls used for a submission: what a commit adds to its totals, or the totals."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class SubmissionUse:
    """What a commit adds to the totals of a submission that goes on."""

    submission_id: SubmissionId
    used: Use


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmissionEnd:
    """The end of a submission; `output` is canonical JSON."""

    submission_id: SubmissionId
    outcome: Outcome
    output: str | None
    error: str | None
    used: Use = Use()


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


Write: TypeAlias = (
    Conversation
    | Event
    | StoredDocument
    | NewAttempt
    | AttemptsGone
    | AttemptStep
    | NewWait
    | WaitsOver
    | Hint
    | HintsGone
    | SlotsHandedOn
    | SlotsFreed
    | Approval
    | ApprovalChange
    | NewSignal
    | TakenSignal
    | NewInput
    | TakenInput
    | Submission
    | SubmissionStart
    | SubmissionUse
    | SubmissionEnd
    | Redaction
)
Row = TypeVar("Row", bound=Write)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """The write set. `session` is the head after it; what is not named is not touched."""

    at: datetime
    """The database's time under the lock."""
    asked_at: float
    """This process's monotonic time before it asked for the lock, so no later than `at`."""
    session: Session
    new_session: bool
    tasks: tuple[NewTask | TaskChange, ...]
    writes: tuple[Write, ...]

    def of(self, kind: type[Row]) -> list[Row]:
        """The rows of a kind."""
        return [write for write in self.writes if type(write) is kind]
