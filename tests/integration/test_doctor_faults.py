"""What `doctor` says of each way in which a system can be broken: one finding a cause, with what to do about it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from brainhands.shared.bus import census
from brainhands.shared.cli import main
from brainhands.shared.cli.doctor import examine
from brainhands.shared.local.servers import Postgres, Redis, redis_binary, start_redis
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import workers
from tests.conftest import readable_folder
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many, query

State = Callable[[Fleet], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("doctor"), postgres, redis_server) as fleet:
        fleet.everything()
        wait_until(lambda: len(census.readers(fleet.redis_url)) == 2, 30, "both workers read their queues")
        yield fleet


@pytest.fixture(scope="module")
def another_redis() -> Iterator[Redis]:
    """A Redis that only `doctor` asks: what befalls it does not touch the fleet."""
    with readable_folder() as home:
        server = start_redis(home, redis_binary(settings().servers))
        yield server
        server.stop()


@contextmanager
def setting(client: redis.Redis, name: str, value: str) -> Iterator[None]:
    before: Any = client.config_get(name)
    client.config_set(name, value)
    yield
    client.config_set(name, before[name])


def information(client: redis.Redis, name: str) -> Any:
    info: Any = client.info()
    return info[name]


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    with setting(client, "maxmemory", "100kb"):
        yield


@contextmanager
def almost_full(client: redis.Redis) -> Iterator[None]:
    client.set("much", b"x" * 20_000_000)
    with setting(client, "maxmemory", str(int(information(client, "used_memory") * 1.05))):
        yield
    client.delete("much")


@contextmanager
def evicting(client: redis.Redis) -> Iterator[None]:
    with setting(client, "maxmemory-policy", "allkeys-lru"):
        yield


@contextmanager
def replica(client: redis.Redis) -> Iterator[None]:
    client.replicaof("127.0.0.1", "9")
    yield
    client.replicaof("NO", "ONE")


@contextmanager
def unsaved(client: redis.Redis) -> Iterator[None]:
    """A Redis that saves to disk, and cannot: where its file belongs is a folder."""
    at: Any = client.config_get("d*")
    in_the_way = Path(at["dir"]) / at["dbfilename"]
    (in_the_way / "full").mkdir(parents=True)
    with setting(client, "save", "3600 1"):
        client.bgsave()
        wait_until(lambda: information(client, "rdb_last_bgsave_status") == "err", 30, "a save fails")
        yield
    (in_the_way / "full").rmdir()
    in_the_way.rmdir()


@contextmanager
def wrong_password(client: redis.Redis) -> Iterator[None]:
    before: Any = client.config_get("requirepass")
    client.config_set("requirepass", "another-secret")
    yield
    client.config_set("requirepass", before["requirepass"])


@contextmanager
def only_reading(client: redis.Redis) -> Iterator[None]:
    client.acl_setuser("default", enabled=True, commands=["-set"])
    yield
    client.acl_setuser("default", enabled=True, commands=["+set"])


@contextmanager
def no_queue(client: redis.Redis) -> Iterator[None]:
    client.set("hands.default", "x")
    yield
    client.delete("hands.default")


REDIS_STATES: dict[str, tuple[Callable[[redis.Redis], AbstractContextManager[None]], int, str, str]] = {
    "full": (full, 1, "it is at its maxmemory", "raise maxmemory"),
    "almost full": (almost_full, 1, "it is almost full", "raise maxmemory"),
    "evicting": (evicting, 1, "maxmemory-policy is allkeys-lru", "set maxmemory-policy to noeviction"),
    "a replica": (replica, 1, "a read-only replica of 127.0.0.1:9", "name the primary in REDIS_URL"),
    "unable to save": (unsaved, 1, "cannot save its data to disk (MISCONF)", "free its disk"),
    "of another password": (wrong_password, 3, "it refuses the password", "user and password into REDIS_URL"),
    "of a user who may not write": (only_reading, 1, "may not write (NOPERM)", "ACL SETUSER"),
    "with something else for a queue": (no_queue, 1, "its key hands.default is a string and no queue", "redis-cli DEL"),
}


@contextmanager
def stranger(fleet: Fleet) -> Iterator[None]:
    """A Celery worker that takes hints and is none of ours."""
    command = ("-m", "celery", "-b", fleet.redis_url, "worker", "-Q", "hands.default", "-c", "1", "-n", "odd@here")
    child = fleet._start("stranger", *command, environment={})
    wait_until(lambda: len(census.readers(fleet.redis_url).get("hands.default", ())) == 2, 30, "the stranger reads")
    yield
    child.kill(signal.SIGKILL)


@contextmanager
def deaf(fleet: Fleet) -> Iterator[None]:
    """A pool whose only worker has stopped to read its queue."""
    (hands,) = census.readers(fleet.redis_url)["hands.default"]
    app = Celery(broker=fleet.redis_url, set_as_current=False)
    app.control.cancel_consumer("hands.default", destination=[hands], reply=True, timeout=5)
    yield
    app.control.add_consumer("hands.default", destination=[hands], reply=True, timeout=5)
    wait_until(lambda: "hands.default" in census.readers(fleet.redis_url), 30, "Hands reads again")
    app.close()


@contextmanager
def cut_off(fleet: Fleet) -> Iterator[None]:
    """A worker that reaches Postgres and not Redis."""
    child = fleet.hands(queue="hands.slow", REDIS_URL="redis://127.0.0.1:9/0")
    wait_until(lambda: any(row["pool"] == "hands.slow" for row in workers.live(fleet.database)), 30, "it is registered")
    yield
    child.kill(signal.SIGKILL)
    query(fleet, "DELETE FROM brainhands.workers WHERE pool = 'hands.slow'")


@contextmanager
def lost_relay(fleet: Fleet) -> Iterator[None]:
    """The older one of two relays died a moment ago."""
    child = fleet.relay()
    fleet.wait_for_workers(relay=2)
    child.kill(signal.SIGKILL)
    query(fleet, "UPDATE brainhands.workers SET seen_at = seen_at - interval '20 seconds' WHERE pid = %s", child.pid)
    yield
    query(fleet, "DELETE FROM brainhands.workers WHERE pid = %s", child.pid)


@contextmanager
def misspelt(fleet: Fleet) -> Iterator[None]:
    receipts = [fleet.submit("hello", agent="workr") for _ in range(4)]
    blocked = "SELECT 1 FROM brainhands.tasks WHERE blocked IS NOT NULL"
    wait_until(lambda: len(query(fleet, blocked)) == 4, 60, "the tasks are blocked")
    yield
    for receipt in receipts:
        fleet.client.cancel(submission=receipt.submission_id)


@contextmanager
def refused(fleet: Fleet) -> Iterator[None]:
    receipts = [fleet.script({"fault": "insufficient_quota"}, agent="worker") for _ in range(3)]
    for receipt in receipts:
        assert fleet.wait(receipt).outcome == "failed"
    yield
    query(fleet, "UPDATE brainhands.events SET at = at - interval '1 hour' WHERE type = 'model_error'")


@contextmanager
def parked(fleet: Fleet) -> Iterator[None]:
    """Seven inputs whose hints the relay has set aside."""
    receipts = [fleet.submit("hello", agent="later") for _ in range(7)]
    query(fleet, "UPDATE brainhands.outbox SET parked = 'they cannot be published'")
    yield
    for receipt in receipts:
        fleet.client.cancel(submission=receipt.submission_id)


STATES: dict[str, tuple[State, int, str, str]] = {
    "a worker that eats hints": (stranger, 1, "on the register: 1", "cannot reach this Postgres"),
    "a pool that nobody reads for": (deaf, 1, "take hints from Redis: 0", "start them again"),
    "a worker without Redis": (
        cut_off,
        1,
        "alive (seen in Postgres): 1, of these that take hints from Redis: 0",
        "mend REDIS_URL there",
    ),
    "a relay that died just now": (lost_relay, 1, "did not say that it ends; 1 of pool relay", "start it again"),
    "a misspelt agent": (misspelt, 1, "no live worker offers agent:workr", "did you mean agent:worker?"),
    "a provider that refuses": (refused, 1, "model calls that failed in the last 10 minutes: 3", "quota is used up"),
    "hints that were set aside": (parked, 1, "(and 4 more tasks like it)", "read the log of the relay"),
}


def findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str, redis_url: str
) -> tuple[object, list[dict[str, str]]]:
    """The exit status and the findings of `doctor`, which repeats no password and shows no trace."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr("sys.argv", ["brainhands", "doctor", "--json"])
    with pytest.raises(SystemExit) as exit:
        main.app()
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert str(urlsplit(redis_url).password) not in printed.out + printed.err
    return exit.value.code, json.loads(printed.out)["findings"]


