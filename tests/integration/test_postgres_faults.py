"""Postgres restarted, crashed and cut off during runs: everything finishes, and nothing happens twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from brainhands.shared.local.servers import Postgres
from brainhands.shared.store.database import TRANSIENT, Database, Statement
from brainhands.shared.store.locked import CLOCK
from tests.instruments.failover import failed_over
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.instruments.runs import doubled, finish, missing, start_runs, through, wait_for_results

CUTS = 12


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    """Stands between the fleet and Postgres."""
    port = urlsplit(database_url).port
    assert port is not None
    with Proxy(LOOPBACK, port) as proxy:
        yield proxy


def start(fleet: Fleet) -> None:
    fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.promise("H5", "B6")
@pytest.mark.parametrize("crash", [False, True], ids=["stopped in order", "crashed"])
@pytest.mark.case("dbos-inc/dbos-transact-py#716", "procrastinate-org/procrastinate#1116")
def test_postgres_restarted_twice_during_runs_loses_and_doubles_nothing(
    fleet: Fleet, postgres: Postgres, crash: bool
) -> None:
    start(fleet)
    runs = start_runs(fleet, 12)

    for moment in (3, 20):
        wait_for_results(fleet, moment)
        postgres.restart(crash=crash)

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []


@pytest.mark.slow
@pytest.mark.promise("H5", "B6")
@pytest.mark.hazard(7)
def test_connections_cut_at_random_moments_lose_and_double_nothing(fleet: Fleet, proxy: Proxy) -> None:
    fleet.environment["DATABASE_URL"] = through(proxy, fleet.database_url)
    start(fleet)
    runs = start_runs(fleet, 12)

    # A moment is a number of results; the exact point within a step is left to chance.
    for moment in sorted(random.Random(1).sample(range(1, 36), CUTS)):
        wait_for_results(fleet, moment)
        proxy.cut()

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []


@pytest.mark.slow
@pytest.mark.promise("H5")
def test_a_server_that_only_reads_for_a_while_like_a_standby_is_waited_for(fleet: Fleet, postgres: Postgres) -> None:
    relay = fleet.relay()
    fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    runs = start_runs(fleet, 12)
    wait_for_results(fleet, 3)

    set_read_only(fleet, postgres, "SET default_transaction_read_only = on")
    relay.wait_for_line("postgres_away")
    set_read_only(fleet, postgres, "RESET default_transaction_read_only")

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []


@pytest.mark.slow
@pytest.mark.promise("H5", "B6")
def test_after_a_failover_that_left_the_old_connections_open_every_part_goes_on_with_the_new_primary(
    fleet: Fleet, postgres: Postgres
) -> None:
    start(fleet)
    runs = start_runs(fleet, 12)
    wait_for_results(fleet, 3)

    with failed_over(postgres, fleet.database_url):
        runs["late"] = fleet.submit('{"script": [{"text": "late is done"}]}')
        finish(fleet, runs)

    del runs["late"]
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []


def set_read_only(fleet: Fleet, postgres: Postgres, change: LiteralString) -> None:
    """Change the database's setting, for all connections from now on."""
    name = fleet.database_url.rpartition("/")[2]
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} " + change).format(sql.Identifier(name)))
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


@pytest.mark.hazard(13)
@pytest.mark.case("NikolayS/PgQue#80")
def test_a_transaction_in_which_a_process_stood_still_is_ended_and_may_be_tried_again(database_url: str) -> None:
    database = Database(database_url, step_seconds=0.5)
    watcher = Database(database_url)
    present = Statement(text("SELECT count(*) AS others FROM pg_stat_activity WHERE state = 'idle in transaction'"))

    def stand_still() -> None:
        with database.transaction() as transaction:
            transaction.run(CLOCK())
            assert watcher.run(present())[0].rows == [{"others": 1}]
            wait_until(lambda: watcher.run(present())[0].rows == [{"others": 0}], 10, "the end of the transaction")
            transaction.run(CLOCK())

    with pytest.raises(TRANSIENT):
        stand_still()

    with database.transaction() as transaction:
        assert transaction.run(CLOCK())[0].first is not None
    database.close()
    watcher.close()
