"""When a pool is next needed, for a host that lets a fleet scale to nothing.

A pool's work is what its live workers offer. Where it has none it is what was published for it; an agent is published
for no pool, so there any agent counts that no other pool's worker offers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, Text, and_, bindparam, case, func, literal_column, or_, select, union_all

from brainhands.shared.model.task import Priority
from brainhands.shared.store.database import Database, Statement
from brainhands.shared.store.due import NO_WORKER, REQUIRED, of_requirement
from brainhands.shared.store.offers import LIVE, fits
from brainhands.shared.store.tables import catalogue, offers, outbox, tasks, workers


@dataclass(frozen=True, kw_only=True, slots=True)
class NextWake:
    """Whether a pool has work that could run now, and if not, when some may be due (None: nothing is foreseen)."""

    ready: bool
    at: datetime | None


_POOL = bindparam("pool", type_=Text)
_OFFERED = select(offers.c.name).join(workers).where(LIVE)
_AWAKE = _OFFERED.where(workers.c.pool == _POOL).exists()


def _of_the_pool(name: ColumnElement[str], version: ColumnElement[int]) -> ColumnElement[bool]:
    published = select(catalogue.c.name).where(
        catalogue.c.kind == name,
        or_(version.is_(None), version == catalogue.c.version),
        catalogue.c.spec.op("->>")("pool") == _POOL,
    )
    agents = and_(
        _POOL.startswith(literal_column("'brain.'")),
        name.startswith("agent:"),
        ~_OFFERED.where(offers.c.name == name).correlate_except(offers, workers).exists(),
    )
    return case(
        (_AWAKE, fits(name, version, LIVE, workers.c.pool == _POOL)),
        else_=or_(published.correlate_except(catalogue).exists(), agents),
    )


_NOW = func.statement_timestamp()
_OF_POOL = _of_the_pool(tasks.c.requires_name, tasks.c.requires_version)
_REQUIRED = REQUIRED.alias("needed")
_OF_REQUIRED = and_(outbox.c.parked.is_(None), of_requirement(_REQUIRED))


def _hints() -> Select[tuple[datetime]]:
    """When the next hint of each thing that the pool's work requires is due; of those that are, any will do."""
    due = [
        select(outbox.c.not_before).where(_OF_REQUIRED, of_kind, outbox.c.not_before <= _NOW).limit(1).scalar_subquery()
        for of_kind in (outbox.c.published_at.is_(None), outbox.c.published_at.is_not(None))
    ]
    # By the index of each lane, from the first one on that is not due yet.
    later = [
        select(outbox.c.not_before)
        .where(_OF_REQUIRED, outbox.c.priority == literal_column(str(int(lane))), outbox.c.not_before > _NOW)
        .order_by(outbox.c.not_before)
        .limit(1)
        .scalar_subquery()
        for lane in Priority
    ]
    return select(func.coalesce(*due, func.least(*later)).label("at")).where(
        _of_the_pool(_REQUIRED.c.name, _REQUIRED.c.version)
    )


_TIMES = union_all(
    _hints(),
    select(_NOW).where(tasks.c.blocked.startswith(NO_WORKER), _OF_POOL),
    # One after the other, until one is the pool's.
    select(tasks.c.wake_at).where(tasks.c.wake_at.is_not(None), _OF_POOL).order_by(tasks.c.wake_at).limit(1),
    select(tasks.c.lease_until).where(tasks.c.status == "running", _OF_POOL),
).subquery("times")
NEXT = Statement(select(func.min(_TIMES.c.at).label("at"), (func.min(_TIMES.c.at) <= _NOW).label("ready")))


def next_wake(database: Database, pool: str) -> NextWake:
    """What is next for a pool: a hint, a wake time or deadline, or the end of a lease."""
    (found,) = database.run(NEXT(pool=pool))
    assert found.first is not None
    ready = bool(found.first["ready"])
    return NextWake(ready=ready, at=None if ready else found.first["at"])
