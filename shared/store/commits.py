"""The writer: every fact of a session is stored by `apply`, in one transaction, strictly one after the other.

    BEGIN | lock the session | clock | lock the tasks                  one round trip, each its own statement
    fill: decide the write set from what was read under the lock
    write everything, each guarded write on its row, and COMMIT         one round trip

The session row is locked FOR NO KEY UPDATE, which lets foreign keys pass. Lock order: session, task by id, slots, then
hints. Only holders of the session's lock wait for its task rows; leases are renewed, and slots and other sessions'
hints taken, with SKIP LOCKED, so nothing can deadlock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

import psycopg
from sqlalchemy import ARRAY, Boolean, Double, Integer, Text, Uuid, any_, bindparam, case, delete, func, insert, update
from sqlalchemy.dialects.postgresql import insert as insert_or_update

from brainhands.shared.errors import RequestInProgress, ServerUnavailable, StaleWrite, Unsettled
from brainhands.shared.model.commit import ApprovalChange, Commit, Guard, InboxEntry, NewAttempt, SubmissionUse
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.json import canonical
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Status, Task
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import redactions, rows, slots
from brainhands.shared.store.database import TRANSIENT, Call, Database, Pause, Statement, Transaction
from brainhands.shared.store.locked import CLOCK, Locked, read_locked
from brainhands.shared.store.tables import (
    approvals,
    attempts,
    conversations,
    documents,
    events,
    inbox,
    outbox,
    sessions,
    signals,
    submissions,
    tasks,
    waits,
)

log = logger("store")

Fill: TypeAlias = Callable[[Locked], Commit | None]
"""Decides what to store; None stores nothing. May be called again, with fresh reads, when a try was lost."""


MOST_STALE_TRIES = 3


def apply(
    database: Database,
    session_id: SessionId,
    task_ids: Sequence[TaskId],
    fill: Fill,
    *,
    guard: Guard | None = None,
    seconds: float = 10.0,
    skip_locked: bool = False,
) -> Commit | None:
    """Store what `fill` decides and return it; None if it decided nothing, or if `skip_locked` and the session is held.

    A try that lost its connection is made again for `seconds`; one whose COMMIT had gone through finds itself done.
    Raises StaleWrite if the guard no longer holds, or with `skip_locked` if a row had moved. Who has neither owns
    nothing, and reads again. Raises Unsettled when the time or the tries are used up.
    """
    pause = Pause(seconds)
    stale_tries = 0
    sent: Commit | None = None
    while True:
        try:
            with database.transaction() as transaction:
                locked = read_locked(transaction, session_id, task_ids, skip_locked=skip_locked)
                if locked is None:
                    return None
                if sent is not None and _was_applied(sent, locked, guard):
                    return sent
                if guard is not None:
                    _check(guard, locked)
                commit = fill(locked)
                if commit is None:
                    return None
                sent = commit
                write(transaction, commit, end=True)
            return commit
        except StaleWrite as error:
            if guard is not None or skip_locked:
                raise
            stale_tries += 1
            if stale_tries == MOST_STALE_TRIES:
                raise Unsettled(
                    f"what a commit of session {session_id} had read moved each time", "ask again"
                ) from error
        except (*TRANSIENT, ServerUnavailable) as error:
            log.debug("commit_retried", session=session_id, error=type(error).__name__)
            if not pause.again():
                raise Unsettled(f"a commit of session {session_id} could not be settled in time") from error


def create(transaction: Transaction, fill: Callable[[datetime], Commit]) -> Commit:
    """Store a new session whole in an open transaction, and leave it open; nothing is locked."""
    (clock,) = transaction.run(CLOCK())
    assert clock.first is not None
    commit = fill(clock.first["now"])
    write(transaction, commit)
    return commit


def write(transaction: Transaction, commit: Commit, *, end: bool = False) -> None:
    """Send the whole write set in one round trip, with COMMIT if it is the `end`.

    Raises StaleWrite, and RequestInProgress where a submission's twin has not been committed yet.
    """
    try:
        transaction.write(*_groups(commit), commit=end)
    except psycopg.errors.LockNotAvailable:
        # All other rows that a commit writes are its own by now.
        if commit.new_submissions:
            raise RequestInProgress(commit.new_submissions[0].request_id) from None
        raise


def queue(transaction: Transaction, entry: InboxEntry, intake: Task) -> None:
    """Insert a submission, its inbox entry and the intake task with its hint; no row of the session is locked.

    Raises as write does.
    """
    writes = [
        insert_submission(entry.submission).must_touch(1),
        INSERT_INBOX(**rows.inbox_row(entry)),
        INSERT_TASK(**rows.task_row(intake)),
        insert_hint(intake, entry.submission.tenant, 0),
    ]
    try:
        transaction.write(writes)
    except psycopg.errors.LockNotAvailable:
        raise RequestInProgress(entry.submission.request_id) from None


def request_digest(tenant: str, request_id: str) -> bytes:
    """What makes a request_id unique within its tenant."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}{request_id}".encode()).digest()


