"""The schema over time: bring a database to this code's revision, and refuse to work on another one."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from shared.errors import SchemaNotCurrent, ServerUnavailable
from shared.store.tables import SCHEMA

MIGRATIONS = Path(__file__).parent / "migrations"

_ONE_AT_A_TIME = 0x6272_6E68
"""Advisory lock that serialises two processes that migrate at the same time."""


def upgrade(database_url: str) -> str:
    """Migrate to the newest revision and return it; safe to run twice and at the same time."""
    engine = _engine(database_url)
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ONE_AT_A_TIME})
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            command.upgrade(config(connection), "head")
    except OperationalError as error:
        raise _unreachable(error) from error
    finally:
        engine.dispose()
    return newest()


def newest() -> str:
    """The revision this code needs."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    assert head is not None
    return head


def found(database_url: str) -> str | None:
    """The revision of the database; None if it has no schema of ours."""
    engine = _engine(database_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
            return context.get_current_revision()
    except OperationalError as error:
        raise _unreachable(error) from error
    finally:
        engine.dispose()


def require_current(database_url: str) -> None:
    """Raises SchemaNotCurrent unless the database is at this code's revision."""
    revision = found(database_url)
    if revision != newest():
        raise SchemaNotCurrent(revision, newest())


def config(connection: Connection) -> Config:
    """Alembic's configuration for our scripts on an open connection."""
    configuration = Config()
    configuration.set_main_option("script_location", str(MIGRATIONS))
    configuration.attributes["connection"] = connection
    return configuration


def _engine(database_url: str) -> Engine:
    return create_engine(
        make_url(database_url).set(drivername="postgresql+psycopg"), connect_args={"connect_timeout": 5}
    )


def _unreachable(error: OperationalError) -> ServerUnavailable:
    problem = str(error.orig).strip().splitlines()[0]
    return ServerUnavailable("Postgres", problem, "check DATABASE_URL and that the server runs")
