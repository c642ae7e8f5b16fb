"""Hints and who publishes them: forged ones, floods, rows that cannot be sent, and relays that die."""

from __future__ import annotations

import base64
import json
import random
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from brainhands.outbox.publisher import BROKER_AWAY, Publisher
from brainhands.outbox.relay import WINDOW_A_SLOT, Relay
from brainhands.outbox.sweep import Sweep
from brainhands.shared.bus.bell import Bell, RelayBell
from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.local.servers import Redis
from brainhands.shared.model.ids import new_session_id
from brainhands.shared.model.submission import Receipt
from brainhands.shared.store import health
from brainhands.shared.store.database import Database, Row
from brainhands.shared.store.due import Due
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.instruments.runs import count, doubled, finish, missing, start_runs, through, wait_for_results


def hint_rows(fleet: Fleet) -> list[Row]:
    with psycopg.connect(fleet.database_url, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute("SELECT * FROM brainhands.outbox ORDER BY task_id").fetchall()


@contextmanager
def relay_here(fleet: Fleet, publisher: Publisher) -> Iterator[None]:
    """A relay in this process, without a sweep, with a publisher of the test's own."""
    stopping = threading.Event()
    database = Database(fleet.database_url)
    thread = threading.Thread(target=Relay(database, publisher, RelayBell(fleet.redis_url), stopping).run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        publisher.close()
        database.close()


def forgeries(tasks: list[tuple[str, str]], chance: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """Messages that are not what they should be: task names with kwargs."""
    some = [list(pair) for pair in tasks]
    nobody = [str(uuid.uuid4()), str(uuid.uuid4())]
    reordered = chance.sample(some, len(some))[:200]
    return [
        ("brain.advance", {"v": 1, "hints": [nobody]}),
        ("brain.advance", {"v": 1, "hints": []}),
        ("brain.advance", {"v": 2, "hints": some}),
        ("brain.advance", {"v": "1", "hints": "all"}),
        ("brain.advance", {"hints": some}),
        ("brain.advance", {"v": 1, "hints": [["x", "y"], *some]}),
        ("brain.advance", {"v": 1, "hints": some, "shell": "true"}),
        ("brain.advance", {"v": 1, "hints": [[task, nobody[0]] for task, _ in some]}),
        ("brain.advance", {"v": 1, "hints": [nobody] * 300}),
        ("brain.advance", {}),
        ("brain.retreat", {"v": 1, "hints": some}),
        ("celery.backend_cleanup", {}),
        *[("brain.advance", {"v": 1, "hints": reordered})] * 2,
    ]


def hostile(genuine: Any, hint: list[str]) -> Iterator[bytes]:
    """Entries with more than ids, or with less, that Celery or kombu would believe or stumble over."""
    yield from (b"no json", b"{}", b"[]", b'{"body": 1}', b"[" * 100_000, b"\xff\xfe", genuine or b"null")
    kwargs: dict[str, Any] = {"v": 1, "hints": [hint]}
    later = "2999-01-01T00:00:00+00:00"
    other_task = {"task": "celery.backend_cleanup", "args": [], "kwargs": {}, "options": {}}
    believed: list[dict[str, Any]] = [
        *[{"eta": later}] * 150,
        {"eta": "no time"},
        {"timelimit": [0.01, 0.01]},
        {"timelimit": "soon"},
        {"expires": "2000-01-01T00:00:00+00:00"},
        {"retries": "many", "group": 1, "stamps": 3, "stamped_headers": "x", "shadow": {}},
        {"kwargsrepr": {"a": 1}, "argsrepr": 3, "origin": [], "id": None, "task": None},
        {"compression": "zlib"},
    ]
    for headers in believed:
        yield entry([[], kwargs, {}], headers=headers)
    yield entry([[], kwargs, {"callbacks": [other_task], "errbacks": 7, "chain": [other_task], "chord": "x"}])
    yield entry([[], kwargs, {}], properties={"reply_to": "somebody", "delivery_tag": None, "priority": "x"})
    for mark in ("bytes", "base64", "datetime", "decimal", "uuid", "nothing", ["list"], None):
        marked = {"__type__": mark, "__value__": {"deep": [1]}}
        yield entry([[], {**kwargs, "v": marked}, {}])
        yield entry([[], kwargs, {}], headers={"eta": marked})
        yield json.dumps(marked).encode()
    for kind in ("application/x-python-serialize", "application/x-yaml", "text/plain", None):
        other: dict[str, Any] = {"content-type": kind, "content-encoding": "binary"}
        yield entry([[], kwargs, {}], **other)
    yield entry([[], {**kwargs, "more": "x" * 2_000_000}, {}])


def entry(body: object, *, headers: dict[str, Any] | None = None, **more: Any) -> bytes:
    """An entry of a queue as Celery writes it, and what differs."""
    message: dict[str, Any] = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "brain.advance", "id": str(uuid.uuid4()), "kwargsrepr": "x", **(headers or {})},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "brain.default"},
            "delivery_tag": str(uuid.uuid4()),
        },
    }
    return json.dumps(message | more).encode()