def _was_applied(sent: Commit, locked: Locked, guard: Guard | None) -> bool:
    """Whether a try whose COMMIT lost its reply had gone through: the owner finds its step, a claim its attempt."""
    if guard is not None:
        own = locked.attempt(guard.task_id, guard.fence)
        return own is not None and own["step"] > guard.step
    claims = (new.attempt for new in sent.attempts)
    return any(
        (found := locked.attempt(claim.task_id, claim.fence)) is not None and found["worker_id"] == claim.worker_id
        for claim in claims
    )


def _check(guard: Guard, locked: Locked) -> None:
    task = locked.tasks.get(guard.task_id)
    if task is None or (task.status, task.fence, task.step) != (Status.RUNNING, guard.fence, guard.step):
        raise StaleWrite(f"task {guard.task_id} is no longer owned under fence {guard.fence}")


INSERT_SESSION = Statement(insert(sessions).values({column.name: bindparam(column.name) for column in sessions.c}))
HEAD_COLUMNS = ("log_format", "last_seq", "last_hash", "last_at", "tokens_in", "tokens_out", "cost")
MOVE_HEAD = Statement(
    update(sessions)
    .where(sessions.c.id == bindparam("session_id"))
    .values({name: bindparam(name) for name in HEAD_COLUMNS})
)
_CONVERSATION = insert_or_update(conversations).values({c.name: bindparam(c.name) for c in conversations.c})
SAVE_CONVERSATION = Statement(
    _CONVERSATION.on_conflict_do_update(
        index_elements=["id"], set_={"agent_version": _CONVERSATION.excluded.agent_version}
    )
)
INSERT_EVENT = Statement(insert(events).values({column.name: bindparam(column.name) for column in events.c}))
INSERT_DOCUMENT = Statement(insert(documents).values({c.name: bindparam(c.name) for c in documents.c}))
INSERT_TASK = Statement(insert(tasks).values({column.name: bindparam(column.name) for column in tasks.c}))
MOVE_TASK = Statement(
    update(tasks)
    .where(
        tasks.c.id == bindparam("task_id"),
        tasks.c.fence == bindparam("fence_before"),
        tasks.c.status == bindparam("status_before"),
    )
    .values({name: bindparam(name) for name in rows.MUTABLE_TASK_COLUMNS})
)
INSERT_WAIT = Statement(insert(waits).values({column.name: bindparam(column.name) for column in waits.c}))
END_WAITS = Statement(delete(waits).where(waits.c.waiter_id == any_(bindparam("ids", type_=ARRAY(Uuid)))))
_ENDED_AT = case((bindparam("ended", type_=Boolean), func.clock_timestamp()), else_=None)
_ATTEMPT_COLUMNS = ("task_id", "fence", "worker_id", "phase", "started_at", "deadline", "step")
INSERT_ATTEMPT = Statement(
    insert(attempts).values({**{name: bindparam(name) for name in _ATTEMPT_COLUMNS}, "ended_at": _ENDED_AT})
)
STEP_ATTEMPT = Statement(
    update(attempts)
    .where(attempts.c.task_id == bindparam("attempt_task"), attempts.c.fence == bindparam("attempt_fence"))
    .values(
        step=func.coalesce(bindparam("step", type_=Integer), attempts.c.step),
        deadline=func.coalesce(bindparam("phase_deadline", type_=attempts.c.deadline.type), attempts.c.deadline),
        progress=func.coalesce(bindparam("shown", type_=Text), attempts.c.progress),
        ended_at=_ENDED_AT,
    )
)
INSERT_SUBMISSION = Statement(
    insert_or_update(submissions)
    .values(
        {
            name: bindparam(name)
            for name in (
                "id",
                "tenant",
                "request_id",
                "request_digest",
                "session_id",
                "conversation_id",
                "agent",
                "mode",
                "input",
                "input_digest",
                "priority",
                "status",
            )
        }
    )
    .on_conflict_do_nothing(index_elements=["request_digest"])
)
START_SUBMISSION = Statement(
    update(submissions)
    .where(submissions.c.id == bindparam("submission_id"), submissions.c.status == "accepted")
    .values(status="running")
)
_ADD_USE = {
    name: submissions.c[name] + bindparam(f"used_{name}", type_=submissions.c[name].type)
    for name in ("tokens_in", "tokens_out", "cost")
}
END_SUBMISSION = Statement(
    update(submissions)
    .where(submissions.c.id == bindparam("submission_id"), submissions.c.status != "done")
    .values(
        status="done",
        outcome=bindparam("outcome"),
        output=bindparam("output"),
        error=bindparam("error"),
        done_at=func.clock_timestamp(),
        **_ADD_USE,
    )
)
USE_SUBMISSION = Statement(update(submissions).where(submissions.c.id == bindparam("submission_id")).values(**_ADD_USE))
INSERT_APPROVAL = Statement(insert(approvals).values({c.name: bindparam(c.name) for c in approvals.c}))
_ANSWER_COLUMNS = (
    "about",
    "answer",
    "answered_at",
    "answered_by",
    "comment",
    "edited_arguments",
    "result",
    "use_by",
    "used_at",
)
CHANGE_APPROVAL = Statement(
    update(approvals)
    .where(
        approvals.c.id == bindparam("approval_id"),
        approvals.c.answer == bindparam("answer_before"),
        approvals.c.used_at.is_(None),
    )
    .values({name: bindparam(name) for name in _ANSWER_COLUMNS})
)
_SIGNAL_COLUMNS = ("id", "session_id", "name", "key", "payload", "request_digest", "seq", "sent_at", "taken_by")
INSERT_SIGNAL = Statement(
    insert_or_update(signals)
    .values({name: bindparam(name) for name in _SIGNAL_COLUMNS})
    .on_conflict_do_nothing(index_elements=["request_digest"])
)
TAKE_SIGNAL = Statement(
    update(signals)
    .where(signals.c.id == bindparam("signal_id"), signals.c.taken_by.is_(None))
    .values(taken_by=bindparam("task_id"))
)
INSERT_INBOX = Statement(
    insert(inbox).values(
        {
            name: bindparam(name)
            for name in ("session_id", "conversation_id", "submission_id", "mode", "text", "priority")
        }
    )
)
TAKE_INBOX = Statement(delete(inbox).where(inbox.c.submission_id == bindparam("submission_id")))
# The same for all hints of one statement, so that among them the ids decide: what was made first runs first.
_NOT_BEFORE = func.statement_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("delay", type_=Double))
_HINT = insert_or_update(outbox).values(
    {
        **{
            name: bindparam(name)
            for name in (
                "task_id",
                "session_id",
                "tenant",
                "priority",
                "requires_name",
                "requires_version",
                "log_format",
            )
        },
        "not_before": _NOT_BEFORE,
    }
)
INSERT_HINT = Statement(
    _HINT.on_conflict_do_update(
        index_elements=["task_id"],
        set_={
            "not_before": _HINT.excluded.not_before,
            "requires_version": _HINT.excluded.requires_version,
            "log_format": _HINT.excluded.log_format,
            "published_at": None,
            "attempts": 0,
            "parked": None,
            "awaits": None,
        },
    )
)
DELETE_HINTS = Statement(delete(outbox).where(outbox.c.task_id == any_(bindparam("ids", type_=ARRAY(Uuid)))))


