"""The schema: what the migrations make is what the tables say, and the database refuses what breaks an invariant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from sqlalchemy import create_engine, text

from brainhands.shared.errors import SchemaNotCurrent, ServerUnavailable
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.runtime.settings import ServerChoice, libpq_url
from brainhands.shared.store import migrate
from brainhands.shared.store.tables import SCHEMA, metadata
from tests.conftest import new_database
from tests.store.stage import Stage, spawn_and_wait

CATALOG = """
SELECT 'column ' || c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END || coalesce(' ' || nullif(a.attidentity::text, ''), '')
       || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') AS thing
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE c.relnamespace = %(schema)s::text::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint ' || conrelid::regclass::text || ' ' || conname || ' ' || pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = %(schema)s::text::regnamespace AND contype <> 'n'
UNION ALL
SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = %(schema)s::text
UNION ALL
SELECT 'options ' || relname || ' ' || reloptions::text
  FROM pg_class WHERE relnamespace = %(schema)s::text::regnamespace AND reloptions IS NOT NULL
"""


@pytest.fixture(params=["wheel", "system"])
def each_postgres(request: pytest.FixtureRequest, cluster: Callable[[ServerChoice], Postgres]) -> Postgres:
    try:
        return cluster(request.param)
    except ServerUnavailable as absent:
        pytest.skip(str(absent))


def test_the_migrations_add_up_to_the_tables(each_postgres: Postgres) -> None:
    with new_database(each_postgres) as migrated, new_database(each_postgres) as made:
        migrate.upgrade(migrated)
        _create_all(made)

        engine = create_engine(
            migrated.replace("postgresql://", "postgresql+psycopg://"),
            # A role of the schema's name would make it the default schema, which alembic calls by no name.
            connect_args={"options": "-c search_path=public"},
        )
        with engine.connect() as connection:
            options = {"include_schemas": True, "version_table_schema": SCHEMA, "include_name": _ours}
            differences = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        engine.dispose()

        assert differences == []
        assert _catalog(migrated) == _catalog(made)


def test_migrating_twice_changes_nothing_and_an_unmigrated_database_is_refused(empty_database_url: str) -> None:
    assert migrate.found(empty_database_url) is None
    with pytest.raises(SchemaNotCurrent):
        migrate.require_current(empty_database_url)

    migrate.upgrade(empty_database_url)
    before = _catalog(empty_database_url)
    assert migrate.upgrade(empty_database_url) == migrate.Upgrade(migrate.newest(), migrate.newest())

    migrate.require_current(empty_database_url)
    assert _catalog(empty_database_url) == before


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "schema" or name == SCHEMA


def _create_all(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
        metadata.create_all(connection)
    engine.dispose()


def _catalog(database_url: str) -> list[str]:
    with psycopg.connect(libpq_url(database_url)) as connection:
        things = [row[0] for row in connection.execute(CATALOG, {"schema": SCHEMA}).fetchall()]
    return sorted(thing for thing in things if "alembic_version" not in thing)


HOUR = timedelta(hours=1)
NOW = datetime.now(UTC)
OWNED = {"worker_id": "00000000-0000-0000-0000-000000000001", "lease_until": NOW, "deadline": NOW + HOUR, "fence": 1}

BROKEN_TASKS: dict[str, list[dict[str, Any]]] = {
    "tasks_status_check": [{"status": "sent"}],
    "tasks_outcome_check": [{"status": "done", "outcome": "lost"}],
    "tasks_outcome_when_decided_check": [
        {"status": "done"},
        {"status": "completing"},
        {"outcome": "succeeded"},
        {"status": "running", "outcome": "succeeded", **OWNED},
    ],
    "tasks_lease_when_running_check": [
        {"status": "running"},
        {"status": "running", **OWNED, "worker_id": None},
        {"status": "running", **OWNED, "lease_until": None},
        {"status": "running", **OWNED, "deadline": None},
        {"status": "running", **OWNED, "lease_until": NOW + 2 * HOUR},
        {"status": "running", **OWNED, "fence": 0},
        {"status": "pending", **OWNED},
        {"status": "waiting", "lease_until": NOW},
        {"status": "done", "outcome": "succeeded", "worker_id": OWNED["worker_id"]},
    ],
    "tasks_wake_when_sleeping_check": [{"status": "sleeping"}, {"wake_at": NOW}],
    "tasks_blocked_when_pending_check": [{"status": "waiting", "blocked": "no worker"}],
    "tasks_counters_check": [{"fence": -1}, {"step": -1}, {"phase_attempts": -1}],
}


@pytest.mark.promise("C1")
@pytest.mark.parametrize(
    ("check", "broken"), [(check, broken) for check, all_broken in BROKEN_TASKS.items() for broken in all_broken]
)
def test_a_task_in_no_lawful_state_is_refused(shared_stage: Stage, check: str, broken: dict[str, Any]) -> None:
    _, task_id = shared_stage.session()

    with pytest.raises(psycopg.errors.CheckViolation) as refusal:
        _change(shared_stage, "tasks", {"id": task_id}, broken)

    assert refusal.value.diag.constraint_name == check
    assert shared_stage.status(task_id) == "pending"


@pytest.mark.promise("C1")
def test_all_statuses_of_a_task_can_be_stored(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    lawful: dict[str, dict[str, Any]] = {
        "pending": {"blocked": "no worker"},
        "running": dict(OWNED),
        "waiting": {},
        "sleeping": {"wake_at": NOW},
        "completing": {"outcome": "cancelled"},
        "done": {"outcome": "interrupted"},
    }

    for status, columns in lawful.items():
        task_id = shared_stage.add(session_id)
        _change(shared_stage, "tasks", {"id": task_id}, {"status": status, **columns})
        assert shared_stage.status(task_id) == status


def test_a_task_that_owns_itself_or_waits_for_itself_is_refused(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    shared_stage.advance(task_id, spawn_and_wait(new_task_id()))

    with pytest.raises(psycopg.errors.CheckViolation, match="tasks_owner_check"):
        _change(shared_stage, "tasks", {"id": task_id}, {"owner_id": task_id})
    with pytest.raises(psycopg.errors.CheckViolation, match="waits_itself_check"):
        shared_stage.sql("UPDATE brainhands.waits SET dependency_id = waiter_id WHERE waiter_id = %s", task_id)


@pytest.mark.promise("A9")
def test_a_conversation_has_one_open_generation(shared_stage: Stage) -> None:
    _, task_id = shared_stage.session()
    (row,) = shared_stage.sql("SELECT * FROM brainhands.tasks WHERE id = %s", task_id)
    copy = {**row, "id": "00000000-0000-0000-0000-0000000000aa", "input": "{}", "checkpoint": "{}", "result": "null"}

    with pytest.raises(psycopg.errors.UniqueViolation, match="tasks_one_generation_idx"):
        _insert(shared_stage, copy)

    shared_stage.advance(task_id)
    copy["id"] = "00000000-0000-0000-0000-0000000000ab"
    _insert(shared_stage, copy)


@pytest.mark.promise("I2")
@pytest.mark.parametrize("causes", ["{2}", "{3}", "{1,2}", "{0}", "{-1}"])
def test_a_cause_that_is_no_earlier_event_is_refused(shared_stage: Stage, causes: str) -> None:
    session_id, _ = shared_stage.session()

    with pytest.raises(psycopg.errors.CheckViolation, match="causes_are_earlier"):
        _change(shared_stage, "events", {"session_id": session_id, "seq": 2}, {"causes": causes})


def test_two_events_cannot_have_one_seq(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()

    with pytest.raises(psycopg.errors.UniqueViolation):
        _change(shared_stage, "events", {"session_id": session_id, "seq": 2}, {"seq": 1})
    with pytest.raises(psycopg.errors.CheckViolation, match="events_seq_check"):
        _change(shared_stage, "events", {"session_id": session_id, "seq": 2}, {"seq": 0})


@pytest.mark.parametrize(
    "broken",
    [
        {"status": "done"},
        {"status": "done", "outcome": "failed"},
        {"outcome": "failed"},
        {"done_at": NOW},
        {"status": "lost"},
    ],
)
def test_a_submission_in_no_lawful_state_is_refused(shared_stage: Stage, broken: dict[str, Any]) -> None:
    receipt = shared_stage.submit()

    with pytest.raises(psycopg.errors.CheckViolation, match="submissions_"):
        _change(shared_stage, "submissions", {"id": receipt.submission_id}, broken)


@pytest.mark.promise("A2")
def test_a_request_id_is_stored_once_in_a_tenant(shared_stage: Stage) -> None:
    first, second = shared_stage.submit(), shared_stage.submit()

    with pytest.raises(psycopg.errors.UniqueViolation, match="request_digest"):
        shared_stage.sql(
            "UPDATE brainhands.submissions SET request_digest ="
            " (SELECT request_digest FROM brainhands.submissions WHERE id = %s) WHERE id = %s",
            first.submission_id,
            second.submission_id,
        )


@pytest.mark.promise("B9", "K5")
@pytest.mark.parametrize(
    ("columns", "check"),
    [
        ({"value": None}, "whole_or_delta"),
        ({"delta": "[]", "version": 2}, "whole_or_delta"),
        ({"value": None, "delta": "[]"}, "first_is_whole"),
        ({"version": 0}, "version"),
    ],
)
def test_a_document_is_stored_whole_or_as_a_delta_to_one_before(
    shared_stage: Stage, columns: dict[str, Any], check: str
) -> None:
    session_id, _ = shared_stage.session()
    # As code does that knows nothing of deltas.
    shared_stage.sql(
        "INSERT INTO brainhands.documents (session_id, name, version, kind, schema_version, value, seq)"
        " VALUES (%s, 'a', 1, 'a', 1, '{}', 2)",
        session_id,
    )

    with pytest.raises(psycopg.errors.CheckViolation, match=f"documents_{check}_check"):
        _change(shared_stage, "documents", {"session_id": session_id}, columns)


def _change(stage: Stage, table: str, key: dict[str, Any], changes: dict[str, Any]) -> None:
    statement = sql.SQL("UPDATE {} SET {} WHERE {}").format(
        sql.Identifier(SCHEMA, table),
        sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in changes),
        sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key),
    )
    stage.sql(statement.as_string(), *changes.values(), *key.values())


def _insert(stage: Stage, row: dict[str, Any]) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    places = sql.SQL(", ").join([sql.Placeholder()] * len(row))
    stage.sql(sql.SQL("INSERT INTO brainhands.tasks ({}) VALUES ({})").format(names, places).as_string(), *row.values())