BROADCASTS = (
    b"no json",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"__type__": "bytes", "__value__": 3}',
    b'{"__type__": "decimal", "__value__": "x"}',
    b'{"__type__": [], "__value__": 1}',
    entry(["neither", "nor"]),
    entry({"method": {"no": "name"}, "arguments": 7, "destination": 1, "reply_to": "x"}),
)
"""What is said to all workers, and what none of them may end by."""


@pytest.mark.slow
@pytest.mark.promise("H3", "D1", "H13")
@pytest.mark.hazard(37)
@pytest.mark.case("inducer/relate#1504", "celery/celery#6485")
def test_forged_doubled_late_reordered_and_malformed_messages_harm_nothing(fleet: Fleet) -> None:
    workers = [fleet.brain(), fleet.hands(slots=2)]
    fleet.relay()
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    chance = random.Random(3)
    runs = start_runs(fleet, 8)
    app = celery_app("forger", redis_url=fleet.redis_url, queue="brain.default", pool="solo")
    raw = redis.Redis.from_url(fleet.redis_url)
    names = {"brain.default": "brain.advance", "hands.default": "hands.advance"}

    for moment in (1, 8, 16):
        wait_for_results(fleet, moment)
        # All that there ever were: done, running, waiting, those of the other fleet.
        with psycopg.connect(fleet.database_url) as connection:
            tasks = [
                (str(task), str(session))
                for task, session in connection.execute("SELECT id, session_id FROM brainhands.tasks").fetchall()
            ]
        for queue, right in names.items():
            for name, message in forgeries(tasks, chance):
                app.send_task(name.replace("brain.advance", right), kwargs=message, queue=queue, ignore_result=True)
            app.send_task(right, args=[1, "two"], queue=queue, ignore_result=True)
            for text in hostile(raw.lindex(queue, 0), list(chance.choice(tasks))):
                raw.rpush(queue, text)
        for text in BROADCASTS:
            raw.publish("/0.celery.pidbox", text)

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []
    assert len(fleet.model_requests()) == 3 * len(runs)
    for worker in workers:
        worker.wait_for_line("entry_dropped")
        worker.wait_for_line("broadcast_dropped")
        assert "Traceback" not in worker.output
        assert worker.returncode is None
    raw.close()