def _groups(commit: Commit) -> list[list[Call]]:
    """The writes as groups in which order does not matter: an ended generation first makes room for the next.

    Slots come behind these, since the hint that a free one makes due may be one that this commit removes. What is taken
    out of the store goes last, since it may be in a row that the commit changes.
    """
    moves, additions, freed = _moves(commit), _additions(commit), _slots(commit)
    groups = [moves, additions] if commit.changes and commit.new_tasks else [moves + additions]
    if freed:
        groups.append(freed)
    return groups if commit.redaction is None else [*groups, *redactions.writes(commit, commit.redaction)]


def _moves(commit: Commit) -> list[Call]:
    return [
        _head(commit),
        *(
            MOVE_TASK(
                task_id=change.before.id,
                fence_before=change.before.fence,
                status_before=change.before.status,
                **rows.task_change_row(change.after),
            ).must_touch(1)
            for change in commit.changes
        ),
    ]


def _additions(commit: Commit) -> list[Call]:
    calls = [SAVE_CONVERSATION(**rows.conversation_row(each)) for each in commit.conversations]
    calls += [insert_submission(each).must_touch(1) for each in commit.new_submissions]
    calls += [INSERT_TASK(**rows.task_row(each)) for each in commit.new_tasks]
    calls += [INSERT_EVENT(**rows.event_row(each), commit_seq=commit.session.last_seq) for each in commit.events]
    calls += [INSERT_DOCUMENT(**rows.document_row(each)) for each in commit.documents]
    if commit.waits_over:
        calls.append(END_WAITS(ids=list(commit.waits_over)))
    calls += [
        INSERT_WAIT(waiter_id=each.waiter_id, dependency_id=each.dependency_id, fail_fast=each.fail_fast)
        for each in commit.waits
    ]
    calls += [_attempt(each) for each in commit.attempts]
    calls += [
        STEP_ATTEMPT(
            attempt_task=each.task_id,
            attempt_fence=each.fence,
            step=each.step,
            shown=each.progress,
            phase_deadline=each.deadline,
            ended=each.deadline is None,
        )
        for each in commit.attempt_steps
    ]
    calls += [START_SUBMISSION(submission_id=each) for each in commit.submissions_started]
    calls += [
        END_SUBMISSION(
            submission_id=each.submission_id,
            outcome=each.outcome,
            output=each.output_text,
            error=each.error,
            **_use(commit.submissions_used.get(each.submission_id, SubmissionUse())),
        ).must_touch(1)
        for each in commit.submissions_ended
    ]
    ended = {each.submission_id for each in commit.submissions_ended}
    calls += [
        USE_SUBMISSION(submission_id=submission_id, **_use(used)).must_touch(1)
        for submission_id, used in commit.submissions_used.items()
        if submission_id not in ended
    ]
    calls += [INSERT_APPROVAL(**rows.approval_row(each)) for each in commit.new_approvals]
    calls += [_approval_change(each) for each in commit.approvals]
    calls += [
        INSERT_SIGNAL(
            id=signal.id,
            session_id=signal.session_id,
            name=signal.name,
            key=signal.key,
            payload=canonical(signal.payload),
            request_digest=digest,
            seq=signal.seq,
            sent_at=signal.sent_at,
            taken_by=signal.taken_by,
        ).must_touch(1)
        for signal, digest in commit.new_signals
    ]
    calls += [
        TAKE_SIGNAL(signal_id=signal_id, task_id=task_id).must_touch(1) for signal_id, task_id in commit.signals_taken
    ]
    calls += [INSERT_INBOX(**rows.inbox_row(each)) for each in commit.inbox]
    calls += [TAKE_INBOX(submission_id=each).must_touch(1) for each in commit.inbox_taken]
    if commit.no_longer_pending:
        calls.append(DELETE_HINTS(ids=list(commit.no_longer_pending)))
    session = commit.session
    calls += [
        insert_hint(each, session.tenant, commit.hint_delays.get(each.id, 0), session.log_format)
        for each in commit.pending
    ]
    return calls


