"""The register of workers and the catalogue of tools: small writes that change no facts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from sqlalchemy import ARRAY, Integer, Text, Uuid, and_, bindparam, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from brainhands.shared.errors import SpecConflict
from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.model.ids import WorkerId
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.store import rows
from brainhands.shared.store.database import Call, Database, Result, Row, Statement
from brainhands.shared.store.offers import LIVE, SEEN_LATELY
from brainhands.shared.store.tables import catalogue, offers, workers

FORGET_SECONDS = 24 * 3600

_INSERT = insert(workers).values(
    {
        name: bindparam(name)
        for name in (
            *("id", "role", "pool", "host", "pid", "parent_pid", "slots", "environment", "log_format"),
            "tenant_concurrency",
        )
    }
)
SEE = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["id"], set_={"seen_at": func.clock_timestamp(), "slots": _INSERT.excluded.slots}
    ).returning(workers.c.draining)
)
_OFFERED = (
    func.unnest(
        bindparam("names", type_=ARRAY(Text)),
        bindparam("lows", type_=ARRAY(Integer)),
        bindparam("highs", type_=ARRAY(Integer)),
        bindparam("concurrencies", type_=ARRAY(Integer)),
    )
    .table_valued("name", "low", "high", "concurrency", name="offered")
    .render_derived()
)
OFFER = Statement(
    insert(offers)
    .from_select(["worker_id", *_OFFERED.c.keys()], select(bindparam("worker_id", type_=Uuid), *_OFFERED.c))
    .on_conflict_do_nothing()
)
DRAIN = Statement(
    update(workers)
    .where(
        workers.c.host == bindparam("the_host"),
        or_(workers.c.pid == bindparam("the_pid", type_=Integer), workers.c.parent_pid == bindparam("the_pid")),
    )
    .values(draining=True)
)
LOWEST_FORMAT = Statement(select(func.min(workers.c.log_format).label("lowest")).where(SEEN_LATELY))
LEAVE = Statement(delete(workers).where(workers.c.id == bindparam("the_worker")))
_OFFERS = select(func.json_agg(func.to_json(offers.table_valued()))).where(offers.c.worker_id == workers.c.id)
REGISTERED = Statement(
    select(workers, func.coalesce(_OFFERS.scalar_subquery(), text("'[]'")).label("offers"))
    .where(LIVE)
    .order_by(workers.c.id)
)
AGENTS = Statement(
    select(offers.c.name).distinct().join(workers).where(workers.c.role == "brain", offers.c.name.startswith("agent:"))
)
FORGET = Statement(
    delete(workers).where(workers.c.seen_at < func.clock_timestamp() - text(f"interval '{FORGET_SECONDS} seconds'"))
)
_SPEC = insert(catalogue).values({name: bindparam(name) for name in ("name", "version", "kind", "digest", "spec")})
PUBLISH = Statement(
    _SPEC.on_conflict_do_update(
        index_elements=["name", "version"],
        set_={"seen_at": func.clock_timestamp(), "spec": _SPEC.excluded.spec},
        where=and_(catalogue.c.digest == _SPEC.excluded.digest, catalogue.c.kind == _SPEC.excluded.kind),
    )
)
CATALOGUE = Statement(select(catalogue.c.spec).order_by(catalogue.c.name, catalogue.c.version))


def see(worker: WorkerInfo) -> tuple[Call, Call]:
    """Registers the worker with its offers, or says that it still lives; the first gives whether it shall drain."""
    offered = worker.offers
    seen = SEE(
        id=worker.id,
        role=worker.role,
        pool=worker.pool,
        host=worker.host,
        pid=worker.pid,
        parent_pid=worker.parent_pid,
        slots=worker.slots,
        environment=worker.environment,
        log_format=LOG_FORMAT,
        tenant_concurrency=worker.tenant_concurrency,
    )
    return seen, OFFER(
        worker_id=worker.id,
        names=[offer.name for offer in offered],
        lows=[offer.low for offer in offered],
        highs=[offer.high for offer in offered],
        concurrencies=[offer.concurrency for offer in offered],
    )


def drain(database: Database, host: str) -> None:
    """Tells this process and its children, registered under one `host`, to take no new work."""
    database.run_patiently(DRAIN(the_host=host, the_pid=os.getpid()))


def leave(worker_id: WorkerId) -> Call:
    """Takes a worker that stops off the register, and what it offers."""
    return LEAVE(the_worker=worker_id)


def live(database: Database) -> list[Row]:
    """Workers that were seen lately and do not drain: rows of the register, with `offers` as rows of that table."""
    (result,) = database.run(REGISTERED())
    return result.rows


def lowest_format(result: Result) -> int:
    """From what LOWEST_FORMAT gave: the newest log format that every live worker reads, draining ones and relays too.

    Where no worker lives, who asks is the only one.
    """
    assert result.first is not None
    return int(result.first["lowest"] or LOG_FORMAT)


def forget() -> Call:
    """Removes workers not seen for a day."""
    return FORGET()


def publish(database: Database, specs: Iterable[ToolSpec]) -> None:
    """Publish what a worker implements.

    Raises SpecConflict if a name and version is there with other parameters, NotStorable for ones that cannot be.
    """
    for spec in (spec.cleaned() for spec in specs):
        call = PUBLISH(
            name=spec.name, version=spec.version, kind=spec.kind, digest=spec.digest, spec=spec.model_dump_json()
        )
        (result,) = database.run_patiently(call)
        if result.count == 0:
            raise SpecConflict(spec.name, spec.version)


def read_catalogue(database: Database) -> list[ToolSpec]:
    """All published tools, by name and version; a spec stays when its workers are gone."""
    (result,) = database.run_patiently(CATALOGUE())
    return [rows.tool_spec(row) for row in result.rows]


def newest_specs(specs: Sequence[ToolSpec], names: Sequence[str]) -> tuple[list[ToolSpec], list[str]]:
    """For each `name` or `name@version` the spec, the newest where no version is named; and the names not found."""
    found: list[ToolSpec] = []
    missing: list[str] = []
    for wanted in names:
        name, _, version = wanted.partition("@")
        fitting = [spec for spec in specs if spec.name == name and version in ("", str(spec.version))]
        if fitting:
            found.append(max(fitting, key=lambda spec: spec.version))
        else:
            missing.append(wanted)
    return found, missing
