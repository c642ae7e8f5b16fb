"""The register of workers and the catalogue of tools: small writes that change no facts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from sqlalchemy import Integer, and_, bindparam, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from brainhands.shared.errors import SpecConflict
from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.model.ids import WorkerId
from brainhands.shared.model.json import Json, canonical
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.store import rows
from brainhands.shared.store.database import Call, Database, Result, Row, Statement
from brainhands.shared.store.tables import catalogue, workers

LIVE_SECONDS = 15
"""A worker not seen for so long is taken for dead: no hint is sent to its pool on its account."""

FORGET_SECONDS = 24 * 3600

_SEEN_LATELY = workers.c.seen_at > func.clock_timestamp() - text(f"interval '{LIVE_SECONDS} seconds'")
_LIVE = and_(_SEEN_LATELY, workers.c.draining.is_(False))
_INSERT = insert(workers).values(
    {
        name: bindparam(name)
        for name in (
            *("id", "role", "pool", "host", "pid", "parent_pid", "slots", "environment", "offers", "log_format"),
            "tenant_concurrency",
        )
    }
)
SEE = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["id"], set_={"seen_at": func.clock_timestamp(), "slots": _INSERT.excluded.slots}
    ).returning(workers.c.draining)
)
DRAIN = Statement(
    update(workers)
    .where(
        workers.c.host == bindparam("the_host"),
        or_(workers.c.pid == bindparam("the_pid", type_=Integer), workers.c.parent_pid == bindparam("the_pid")),
    )
    .values(draining=True)
)
LOWEST_FORMAT = Statement(select(func.min(workers.c.log_format).label("lowest")).where(_SEEN_LATELY))
LEAVE = Statement(delete(workers).where(workers.c.id == bindparam("the_worker")))
LIVE = Statement(select(workers).where(_LIVE).order_by(workers.c.id))
BRAINS = Statement(select(workers.c.offers).where(workers.c.role == "brain"))
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


def see(worker: WorkerInfo) -> Call:
    """Registers the worker or says that it still lives; gives whether it shall drain."""
    return SEE(
        id=worker.id,
        role=worker.role,
        pool=worker.pool,
        host=worker.host,
        pid=worker.pid,
        parent_pid=worker.parent_pid,
        slots=worker.slots,
        environment=worker.environment,
        offers=canonical([asdict(offer) for offer in worker.offers]),
        log_format=LOG_FORMAT,
        tenant_concurrency=worker.tenant_concurrency,
    )


def drain(database: Database, host: str) -> None:
    """Tells this process and its children, registered under one `host`, to take no new work."""
    database.run_patiently(DRAIN(the_host=host, the_pid=os.getpid()))


def leave(worker_id: WorkerId) -> Call:
    """Takes a worker that stops off the register."""
    return LEAVE(the_worker=worker_id)


def live(database: Database) -> list[Row]:
    """Workers that were seen lately and do not drain: rows of the register, `offers` a list of (name, low, high).

    An offer in a form of other code's is left out: what its worker runs goes on under relays that read it.
    """
    (result,) = database.run(LIVE())
    return [{**row, "offers": [offer for offer in row["offers"] if _is_read(offer)]} for row in result.rows]


def _is_read(offer: Json) -> bool:
    fields = (("name", str), ("low", int), ("high", int), ("concurrency", int | None))
    return isinstance(offer, dict) and all(isinstance(offer.get(name), kind) for name, kind in fields)


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
