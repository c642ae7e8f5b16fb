"""Migrations and code of different ages: who may work on which schema, what is said, and who gives way to whom."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine

from brainhands.shared.cli import main
from brainhands.shared.errors import CodeTooOld, SchemaNotCurrent
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import migrate
from brainhands.shared.store.tables import SCHEMA

FIRST = "0001"


def execute(database_url: str, *statements: str) -> None:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def migrate_to_the_first(database_url: str) -> None:
    execute(database_url, f"CREATE SCHEMA {SCHEMA}")
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        command.upgrade(migrate.config(connection), FIRST)
    engine.dispose()


@pytest.fixture
def newer_database_url(database_url: str) -> str:
    """A database that code of a later revision has migrated, by expanding it."""
    execute(database_url, "UPDATE brainhands.alembic_version SET version_num = '9000'")
    return database_url


def contract(database_url: str) -> None:
    """Let the later revision be one that only code which knows it can work with."""
    execute(database_url, "UPDATE brainhands.compatibility SET oldest_code = '9000'")


def run(monkeypatch: pytest.MonkeyPatch, database_url: str, *arguments: str) -> object:
    """The exit status of a command."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    monkeypatch.setattr("sys.argv", ["brainhands", *arguments])
    with pytest.raises(SystemExit) as exit:
        main.app()
    return exit.value.code


@pytest.mark.promise("K5")
def test_code_works_on_a_schema_that_was_expanded_after_it_and_leaves_it_as_it_is(newer_database_url: str) -> None:
    migrate.require_current(newer_database_url)

    assert migrate.upgrade(newer_database_url) == migrate.Upgrade("9000", "9000")


@pytest.mark.promise("K5")
def test_code_refuses_a_schema_that_was_contracted_after_it(newer_database_url: str) -> None:
    contract(newer_database_url)

    for work in (migrate.require_current, migrate.upgrade):
        with pytest.raises(CodeTooOld, match=f"works with code of 9000 or newer, this code is of {migrate.newest()}"):
            work(newer_database_url)


@pytest.mark.promise("K5")
def test_code_refuses_a_schema_that_is_older_than_itself(empty_database_url: str) -> None:
    migrate_to_the_first(empty_database_url)

    with pytest.raises(SchemaNotCurrent, match=f"is at {FIRST}, this code needs {migrate.newest()}"):
        migrate.require_current(empty_database_url)


@pytest.mark.promise("K5")
def test_migrate_says_what_it_did(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate_to_the_first(empty_database_url)
    newest = migrate.newest()

    said = []
    for _ in range(2):
        assert run(monkeypatch, empty_database_url, "migrate") == 0
        said.append(capsys.readouterr().out)
    execute(empty_database_url, "UPDATE brainhands.alembic_version SET version_num = '9000'")
    assert run(monkeypatch, empty_database_url, "migrate") == 0
    said.append(capsys.readouterr().out)

    assert said == [
        f"schema {newest}: migrated from {FIRST}\n",
        f"schema {newest}: nothing to do\n",
        "schema 9000: newer than this code, which works with it; nothing to do\n",
    ]


@pytest.mark.promise("K5")
@pytest.mark.parametrize("part", [("-m", "brainhands.outbox.app"), ("-m", "brainhands.shared.cli.main", "sessions")])
def test_a_part_that_is_too_old_for_the_schema_says_so_and_ends_with_3(
    newer_database_url: str, redis_url: str, part: tuple[str, ...]
) -> None:
    contract(newer_database_url)

    ended = subprocess.run(
        [sys.executable, *part],
        env={**os.environ, "DATABASE_URL": newer_database_url, "REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ended.returncode == 3, ended.stderr
    assert "error: the database schema is at 9000 and works with code of 9000 or newer" in ended.stderr
    assert "deploy the newer version here too" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.promise("K5")
def test_a_migration_gives_way_to_workers_and_comes_again(empty_database_url: str) -> None:
    migrate_to_the_first(empty_database_url)
    done = []
    upgrading = threading.Thread(target=lambda: done.append(migrate.upgrade(empty_database_url)))
    with psycopg.connect(libpq_url(empty_database_url)) as holder:
        holder.execute("LOCK TABLE brainhands.tasks IN ROW EXCLUSIVE MODE")
        upgrading.start()
        with psycopg.connect(libpq_url(empty_database_url), autocommit=True) as worker:
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'brainhands.tasks'::regclass"
            while not worker.execute(waiting).fetchall():
                pass
            # It stands behind the migration, which stands behind the holder, until the migration gives way.
            worker.execute("UPDATE brainhands.tasks SET priority = 1")
    upgrading.join()

    assert done == [migrate.Upgrade(FIRST, migrate.newest())]