@pytest.mark.slow
@pytest.mark.promise("D5")
@pytest.mark.parametrize(("state", "status", "problem", "next_step"), REDIS_STATES.values(), ids=REDIS_STATES.keys())
def test_each_broken_state_of_redis_is_one_finding_with_its_cause_and_the_next_step(
    state: Callable[[redis.Redis], AbstractContextManager[None]],
    status: int,
    problem: str,
    next_step: str,
    shared_fleet: Fleet,
    another_redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redis.Redis.from_url(another_redis.url) as client, state(client):
        code, (finding,) = findings(monkeypatch, capsys, shared_fleet.database_url, another_redis.url)
    assert (code, finding["check"]) == (status, "redis")
    assert problem in finding["problem"]
    assert next_step in finding["next_step"]


@pytest.mark.slow
@pytest.mark.promise("D5", "H7")
@pytest.mark.filterwarnings("ignore:no worker has offered")
@pytest.mark.parametrize(("state", "status", "problem", "next_step"), STATES.values(), ids=STATES.keys())
def test_each_broken_state_of_a_fleet_is_told_once_with_its_cause_and_the_next_step(
    state: State,
    status: int,
    problem: str,
    next_step: str,
    shared_fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with state(shared_fleet):
        code, found = findings(monkeypatch, capsys, shared_fleet.database_url, shared_fleet.redis_url)
    assert code == status
    assert len({finding["next_step"] for finding in found}) == 1, found
    assert problem in found[-1]["problem"]
    assert next_step in found[-1]["next_step"]


@pytest.mark.parametrize(
    "answer", [None, {}, {"error": "no"}, "words", [], ["name"], [{}], [{"name": 1}], [{"name": None}, {"name": ["a"]}]]
)
def test_an_answer_that_no_worker_gives_counts_for_nothing(
    answer: object, another_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"odd@here": answer, "good@here": [{"name": "hands.default"}]}
    monkeypatch.setattr("celery.app.control.Inspect.active_queues", lambda _: answers)
    assert census.readers(another_redis.url) == {"hands.default": {"good@here"}}


@pytest.mark.promise("D5")
def test_a_fleet_that_works_is_without_findings_when_all_is_mended(
    shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", shared_fleet.database_url)
    monkeypatch.setenv("REDIS_URL", shared_fleet.redis_url)
    assert examine().findings == []
