"""What leaves the store: the content of events, and the rows that hold it a second time. Ids, times and digests stay.

| table | what goes |
|---|---|
| events | payload, salt |
| tasks (ended ones) | input, checkpoint, result, error |
| attempts | progress, late result; both are closed to late writes |
| submissions | input, output, error |
| approvals | arguments, edited arguments, result, digest, operation id, comment, who answered, what it is about |
| signals | payload, key |
| documents | whole rows, with the session only |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ARRAY, Integer, Table, Update, Uuid, any_, bindparam, case, delete, func, null, select, update
from sqlalchemy import literal_column as sql

from brainhands.shared.model.commit import Commit, Redaction
from brainhands.shared.model.event import GONE, REDACTED, Event
from brainhands.shared.model.ids import SessionId, SignalId, TaskId
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.task import Task
from brainhands.shared.store import rows
from brainhands.shared.store.database import Call, Row, Statement
from brainhands.shared.store.locked import SETTLED, Locked
from brainhands.shared.store.tables import (
    approvals,
    attempts,
    conversations,
    documents,
    events,
    sessions,
    signals,
    submissions,
    tasks,
)

_SESSION: Any = bindparam("session_id")
_IDS: Any = bindparam("ids", type_=ARRAY(Uuid))
_SEQS: Any = bindparam("seqs", type_=ARRAY(Integer))

_NOTHING: Any = sql(f"'{GONE}'::json")
_ERROR = case((sql("error").is_not(None), REDACTED), else_=None)


def _of_session(table: Table, **values: Any) -> Update:
    return update(table).where(table.c.session_id == _SESSION).values(values)


_EVENTS = _of_session(
    events, payload=_NOTHING, salt=sql("''::bytea"), redacted_at=bindparam("at", type_=events.c.redacted_at.type)
).where(events.c.redacted_at.is_(None))
_TASKS = _of_session(tasks, input=sql("'{}'::json"), checkpoint=sql("'{}'::json"), result=_NOTHING, error=_ERROR).where(
    tasks.c.status == "done"
)
_ATTEMPTS = update(attempts).values(
    # A late result is written only where there is none, and progress only while an attempt has not ended.
    progress="",
    late_result=_NOTHING,
    ended_at=func.coalesce(attempts.c.ended_at, func.clock_timestamp()),
)
_INPUTS = _of_session(submissions, input=REDACTED)
_OUTPUTS = _of_session(submissions, output=null(), error=_ERROR)
_APPROVALS = _of_session(
    approvals,
    **dict.fromkeys(("arguments", "edited_arguments", "result"), _NOTHING),
    **dict.fromkeys(("digest", "operation_id", "about"), ""),
    **dict.fromkeys(("comment", "answered_by"), null()),
)
_SIGNALS = _of_session(signals, payload=_NOTHING, key="")

REDACT_EVENTS = Statement(_EVENTS.where(events.c.seq == any_(_SEQS)))
REDACT_TASKS = Statement(_TASKS.where(tasks.c.id == any_(_IDS)))
REDACT_ATTEMPTS = Statement(_ATTEMPTS.where(attempts.c.task_id == any_(_IDS)))
REDACT_INPUTS = Statement(_INPUTS.where(submissions.c.id == any_(_IDS)))
REDACT_OUTPUTS = Statement(_OUTPUTS.where(submissions.c.id == any_(_IDS)))
REDACT_APPROVALS = Statement(_APPROVALS.where(approvals.c.id == any_(_IDS)))
REDACT_SIGNALS = Statement(_SIGNALS.where(signals.c.id == any_(_IDS)))

ERASE_EVENTS = Statement(_EVENTS.where(events.c.seq < bindparam("before", type_=Integer)))
ERASE_TASKS = Statement(_TASKS)
ERASE_ATTEMPTS = Statement(
    _ATTEMPTS.where(attempts.c.task_id.in_(select(tasks.c.id).where(tasks.c.session_id == _SESSION)))
)
ERASE_SUBMISSIONS = Statement(_OUTPUTS.values(input=REDACTED))
ERASE_APPROVALS = Statement(_APPROVALS)
ERASE_SIGNALS = Statement(_SIGNALS)
ERASE_DOCUMENTS = Statement(delete(documents).where(documents.c.session_id == _SESSION))
ERASE = (ERASE_TASKS, ERASE_ATTEMPTS, ERASE_SUBMISSIONS, ERASE_APPROVALS, ERASE_SIGNALS, ERASE_DOCUMENTS)
CLOSE_SESSION = Statement(
    update(sessions).where(sessions.c.id == _SESSION).values(erased_at=bindparam("at", type_=sessions.c.erased_at.type))
)

NAMED = Statement(
    select(
        events.c.seq,
        events.c.type,
        events.c.causes,
        events.c.conversation_id,
        events.c.task_id,
        events.c.payload,
        events.c.redacted_at,
    )
    .where(events.c.session_id == _SESSION, events.c.seq == any_(_SEQS))
    .order_by(events.c.seq)
)
ENDS_CAUSED = Statement(
    select(events.c.seq)
    .where(
        events.c.session_id == _SESSION,
        events.c.type == sql("'submission_done'"),
        # What an event led to comes after it.
        events.c.seq > bindparam("first", type_=Integer),
        events.c.causes.op("&&")(_SEQS),
        events.c.redacted_at.is_(None),
    )
    .order_by(events.c.seq)
)
UNSETTLED = Statement(
    select(tasks.c.id).where(tasks.c.id == any_(_IDS), tasks.c.outcome == "interrupted", ~SETTLED).order_by(tasks.c.id)
)
_NAMED_WORK = (
    select(tasks.c.id, tasks.c.owner_id)
    .where(tasks.c.session_id == _SESSION, tasks.c.id == any_(_IDS))
    .cte("work", recursive=True)
)
_OWNER = tasks.alias("owner")
_WORK = _NAMED_WORK.union(
    select(_OWNER.c.id, _OWNER.c.owner_id)
    .join(_NAMED_WORK, _OWNER.c.id == _NAMED_WORK.c.owner_id)
    .where(_OWNER.c.session_id == _SESSION)
)
WITH_OWNERS = Statement(
    select(tasks).where(tasks.c.session_id == _SESSION, tasks.c.id.in_(select(_WORK.c.id))).order_by(tasks.c.id)
)
ALLOW_NO_FORK = Statement(
    select(conversations.c.id)
    .where(conversations.c.session_id == _SESSION, conversations.c.owner_id.is_(None))
    .with_for_update(key_share=True)
)
FORKS = Statement(
    select(sessions.c.id)
    .where(sessions.c.forked_from == _SESSION, sessions.c.erased_at.is_(None))
    .order_by(sessions.c.id)
)
SIGNALS = Statement(select(signals).where(signals.c.id == any_(_IDS)).order_by(signals.c.id))


def named(locked: Locked, seqs: Sequence[int]) -> list[Row]:
    """Events of these seqs: rows (seq, type, causes, conversation_id, task_id, payload, redacted_at)."""
    (result,) = locked.run(NAMED(session_id=locked.session.id, seqs=list(seqs)))
    return result.rows


def ends_caused_by(locked: Locked, seqs: Sequence[int]) -> list[int]:
    """The ends of submissions that these events led to: they repeat an answer word for word."""
    (result,) = locked.run(ENDS_CAUSED(session_id=locked.session.id, seqs=list(seqs), first=min(seqs)))
    return [row["seq"] for row in result.rows]


def with_owners(locked: Locked, ids: Iterable[TaskId]) -> list[Task]:
    """These tasks and all that own them: what a call gave may be in the checkpoint of who made it."""
    (result,) = locked.run(WITH_OWNERS(session_id=locked.session.id, ids=list(ids)))
    return [rows.task(row) for row in result.rows]


def unsettled(locked: Locked, ids: Iterable[TaskId]) -> set[TaskId]:
    """Those of the tasks that are calls of which nobody knows whether they took effect."""
    (result,) = locked.run(UNSETTLED(ids=list(ids)))
    return {row["id"] for row in result.rows}


def forks_of(locked: Locked) -> list[SessionId]:
    """Sessions that have this one's log as their past, and are not erased themselves; from now on none is added."""
    _, result = locked.run(ALLOW_NO_FORK(session_id=locked.session.id), FORKS(session_id=locked.session.id))
    return [row["id"] for row in result.rows]


