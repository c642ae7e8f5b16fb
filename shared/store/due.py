"""What the sweep must look at: candidates found without locks, each to be judged again under its session's lock.

There is a statement for each sort, so that one which fails stops no other sort. Candidates come in the order of their
ids, a page at a time: a page full of those that cannot be settled is followed by the next one.

What is due is found by an index that has little else. What no index could tell from what rightly waits, since a commit
must have been lost or left out for it to be there, is looked for on rounds: a pass looks at the next ROUND rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    FromClause,
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
    literal_column,
    null,
    or_,
    select,
    text,
    true,
    tuple_,
    union,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from brainhands.shared.rules import compat
from brainhands.shared.rules.compat import UNREAD_LOG, UNREADABLE
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.hints import PUT_OFF_SECONDS
from brainhands.shared.store.offers import FITS_TASK, LIVE, SESSION_FORMAT, fits
from brainhands.shared.store.tables import inbox, offers, outbox, sessions, tasks, waits, workers
from brainhands.shared.store.workers import LOWEST_FORMAT, lowest_format

PAGE = 200
"""Candidates in one answer."""

ROUND = 250
"""Rows that a pass looks at of what is looked for on rounds."""

FIRST_PAGE = UUID(int=0)
"""The place before all candidates."""

GRACE_SECONDS = 5
"""How long a hint may be without a live worker that fits, before that is told, or an input without its intake."""

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


class Mend(StrEnum):
    """What is done about hints: one of a task that is not runnable goes, a runnable task without one gets it."""

    USELESS = "useless hint"
    MISSING = "missing hint"


_NOW = func.statement_timestamp()  # stable, so that an index can serve it
_GRACE = text(f"interval '{GRACE_SECONDS} seconds'")
_PUT_OFF = text(f"interval '{PUT_OFF_SECONDS} seconds'")
_OTHER = tasks.alias("other")


def _page(found: Select[Any, Any, Any, Any]) -> Statement:
    """The next candidates behind a place.

    OFFSET 0 has Postgres find all of a sort before it orders them: it would else walk through all tasks in the order of
    their ids, to have the first few in order.
    """
    found_first = found.offset(0).subquery()
    behind = found_first.select().where(found_first.c.subject > bindparam("place", type_=Uuid))
    return Statement(behind.order_by(found_first.c.subject).limit(bindparam("most", type_=Integer)))


def _round(found: Select[Any, Any, Any, Any], *among: ColumnElement[bool], by: ColumnElement[UUID]) -> Statement:
    """The candidates among the rows of a round: those behind `place`, up to `last`."""
    of_round = found.where(*among, by > bindparam("place", type_=Uuid), by <= bindparam("last", type_=Uuid))
    return Statement(of_round.order_by(by).limit(bindparam("most", type_=Integer)))


def _end_of_round(by: ColumnElement[UUID], *among: ColumnElement[bool]) -> Statement:
    """The last of the next ROUND rows behind a place, and how many there are."""
    rows = select(by.label("subject")).where(*among, by > bindparam("place", type_=Uuid)).order_by(by)
    of_round = rows.limit(bindparam("round", type_=Integer)).subquery()
    in_reverse = aggregate_order_by(of_round.c.subject, of_round.c.subject.desc())
    return Statement(select(func.array_agg(in_reverse, type_=ARRAY(Uuid))[1].label("last"), func.count().label("rows")))


def _tasks(*conditions: ColumnElement[bool], reason: ColumnElement[Any] | None = None) -> Select[Any, Any, Any, Any]:
    shown = null() if reason is None else reason
    return select(tasks.c.session_id, tasks.c.id.label("subject"), shown.label("reason")).where(*conditions)


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
_UNHELD = and_(tasks.c.status == "pending", tasks.c.blocked.is_(None))
_OF_HINT = (outbox.c.requires_name, outbox.c.requires_version, LIVE)
_FITS_HINT = fits(*_OF_HINT, log_format=outbox.c.log_format)
WHY_UNOFFERED = case(
    (fits(*_OF_HINT), literal(UNREAD_LOG).op("||")(sql_cast(outbox.c.log_format, Text))),
    else_=literal(f"{NO_WORKER} ")
    .op("||")(outbox.c.requires_name)
    .op("||")(func.coalesce(literal("@").op("||")(sql_cast(outbox.c.requires_version, Text)), "")),
).label("blocked")
LEFT_LYING = and_(outbox.c.created_at < _NOW - _GRACE, outbox.c.not_before < _NOW + _PUT_OFF)
_HINTED = outbox.c.task_id == tasks.c.id
_VERSION = func.coalesce(outbox.c.requires_version, literal_column("0"))
_REQUIREMENT = (outbox.c.requires_name, _VERSION, outbox.c.log_format)
_WAITS = and_(outbox.c.published_at.is_(None), outbox.c.parked.is_(None))


def _requirements() -> CTE:
    """What hints require, each once: from one that waits to the next by index, and of all that are published."""
    named = [column.label(name) for column, name in zip(_REQUIREMENT, ("name", "version", "log_format"), strict=True)]
    first = select(*named).where(_WAITS).order_by(*_REQUIREMENT).limit(1)
    walk = first.cte("walk", recursive=True)
    behind = tuple_(*_REQUIREMENT) > tuple_(walk.c.name, walk.c.version, walk.c.log_format)
    following = select(*named).where(_WAITS, behind).order_by(*_REQUIREMENT).limit(1).lateral("following")
    walk = walk.union_all(select(following).select_from(walk.join(following, true())))
    published = select(*named).where(outbox.c.published_at.is_not(None), outbox.c.parked.is_(None))
    return union(select(walk), published).cte("required")


REQUIRED = _requirements()
"""What hints require, each once: (name, version with 0 for any, log_format)."""

NOT_OFFERED = (
    select(REQUIRED)
    .where(~fits(REQUIRED.c.name, REQUIRED.c.version, LIVE, log_format=REQUIRED.c.log_format))
    .cte("not_offered")
)
"""What hints require that no live worker offers; it costs by how many requirements there are, not by hints."""


def of_requirement(required: FromClause) -> ColumnElement[bool]:
    """Whether a hint requires what a row of REQUIRED says."""
    return and_(*(column == needed for column, needed in zip(_REQUIREMENT, required.c, strict=True)))


UNOFFERED = Statement(select(NOT_OFFERED))

_LONG_UNOFFERED = tuple_(*_REQUIREMENT).in_(
    select(
        func.unnest(
            bindparam("names", type_=ARRAY(Text)),
            bindparam("versions", type_=ARRAY(Integer)),
            bindparam("formats", type_=ARRAY(Integer)),
        )
        .table_valued("name", "version", "log_format", name="unoffered")
        .render_derived()
    )
)
WAKE = _page(_tasks(tasks.c.status == "sleeping", tasks.c.wake_at <= _NOW))
EXPIRE = _page(
    _tasks(
        tasks.c.status == "running",
        tasks.c.lease_until < _NOW,
        # What the end of an attempt means depends on phases that who reads only older logs may not know.
        bindparam("reads", type_=Integer) >= SESSION_FORMAT,
    )
)
MISS = _page(_tasks(tasks.c.signal_name.is_not(None), tasks.c.wake_at <= _NOW))
_SET_ASIDE = _tasks(_UNHELD, _HINTED, outbox.c.parked.is_not(None), reason=outbox.c.parked)
_REFUSED = _tasks(_UNHELD, tasks.c.refused_by.is_not(None), _HINTED, LEFT_LYING, ~FITS_TASK, reason=literal(UNREADABLE))
_OFFERED_BY_NOBODY = [
    _tasks(_UNHELD, _HINTED, LEFT_LYING, which, _LONG_UNOFFERED, ~_FITS_HINT, reason=WHY_UNOFFERED)
    for which in (_WAITS, and_(outbox.c.published_at.is_not(None), outbox.c.parked.is_(None)))
]
BLOCK = _page(select(union(_SET_ASIDE, *_OFFERED_BY_NOBODY, _REFUSED).subquery("held_up")))
_OFFERED_NAMES = select(offers.c.name).join(workers, workers.c.id == offers.c.worker_id).where(LIVE)
UNBLOCK = _page(
    select(
        union(
            _tasks(tasks.c.blocked.startswith(compat.NO_WORKER), tasks.c.requires_name.in_(_OFFERED_NAMES), FITS_TASK),
            _tasks(tasks.c.blocked == any_(bindparam("passed", type_=ARRAY(Text)))),
        ).subquery("free")
    )
)
_WAITING = and_(tasks.c.status == "waiting", tasks.c.signal_name.is_(None))
_COMPLETING = tasks.c.status == "completing"
_INPUTS = select(inbox.c.session_id, inbox.c.conversation_id.label("subject"), null().label("reason")).distinct()
READY = _round(_tasks(~_OPEN_DEPENDENCY), _WAITING, by=tasks.c.id)
COMPLETE = _round(_tasks(~_OPEN_CHILD), _COMPLETING, by=tasks.c.id)
INPUT = _round(
    _INPUTS.where(~_OPEN_WORK_OF_CONVERSATION), inbox.c.created_at < _NOW - _GRACE, by=inbox.c.conversation_id
)
ROUND_OF_READY = _end_of_round(tasks.c.id, _WAITING)
ROUND_OF_COMPLETE = _end_of_round(tasks.c.id, _COMPLETING)
ROUND_OF_INPUT = _end_of_round(inbox.c.conversation_id)
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
_ENDS_OF_ROUNDS = {Due.READY: ROUND_OF_READY, Due.COMPLETE: ROUND_OF_COMPLETE, Due.INPUT: ROUND_OF_INPUT}
_HINTS_OF_ROUND = and_(
    outbox.c.task_id > bindparam("place", type_=Uuid), outbox.c.task_id <= bindparam("last", type_=Uuid)
)
_PENDING_OF_ROUND = and_(
    tasks.c.id > bindparam("place", type_=Uuid), tasks.c.id <= bindparam("last", type_=Uuid), _UNHELD
)
ROUND_OF_HINTS = _end_of_round(outbox.c.task_id)
ROUND_OF_PENDING = _end_of_round(tasks.c.id, tasks.c.status == "pending")
DROP_USELESS_HINTS = Statement(
    delete(outbox).where(
        _HINTS_OF_ROUND,
        outbox.c.created_at < _NOW - _GRACE,
        ~select(tasks.c.id).where(tasks.c.id == outbox.c.task_id, _UNHELD).exists(),
    )
)
_UNHINTED = select(
    tasks.c.id,
    tasks.c.session_id,
    select(sessions.c.tenant).where(sessions.c.id == tasks.c.session_id).scalar_subquery(),
    tasks.c.priority,
    tasks.c.requires_name,
    tasks.c.requires_version,
    SESSION_FORMAT,
    _NOW,
).where(_PENDING_OF_ROUND, ~select(outbox.c.task_id).where(_HINTED).exists())
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
_MENDS = {
    Mend.USELESS: (ROUND_OF_HINTS, DROP_USELESS_HINTS),
    Mend.MISSING: (ROUND_OF_PENDING, ADD_MISSING_HINTS),
}
ON_ROUNDS: tuple[Due | Mend, ...] = (*_ENDS_OF_ROUNDS, *_MENDS)
UNOFFERED_TASKS = Statement(
    select(tasks.c.id, WHY_UNOFFERED.label("reason")).where(
        tasks.c.session_id == bindparam("session_id"), _UNHELD, _HINTED, LEFT_LYING, ~_FITS_HINT
    )
)
"""The pending tasks of a session that no live worker offers to run, each with the reason in words."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What a hint requires: an offer of that name, in a version (0: any), by a worker that reads a log format."""

    name: str
    version: int
    log_format: int


