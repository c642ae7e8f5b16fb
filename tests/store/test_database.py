"""Connections and pipelines: what an error leaves behind on a connection that goes back to its pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from sqlalchemy import text

from brainhands.shared.local.servers import Postgres
from brainhands.shared.store.database import TRANSIENT, Database, Statement
from tests.instruments.failover import failed_over, until_it_only_reads
from tests.store.stage import Stage

FAILS = Statement(text("SELECT 1 / (random() * 0)::int AS never"))
WORKS = Statement(text("SELECT 7 AS seven"))
ALSO_WORKS = Statement(text("SELECT 8 AS eight"))


@pytest.fixture
def database(shared_stage: Stage) -> Iterator[Database]:
    made = Database(shared_stage.database_url, size=1)
    yield made
    made.close()


@pytest.mark.promise("B6")
@pytest.mark.parametrize("earlier", range(8))
def test_a_statement_that_was_skipped_since_one_before_it_failed_works_the_next_time(
    database: Database, earlier: int
) -> None:
    """Whatever the driver has counted until then, and so whether it would have prepared the statement just then."""
    for _ in range(earlier):
        database.run(ALSO_WORKS(), WORKS())

    with pytest.raises(psycopg.errors.DivisionByZero):
        database.run(FAILS(), WORKS())

    for _ in range(8):
        assert [result.rows for result in database.run(ALSO_WORKS(), WORKS())] == [[{"eight": 8}], [{"seven": 7}]]


@pytest.mark.promise("B1", "B5")
@pytest.mark.parametrize("earlier", range(8))
def test_a_transaction_that_failed_leaves_nothing_and_its_connection_usable(database: Database, earlier: int) -> None:
    count = Statement(text("SELECT count(*) AS n FROM brainhands.workers"))
    leave = Statement(text("DELETE FROM brainhands.workers"))
    (before,) = database.run(count())
    for _ in range(earlier):
        with database.transaction() as transaction:
            transaction.run(WORKS())

    def fail() -> None:
        with database.transaction() as transaction:
            transaction.run(leave(), WORKS())
            transaction.run(FAILS(), WORKS())

    with pytest.raises(psycopg.errors.DivisionByZero):
        fail()

    for _ in range(8):
        with database.transaction() as transaction:
            (after,) = transaction.run(count())
            assert after.rows == before.rows


@pytest.mark.promise("H5")
def test_a_connection_that_the_server_ended_is_an_error_to_try_again_after_and_is_replaced(
    shared_stage: Stage, database: Database
) -> None:
    def end_it() -> None:
        shared_stage.sql("SELECT pg_terminate_backend(%s)", backend)

    (found,) = database.run(Statement(text("SELECT pg_backend_pid() AS pid"))())
    backend = found.rows[0]["pid"]
    end_it()
    with pytest.raises(TRANSIENT):
        database.run(WORKS(), ALSO_WORKS())

    assert database.run(WORKS())[0].rows == [{"seven": 7}]


@pytest.mark.promise("H5")
def test_a_connection_that_is_lost_in_a_pipeline_is_an_error_to_try_again_after(database: Database) -> None:
    end_myself = Statement(text("SELECT pg_terminate_backend(pg_backend_pid()) AS gone"))

    with pytest.raises(TRANSIENT):
        database.run(WORKS(), end_myself(), ALSO_WORKS())
    with pytest.raises(TRANSIENT), database.transaction() as transaction:
        transaction.run(WORKS(), end_myself())

    assert database.run(WORKS())[0].rows == [{"seven": 7}]


WRITES = Statement(text("UPDATE brainhands.workers SET draining = draining"))


@pytest.mark.promise("H5")
@pytest.mark.parametrize("use", ["a write", "a transaction", "a pipeline", "a read"])
def test_after_a_failover_one_use_finds_out_that_all_connections_of_a_pool_are_of_no_use(
    postgres: Postgres, database_url: str, use: str
) -> None:
    database = Database(database_url, size=3)

    def try_it() -> None:
        if use == "a write":
            database.run(WRITES())
        elif use == "a transaction":
            with database.transaction() as transaction:
                transaction.run(WORKS(), WRITES())
        elif use == "a pipeline":
            database.run(WORKS(), WRITES())
        else:
            database.run(WORKS())

    with ExitStack() as together:
        old = [together.enter_context(database.connection()) for _ in range(3)]
    with failed_over(postgres, database_url):
        until_it_only_reads(old[0])
        if use == "a read":
            try_it()
        else:
            with pytest.raises(TRANSIENT):
                try_it()

        assert all(connection.closed for connection in old)
        for _ in range(4):
            database.run(WRITES())
    database.close()


@pytest.mark.promise("H5")
def test_a_connection_that_was_in_use_during_a_failover_is_not_put_back(postgres: Postgres, database_url: str) -> None:
    database = Database(database_url, size=2)
    with database.connection() as old:
        with database.connection() as other:
            assert other is not old
        with failed_over(postgres, database_url):
            until_it_only_reads(old)
    assert old.closed
    assert other.closed
    database.run(WRITES())
    database.close()


@pytest.mark.hazard("13d")
def test_an_idle_transaction_is_ended_by_the_server_also_after_a_pipeline(shared_stage: Stage) -> None:
    database = Database(shared_stage.database_url, size=1, step_seconds=0.3)

    def freeze_until_ended() -> None:
        with database.transaction() as transaction:
            found, _ = transaction.run(Statement(text("SELECT pg_backend_pid() AS pid"))(), WORKS())
            while shared_stage.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", found.rows[0]["pid"]):
                shared_stage.sql("SELECT pg_sleep(0.02)")
            transaction.run(WORKS())

    with pytest.raises(psycopg.OperationalError):
        freeze_until_ended()
    database.close()


@pytest.mark.promise("H12")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("megabytes", [1, 8, 64])
def test_what_has_no_room_in_the_socket_at_once_is_sent_before_the_answer_is_waited_for(
    database: Database, megabytes: int
) -> None:
    measure = Statement(text("SELECT length(:given) AS characters"))
    size = megabytes * 1024 * 1024

    results = database.run(measure(given="x" * size), measure(given="y" * size), WORKS())

    assert [result.rows for result in results] == [[{"characters": size}], [{"characters": size}], [{"seven": 7}]]
