"""What each kind of row in a commit becomes: one table from its class to its statements, in the order of sending.

A new kind of row needs a table (tables.py and its migration), a class (shared/model/commit.py) and a line here.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Double,
    Integer,
    Table,
    Text,
    Uuid,
    any_,
    bindparam,
    case,
    delete,
    func,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.commit import (
    ApprovalChange,
    AttemptsGone,
    AttemptStep,
    Commit,
    Hint,
    HintsGone,
    NewAttempt,
    NewInput,
    NewSignal,
    NewTask,
    NewWait,
    Redaction,
    SlotsFreed,
    SlotsHandedOn,
    SubmissionEnd,
    SubmissionStart,
    SubmissionUse,
    TakenInput,
    TakenSignal,
    TaskChange,
    Use,
    WaitsOver,
)
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.json import canonical
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Task
from brainhands.shared.store import redactions, slots
from brainhands.shared.store.database import Call, Statement
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


def _insert(table: Table, *names: str, **computed: Any) -> Insert:
    """A row of these columns, or of all."""
    given: dict[str, Any] = {name: bindparam(name) for name in names or table.c.keys()}
    return insert(table).values({**given, **computed})


def _set(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


INSERT_SESSION = Statement(_insert(sessions))
MOVE_HEAD = Statement(
    update(sessions)
    .where(sessions.c.id == bindparam("session_id"))
    .values(_set("log_format", "last_seq", "last_hash", "last_at", "tokens_in", "tokens_out", "cost"))
)
_CONVERSATION = _insert(conversations)
SAVE_CONVERSATION = Statement(
    _CONVERSATION.on_conflict_do_update(
        index_elements=["id"], set_={"agent_version": _CONVERSATION.excluded.agent_version}
    )
)
INSERT_EVENT = Statement(_insert(events))
INSERT_DOCUMENT = Statement(_insert(documents))
INSERT_TASK = Statement(_insert(tasks))
MOVE_TASK = Statement(
    update(tasks)
    .where(
        tasks.c.id == bindparam("task_id"),
        tasks.c.fence == bindparam("fence_before"),
        tasks.c.status == bindparam("status_before"),
    )
    .values(
        _set(
            "version",
            "status",
            "outcome",
            "phase",
            "checkpoint",
            "result",
            "error",
            "fence",
            "step",
            "phase_attempts",
            "worker_id",
            "lease_until",
            "deadline",
            "wake_at",
            "signal_name",
            "signal_key",
            "blocked",
            "refused_by",
            "cancel_wanted",
            "holds_slots",
            "requires_version",
        )
    )
)
INSERT_WAIT = Statement(_insert(waits))
END_WAITS = Statement(delete(waits).where(waits.c.waiter_id == any_(bindparam("ids", type_=ARRAY(Uuid)))))
_ENDED_AT = case((bindparam("ended", type_=Boolean), func.clock_timestamp()), else_=None)
INSERT_ATTEMPT = Statement(
    _insert(attempts, "task_id", "fence", "worker_id", "phase", "started_at", "deadline", "step", ended_at=_ENDED_AT)
)
FORGET_ATTEMPTS = Statement(
    delete(attempts).where(
        attempts.c.task_id == bindparam("attempt_task"),
        attempts.c.fence < bindparam("fence_before", type_=BigInteger),
        attempts.c.phase == bindparam("phase"),
        attempts.c.ended_at.is_not(None),
        attempts.c.progress == "",
        attempts.c.late_result.is_(None),
    )
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
_OF_REQUEST = ("id", "tenant", "request_id", "request_digest", "session_id", "conversation_id")
INSERT_SUBMISSION = Statement(
    _insert(submissions, *_OF_REQUEST, "agent", "mode", "input", "input_digest", "priority", "status")
    # Nothing is stored, and no row touched, if the tenant has used this request_id before.
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
    .values(status="done", done_at=func.clock_timestamp(), **_set("outcome", "output", "error"), **_ADD_USE)
)
USE_SUBMISSION = Statement(update(submissions).where(submissions.c.id == bindparam("submission_id")).values(**_ADD_USE))
INSERT_APPROVAL = Statement(_insert(approvals))
CHANGE_APPROVAL = Statement(
    update(approvals)
    .where(
        approvals.c.id == bindparam("approval_id"),
        approvals.c.answer == bindparam("answer_before"),
        approvals.c.used_at.is_(None),
    )
    .values(_set("about", "answer", "answered_at", "answered_by", "comment", "edited_arguments", "result"))
    .values(_set("use_by", "used_at"))
)
INSERT_SIGNAL = Statement(_insert(signals).on_conflict_do_nothing(index_elements=["request_digest"]))
TAKE_SIGNAL = Statement(
    update(signals)
    .where(signals.c.id == bindparam("signal_id"), signals.c.taken_by.is_(None))
    .values(taken_by=bindparam("task_id"))
)
INSERT_INBOX = Statement(_insert(inbox, "session_id", "conversation_id", "submission_id", "mode", "text", "priority"))
TAKE_INBOX = Statement(delete(inbox).where(inbox.c.submission_id == bindparam("submission_id")))
# The same for all hints of one statement, so that among them the ids decide: what was made first runs first.
_NOT_BEFORE = func.statement_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("delay", type_=Double))
_OF_TASK = ("task_id", "session_id", "tenant", "priority", "requires_name", "requires_version", "log_format")
_HINT = _insert(outbox, *_OF_TASK, not_before=_NOT_BEFORE)
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


def groups(commit: Commit) -> list[list[Call]]:
    """The writes of a commit in groups, which are sent one after the other, in one round trip."""
    found: dict[type[Any], list[Any]] = defaultdict(list)
    for row in (commit.session, *commit.tasks, *commit.writes):
        found[type(row)].append(row)
    changes, additions, *behind = (
        [call for kind, write in group.items() for row in found.get(kind, ()) for call in write(row, commit)]
        for group in GROUPS
    )
    # Only a new task needs the room that a changed one leaves; elsewhere one statement does for both groups.
    first = [changes, additions] if found.get(NewTask) and found.get(TaskChange) else [changes + additions]
    return [*first, *(group for group in behind if group)]


Rows: TypeAlias = Mapping[type[Any], Callable[[Any, Commit], Sequence[Call]]]

GROUPS: tuple[Rows, ...] = (
    # Of two open generations of a conversation the database keeps only one: the one that ends makes room first.
    {
        Session: lambda _, commit: [_head(commit)],
        TaskChange: lambda row, _: [_change(row)],
    },
    # A group of many rows is cut into statements in this order, and foreign keys are checked with each of them: what
    # others refer to (conversations, submissions, tasks) is written before what refers to it.
    {
        Conversation: lambda row, _: [SAVE_CONVERSATION(**_columns(row))],
        Submission: lambda row, _: [insert_submission(row)],
        NewTask: lambda row, _: [insert_task(row.after)],
        Event: lambda row, commit: [_event(row, commit)],
        StoredDocument: lambda row, _: [_document(row)],
        WaitsOver: lambda row, _: [END_WAITS(ids=list(row.waiters))],
        NewWait: lambda row, _: [INSERT_WAIT(**_columns(row))],
        NewAttempt: lambda row, _: [INSERT_ATTEMPT(**_columns(row.attempt), step=row.step, ended=row.ended)],
        AttemptsGone: lambda row, _: [
            FORGET_ATTEMPTS(attempt_task=row.task_id, fence_before=row.before, phase=row.phase)
        ],
        AttemptStep: lambda row, _: [_attempt_step(row)],
        SubmissionStart: lambda row, _: [START_SUBMISSION(submission_id=row.submission_id)],
        SubmissionEnd: lambda row, _: [END_SUBMISSION(**_columns(row), **_use(row.used)).must_touch(1)],
        SubmissionUse: lambda row, _: [USE_SUBMISSION(**_columns(row), **_use(row.used)).must_touch(1)],
        Approval: lambda row, _: [INSERT_APPROVAL(**_approval(row))],
        ApprovalChange: lambda row, _: [_approval_change(row)],
        NewSignal: lambda row, _: [_signal(row)],
        TakenSignal: lambda row, _: [TAKE_SIGNAL(**_columns(row)).must_touch(1)],
        NewInput: lambda row, _: [insert_input(row.submission)],
        TakenInput: lambda row, _: [TAKE_INBOX(**_columns(row)).must_touch(1)],
        HintsGone: lambda row, _: [DELETE_HINTS(ids=list(row.tasks))],
        Hint: lambda row, commit: [insert_hint(row, commit.session.tenant, commit.session.log_format)],
    },
    # A slot that becomes free makes the next hint in line due, which may be one that the group above removes.
    {
        SlotsHandedOn: lambda row, _: [slots.pass_on(row.from_task, row.to_task)],
        SlotsFreed: lambda row, _: slots.free(row.tasks),
    },
    # Content goes last, since it may be in a row that the commit has changed; inputs and outputs are in one row, which
    # no statement may change twice.
    {Redaction: redactions.content},
    {Redaction: redactions.outputs},
)


def insert_submission(row: Submission) -> Call:
    digest = request_digest(row.tenant, row.request_id)
    return INSERT_SUBMISSION(**_columns(row), request_digest=digest).must_touch(1)


def insert_input(row: Submission) -> Call:
    return INSERT_INBOX(**_columns(row), submission_id=row.id, text=row.input)


def insert_task(row: Task) -> Call:
    return INSERT_TASK(**{**_task(row), "input": canonical(row.input)})


def insert_hint(row: Hint, tenant: str, log_format: int = 1) -> Call:
    """For those who read the log format of the task's session; where that is not known, its reader finds out."""
    task = row.task
    return INSERT_HINT(
        task_id=task.id,
        session_id=task.session_id,
        tenant=tenant,
        priority=task.priority,
        requires_name=task.requires.name,
        requires_version=task.requires.version,
        log_format=log_format,
        delay=row.delay,
    )