def unoffered(database: Database) -> list[Needed]:
    """What hints require that no live worker offers now."""
    (result,) = database.run(UNOFFERED())
    return [Needed(**row) for row in result.rows]


def circumstances(database: Database, long_unoffered: Collection[Needed]) -> Row:
    """What candidates are judged by: what can be read here, the reasons for a block that have passed, and what nobody
    has offered for so long that the tasks that need it are to say so.
    """
    (oldest,) = database.run(LOWEST_FORMAT())
    return {
        "passed": compat.passed(lowest_format(oldest)),
        "reads": compat.newest_readable(),
        "names": [needed.name for needed in long_unoffered],
        "versions": [needed.version for needed in long_unoffered],
        "formats": [needed.log_format for needed in long_unoffered],
    }


def find(database: Database, due: Due, known: Row, after: UUID = FIRST_PAGE) -> tuple[list[Row], UUID | None]:
    """A page of candidates as rows (session_id, subject, reason) in the order of `subject`, from behind `after` on.

    With it comes the place where the next pass goes on, of a sort that is looked for on rounds; None at the round's
    end. `subject` is a task, of `input` a conversation; `known` are the circumstances.
    """
    if due not in _ENDS_OF_ROUNDS:
        (result,) = database.run(_FIND[due](place=after, most=PAGE, **known))
        return result.rows, result.rows[-1]["subject"] if len(result.rows) == PAGE else None
    last, place = _round_from(database, _ENDS_OF_ROUNDS[due], after)
    if last is None:
        return [], None
    (result,) = database.run(_FIND[due](place=after, last=last, most=PAGE))
    return result.rows, result.rows[-1]["subject"] if len(result.rows) == PAGE else place


def _round_from(database: Database, end_of_round: Statement, after: UUID) -> tuple[UUID | None, UUID | None]:
    """Up to where the round from a place on goes (None: nowhere), and where the next one begins (None: anew)."""
    (result,) = database.run(end_of_round(place=after, round=ROUND))
    assert result.first is not None
    last = result.first["last"]
    return last, last if result.first["rows"] == ROUND else None


def mend_hints(database: Database, mend: Mend, after: UUID = FIRST_PAGE) -> UUID | None:
    """One round of a mending of hints; gives where the next one begins, None where it was the last."""
    end_of_round, statement = _MENDS[mend]
    last, place = _round_from(database, end_of_round, after)
    if last is not None:
        database.run(statement(place=after, last=last))
    return place
