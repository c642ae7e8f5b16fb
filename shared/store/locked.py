"""What a commit decides on: read under the session's lock, by statements that began after the lock was taken."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Text,
    Uuid,
    all_,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy import cast as sql_cast

from brainhands.shared.errors import UnknownSession
from brainhands.shared.model.approval import HUMAN, Approval
from brainhands.shared.model.commit import Use
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.ids import ApprovalId, ConversationId, SessionId, SubmissionId, TaskId
from brainhands.shared.model.session import Conversation, Inbox, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.task import Attempt, Outcome, Status, Task
from brainhands.shared.store import documents, rows, slots
from brainhands.shared.store.database import Call, Result, Row, Statement, Transaction
from brainhands.shared.store.offers import FITS_TASK
from brainhands.shared.store.tables import (
    approvals,
    attempts,
    conversations,
    events,
    inbox,
    outbox,
    sessions,
    signals,
    submissions,
    tasks,
    waits,
)
from brainhands.shared.store.workers import LOWEST_FORMAT, lowest_format

_IDS = bindparam("ids", type_=ARRAY(Uuid))

_LOCK = select(sessions).where(sessions.c.id == bindparam("session_id"))
LOCK_SESSION = Statement(_LOCK.with_for_update(key_share=True))
LOCK_SESSION_IF_FREE = Statement(_LOCK.with_for_update(key_share=True, skip_locked=True))
CLOCK = Statement(select(func.clock_timestamp().label("now")))
_LOCK_TASKS = select(func.clock_timestamp().label("now"), tasks).where(tasks.c.id == any_(_IDS)).order_by(tasks.c.id)
LOCK_TASKS = Statement(_LOCK_TASKS.with_for_update(key_share=True))
LOCK_TASKS_IF_FREE = Statement(_LOCK_TASKS.with_for_update(key_share=True, skip_locked=True))
_OTHER = tasks.alias("other")
_OTHER_WAIT = waits.alias("other_wait")
_WAITERS = select(waits.c.waiter_id).where(waits.c.dependency_id == any_(_IDS))
LOCK_AROUND = Statement(
    select(
        tasks,
        func.array(
            select(_OTHER_WAIT.c.dependency_id)
            .join(_OTHER, _OTHER.c.id == _OTHER_WAIT.c.dependency_id)
            .where(_OTHER_WAIT.c.waiter_id == tasks.c.id, _OTHER.c.status != "done")
            .scalar_subquery()
        ).label("open_dependencies"),
        func.array(
            select(_OTHER_WAIT.c.dependency_id)
            .where(
                _OTHER_WAIT.c.waiter_id == tasks.c.id,
                _OTHER_WAIT.c.dependency_id == any_(_IDS),
                _OTHER_WAIT.c.fail_fast,
            )
            .scalar_subquery()
        ).label("fail_fast_on"),
    )
    .where(
        or_(
            and_(tasks.c.id == any_(func.array(_WAITERS.scalar_subquery())), tasks.c.status == "waiting"),
            and_(tasks.c.id == any_(bindparam("owners", type_=ARRAY(Uuid))), tasks.c.status == "completing"),
        )
    )
    .order_by(tasks.c.id)
    .with_for_update(key_share=True, of=tasks)
)
OPEN_CHILDREN = Statement(
    select(tasks.c.owner_id, tasks.c.id).where(tasks.c.status != "done", tasks.c.owner_id == any_(_IDS))
)
OPEN_DEPENDENCY = Statement(
    select(waits.c.dependency_id)
    .join(tasks, tasks.c.id == waits.c.dependency_id)
    .where(waits.c.waiter_id == bindparam("waiter_id"), tasks.c.status != "done")
    .limit(1)
)
OPEN_CHILD = Statement(
    select(tasks.c.id).where(tasks.c.owner_id == bindparam("owner_id"), tasks.c.status != "done").limit(1)
)
STATES = Statement(select(tasks.c.id, tasks.c.status, tasks.c.outcome).where(tasks.c.id == any_(_IDS)))
LOCK_OPEN_TASKS = Statement(
    select(tasks)
    .where(tasks.c.session_id == bindparam("session_id"), tasks.c.status != "done")
    .order_by(tasks.c.id)
    .with_for_update(key_share=True)
)
INPUTS = Statement(select(inbox).where(inbox.c.session_id == bindparam("session_id")).order_by(inbox.c.position))
CONVERSATION = Statement(select(conversations).where(conversations.c.id == bindparam("conversation_id")))
NEXT_INPUT = Statement(
    select(inbox)
    .where(
        inbox.c.conversation_id == bindparam("conversation_id"),
        inbox.c.submission_id != all_(bindparam("taken", type_=ARRAY(Uuid))),
    )
    .order_by(inbox.c.position)
    .limit(1)
)
STEERING = Statement(
    select(inbox)
    .where(inbox.c.conversation_id == bindparam("conversation_id"), inbox.c.mode == "steer")
    .order_by(inbox.c.position)
)
APPROVAL = Statement(select(approvals).where(approvals.c.id == bindparam("approval_id")))
SETTLED = (
    select(approvals.c.id)
    .where(
        approvals.c.task_id == tasks.c.id,
        approvals.c.question == "review",
        approvals.c.answer.in_([literal_column("'happened'"), literal_column("'did_not_happen'")]),
    )
    .exists()
)
UNKNOWN_CALLS = Statement(
    select(tasks)
    .where(
        tasks.c.session_id == bindparam("session_id"),
        tasks.c.kind == bindparam("kind"),
        tasks.c.outcome == "interrupted",
        ~SETTLED,
    )
    .order_by(tasks.c.id)
)
_SIGNALLED = (
    tasks.c.session_id == bindparam("session_id"),
    tasks.c.signal_name == bindparam("name"),
    tasks.c.signal_key == bindparam("key"),
)
LOCK_SIGNAL_WAITER = Statement(
    select(tasks).where(*_SIGNALLED).order_by(tasks.c.id).limit(1).with_for_update(key_share=True)
)
LOCK_ASKER = Statement(
    select(tasks).where(tasks.c.id == bindparam("task_id"), *_SIGNALLED).with_for_update(key_share=True)
)
NEXT_SIGNAL = Statement(
    select(signals)
    .where(
        signals.c.session_id == bindparam("session_id"),
        signals.c.name == bindparam("name"),
        signals.c.key == bindparam("key"),
        signals.c.taken_by.is_(None),
    )
    .order_by(signals.c.seq)
    .limit(1)
)
RESUMED = Statement(
    select(events.c.seq, events.c.payload).where(
        events.c.session_id == bindparam("session_id"),
        # Written out, as in each statement that is to find events by their type: a partial index holds a few types.
        events.c.type == literal_column("'session_resumed'"),
        events.c.payload.op("->>")("request_id") == bindparam("request_id", type_=Text),
    )
)
HINTS = Statement(select(outbox.c.task_id, outbox.c.parked).where(outbox.c.task_id == any_(_IDS)))
FITTED = Statement(select(tasks.c.id).where(tasks.c.id == any_(_IDS), FITS_TASK))
ACTIVE_GENERATION = Statement(
    select(tasks.c.id).where(
        tasks.c.conversation_id == bindparam("conversation_id"),
        tasks.c.kind == "generation",
        tasks.c.status != "done",
    )
)
SUBMISSION_USE = Statement(
    select(submissions.c.tokens_in, submissions.c.tokens_out, submissions.c.cost).where(
        submissions.c.id == bindparam("submission_id")
    )
)
_COUNTED = (
    select(
        events.c.seq,
        case(
            # Each of the two has room in its column, their sum may not.
            (events.c.type == "model_output", sql_cast(events.c.tokens_in, BigInteger) + events.c.tokens_out),
            else_=sql_cast(events.c.payload.op("->>")("tokens_after"), BigInteger),
        ).label("tokens"),
    )
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.conversation_id == bindparam("conversation_id"),
        events.c.seq <= bindparam("cutoff"),
        events.c.type.in_([literal_column("'model_output'"), literal_column("'context_compacted'")]),
    )
    .order_by(events.c.seq.desc())
    .limit(1)
    .cte("counted")
)
CONTEXT_SIZE = Statement(
    select(
        func.coalesce(select(_COUNTED.c.tokens).scalar_subquery(), 0).label("tokens"),
        func.coalesce(func.sum(func.length(sql_cast(events.c.payload, Text))), 0).label("characters"),
    ).where(
        events.c.session_id == bindparam("session_id"),
        events.c.conversation_id == bindparam("conversation_id"),
        events.c.seq > func.coalesce(select(_COUNTED.c.seq).scalar_subquery(), 0),
        events.c.seq <= bindparam("cutoff"),
    )
)
LAST_ATTEMPT = Statement(
    select(attempts).where(attempts.c.task_id == bindparam("task_id")).order_by(attempts.c.fence.desc()).limit(1)
)
ATTEMPT = Statement(
    select(attempts.c.worker_id, attempts.c.step).where(
        attempts.c.task_id == bindparam("task_id"), attempts.c.fence == bindparam("fence")
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """What hangs on some tasks that end: who waits for them, and whose end waits for theirs."""

    waiters: Mapping[TaskId, Task]
    open_dependencies: Mapping[TaskId, frozenset[TaskId]]
    fail_fast_on: Mapping[TaskId, frozenset[TaskId]]
    """Which of the ended tasks each waiter does not want to see fail."""
    completing_owners: Mapping[TaskId, Task]
    open_children: Mapping[TaskId, frozenset[TaskId]]


class Locked:
    """A session under its lock; further reads go through the same transaction."""

    def __init__(
        self,
        transaction: Transaction | None,
        session: Session,
        now: datetime,
        tasks: Mapping[TaskId, Task],
        asked_at: float = 0.0,
    ) -> None:
        self._transaction = transaction
        self.asked_at = asked_at
        """This process's monotonic time before it asked for the lock."""
        self.session = session
        self.now = now
        self.tasks = tasks

    def neighbours(self, ended: Sequence[Task]) -> Neighbours:
        """What hangs on tasks that end. Read under the session's lock, which all that could change it must take."""
        ids = [task.id for task in ended]
        owners = [task.owner_id for task in ended if task.owner_id is not None]
        around, children = self._open.run(LOCK_AROUND(ids=ids, owners=owners), OPEN_CHILDREN(ids=[*ids, *owners]))
        open_dependencies = {row["id"]: frozenset(row.pop("open_dependencies")) for row in around.rows}
        fail_fast_on = {row["id"]: frozenset(row.pop("fail_fast_on")) for row in around.rows}
        found = [rows.task(row) for row in around.rows]
        return Neighbours(
            waiters={task.id: task for task in found if task.status is Status.WAITING},
            open_dependencies=open_dependencies,
            fail_fast_on=fail_fast_on,
            completing_owners={task.id: task for task in found if task.status is Status.COMPLETING},
            open_children=_grouped(children.rows),
        )

    def states(self, ids: Sequence[TaskId]) -> dict[TaskId, tuple[Status, Outcome | None]]:
        """Status and outcome of tasks."""
        (result,) = self._open.run(STATES(ids=list(ids)))
        return {
            row["id"]: (Status(row["status"]), None if row["outcome"] is None else Outcome(row["outcome"]))
            for row in result.rows
        }

    def open_tasks(self) -> dict[TaskId, Task]:
        """All tasks of the session that have not ended, locked."""
        (result,) = self._open.run(LOCK_OPEN_TASKS(session_id=self.session.id))
        return {row["id"]: rows.task(row) for row in result.rows}

    def inputs(self) -> list[Inbox]:
        """All inputs that wait in the session's inboxes, oldest first."""
        (result,) = self._open.run(INPUTS(session_id=self.session.id))
        return [rows.inbox(row) for row in result.rows]

    def open_dependencies(self, waiter_id: TaskId) -> bool:
        """Whether anything that a waiting task waits for is still open."""
        (result,) = self._open.run(OPEN_DEPENDENCY(waiter_id=waiter_id))
        return bool(result.rows)

    def open_children(self, owner_id: TaskId) -> bool:
        """Whether any task that a task owns is still open."""
        (result,) = self._open.run(OPEN_CHILD(owner_id=owner_id))
        return bool(result.rows)

    def conversation(
        self, conversation_id: ConversationId, *, taken: Sequence[SubmissionId] = ()
    ) -> tuple[Conversation, Inbox | None, bool]:
        """The conversation, its next inbox entry but for those `taken`, and whether a generation of it is open."""
        conversation, entry, active = self._open.run(
            CONVERSATION(conversation_id=conversation_id),
            NEXT_INPUT(conversation_id=conversation_id, taken=list(taken)),
            ACTIVE_GENERATION(conversation_id=conversation_id),
        )
        assert conversation.first is not None
        return (
            rows.conversation(conversation.first),
            None if entry.first is None else rows.inbox(entry.first),
            bool(active.rows),
        )

    def approval(self, approval_id: ApprovalId) -> Approval | None:
        """A question as it stands; all that change it hold this session's lock."""
        (result,) = self._open.run(APPROVAL(approval_id=approval_id))
        return None if result.first is None else rows.approval(result.first)

    def unknown_calls(self, kind: str) -> list[Task]:
        """Ended calls of a kind in this session of which nobody has found out whether they took effect."""
        (result,) = self._open.run(UNKNOWN_CALLS(session_id=self.session.id, kind=kind))
        return [rows.task(row) for row in result.rows]

    def signal_waiter(self, name: str, key: str) -> Task | None:
        """The task that has waited longest for such a signal."""
        (result,) = self._open.run(LOCK_SIGNAL_WAITER(session_id=self.session.id, name=name, key=key))
        return None if result.first is None else rows.task(result.first)

    def asker(self, question: Approval) -> Task | None:
        """The task that has put a question, if it waits for the answer."""
        (result,) = self._open.run(
            LOCK_ASKER(task_id=question.task_id, session_id=self.session.id, name=HUMAN, key=str(question.id))
        )
        return None if result.first is None else rows.task(result.first)

    def next_signal(self, name: str, key: str) -> Signal | None:
        """The oldest such signal that nobody has taken."""
        (result,) = self._open.run(NEXT_SIGNAL(session_id=self.session.id, name=name, key=key))
        return None if result.first is None else rows.signal(result.first)

    def resumed(self, request_id: str) -> Row | None:
        """The seq and the payload of the event that an earlier `awake` of this request_id stored."""
        (result,) = self._open.run(RESUMED(session_id=self.session.id, request_id=request_id))
        return result.first

    def hints(self, ids: Sequence[TaskId]) -> dict[TaskId, str | None]:
        """The tasks among these that have a hint, with the reason why it is set aside, if it is."""
        (result,) = self._open.run(HINTS(ids=list(ids)))
        return {row["task_id"]: row["parked"] for row in result.rows}

    def fitted(self, ids: Sequence[TaskId]) -> set[TaskId]:
        """The tasks among these that some live worker can run."""
        (result,) = self._open.run(FITTED(ids=list(ids)))
        return {row["id"] for row in result.rows}

    def steering(self, conversation_id: ConversationId) -> list[Inbox]:
        """Inputs that shall join the conversation's present work, oldest first."""
        (result,) = self._open.run(STEERING(conversation_id=conversation_id))
        return [rows.inbox(row) for row in result.rows]

    def document(self, name: str) -> StoredDocument | None:
        """The newest version of a document."""
        if self._transaction is None:
            return None
        (result,) = self._open.run(documents.newest(self.session.id, name))
        return documents.read_one(result.rows)

    def submission_use(self, submission_id: SubmissionId) -> Use:
        """What model calls have used for a submission."""
        (result,) = self._open.run(SUBMISSION_USE(submission_id=submission_id))
        return Use() if result.first is None else Use(**result.first)

    def context_size(self, conversation_id: ConversationId, cutoff: int) -> tuple[int, int]:
        """About how long a conversation's context is: tokens as last counted, and characters of what came since."""
        (result,) = self._open.run(
            CONTEXT_SIZE(session_id=self.session.id, conversation_id=conversation_id, cutoff=cutoff)
        )
        assert result.first is not None
        return int(result.first["tokens"]), int(result.first["characters"])

    def fleet_format(self) -> int:
        """The newest log format that every live worker reads."""
        (result,) = self._open.run(LOWEST_FORMAT())
        return lowest_format(result)

    def last_attempt(self, task_id: TaskId) -> Attempt | None:
        """The newest claim of a task."""
        (result,) = self._open.run(LAST_ATTEMPT(task_id=task_id))
        return None if result.first is None else rows.attempt(result.first)

    def attempt(self, task_id: TaskId, fence: int) -> Row | None:
        """Who made a claim (`worker_id`) and the last `step` that was committed under it; None without such a claim."""
        (result,) = self._open.run(ATTEMPT(task_id=task_id, fence=fence))
        return result.first

    def run(self, *calls: Call) -> list[Result]:
        """Further reads under the lock."""
        return self._open.run(*calls)

    def take_slots(self, task_id: TaskId, limits: Mapping[str, int]) -> bool:
        """Take one slot of each name for a task, or none; whether it has them now."""
        (result,) = self._open.run(slots.take(task_id, limits))
        return result.count > 0

    def put_off(self, task_id: TaskId, names: Iterable[str], seconds: float) -> None:
        """Let a hint whose claim has to wait for slots be due again in so many seconds."""
        self._open.run(slots.put_off(task_id, list(names), seconds))

    @property
    def _open(self) -> Transaction:
        assert self._transaction is not None, "a new session has nothing to read"
        return self._transaction