def request_digest(tenant: str, request_id: str) -> bytes:
    """What makes a request_id unique within its tenant."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}{request_id}".encode()).digest()


def _columns(row: Any) -> dict[str, Any]:
    """The fields of a row by name; a statement takes those that it has parameters for."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _head(commit: Commit) -> Call:
    head = _columns(commit.session)
    if commit.new_session:
        return INSERT_SESSION(**head)
    return MOVE_HEAD(**head, session_id=commit.session.id).must_touch(1)


def _task(row: Task) -> dict[str, Any]:
    return {
        **_columns(row),
        "requires_name": row.requires.name,
        "requires_version": row.requires.version,
        "refused_by": list(row.refused_by) or None,
        "checkpoint": canonical(row.checkpoint),
        "result": canonical(row.result),
    }


def _change(row: TaskChange) -> Call:
    before = row.before
    guard = {"task_id": before.id, "fence_before": before.fence, "status_before": before.status}
    return MOVE_TASK(**_task(row.after), **guard).must_touch(1)


def _event(row: Event, commit: Commit) -> Call:
    changed = {"payload": row.payload_text, "causes": list(row.causes), "commit_seq": commit.session.last_seq}
    return INSERT_EVENT(**{**_columns(row), **changed})


def _document(row: StoredDocument) -> Call:
    """The whole value, or what changed since the version before."""
    whole = row.delta is None
    stored = {"value": canonical(row.value) if whole else None, "delta": None if whole else canonical(row.delta)}
    return INSERT_DOCUMENT(**{**_columns(row), **stored})


def _attempt_step(row: AttemptStep) -> Call:
    return STEP_ATTEMPT(
        attempt_task=row.task_id,
        attempt_fence=row.fence,
        step=row.step,
        shown=row.progress,
        phase_deadline=row.deadline,
        ended=row.deadline is None,
    )


def _use(used: Use) -> dict[str, object]:
    return {f"used_{name}": value for name, value in _columns(used).items()}


def _approval(row: Approval) -> dict[str, Any]:
    json = {name: canonical(getattr(row, name)) for name in ("arguments", "edited_arguments", "result")}
    return {**_columns(row), **json}


def _approval_change(row: ApprovalChange) -> Call:
    guard = {"approval_id": row.before.id, "answer_before": row.before.answer}
    return CHANGE_APPROVAL(**_approval(row.after), **guard).must_touch(1)


def _signal(row: NewSignal) -> Call:
    signal = {**_columns(row.signal), "payload": canonical(row.signal.payload)}
    return INSERT_SIGNAL(**signal, request_digest=row.request_digest).must_touch(1)