@pytest.mark.slow
@pytest.mark.promise("H9", "H3")
def test_a_queue_whose_key_is_no_list_stops_its_own_pool_until_it_is_gone(fleet: Fleet) -> None:
    relay, brain, hands = fleet.relay(), fleet.brain(), fleet.hands()
    slow_hands = fleet.hands(queue="hands.slow")
    fleet.wait_for_workers(relay=1, brain=1, hands=2)

    def call(name: str, then: str, **arguments: object) -> Receipt:
        steps = ({"calls": [{"name": name, "arguments": arguments}]}, {"text": then})
        return fleet.script(*steps, agent="apart")

    with redis.Redis.from_url(fleet.redis_url) as client:
        client.set("hands.slow", "no list")
        slow = call("apart_slow", "slow", seconds=0.1)
        assert fleet.wait(call("echo", "quick", text="a")).output == "quick"
        for part in (relay, slow_hands):
            part.wait_for_line("queue_refused queue=hands.slow")
        client.set("brain.default", "no list")
        stopped = call("echo", "late", text="b")
        for part in (relay, brain):
            part.wait_for_line("queue_refused queue=brain.default")
        client.delete("hands.slow", "brain.default")

    assert [fleet.wait(each).output for each in (slow, stopped)] == ["slow", "late"]
    for part in (relay, brain, slow_hands):
        part.wait_for_line("queue_read_again")
    assert [part.returncode for part in (relay, brain, hands, slow_hands)] == [None] * 4
    assert "queue_refused" not in hands.output


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.promise("H6", "H3")
@pytest.mark.case("neochaotic/leoflow#1199")
@pytest.mark.hazard(46)
def test_of_two_relays_one_may_be_killed_at_any_time(fleet: Fleet) -> None:
    relays = [fleet.relay(), fleet.relay()]
    fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=2)
    runs = start_runs(fleet, 12)

    for moment in (4, 14, 24):
        wait_for_results(fleet, moment)
        relays.pop(0).kill()
        relays.append(fleet.relay())

    finish(fleet, runs)
    assert doubled(fleet.effects()) == missing(fleet.effects(), runs, "note", "reconcile", "safe") == []


@pytest.mark.slow
@pytest.mark.promise("H10")
@pytest.mark.hazard(15)
@pytest.mark.case("mher/flower#1192")
def test_a_backlog_stays_in_postgres_and_is_hinted_no_faster_than_it_is_taken(fleet: Fleet) -> None:
    fleet.brain(slots=1), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1)
    fleet.relay(), fleet.relay()
    fleet.wait_for_workers(relay=2)
    slow = fleet.script({"text": "at last", "delay": 8.0})
    wait_until(lambda: len(fleet.model_requests()) == 1, 30, "the only slot to be taken")

    with psycopg.connect(fleet.database_url) as connection:
        for number in range(500):
            fleet.client.submit(agent="worker", input=f"backlog {number}", connection=connection)
    published = "SELECT sum(attempts) FROM brainhands.outbox"
    wait_until(lambda: count(fleet, published) > 0, 30, "the first of the backlog to be hinted")
    lengths = set()
    with redis.Redis.from_url(fleet.redis_url) as client:
        while fleet.client.submission(slow.submission_id).output is None:
            lengths.add(client.llen("brain.default"))
            assert count(fleet, published) <= 4 * WINDOW_A_SLOT

    # Two relays may look at the same length at once.
    assert max(lengths) <= 2 * WINDOW_A_SLOT
    assert len(hint_rows(fleet)) > 400


class Choosy(Publisher):
    """A publisher that cannot write messages with one of the hints."""

    refused: object = None

    def publish(self, queue: str, hints: Sequence[Row]) -> None:
        if any(hint["session_id"] == self.refused for hint in hints):
            raise TypeError("cannot be written")
        super().publish(queue, hints)


@pytest.mark.promise("D5", "H7")
@pytest.mark.hazard(14)
def test_a_hint_that_fails_alone_is_set_aside_with_its_reason_and_holds_up_no_other(fleet: Fleet) -> None:
    fleet.brain(slots=1), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1)
    receipts = [fleet.submit(f"hello {number}") for number in range(8)]
    publisher = Choosy(fleet.redis_url)
    publisher.refused = receipts[3].session_id

    with relay_here(fleet, publisher):
        for receipt in receipts:
            if receipt is not receipts[3]:
                assert fleet.wait(receipt).output is not None
        (left,) = hint_rows(fleet)
        assert left["session_id"] == receipts[3].session_id
        assert left["parked"] == "the hint cannot be published: TypeError: cannot be written"

    fleet.relay()
    fleet.wait_for_event(receipts[3].session_id, "task_blocked")
    (blocked,) = health.blocked(fleet.database)
    assert blocked.problem == left["parked"]
    assert str(receipts[3].session_id) in blocked.subject
    invariants.check(fleet.database_url)