def _use(used: SubmissionUse) -> dict[str, object]:
    return {"used_tokens_in": used.tokens_in, "used_tokens_out": used.tokens_out, "used_cost": used.cost}


def _slots(commit: Commit) -> list[Call]:
    calls = [slots.pass_on(from_task, to_task) for from_task, to_task in commit.slots_passed_on]
    return [*calls, *slots.free(commit.slots_freed)] if commit.slots_freed else calls


def _approval_change(change: ApprovalChange) -> Call:
    row = rows.approval_row(change.after)
    return CHANGE_APPROVAL(
        approval_id=change.before.id,
        answer_before=change.before.answer,
        **{name: row[name] for name in _ANSWER_COLUMNS},
    ).must_touch(1)


def _attempt(new: NewAttempt) -> Call:
    attempt = new.attempt
    return INSERT_ATTEMPT(
        task_id=attempt.task_id,
        fence=attempt.fence,
        worker_id=attempt.worker_id,
        phase=attempt.phase,
        started_at=attempt.started_at,
        deadline=attempt.deadline,
        step=new.step,
        ended=new.ended,
    )


def _head(commit: Commit) -> Call:
    if commit.new_session:
        return INSERT_SESSION(**rows.session_row(commit.session))
    session = commit.session
    return MOVE_HEAD(
        session_id=session.id,
        **{name: getattr(session, name) for name in HEAD_COLUMNS},
    ).must_touch(1)


def insert_submission(submission: Submission) -> Call:
    """Stores nothing, and touches no row, if the tenant has used this request_id before."""
    return INSERT_SUBMISSION(
        id=submission.id,
        tenant=submission.tenant,
        request_id=submission.request_id,
        request_digest=request_digest(submission.tenant, submission.request_id),
        session_id=submission.session_id,
        conversation_id=submission.conversation_id,
        agent=submission.agent,
        mode=submission.mode,
        input=submission.input,
        input_digest=submission.input_digest,
        priority=submission.priority,
        status=submission.status,
    )


def insert_hint(task: Task, tenant: str, delay: float, log_format: int = 1) -> Call:
    """The hint row of a pending task, due after `delay` seconds, for who reads its session's log format.

    Where that is not known, who gets the hint and does not read it says so.
    """
    return INSERT_HINT(
        task_id=task.id,
        session_id=task.session_id,
        tenant=tenant,
        priority=task.priority,
        requires_name=task.requires.name,
        requires_version=task.requires.version,
        log_format=log_format,
        delay=delay,
    )