def signals_of(locked: Locked, ids: Iterable[SignalId]) -> list[Signal]:
    (result,) = locked.run(SIGNALS(ids=list(ids)))
    return [rows.signal(row) for row in result.rows]


def content(redaction: Redaction, commit: Commit) -> list[Call]:
    """The writes that take content out of the session of a commit, but for outputs that are named."""
    session_id = commit.session.id
    if redaction.whole:
        closed = CLOSE_SESSION(session_id=session_id, at=commit.at).must_touch(1)
        emptied = ERASE_EVENTS(session_id=session_id, at=commit.at, before=commit.of(Event)[0].seq)
        return [closed, emptied, *(statement(session_id=session_id) for statement in ERASE)]
    calls = [
        statement(session_id=session_id, ids=list(ids))
        for statement, ids in (
            (REDACT_TASKS, redaction.tasks),
            (REDACT_INPUTS, redaction.inputs),
            (REDACT_APPROVALS, redaction.approvals),
            (REDACT_SIGNALS, redaction.signals),
        )
        if ids
    ]
    if redaction.tasks:
        calls.append(REDACT_ATTEMPTS(ids=list(redaction.tasks)))
    if redaction.seqs:
        touched = REDACT_EVENTS(session_id=session_id, seqs=list(redaction.seqs), at=commit.at)
        calls.append(touched.must_touch(len(redaction.seqs)))
    return calls


def outputs(redaction: Redaction, commit: Commit) -> list[Call]:
    """The writes that take the outputs of submissions out, in rows that may have lost their inputs before."""
    return [REDACT_OUTPUTS(session_id=commit.session.id, ids=list(redaction.outputs))] if redaction.outputs else []
