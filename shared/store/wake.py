"""When a pool is next needed, for a host that lets a fleet scale to nothing.

A pool's work is what its live workers offer. Where it has none it is what was published for it; an agent is published
for no pool, so there any agent counts that no other pool's worker offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    FromClause,
    Text,
    all_,
    and_,
    bindparam,
    func,
    or_,
    select,
    union_all,
)

from brainhands.shared.store import workers
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.due import NO_WORKER
from brainhands.shared.store.hints import OFFERED, offered
from brainhands.shared.store.tables import outbox, tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class NextWake:
    """Whether a pool has work that could run now, and if not, when some may be due (None: nothing is foreseen)."""

    ready: bool
    at: datetime | None


def _of_the_pool(table: FromClause) -> ColumnElement[bool]:
    name, version = table.c.requires_name, table.c.requires_version
    offers = (
        select(OFFERED.c.name)
        .where(OFFERED.c.name == name, or_(version.is_(None), version.between(OFFERED.c.low, OFFERED.c.high)))
        .exists()
    )
    agents = and_(
        bindparam("any_agent", type_=Boolean),
        name.startswith("agent:"),
        name != all_(bindparam("elsewhere", type_=ARRAY(Text))),
    )
    return or_(offers, agents)


_NOW = func.statement_timestamp()
_TIMES = union_all(
    select(outbox.c.not_before.label("at")).where(outbox.c.parked.is_(None), _of_the_pool(outbox)),
    select(_NOW).where(tasks.c.blocked.startswith(NO_WORKER), _of_the_pool(tasks)),
    select(tasks.c.wake_at).where(tasks.c.wake_at.is_not(None), _of_the_pool(tasks)),
    select(tasks.c.lease_until).where(tasks.c.status == "running", _of_the_pool(tasks)),
).subquery("times")
NEXT = Statement(select(func.min(_TIMES.c.at).label("at"), (func.min(_TIMES.c.at) <= _NOW).label("ready")))


def next_wake(database: Database, pool: str) -> NextWake:
    """What is next for a pool: a hint, a wake time or deadline, or the end of a lease."""
    live = workers.live(database)
    offers = [offer for worker in live if worker["pool"] == pool for offer in worker["offers"]]
    elsewhere = [offer["name"] for worker in live if worker["pool"] != pool for offer in worker["offers"]]
    asleep = not offers
    if asleep:
        offers = _published(database, pool)
    any_agent = asleep and pool.startswith("brain.")
    (found,) = database.run(NEXT(**offered(offers), any_agent=any_agent, elsewhere=elsewhere))
    assert found.first is not None
    ready = bool(found.first["ready"])
    return NextWake(ready=ready, at=None if ready else found.first["at"])


def _published(database: Database, pool: str) -> list[Row]:
    return [
        {"name": spec.kind, "low": spec.version, "high": spec.version}
        for spec in workers.read_catalogue(database)
        if spec.pool == pool
    ]
