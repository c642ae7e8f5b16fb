"""What a look from outside finds wrong: the questions that `doctor`, readiness and tests ask of the store.

Every unfinished task has a next mover that is not overdue. What counts as one, by status:

- running: a lease, which no renewal extends past its phase's deadline (a CHECK says so);
- sleeping, and waiting for a signal: a wake time;
- pending: a stated reason why it is blocked, or a hint that is not parked;
- waiting and completing: an open task that it waits for or owns, from which the chain of such tasks leads to one of
  another status. Two tasks that wait for each other have none.

A lease or a wake time is overdue when it passed more than LATE_SECONDS ago. A hint cannot be judged by its age alone,
since in a long backlog it rightly waits for hours: it is overdue when it has been due for LATE_SECONDS and no live
worker fits it, or a fitting one stands idle, that is, it has been there for that time with a free slot and has claimed
nothing in it. As long as every fitting worker is busy, the hint waits its turn; so it does as long as running tasks
hold all slots of its tool or tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Select,
    Text,
    all_,
    and_,
    case,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    union_all,
)

from shared.kernel import compat
from shared.model.task import Requirement
from shared.store import workers as register
from shared.store.database import Database, Row, Statement
from shared.store.slots import TENANT_SLOT
from shared.store.tables import attempts, outbox, sessions, slots, tasks, waits, workers

LATE_SECONDS = 30
ROLES = ("brain", "hands", "relay")

_LATE = func.clock_timestamp() - text(f"interval '{LATE_SECONDS} seconds'")


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


def missing_roles(database: Database) -> list[Finding]:
    """Roles of which no worker lives."""
    present = {row["role"] for row in register.live(database)}
    return [
        Finding(
            check="workers",
            subject=role,
            problem=f"no {role} was seen in the last {register.LIVE_SECONDS} seconds",
            next_step=f"start one with `brainhands {role}`",
        )
        for role in ROLES
        if role not in present
    ]


def without_mover(database: Database) -> list[Finding]:
    """Unfinished tasks that nothing will move, or whose mover is overdue."""
    (result,) = database.run(WITHOUT_MOVER())
    return [
        Finding(check="movers", subject=_named(row), problem=_standstill(row), next_step=_remedy(row))
        for row in result.rows
    ]


def blocked(database: Database) -> list[Finding]:
    """Pending tasks that no live worker can run, with the reason."""
    (result,) = database.run(BLOCKED())
    return [
        Finding(
            check="blocked",
            subject=_named(row),
            problem=str(row["blocked"]),
            next_step=_way_out(row),
        )
        for row in result.rows
    ]


def _way_out(row: Row) -> str:
    """What ends the reason for which a task is blocked."""
    reason = str(row["blocked"])
    if reason.startswith(compat.OLDER_WORKERS):
        return "stop the workers and relays of older versions"
    if reason.startswith((compat.UNREADABLE, compat.UNREAD_LOG)):
        return f"start a worker of a newer version that offers {_requirement(row)}"
    if reason.startswith(compat.NO_WORKER):
        return f"start a worker that offers {_requirement(row)}"
    return "read the log of the relay"


def _offers() -> CTE:
    """One row for each offer of a live worker: name, low, high, what it reads, and whether it stands idle."""
    offer = (
        func.json_to_recordset(workers.c.offers)
        .table_valued(
            column("name", Text),
            column("low", Integer),
            column("high", Integer),
            column("concurrency", Integer),
            name="offer",
        )
        .render_derived(with_types=True)
    )
    live = workers.c.seen_at > func.clock_timestamp() - text(f"interval '{register.LIVE_SECONDS} seconds'")
    running = (
        select(func.count())
        .where(tasks.c.status == "running", tasks.c.worker_id == workers.c.id)
        .correlate(workers)
        .scalar_subquery()
    )
    recent = select(attempts.c.worker_id).where(attempts.c.started_at > _LATE)
    idle = and_(workers.c.started_at < _LATE, workers.c.slots > running, workers.c.id.not_in(recent))
    return (
        select(
            offer.c.name,
            offer.c.low,
            offer.c.high,
            offer.c.concurrency,
            workers.c.tenant_concurrency,
            workers.c.log_format,
            workers.c.host,
            idle.label("idle"),
        )
        .select_from(workers)
        .join(offer, literal(True))
        .where(live, workers.c.draining.is_(False))
        .cte("offers")
    )


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


def _grounded() -> CTE:
    """Open tasks that need nothing from another task to move, and those whose chain of open tasks leads to such."""
    owned = tasks.alias("owned")
    edges = union_all(
        select(waits.c.waiter_id.label("id"), waits.c.dependency_id.label("on"))
        .join(tasks, tasks.c.id == waits.c.waiter_id)
        .where(tasks.c.status == "waiting"),
        select(tasks.c.id, owned.c.id.label("on"))
        .join(owned, owned.c.owner_id == tasks.c.id)
        .where(tasks.c.status == "completing", owned.c.status != "done"),
    ).cte("edges")
    states = (tasks.c.status == status for status in ("pending", "running", "sleeping"))
    by_itself = or_(*states, tasks.c.signal_name.is_not(None))
    grounded = select(tasks.c.id).where(by_itself).cte("grounded", recursive=True)
    return grounded.union(select(edges.c.id).join(grounded, grounded.c.id == edges.c.on))


def _without_mover() -> Select[Any]:
    offers, grounded = _offers(), _grounded()
    fits = and_(
        offers.c.name == outbox.c.requires_name,
        or_(outbox.c.requires_version.is_(None), outbox.c.requires_version.between(offers.c.low, offers.c.high)),
        offers.c.log_format >= sessions.c.log_format,
        or_(tasks.c.refused_by.is_(None), offers.c.host != all_(tasks.c.refused_by)),
    )
    free = and_(
        or_(offers.c.concurrency.is_(None), offers.c.concurrency > _held(outbox.c.requires_name)),
        or_(offers.c.tenant_concurrency.is_(None), offers.c.tenant_concurrency > _held(TENANT_SLOT + outbox.c.tenant)),
    )
    fitting, idle = exists().where(fits), exists().where(fits, offers.c.idle, free)
    hint_moves = and_(outbox.c.parked.is_(None), or_(outbox.c.not_before > _LATE, and_(fitting, ~idle)))
    moves = case(
        (tasks.c.status == "running", tasks.c.lease_until > _LATE),
        (tasks.c.wake_at.is_not(None), tasks.c.wake_at > _LATE),
        (tasks.c.status == "pending", or_(tasks.c.blocked.is_not(None), func.coalesce(hint_moves, False))),
        else_=tasks.c.id.in_(select(grounded.c.id)),
    )
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
            fitting.label("fitting"),
        )
        .join(sessions, sessions.c.id == tasks.c.session_id)
        .outerjoin(outbox, outbox.c.task_id == tasks.c.id)
        .where(tasks.c.status != "done", ~moves)
        .order_by(tasks.c.id)
    )


SERVER = Statement(
    select(func.current_setting("server_version_num").label("version"), func.clock_timestamp().label("clock"))
)
WITHOUT_MOVER = Statement(_without_mover())
BLOCKED = Statement(
    select(
        tasks.c.id,
        tasks.c.session_id,
        tasks.c.kind,
        tasks.c.requires_name,
        tasks.c.requires_version,
        tasks.c.blocked,
    )
    .where(tasks.c.blocked.is_not(None))
    .order_by(tasks.c.id)
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
        case "pending" if not row["fitting"]:
            return f"due since {_time(row['not_before'])}, and no live worker offers {_requirement(row)}"
        case "pending":
            return f"due since {_time(row['not_before'])}, and a worker that offers {_requirement(row)} stands idle"
        case status:
            return f"it is {status} for no task that can move"


def _remedy(row: Row) -> str:
    match row["status"]:
        case "pending" if row["parked"] is not None:
            return "read the log of the relay"
        case "pending" if row["not_before"] is not None and not row["fitting"]:
            return f"start a worker that offers {_requirement(row)}"
        case _:
            return "see that a relay runs (`brainhands relay`) and read its log"


def _named(row: Row) -> str:
    return f"{row['kind']} {row['id']} of session {row['session_id']}"


def _requirement(row: Row) -> Requirement:
    return Requirement(name=row["requires_name"], version=row["requires_version"])


def _time(value: datetime) -> str:
    return value.isoformat(timespec="seconds")
