"""What every test can ask for: real servers, an own migrated database, an own empty Redis.

Each xdist worker has servers of its own, so a test may restart or kill them: its worker runs no other test meanwhile.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg import sql

from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.local.servers import (
    Postgres,
    Redis,
    postgres_binaries,
    redis_binary,
    start_postgres,
    start_redis,
)
from brainhands.shared.runtime.settings import ServerChoice, Settings, settings
from tests.instruments.fleet import Fleet, fleet_of

MIGRATED = "migrated"
DATABASE_NUMBERS = itertools.count(1)


def _forget_settings_of_the_person_who_runs_the_tests() -> None:
    names = {str(field.alias) for field in Settings.model_fields.values()} - {"BRAINHANDS_SERVERS"}
    for name in names:
        os.environ.pop(name, None)


_forget_settings_of_the_person_who_runs_the_tests()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-crash-matrix",
        action="store_true",
        help="kill at every commit and publish, not at a seeded part of them",
    )
    parser.addoption(
        "--migrated-rows",
        type=int,
        default=20_000,
        help="tasks of the store that is migrated under a fleet that works",
    )


@pytest.fixture(autouse=True)
def settings_read_anew() -> Iterator[None]:
    """Lets a test set environment variables without leaving settings made of them behind."""
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Callable[[ServerChoice], Postgres]]:
    """Gives the running Postgres of a choice, started when first asked for."""
    with ExitStack() as running:

        @functools.cache
        def start(choice: ServerChoice) -> Postgres:
            binaries = postgres_binaries(choice)
            postgres = start_postgres(running.enter_context(readable_folder()), binaries)
            running.callback(postgres.stop)
            return postgres

        yield start


@pytest.fixture(scope="session")
def postgres(cluster: Callable[[ServerChoice], Postgres]) -> Postgres:
    """The Postgres of the tests; `restart()` keeps its address."""
    return cluster(settings().servers)


@pytest.fixture
def database_url(postgres: Postgres) -> Iterator[str]:
    """A migrated database of this test's own, as psycopg, SQLAlchemy and Client take it."""
    with new_database(postgres, template=migrated(postgres)) as url:
        yield url


@pytest.fixture
def empty_database_url(postgres: Postgres) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    with new_database(postgres) as url:
        yield url


@pytest.fixture(params=["wheel", "system"])
def each_database_url(request: pytest.FixtureRequest, cluster: Callable[[ServerChoice], Postgres]) -> Iterator[str]:
    """As database_url, on the Postgres of the wheel and on that of the system, which may be another version."""
    try:
        chosen = cluster(request.param)
    except ServerUnavailable as absent:
        pytest.skip(str(absent))
    with new_database(chosen, template=migrated(chosen)) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The Redis of the tests; `kill()` and `start()` keep its address."""
    with readable_folder() as home:
        server = start_redis(home, redis_binary(settings().servers))
        yield server
        server.stop()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """An empty Redis, used by no other test at this time."""
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@contextmanager
def new_database(postgres: Postgres, template: str = "template1") -> Iterator[str]:
    """Makes a database from a template and drops it afterwards, whoever is still connected; gives its address."""
    postgres.start()
    name = f"test_{next(DATABASE_NUMBERS)}"
    _execute(postgres, "CREATE DATABASE {} TEMPLATE {}", name, template)
    yield _address(postgres, name)
    postgres.start()
    _execute(postgres, "DROP DATABASE {} WITH (FORCE)", name)


@functools.cache
def migrated(postgres: Postgres) -> str:
    """The name of the database that was migrated once, to be copied."""
    # Not at the top, so that tests of what lies below the store do not need it.
    from brainhands.shared.store.migrate import upgrade

    postgres.start()
    _execute(postgres, "CREATE DATABASE {}", MIGRATED)
    upgrade(_address(postgres, MIGRATED))
    # A database to which somebody is connected cannot be copied.
    _execute(postgres, "ALTER DATABASE {} ALLOW_CONNECTIONS false", MIGRATED)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [MIGRATED])
    return MIGRATED


@contextmanager
def readable_folder() -> Iterator[Path]:
    """A folder for a server's state that an account without rights can reach too; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="brainhands-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def _execute(postgres: Postgres, statement: str, *names: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _address(postgres: Postgres, database: str) -> str:
    return f"{postgres.url.rpartition('/')[0]}/{database}"


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Fleet]:
    """Relay, Brain and Hands to be started by the test, with the sample agents and tools and a lease of 3 s."""
    with fleet_of(tmp_path, database_url=database_url, redis_url=redis_url) as started:
        yield started
