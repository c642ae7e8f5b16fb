"""What a look from outside finds wrong: the questions that `doctor`, readiness and tests ask of the store.

Every unfinished task has a next mover that is not overdue. What counts as one, by status:

- running: a lease, which no renewal extends past its phase's deadline (a CHECK says so);
- sleeping, and waiting for a signal: a wake time;
- pending: a reason why it is blocked, or a hint that is not parked;
- waiting and completing: an open task that it waits for or owns, from which the chain of such tasks leads to one of
  another status. Two tasks that wait for each other have none.

A lease or a wake time is overdue when it passed more than LATE_SECONDS ago. A hint cannot be judged by its age alone,
since in a long backlog it rightly waits for hours: it is overdue when it has been due for LATE_SECONDS and a fitting
worker stands idle, that is, it has been there for that time with a free slot and has claimed nothing in it. As long as
every fitting worker is busy, the hint waits its turn; so it does as long as running tasks hold all slots of its tool or
tenant. A hint that no live worker fits is told as blocked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    CompoundSelect,
    Select,
    Subquery,
    Text,
    and_,
    any_,
    exists,
    func,
    literal_column,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import aggregate_order_by

from brainhands.shared.model.task import Requirement
from brainhands.shared.rules import compat
from brainhands.shared.store import workers as register
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.due import LEFT_LYING, NOT_OFFERED, WHY_UNOFFERED, of_requirement
from brainhands.shared.store.offers import LIVE, LIVE_SECONDS, fits
from brainhands.shared.store.slots import TENANT_SLOT
from brainhands.shared.store.tables import (
    attempts,
    conversations,
    events,
    offers,
    outbox,
    slots,
    tasks,
    waits,
    workers,
)

LATE_SECONDS = 30
ROLES = ("brain", "hands", "relay")
WORKING = ("brain.", "hands.")
"""How the names of the pools begin whose workers take hints."""

LATELY_MINUTES = 10
MOST_CAUSES = 50
MOST_LATE = 10_000
MOST_LOOKED_AT = 20_000
"""Tasks that are looked at one by one: of more the oldest."""
MOST_CALLS = 10_000

_LATE = func.statement_timestamp() - text(f"interval '{LATE_SECONDS} seconds'")
_UNHELD = and_(tasks.c.status == "pending", tasks.c.blocked.is_(None))
_HINTED = outbox.c.task_id == tasks.c.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    check: str
    subject: str
    problem: str
    next_step: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The database server as it answers: its version number (180006 for 18.6) and its clock."""

    version: int
    clock: datetime


