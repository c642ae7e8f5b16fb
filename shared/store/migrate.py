"""The schema over time: bring a database to this code's revision, and refuse to work on one that does not fit.

Code works on a schema that is older never, and on a newer one if the schema says so: the row of `compatibility` has the
newest revision that code must know. An expanding migration (new tables, new columns that may be left out) leaves it as
it is, so old workers go on, also when they restart; a contracting one raises it, once no old worker is left.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from brainhands.shared.errors import BrainhandsError, CodeTooOld, SchemaNotCurrent, UnfitDatabase
from brainhands.shared.runtime.faults import told
from brainhands.shared.store import connections
from brainhands.shared.store.database import unavailable
from brainhands.shared.store.tables import SCHEMA, compatibility, metadata

if TYPE_CHECKING:
    from alembic.config import Config

UNRELEASED = re.compile(r"0\d{3}")
"""What revisions were called before the first release, whose stores no code migrates."""

MIGRATIONS = Path(__file__).parent / "migrations"

LOCK_SECONDS = 2
"""How long a migration may hold workers up while it waits for a table itself."""

WAIT_SECONDS = 0.1
"""Between two looks whether another process still migrates."""

BUSY_SECONDS = 60.0
BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

DENIED = text(
    "SELECT name, what FROM unnest(CAST(:names AS text[])) name,"
    " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) what"
    " WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(name, what) LIMIT 1"
)
"""What the role may not do with a table of ours."""

HAS_REVISION = text(f"SELECT to_regclass('{SCHEMA}.alembic_version')")
REVISION = text(f"SELECT version_num FROM {SCHEMA}.alembic_version")

GRANT = "use the role that ran `brainhands migrate`, or GRANT it all on the schema and its tables"

_ONE_AT_A_TIME = 0x6272_6E68
"""Advisory lock that serialises two processes that migrate at the same time."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The revision of a database before and after it was migrated; None where it had no schema of ours."""

    before: str | None
    after: str


def upgrade(database_url: str) -> Upgrade:
    """Migrate to the newest revision; a database beyond it that this code may work on is left as it is.

    Safe to run twice, at the same time, and while workers work: each revision is a transaction of its own that waits
    for no table for long, and what goes through a whole table does so in small ones (`migrations/online.py`). A
    revision that was cut off is begun anew. Raises CodeTooOld, ServerUnavailable, UnfitDatabase.
    """
    engine = _engine(database_url)
    end = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                with engine.connect() as connection, _alone(connection):
                    connections.require_fit(_driver(connection))
                    return _upgrade(connection)
            except DBAPIError as error:
                # Between workers that hold what it wants it gives way, and tries again.
                if not isinstance(error.orig, BUSY) or time.monotonic() > end:
                    raise _in_words(
                        error,
                        "have the database's owner run `brainhands migrate`, or GRANT CREATE ON DATABASE to this role",
                    ) from error
    finally:
        engine.dispose()


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Within, no other process migrates. Who waits holds no snapshot, for which an index that is built would wait."""
    key = {"key": _ONE_AT_A_TIME}
    while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), key).scalar_one():
        connection.rollback()
        time.sleep(WAIT_SECONDS)
    connection.commit()
    try:
        yield
    finally:
        if not connection.closed and not connection.invalidated:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), key)
            connection.commit()


def _upgrade(connection: Connection) -> Upgrade:
    connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS}s'"))
    connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    before = _found(connection)
    connection.commit()
    if before is not None and before not in _known():
        _require_old_enough(connection, before)
        return Upgrade(before, before)
    # Alembic comes with the command line; who only looks at the schema does without.
    from alembic import command

    command.upgrade(config(connection), "head")
    return Upgrade(before, newest())


def newest() -> str:
    """The revision this code needs."""
    return max(_known())


def found(database_url: str) -> str | None:
    """The revision of the database; None if it has no schema of ours."""
    with _connected(database_url) as connection:
        return _found(connection)


def require_current(database_url: str) -> None:
    """Raises SchemaNotCurrent, CodeTooOld or UnfitDatabase unless this code may work on the schema."""
    with _connected(database_url) as connection:
        connections.require_fit(_driver(connection))
        revision = _found(connection)
        if revision is None or (revision in _known() and revision != newest()):
            raise SchemaNotCurrent(revision, newest())
        if revision != newest():
            _require_old_enough(connection, revision)
        _require_rights(connection)


def _found(connection: Connection) -> str | None:
    """The revision of the schema, None where there is none. Raises UnfitDatabase for one that was never released."""
    if connection.execute(HAS_REVISION).scalar_one() is None:
        return None
    revision = connection.execute(REVISION).scalar()
    if revision is not None and UNRELEASED.fullmatch(revision):
        raise UnfitDatabase(
            f"the store is of {revision}, a revision that was never released and that no code migrates",
            f"begin anew: DROP SCHEMA {SCHEMA} CASCADE, then `brainhands migrate`; its sessions go with it",
        )
    return revision


def _require_old_enough(connection: Connection, revision: str) -> None:
    """Raises CodeTooOld if a schema beyond this code's newest revision is not for this code any more."""
    oldest = connection.execute(select(compatibility.c.oldest_code)).scalar_one()
    if oldest not in _known():
        raise CodeTooOld(revision, oldest, newest())


def _known() -> set[str]:
    """All revisions up to this code's newest."""
    return {script.name.partition("_")[0] for script in (MIGRATIONS / "versions").glob("r*.py")}


def config(connection: Connection) -> Config:
    """Alembic's configuration for our scripts on an open connection."""
    from alembic.config import Config

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
    except DBAPIError as error:
        raise _in_words(error, GRANT) from error
    finally:
        engine.dispose()


def _engine(database_url: str) -> Engine:
    return create_engine(
        "postgresql+psycopg://", creator=lambda: connections.connect(database_url), isolation_level="READ COMMITTED"
    )


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _require_rights(connection: Connection) -> None:
    """Raises UnfitDatabase for a role that may not do all that a worker does."""
    denied = connection.execute(DENIED, {"names": list(metadata.tables)}).first()
    if denied is not None:
        raise UnfitDatabase(f"the role may not {denied.what} {denied.name}, as a worker must", GRANT)


def _in_words(error: DBAPIError, rights: str) -> BrainhandsError:
    """What went wrong, as one of our errors; `rights` is what to do where the role may not."""
    if isinstance(error.orig, psycopg.errors.InsufficientPrivilege):
        return UnfitDatabase(f"the role may not do this: {error.orig.diag.message_primary}", rights)
    if isinstance(error, OperationalError):
        return unavailable(error)
    return UnfitDatabase(f"Postgres refuses: {told(error)}", "look into the server's log")
