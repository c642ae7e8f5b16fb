"""Redis emptied, killed, restarted empty and frozen during runs: a doorbell is lost, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
import redis

from brainhands.shared.client import Client
from brainhands.shared.local.servers import Redis
from tests.instruments.fleet import Fleet
from tests.instruments.processes import Child
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.instruments.runs import count, doubled, finish, missing, start_runs, through, wait_for_results

EFFECTS = ("note", "reconcile", "safe")


def nothing_is_parked(fleet: Fleet) -> bool:
    parked = count(fleet, "SELECT count(*) FROM brainhands.outbox WHERE parked IS NOT NULL")
    blocked = count(fleet, "SELECT count(*) FROM brainhands.events WHERE type = 'task_blocked'")
    return parked == blocked == 0


@pytest.mark.slow
@pytest.mark.promise("H4")
@pytest.mark.case("celery/celery#4354", "celery/kombu#164")
def test_redis_emptied_ten_times_during_runs_loses_and_doubles_nothing(fleet: Fleet) -> None:
    fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    runs = start_runs(fleet, 12)
    moments = sorted(random.Random(4).sample(range(1, 36), 10))

    with redis.Redis.from_url(fleet.redis_url) as client:
        for moment in moments:
            wait_for_results(fleet, moment)
            client.flushall()

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, *EFFECTS) == []


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.promise("H4")
@pytest.mark.case("PITFALLS C6")
@pytest.mark.case("celery/celery#8091", "celery/celery#10205", "celery/celery#7185")
def test_redis_killed_and_restarted_empty_during_runs_loses_and_doubles_nothing(
    fleet: Fleet, redis_server: Redis
) -> None:
    fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    runs = start_runs(fleet, 12)

    for moment in (2, 14, 26):
        wait_for_results(fleet, moment)
        redis_server.kill()
        redis_server.start()

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, *EFFECTS) == []
    assert nothing_is_parked(fleet)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    """Stands between the fleet and Redis."""
    port = urlsplit(redis_url).port
    assert port is not None
    with Proxy(LOOPBACK, port) as proxy:
        yield proxy


def start_behind(proxy: Proxy, fleet: Fleet) -> Child:
    """Start a fleet that reaches Redis through the proxy; its relay."""
    fleet.environment["REDIS_URL"] = through(proxy, fleet.redis_url)
    relay = fleet.relay()
    fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    return relay


@pytest.mark.slow
@pytest.mark.promise("H4", "A1")
@pytest.mark.hazard(14)
def test_a_frozen_redis_stops_no_commit_and_parks_no_hint(fleet: Fleet, proxy: Proxy) -> None:
    relay = start_behind(proxy, fleet)
    runs = start_runs(fleet, 8, seconds=0.5)
    wait_for_results(fleet, 3)

    proxy.freeze()
    # In one statement: what ends between two of them would be counted twice.
    ended, running = "type = 'tool_call_success'", "kind LIKE 'tool:%' AND status = 'running'"
    expected = count(
        fleet,
        f"SELECT (SELECT count(*) FROM brainhands.events WHERE {ended})"
        f" + (SELECT count(*) FROM brainhands.tasks WHERE {running})",
    )
    with closing(Client(fleet.database_url, through(proxy, fleet.redis_url))) as client:
        late = client.submit(agent="worker", input='{"script": [{"text": "late is done"}]}')
    wait_for_results(fleet, expected)  # also of what ran when Redis froze
    relay.wait_for_line("broker_away")
    assert nothing_is_parked(fleet)
    proxy.thaw()

    finish(fleet, {**runs, "late": late}, 90)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, *EFFECTS) == []
    assert nothing_is_parked(fleet)


@pytest.mark.slow
@pytest.mark.promise("H4")
@pytest.mark.case("PITFALLS C1, R1")
@pytest.mark.case("celery/celery#2906", "taskforcesh/bullmq#4729")
def test_workers_whose_redis_sockets_went_dead_without_a_word_come_back(fleet: Fleet, proxy: Proxy) -> None:
    start_behind(proxy, fleet)
    runs = start_runs(fleet, 12)
    wait_for_results(fleet, 3)

    proxy.strand()

    finish(fleet, runs, 90)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, *EFFECTS) == []
    assert nothing_is_parked(fleet)


SET_LEAST = ["CONFIG", "SET", "min-replicas-to-write"]
REFUSALS = {
    "a replica of nobody": (["REPLICAOF", LOOPBACK, "9"], ["REPLICAOF", "NO", "ONE"]),
    "too few replicas": ([*SET_LEAST, "1"], [*SET_LEAST, "0"]),
    "full": (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
    "another password": (["CONFIG", "SET", "requirepass", "other"], ["CONFIG", "SET", "requirepass", ""]),
}


@contextmanager
def refusing(redis_url: str, why: str) -> Iterator[None]:
    """Redis answers, and refuses what workers ask of it."""
    refuse, relent = REFUSALS[why]
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command(*refuse)
        try:
            if why == "another password":
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            yield
        finally:
            client.execute_command(*relent)


@pytest.mark.slow
@pytest.mark.promise("H4", "H13")
@pytest.mark.parametrize("why", REFUSALS)
def test_a_redis_that_answers_and_refuses_is_a_pause_for_relay_and_workers(fleet: Fleet, why: str) -> None:
    parts = [fleet.relay(), fleet.brain(), fleet.hands(slots=2)]
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    runs = start_runs(fleet, 4)
    wait_for_results(fleet, 1)

    with refusing(fleet.redis_url, why):
        late = start_runs(fleet, 4, name="late")
        parts[0].wait_for_line("broker_away")
        if why != "full":  # then workers can still take what there is
            for part in parts[1:]:
                part.wait_for_line("broker_away")

    finish(fleet, runs | late, 90)
    for part in parts:
        assert part.returncode is None
        assert "Unrecoverable" not in part.output
        assert part.output.count("broker_away") == part.output.count("broker_back") <= 3
        if "broker_away" in part.output:
            assert "seconds=" in part.wait_for_line("broker_back")
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs | late, *EFFECTS) == []
    assert nothing_is_parked(fleet)