@pytest.mark.promise("H4")
@pytest.mark.hazard(14)
def test_an_outage_of_the_broker_counts_against_no_hint_and_the_publisher_comes_back(fleet: Fleet) -> None:
    port = urlsplit(fleet.redis_url).port
    assert port is not None
    fleet.brain(), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1)
    with Proxy(LOOPBACK, port) as proxy:
        publisher = Publisher(through(proxy, fleet.redis_url))
        with relay_here(fleet, publisher):
            assert fleet.wait(fleet.submit("before")).output == "You said: before"
            proxy.refuse()
            proxy.cut()
            during = [fleet.submit(f"during {number}") for number in range(5)]
            with pytest.raises(BROKER_AWAY):
                Publisher(through(proxy, fleet.redis_url)).publish("brain.default", hint_rows(fleet))
            assert [(row["attempts"], row["parked"]) for row in hint_rows(fleet)] == [(0, None)] * 5
            proxy.accept()
            for receipt in during:
                assert fleet.wait(receipt).output is not None


@pytest.mark.crash
@pytest.mark.promise("H6", "C14")
def test_a_relay_told_to_stop_leaves_the_register_and_ends_in_order(fleet: Fleet) -> None:
    relay = fleet.relay()
    fleet.wait_for_workers(relay=1)

    relay.send(signal.SIGTERM)

    assert relay.wait() == 0
    assert count(fleet, "SELECT count(*) FROM brainhands.workers") == 0


class Stumbling(Sweep):
    """A sweep that meets what it does not expect in one session."""

    trouble: object = None

    def _judge(self, draft: Draft, sort: Due, row: Row) -> None:
        if draft.session.id == self.trouble:
            raise KeyError("unexpected")
        super()._judge(draft, sort, row)


@pytest.mark.promise("D5")
@pytest.mark.hazard(13)
def test_a_session_that_the_sweep_cannot_settle_keeps_no_other_from_it(fleet: Fleet) -> None:
    fleet.brain(), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1)
    stopping = threading.Event()
    writer = Writer(Database(fleet.database_url), Bell(fleet.redis_url))
    sweep = Stumbling(writer, NOBODY, restart_limit=3, blocked_after_seconds=60, stopping=stopping)
    thread = threading.Thread(target=sweep.run)
    with relay_here(fleet, Publisher(fleet.redis_url)):
        limited = [fleet.script({"fault": "429", "retry_after": 1.0, "times": 1, "text": text}) for text in "abc"]
        asleep = "SELECT count(*) FROM brainhands.tasks WHERE status = 'sleeping'"
        wait_until(lambda: count(fleet, asleep) == 3, 30, "three sleeping tasks")
        sweep.trouble = limited[1].session_id
        thread.start()

        assert [fleet.wait(limited[place]).output for place in (0, 2)] == ["a", "c"]
        sweep.trouble = None
        assert fleet.wait(limited[1]).output == "b"
        stopping.set()
        thread.join()
    writer.database.close()


@pytest.mark.promise("H3")
@pytest.mark.hazard(45)
def test_a_ring_before_the_relay_listens_is_heard_and_many_are_one(redis_server: Redis) -> None:
    redis_server.start()
    bell, listener, stopping = Bell(redis_server.url), RelayBell(redis_server.url), threading.Event()
    for _ in range(3):
        bell.ring(new_session_id(), hints=True, ended=False)

    assert listener.wait(5.0, stopping)
    assert not listener.wait(0.01, stopping)