def read_locked(
    transaction: Transaction, session_id: SessionId, task_ids: Sequence[TaskId], *, skip_locked: bool
) -> Locked | None:
    """Lock the session and the tasks and read them.

    With `skip_locked` it waits for nobody: None if somebody holds the session, and tasks that are held are missing.
    """
    lock = LOCK_SESSION_IF_FREE if skip_locked else LOCK_SESSION
    lock_tasks = LOCK_TASKS_IF_FREE if skip_locked else LOCK_TASKS
    asked_at = time.monotonic()
    read = lock_tasks(ids=sorted(task_ids)) if task_ids else CLOCK()
    session, found = transaction.run(lock(session_id=session_id), read)
    if session.first is None:
        if skip_locked:
            return None
        raise UnknownSession(session_id)
    if found.first is None:
        (found,) = transaction.run(CLOCK())
    assert found.first is not None
    now: datetime = found.first["now"]
    for row in found.rows:
        del row["now"]
    locked = {row["id"]: rows.task(row) for row in found.rows if row}
    return Locked(transaction, rows.session(session.first), now, locked, asked_at)


def _grouped(found: Sequence[Row]) -> dict[TaskId, frozenset[TaskId]]:
    groups: dict[TaskId, set[TaskId]] = {}
    for row in found:
        groups.setdefault(row["owner_id"], set()).add(row["id"])
    return {owner: frozenset(children) for owner, children in groups.items()}