def server(database: Database) -> Server:
    """Which server answers, and what time it has."""
    (result,) = database.run(SERVER())
    assert result.first is not None
    return Server(version=int(result.first["version"]), clock=result.first["clock"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A process on the register, with its children: which it is, since when it is there, and when it was seen last."""

    role: str
    pool: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    unseen_seconds: float
    draining: bool

    @property
    def lives(self) -> bool:
        return self.unseen_seconds < LIVE_SECONDS


def parts(database: Database) -> list[Part]:
    """What was on the register in the last LATELY_MINUTES and did not leave it, the newest last."""
    (result,) = database.run(PARTS())
    return [Part(**row) for row in result.rows]


def missing_roles(database: Database) -> list[Finding]:
    """Roles of which no worker lives."""
    present = {row["role"] for row in register.live(database)}
    return [
        Finding(
            check="workers",
            subject=role,
            problem=f"no {role} was seen in the last {LIVE_SECONDS} seconds",
            next_step=f"start one with `brainhands {role}`",
        )
        for role in ROLES
        if role not in present
    ]


def lost(found: Sequence[Part]) -> list[Finding]:
    """Processes that vanished lately and that no later one of their kind replaces, where others are left."""
    findings = []
    for role, pool in sorted({(part.role, part.pool) for part in found}):
        kind = [part for part in found if (part.role, part.pool) == (role, pool) and not part.draining]
        living = [part for part in kind if part.lives]
        gone = [part for part in kind if not part.lives]
        replaced = sum(1 for part in living if gone and part.started_at > gone[0].seen_at)
        if living and (left := gone[: max(0, len(gone) - replaced)]):
            findings.append(
                Finding(
                    check="workers",
                    subject=f"{role} {left[-1].host}, process {left[-1].pid}",
                    problem=f"not seen for {left[-1].unseen_seconds:.0f} seconds, and it did not say that it ends"
                    + (f" (and {len(left) - 1} more of pool {pool})" if len(left) > 1 else "")
                    + f"; {len(living)} of pool {pool} are left",
                    next_step=f"it died, stands still or cannot reach Postgres: read its log, and start it again"
                    f" (`brainhands {role}`)",
                )
            )
    return findings


def not_in_both(found: Sequence[Part], readers: Mapping[str, Collection[str]]) -> list[Finding]:
    """Pools of which more or fewer workers take hints than are on the register; `readers` are who reads a queue."""
    findings = []
    pools = {part.pool for part in found if part.role != "relay"} | {q for q in readers if q.startswith(WORKING)}
    for pool in sorted(pools):
        living = [part for part in found if part.pool == pool and part.lives]
        staying = [part for part in living if not part.draining]
        reading = sorted(readers.get(pool, ()))
        if len(reading) > len(living):
            findings.append(
                Finding(
                    check="workers",
                    subject=f"queue {pool}",
                    problem=f"workers that take hints from it: {len(reading)} ({', '.join(reading)}), of these on the"
                    f" register: {len(living)}; the others drop what they take, and tasks wait for the next hint",
                    next_step="such a worker cannot reach this Postgres, failed at its start, or is not one of"
                    " brainhands: read its log, mend DATABASE_URL there, or stop it",
                )
            )
        elif len(reading) < len(staying):
            findings.append(
                Finding(
                    check="workers",
                    subject=f"pool {pool}",
                    problem=f"workers that are alive (seen in Postgres): {len(staying)}, of these that take hints from"
                    f" Redis: {len(reading)}",
                    next_step="the others cannot reach Redis, or have stopped to read: read their logs, mend REDIS_URL"
                    " there, and start them again: " + ", ".join(f"{part.host} process {part.pid}" for part in staying),
                )
            )
    return findings


def failed_model_calls(database: Database) -> list[Finding]:
    """Model calls that failed in the last LATELY_MINUTES and after which nothing came, by agent and cause."""
    (result,) = database.run(FAILED_CALLS())
    return [
        Finding(
            check="model",
            subject=f"agent {row['agent']}",
            problem=f"model calls that failed in the last {LATELY_MINUTES} minutes: {row['calls']}, the last in session"
            f" {row['session']}: {row['error']}",
            next_step=_mend_calls(row["status"]),
        )
        for row in result.rows
    ]


def _mend_calls(status: str | None) -> str:
    match status:
        case "401" | "403":
            return "set OPENAI_API_KEY where Brain runs, to a key that this provider accepts, and start Brain again"
        case "404":
            return "check the agent's model or BRAINHANDS_MODEL, and OPENAI_BASE_URL, where Brain runs"
        case "429":
            return "the provider limits the rate, or its quota is used up: read its message, and its page on limits"
        case None:
            return "check that the machine of Brain reaches the provider (OPENAI_BASE_URL, proxies), and Brain's log"
        case _:
            return "read the provider's message; what can heal is tried again by itself"


def without_mover(database: Database) -> list[Finding]:
    """Unfinished tasks that nothing will move, or whose mover is overdue."""
    (result,) = database.run(WITHOUT_MOVER())
    return [
        Finding(check="movers", subject=_named(row), problem=_standstill(row), next_step=_remedy(row))
        for row in result.rows
    ]


def blocked(database: Database) -> list[Finding]:
    """Pending tasks that no live worker can run, be it stored or not: one finding a cause, with how many there are."""
    result, offered = database.run(BLOCKED(), OFFERED())
    names = {str(row["name"]) for row in offered.rows}
    return [
        Finding(check="blocked", subject=_many(row), problem=str(row["blocked"]), next_step=_way_out(row, names))
        for row in result.rows
    ]


def _many(row: Row) -> str:
    return _named(row) if row["count"] == 1 else f"{row['count']} tasks, one of them {_named(row)}"


def _way_out(row: Row, names: Collection[str]) -> str:
    """What ends the reason for which a task is blocked; `names` is what was offered lately."""
    reason, name = str(row["blocked"]), str(row["requires_name"])
    if reason.startswith(compat.OLDER_WORKERS):
        return "stop the workers and relays of older versions"
    if reason.startswith((compat.UNREADABLE, compat.UNREAD_LOG)):
        return f"start a worker of a newer version that offers {_requirement(row)}"
    if reason.startswith(compat.NO_WORKER) and name not in names:
        near = get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]}? Then cancel it and submit it again" if near else "see that the name is right"
        return f"nobody has offered {name} lately; {meant}; else start a worker that offers it"
    if reason.startswith(compat.NO_WORKER):
        return f"start a worker that offers {_requirement(row)}"
    return "read the log of the relay"


def _idle() -> CTE:
    """Live workers that stand idle."""
    running = (
        select(func.count())
        .where(tasks.c.status == "running", tasks.c.worker_id == workers.c.id)
        .correlate(workers)
        .scalar_subquery()
    )
    recent = select(attempts.c.worker_id).where(attempts.c.started_at > _LATE)
    stands = and_(workers.c.started_at < _LATE, workers.c.slots > running, workers.c.id.not_in(recent))
    return select(workers.c.id).where(LIVE, stands).cte("idle")


def _held(name: ColumnElement[str]) -> ColumnElement[int]:
    """How many slots of a name running tasks hold."""
    holder = tasks.alias("holder")
    return (
        select(func.count())
        .select_from(slots.join(holder, holder.c.id == slots.c.task_id))
        .where(slots.c.name == name, holder.c.status == "running")
        .correlate(outbox)
        .scalar_subquery()
    )


def _without_mover() -> Select[Any]:
    """Each sort is found by itself: none goes through all that is open."""
    late = union_all(
        select(tasks.c.id).where(tasks.c.status == "running", tasks.c.lease_until <= _LATE),
        select(tasks.c.id).where(tasks.c.wake_at <= _LATE),
        _unhinted(),
        select(outbox.c.task_id).join(tasks, _HINTED).where(outbox.c.parked.is_not(None), _UNHELD),
        _left_lying(),
        _ungrounded(),
    ).subquery("late")
    return (
        select(
            tasks.c.id,
            tasks.c.session_id,
            tasks.c.kind,
            tasks.c.status,
            tasks.c.requires_name,
            tasks.c.requires_version,
            tasks.c.lease_until,
            tasks.c.wake_at,
            outbox.c.not_before,
            outbox.c.parked,
        )
        .outerjoin(outbox, _HINTED)
        # As an array they are looked up one by one: there are few of them, which no plan could know.
        .where(tasks.c.id == any_(func.array(select(late.c.id).limit(MOST_LATE).scalar_subquery())))
        .order_by(tasks.c.id)
    )


def _oldest(*conditions: ColumnElement[bool]) -> Subquery:
    """The tasks that have been there for longest: relays go through all of them by and by."""
    return select(tasks.c.id).where(*conditions).order_by(tasks.c.id).limit(MOST_LOOKED_AT).subquery()


def _unhinted() -> Select[Any]:
    pending = _oldest(tasks.c.status == "pending")
    alone = ~select(outbox.c.task_id).where(outbox.c.task_id == pending.c.id).exists()
    lost = select(pending.c.id).where(alone).limit(MOST_LATE)
    return select(tasks.c.id).where(tasks.c.id == any_(func.array(lost.scalar_subquery())), _UNHELD)


def _left_lying() -> CompoundSelect[Any]:
    """Hints that have been due for long while a worker that fits stands idle: read only where one does."""
    idle = _idle()
    name = outbox.c.requires_name
    free = and_(
        or_(offers.c.concurrency.is_(None), offers.c.concurrency > _held(name)),
        or_(
            workers.c.tenant_concurrency.is_(None), workers.c.tenant_concurrency > _held(TENANT_SLOT + outbox.c.tenant)
        ),
    )
    idle_one = workers.c.id.in_(select(idle.c.id))
    # As an array, so that an index finds the hints of these names.
    offered = func.array(select(offers.c.name).where(offers.c.worker_id.in_(select(idle.c.id))).scalar_subquery())
    fitting = fits(
        name, outbox.c.requires_version, idle_one, free, log_format=outbox.c.log_format, refused_by=tasks.c.refused_by
    )
    of_those = and_(outbox.c.parked.is_(None), outbox.c.not_before <= _LATE, name == any_(offered))
    return union_all(
        *(
            select(outbox.c.task_id).join(tasks, _HINTED).where(which, of_those, _UNHELD, fitting)
            for which in (outbox.c.published_at.is_(None), outbox.c.published_at.is_not(None))
        )
    )


def _ungrounded() -> Select[Any]:
    """Tasks that wait for others, or wind up, where no chain of open tasks leads to one that moves by itself.

    Most wait for one that does, which one look shows; chains are followed among the others only.
    """
    on = tasks.alias("on")
    by_itself = or_(
        *(on.c.status == status for status in ("pending", "running", "sleeping")), on.c.signal_name.is_not(None)
    )
    of_waiter = select(waits.c.waiter_id, on.c.id.label("on")).join(on, on.c.id == waits.c.dependency_id)
    of_owner = select(on.c.owner_id, on.c.id.label("on"))
    waiting = _oldest(tasks.c.status == "waiting", tasks.c.signal_name.is_(None))
    waits_alone = ~of_waiter.where(waits.c.waiter_id == waiting.c.id, by_itself).exists()
    winds_up_alone = ~of_owner.where(on.c.owner_id == tasks.c.id, by_itself).exists()
    chained = union_all(
        select(waiting.c.id, literal_column("true").label("waits")).where(waits_alone),
        select(tasks.c.id, literal_column("false")).where(tasks.c.status == "completing", winds_up_alone),
    ).cte("chained")
    links = union_all(
        of_waiter.join(chained, chained.c.id == waits.c.waiter_id).where(chained.c.waits, on.c.status != "done"),
        of_owner.join(chained, chained.c.id == on.c.owner_id).where(~chained.c.waits, on.c.status != "done"),
    ).cte("links")
    # Whoever is open and not among the chained ones moves, or waits for one that does.
    grounded = (
        select(links.c.waiter_id.label("id"))
        .where(links.c.on.not_in(select(chained.c.id)))
        .cte("grounded", recursive=True)
    )
    grounded = grounded.union(select(links.c.waiter_id).join(grounded, grounded.c.id == links.c.on))
    return select(chained.c.id).where(chained.c.id.not_in(select(grounded.c.id)))


def _newest(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The value of the row that came last."""
    return func.array_agg(aggregate_order_by(column, _FAILED.c.at.desc()), type_=ARRAY(column.type))[1]


SERVER = Statement(
    select(func.current_setting("server_version_num").label("version"), func.clock_timestamp().label("clock"))
)
WITHOUT_MOVER = Statement(_without_mover())
_REQUIRED = (tasks.c.kind, tasks.c.requires_name, tasks.c.requires_version)
_STORED = select(tasks.c.id, tasks.c.session_id, *_REQUIRED, tasks.c.blocked).where(tasks.c.blocked.is_not(None))
# Found by what is required: one look at the offers for each requirement, and not for each hint.
_UNOFFERED = (
    select(tasks.c.id, tasks.c.session_id, *_REQUIRED, WHY_UNOFFERED)
    .join(outbox, outbox.c.task_id == tasks.c.id)
    .join(NOT_OFFERED, of_requirement(NOT_OFFERED))
    .where(LEFT_LYING, outbox.c.parked.is_(None))
)
_HELD_UP = union_all(_STORED, _UNOFFERED).subquery("held_up")
BLOCKED = Statement(
    select(
        func.count().label("count"),
        func.min(sql_cast(_HELD_UP.c.id, Text)).label("id"),
        func.min(sql_cast(_HELD_UP.c.session_id, Text)).label("session_id"),
        *(named := (_HELD_UP.c.kind, _HELD_UP.c.requires_name, _HELD_UP.c.requires_version, _HELD_UP.c.blocked)),
    )
    .group_by(*named)
    .order_by(func.count().desc(), *named[1:])
    .limit(MOST_CAUSES)
)
OFFERED = Statement(select(offers.c.name).distinct())
_LATELY = func.statement_timestamp() - text(f"interval '{LATELY_MINUTES} minutes'")
PARTS = Statement(
    select(
        workers.c.role,
        workers.c.pool,
        workers.c.host,
        workers.c.parent_pid.label("pid"),
        func.min(workers.c.started_at).label("started_at"),
        func.max(workers.c.seen_at).label("seen_at"),
        func.extract("epoch", func.clock_timestamp() - func.max(workers.c.seen_at)).label("unseen_seconds"),
        func.bool_or(workers.c.draining).label("draining"),
    )
    .where(workers.c.seen_at > _LATELY)
    .group_by(workers.c.role, workers.c.pool, workers.c.host, workers.c.parent_pid)
    .order_by(func.max(workers.c.seen_at))
)
_LATER = events.alias("later")
_CAME_AFTER = exists().where(
    _LATER.c.session_id == events.c.session_id,
    _LATER.c.conversation_id == events.c.conversation_id,
    _LATER.c.seq > events.c.seq,
    _LATER.c.type == "model_output",
)
# An index holds these events only, by their time.
_FAILED = (
    select(
        events.c.session_id,
        events.c.at,
        conversations.c.agent,
        events.c.payload.op("->>")("status").label("status"),
        events.c.payload.op("->>")("code").label("code"),
        func.left(events.c.payload.op("->>")("error"), 300).label("error"),
    )
    .join(conversations, conversations.c.id == events.c.conversation_id)
    .where(events.c.type == literal_column("'model_error'"), events.c.at > _LATELY, ~_CAME_AFTER)
    .order_by(events.c.at.desc())
    .limit(MOST_CALLS)
    .cte("failed")
)
FAILED_CALLS = Statement(
    select(
        _FAILED.c.agent,
        _FAILED.c.status,
        func.count().label("calls"),
        _newest(_FAILED.c.session_id).label("session"),
        _newest(_FAILED.c.error).label("error"),
    )
    .group_by(_FAILED.c.agent, _FAILED.c.status, _FAILED.c.code)
    .order_by(func.count().desc(), _FAILED.c.agent)
    .limit(MOST_CAUSES)
)


def _standstill(row: Row) -> str:
    """Why nothing moves a task."""
    match row["status"]:
        case "running":
            return f"its lease ended at {_time(row['lease_until'])} and no relay has taken it back"
        case "sleeping":
            return f"it should have woken at {_time(row['wake_at'])}"
        case "pending" if row["not_before"] is None:
            return "it is pending without a hint"
        case "pending" if row["parked"] is not None:
            return f"its hint is set aside: {row['parked']}"
        case "pending":
            return f"due since {_time(row['not_before'])}, and a worker that offers {_requirement(row)} stands idle"
        case status:
            return f"it is {status} for no task that can move"


def _remedy(row: Row) -> str:
    match row["status"]:
        case "pending" if row["parked"] is not None:
            return "read the log of the relay"
        case _:
            return "see that a relay runs (`brainhands relay`) and read its log"


def _named(row: Row) -> str:
    return f"{row['kind']} {row['id']} of session {row['session_id']}"


def _requirement(row: Row) -> Requirement:
    return Requirement(name=row["requires_name"], version=row["requires_version"])


def _time(value: datetime) -> str:
    return value.isoformat(timespec="seconds")
