"""Migrations and code of different ages: who may work on which schema, what is said, and who gives way to whom."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from brainhands.shared.cli import main
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import CodeTooOld, SchemaNotCurrent, UnfitDatabase
from brainhands.shared.local.servers import Postgres
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import migrate
from brainhands.shared.store.migrations import online
from brainhands.shared.store.tables import SCHEMA
from tests.conftest import migrated, new_database
from tests.store.stage import Stage, finish, stage_of

FIRST = migrate.newest()
NEXT = "r9000"
NEXT_REVISION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{migrate.newest()}"


def upgrade():
    op.add_column("tasks", sa.Column("mark", sa.Text()), schema="{SCHEMA}")
"""


ONLINE = "r9001"
ONLINE_REVISION = f"""
from brainhands.shared.store.migrations import online

revision = "{ONLINE}"
down_revision = "{NEXT}"


def upgrade():
    online.create_index("tasks_mark_idx", "tasks", ["mark"])
    online.update("tasks", "mark = 'seen'", where="mark IS NULL")
"""


def execute(database_url: str, *statements: str) -> None:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def older_database_url(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A database for which this code has one more revision."""
    shutil.copytree(migrate.MIGRATIONS, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "r9000_next.py").write_text(NEXT_REVISION)
    monkeypatch.setattr(migrate, "MIGRATIONS", tmp_path / "migrations")
    return database_url


@pytest.fixture
def newer_database_url(database_url: str) -> str:
    """A database that code of a later revision has migrated, by expanding it."""
    execute(database_url, "UPDATE brainhands.alembic_version SET version_num = 'r9000'")
    return database_url


def contract(database_url: str) -> None:
    """Let the later revision be one that only code which knows it can work with."""
    execute(database_url, "UPDATE brainhands.compatibility SET oldest_code = 'r9000'")


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

    assert migrate.upgrade(newer_database_url) == migrate.Upgrade("r9000", "r9000")


@pytest.mark.promise("K5")
def test_code_refuses_a_schema_that_was_contracted_after_it(newer_database_url: str) -> None:
    contract(newer_database_url)

    for work in (migrate.require_current, migrate.upgrade):
        with pytest.raises(CodeTooOld, match=f"works with code of r9000 or newer, this code is of {migrate.newest()}"):
            work(newer_database_url)


@pytest.mark.promise("K5")
def test_code_refuses_a_schema_that_is_older_than_itself(older_database_url: str) -> None:
    with pytest.raises(SchemaNotCurrent, match=f"is at {FIRST}, this code needs {NEXT}"):
        migrate.require_current(older_database_url)


@pytest.mark.promise("K5")
@pytest.mark.parametrize("revision", ["0001", "0009"])
def test_a_store_of_before_the_first_release_is_refused_with_how_to_begin_anew(
    database_url: str, revision: str
) -> None:
    execute(
        database_url,
        f"UPDATE brainhands.alembic_version SET version_num = '{revision}'",
        "DROP TABLE brainhands.compatibility",
    )

    for work in (migrate.require_current, migrate.upgrade):
        with pytest.raises(UnfitDatabase, match=f"is of {revision}, a revision that was never released") as refused:
            work(database_url)
        assert "DROP SCHEMA brainhands CASCADE" in refused.value.next_step


@pytest.mark.promise("K5")
def test_migrate_says_what_it_did(
    older_database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for revision in (None, None, "r9001"):
        if revision is not None:
            execute(older_database_url, f"UPDATE brainhands.alembic_version SET version_num = '{revision}'")
        assert run(monkeypatch, older_database_url, "migrate") == 0
        said.append(capsys.readouterr().out)

    assert said == [
        f"schema {NEXT}: migrated from {FIRST}\n",
        f"schema {NEXT}: nothing to do\n",
        "schema r9001: newer than this code, which works with it; nothing to do\n",
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
    assert "error: the database schema is at r9000 and works with code of r9000 or newer" in ended.stderr
    assert "deploy the newer version here too" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.promise("K5")
def test_a_migration_gives_way_to_workers_and_comes_again(older_database_url: str) -> None:
    done = []
    upgrading = threading.Thread(target=lambda: done.append(migrate.upgrade(older_database_url)))
    with psycopg.connect(libpq_url(older_database_url)) as holder:
        holder.execute("LOCK TABLE brainhands.tasks IN ROW EXCLUSIVE MODE")
        upgrading.start()
        with psycopg.connect(libpq_url(older_database_url), autocommit=True) as worker:
            waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'brainhands.tasks'::regclass"
            while not worker.execute(waiting).fetchall():
                pass
            # It stands behind the migration, which stands behind the holder, until the migration gives way.
            worker.execute("UPDATE brainhands.tasks SET priority = 1")
    upgrading.join()

    assert done == [migrate.Upgrade(FIRST, NEXT)]


@pytest.fixture
def large_stage(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pytestconfig: pytest.Config
) -> Iterator[Stage]:
    """A fleet on a store with many tasks, which has two revisions to go; the second goes through all tasks."""
    shutil.copytree(migrate.MIGRATIONS, tmp_path / "migrations")
    for revision, script in ((NEXT, NEXT_REVISION), (ONLINE, ONLINE_REVISION)):
        (tmp_path / "migrations" / "versions" / f"{revision}_next.py").write_text(script)
    with new_database(postgres, template=migrated(postgres)) as url, stage_of(url, lease_seconds=2) as stage:
        session, _ = stage.session()
        task_id = stage.add(session)
        stage.advance(task_id)
        stage.sql(
            "INSERT INTO brainhands.tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id',"
            " gen_random_uuid()))).* FROM brainhands.tasks t, generate_series(1, %s) WHERE t.id = %s",
            pytestconfig.getoption("migrated_rows"),
            task_id,
        )
        monkeypatch.setattr(migrate, "MIGRATIONS", tmp_path / "migrations")
        yield stage


@pytest.mark.promise("K5")
def test_a_migration_of_a_whole_table_ends_no_lease_of_a_fleet_that_works(large_stage: Stage) -> None:
    """Leases of two seconds are renewed, and new work is taken, as long as it takes."""
    stage = large_stage
    session, _ = stage.session()
    held = [stage.add(session) for _ in range(4)]
    entered = threading.Barrier(len(held) + 1)
    over = threading.Event()

    def work(run: Run) -> PhaseResult:
        entered.wait(20)
        assert over.wait(300)
        return finish("done")(run)

    taken = 0
    with ThreadPoolExecutor(len(held) + 1) as threads:
        working = [threads.submit(stage.advance, each, work) for each in held]
        entered.wait(20)
        migrating = threads.submit(migrate.upgrade, stage.database_url)
        while not migrating.done():
            stage.sweep.sweep_once()
            stage.advance(stage.add(session))
            taken += 1
        over.set()
        for each in working:
            each.result(20)

    assert migrating.result() == migrate.Upgrade(FIRST, ONLINE)
    assert taken > 0
    claims = [(stage.task(each).outcome, stage.task(each).phase_attempts) for each in held]
    assert claims == [("succeeded", 0)] * len(held)
    assert "task_recovered" not in stage.types(session)
    unseen = "SELECT count(*) FILTER (WHERE mark IS NULL) AS unseen FROM brainhands.tasks WHERE id < %s"
    (left,) = stage.sql(unseen, held[0])
    assert left["unseen"] == 0
    (index,) = stage.sql("SELECT indisvalid FROM pg_index WHERE indexrelid = 'brainhands.tasks_mark_idx'::regclass")
    assert index["indisvalid"]


@pytest.mark.promise("K5")
def test_a_migration_that_was_cut_off_is_begun_anew_and_two_at_a_time_do_it_once(large_stage: Stage) -> None:
    url = large_stage.database_url
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "update", Unexpected())
        with pytest.raises(ZeroDivisionError):
            migrate.upgrade(url)
    assert migrate.found(url) == NEXT

    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(migrate.upgrade, url) for _ in range(2)]
        assert {each.result(60) for each in done} == {migrate.Upgrade(NEXT, ONLINE), migrate.Upgrade(ONLINE, ONLINE)}
    (left,) = large_stage.sql("SELECT count(*) FILTER (WHERE mark IS NULL) AS unseen FROM brainhands.tasks")
    assert left["unseen"] == 0


class Unexpected:
    """Cuts off whatever is called."""

    def __call__(self, *_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError
