"""What the sweep must look at: candidates found without locks, each to be judged again under its session's lock.

There is a statement for each sort, so that one which fails stops no other sort. Candidates come in the order of their
ids, a page at a time: a page full of those that cannot be settled is followed by the next one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    text,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import insert

from brainhands.shared.rules import compat
from brainhands.shared.rules.compat import UNREAD_LOG, UNREADABLE
from brainhands.shared.store.database import Call, Database, Row, Statement
from brainhands.shared.store.hints import PUT_OFF_SECONDS
from brainhands.shared.store.offers import FITS_TASK, LIVE, SESSION_FORMAT, fits
from brainhands.shared.store.tables import inbox, outbox, sessions, tasks, waits
from brainhands.shared.store.workers import LOWEST_FORMAT, lowest_format

PAGE = 200
"""Candidates in one answer."""

FIRST_PAGE = UUID(int=0)
"""The place before all candidates."""

GRACE_SECONDS = 5
"""How long a hint may be without a live worker that fits, or an input without its intake, before the sweep steps in."""

NO_WORKER = f"{compat.NO_WORKER} offers"
"""How the reason begins with which a task is blocked until a fitting worker appears."""


class Due(StrEnum):
    WAKE = "wake"
    EXPIRE = "expire"
    READY = "ready"
    MISS = "miss"
    COMPLETE = "complete"
    BLOCK = "block"
    UNBLOCK = "unblock"
    INPUT = "input"


_NOW = func.clock_timestamp()
_GRACE = text(f"interval '{GRACE_SECONDS} seconds'")
_PUT_OFF = text(f"interval '{PUT_OFF_SECONDS} seconds'")
_OTHER = tasks.alias("other")


def _page(found: Select[Any, Any, Any, Any], subject: ColumnElement[UUID]) -> Statement:
    """The next candidates behind a place.

    OFFSET 0 has Postgres find all of a sort before it orders them: it would else walk through all tasks in the order of
    their ids, to have the first few in order.
    """
    behind = found.where(subject > bindparam("place", type_=Uuid)).offset(0).subquery()
    return Statement(behind.select().order_by(behind.c.subject).limit(bindparam("most", type_=Integer)))


def _tasks(*conditions: ColumnElement[bool], reason: ColumnElement[Any] | None = None) -> Statement:
    shown = null() if reason is None else reason
    found = select(tasks.c.session_id, tasks.c.id.label("subject"), shown.label("reason"))
    return _page(found.where(*conditions), tasks.c.id)


_OPEN_DEPENDENCY = (
    select(waits.c.waiter_id)
    .join(_OTHER, _OTHER.c.id == waits.c.dependency_id)
    .where(waits.c.waiter_id == tasks.c.id, _OTHER.c.status != "done")
    .exists()
)
_OPEN_CHILD = select(_OTHER.c.id).where(_OTHER.c.owner_id == tasks.c.id, _OTHER.c.status != "done").exists()
_OPEN_WORK_OF_CONVERSATION = (
    select(_OTHER.c.id)
    .where(
        _OTHER.c.conversation_id == inbox.c.conversation_id,
        _OTHER.c.status != "done",
        or_(_OTHER.c.kind == "generation", _OTHER.c.kind == "intake"),
    )
    .exists()
)
_OF_HINT = (outbox.c.requires_name, outbox.c.requires_version, LIVE)
_FITS_HINT = fits(*_OF_HINT, log_format=outbox.c.log_format)
_WHY_NOT = case(
    (fits(*_OF_HINT), literal(UNREAD_LOG).op("||")(sql_cast(outbox.c.log_format, Text))),
    else_=null(),
)
_LEFT_LYING = and_(outbox.c.created_at < _NOW - _GRACE, outbox.c.not_before < _NOW + _PUT_OFF)
_HINTED = outbox.c.task_id == tasks.c.id
WAKE = _tasks(tasks.c.status == "sleeping", tasks.c.wake_at <= _NOW)
EXPIRE = _tasks(
    tasks.c.status == "running",
    tasks.c.lease_until < _NOW,
    # What the end of an attempt means depends on phases that who reads only older logs may not know.
    bindparam("reads", type_=Integer) >= SESSION_FORMAT,
)
READY = _tasks(tasks.c.status == "waiting", tasks.c.signal_name.is_(None), ~_OPEN_DEPENDENCY)
MISS = _tasks(tasks.c.status == "waiting", tasks.c.signal_name.is_not(None), tasks.c.wake_at <= _NOW)
COMPLETE = _tasks(tasks.c.status == "completing", ~_OPEN_CHILD)
_UNFIT = and_(_LEFT_LYING, ~_FITS_HINT)
BLOCK = _tasks(
    tasks.c.status == "pending",
    tasks.c.blocked.is_(None),
    _HINTED,
    or_(outbox.c.parked.is_not(None), _UNFIT, and_(tasks.c.refused_by.is_not(None), _LEFT_LYING, ~FITS_TASK)),
    reason=case((outbox.c.parked.is_not(None), outbox.c.parked), (_UNFIT, _WHY_NOT), else_=literal(UNREADABLE)),
)
UNBLOCK = _tasks(
    or_(
        and_(tasks.c.blocked.startswith(compat.NO_WORKER), FITS_TASK),
        tasks.c.blocked == any_(bindparam("passed", type_=ARRAY(Text))),
    )
)
INPUT = _page(
    select(inbox.c.session_id, inbox.c.conversation_id.label("subject"), null().label("reason"))
    .where(inbox.c.created_at < _NOW - _GRACE, ~_OPEN_WORK_OF_CONVERSATION)
    .distinct(),
    inbox.c.conversation_id,
)
_FIND = {
    Due.WAKE: WAKE,
    Due.EXPIRE: EXPIRE,
    Due.READY: READY,
    Due.MISS: MISS,
    Due.COMPLETE: COMPLETE,
    Due.BLOCK: BLOCK,
    Due.UNBLOCK: UNBLOCK,
    Due.INPUT: INPUT,
}
DROP_USELESS_HINTS = Statement(
    delete(outbox).where(
        outbox.c.created_at < _NOW - _GRACE,
        ~select(tasks.c.id)
        .where(tasks.c.id == outbox.c.task_id, tasks.c.status == "pending", tasks.c.blocked.is_(None))
        .exists(),
    )
)
_UNHINTED = (
    select(
        tasks.c.id,
        tasks.c.session_id,
        select(sessions.c.tenant).where(sessions.c.id == tasks.c.session_id).scalar_subquery(),
        tasks.c.priority,
        tasks.c.requires_name,
        tasks.c.requires_version,
        SESSION_FORMAT,
        _NOW,
    )
    .where(
        tasks.c.status == "pending",
        tasks.c.blocked.is_(None),
        ~select(outbox.c.task_id).where(_HINTED).exists(),
    )
    .limit(PAGE)
)
ADD_MISSING_HINTS = Statement(
    insert(outbox)
    .from_select(
        [
            "task_id",
            "session_id",
            "tenant",
            "priority",
            "requires_name",
            "requires_version",
            "log_format",
            "not_before",
        ],
        _UNHINTED,
    )
    .on_conflict_do_nothing()
)


def circumstances(database: Database) -> Row:
    """What candidates are judged by: what can be read here, and the reasons for a block that have passed."""
    (oldest,) = database.run(LOWEST_FORMAT())
    return {"passed": compat.passed(lowest_format(oldest)), "reads": compat.newest_readable()}


def find(database: Database, due: Due, known: Row, after: UUID = FIRST_PAGE) -> list[Row]:
    """A page of candidates as rows (session_id, subject, reason) in the order of `subject`, from behind `after` on.

    `subject` is a task, of `input` a conversation; `known` are the circumstances.
    """
    (result,) = database.run(_FIND[due](place=after, most=PAGE, **known))
    return result.rows


def mend_hints() -> tuple[Call, Call]:
    """Removes hints of tasks that are not runnable, and gives runnable tasks without a hint theirs."""
    return DROP_USELESS_HINTS(), ADD_MISSING_HINTS()
