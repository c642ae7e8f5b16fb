"""The schema over time: bring a database to this code's revision, and refuse to work on one that does not fit.

Code works on a schema that is older never, and on a newer one if the schema says so: the row of `compatibility` has the
newest revision that code must know. An expanding migration (new tables, new columns that may be left out) leaves it as
it is, so old workers go on, also when they restart; a contracting one raises it, once no old worker is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from shared.errors import CodeTooOld, SchemaNotCurrent, ServerUnavailable
from shared.store.tables import SCHEMA, compatibility

MIGRATIONS = Path(__file__).parent / "migrations"

LOCK_SECONDS = 2
"""How long a migration may hold workers up while it waits for a table itself."""

BUSY_SECONDS = 60.0
BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

_ONE_AT_A_TIME = 0x6272_6E68
"""Advisory lock that serialises two processes that migrate at the same time."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The revision of a database before and after it was migrated; None where it had no schema of ours."""

    before: str | None
    after: str


def upgrade(database_url: str) -> Upgrade:
    """Migrate to the newest revision; a database beyond it that this code may work on is left as it is.

    Safe to run twice, at the same time, and while workers work. Raises CodeTooOld, ServerUnavailable.
    """
    engine = _engine(database_url)
    end = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                with engine.begin() as connection:
                    return _upgrade(connection)
            except OperationalError as error:
                # Between workers that hold what it wants it gives way, and tries again.
                if not isinstance(error.orig, BUSY) or time.monotonic() > end:
                    raise _unreachable(error) from error
    finally:
        engine.dispose()


def _upgrade(connection: Connection) -> Upgrade:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
    connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    before = _found(connection)
    if before is not None and before not in _known():
        _require_old_enough(connection, before)
        return Upgrade(before, before)
    command.upgrade(config(connection), "head")
    return Upgrade(before, newest())


def newest() -> str:
    """The revision this code needs."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    return head


def found(database_url: str) -> str | None:
    """The revision of the database; None if it has no schema of ours."""
    with _connected(database_url) as connection:
        return _found(connection)


def require_current(database_url: str) -> None:
    """Raises SchemaNotCurrent or CodeTooOld unless this code may work on the schema."""
    with _connected(database_url) as connection:
        revision = _found(connection)
        if revision is None or (revision in _known() and revision != newest()):
            raise SchemaNotCurrent(revision, newest())
        if revision != newest():
            _require_old_enough(connection, revision)


def _found(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _require_old_enough(connection: Connection, revision: str) -> None:
    """Raises CodeTooOld if a schema beyond this code's newest revision is not for this code any more."""
    oldest = connection.execute(select(compatibility.c.oldest_code)).scalar_one()
    if oldest not in _known():
        raise CodeTooOld(revision, oldest, newest())


def _known() -> set[str]:
    """All revisions up to this code's newest."""
    return {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}


def config(connection: Connection) -> Config:
    """Alembic's configuration for our scripts on an open connection."""
    configuration = Config()
    configuration.set_main_option("script_location", str(MIGRATIONS))
    configuration.attributes["connection"] = connection
    return configuration


@contextmanager
def _connected(database_url: str) -> Iterator[Connection]:
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            yield connection
    except OperationalError as error:
        raise _unreachable(error) from error
    finally:
        engine.dispose()


def _engine(database_url: str) -> Engine:
    return create_engine(
        make_url(database_url).set(drivername="postgresql+psycopg"), connect_args={"connect_timeout": 5}
    )


def _unreachable(error: OperationalError) -> ServerUnavailable:
    problem = str(error.orig).strip().splitlines()[0]
    return ServerUnavailable("Postgres", problem, "check DATABASE_URL and that the server runs")
