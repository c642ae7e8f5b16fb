"""Signals: stored whether or not somebody waits, taken once, every wait for one with a deadline."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from brainhands.shared.client import Client
from brainhands.shared.errors import RequestConflict, UnknownSession
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.ids import new_session_id
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Status
from brainhands.shared.store import health
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("signals"), postgres, redis_server) as fleet:
        fleet.everything()
        yield fleet


def ask(fleet: Fleet, order: str, seconds: float = 60) -> Receipt:
    call = {"name": "payment", "arguments": {"order": order, "seconds": seconds}}
    return fleet.script({"calls": [call]}, {"text": "told"})


def wait_until_it_waits(fleet: Fleet, receipt: Receipt) -> None:
    def waits() -> bool:
        tasks = fleet.client.session(receipt.session_id).tasks
        return any(task.signal_name == "paid" and task.status is Status.WAITING for task in tasks)

    wait_until(waits, 30, "the flow waits for its signal")


def told(fleet: Fleet, receipt: Receipt) -> object:
    assert fleet.wait(receipt).output == "told"
    (payload,) = fleet.payloads(receipt.session_id, "tool_call_success")
    return payload["result"]


@pytest.mark.promise("C15")
@pytest.mark.hazard(33)
def test_a_waiting_task_goes_on_with_its_signal_and_holds_nothing_meanwhile(shared_fleet: Fleet) -> None:
    receipt = ask(shared_fleet, "order-1")
    wait_until_it_waits(shared_fleet, receipt)
    assert health.without_mover(shared_fleet.database) == []

    other = shared_fleet.client.signal(receipt.session_id, "paid", {"amount": 1}, key="order-2")
    sent = shared_fleet.client.signal(receipt.session_id, "paid", {"amount": 5}, key="order-1")

    assert (other.taken, sent.taken) == (False, True)
    assert told(shared_fleet, receipt) == {"name": "paid", "key": "order-1", "payload": {"amount": 5}}
    events = shared_fleet.client.events(receipt.session_id)
    (taken,) = [event for event in events if event.type == "signal_taken"]
    (received,) = [
        event.seq
        for event in events
        if event.type == "signal_received" and json.loads(event.payload_text)["key"] == "order-1"
    ]
    assert taken.causes == (received,)


@pytest.mark.promise("C15")
@pytest.mark.hazard(5)
@pytest.mark.hazard(33)
def test_a_signal_that_came_first_is_kept_and_taken_once(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script({"text": "not yet"})
    shared_fleet.wait(receipt)
    shared_fleet.client.signal(receipt.session_id, "paid", 1, key="early")
    shared_fleet.client.signal(receipt.session_id, "paid", 2, key="early")

    for amount in (1, 2):
        call = {"name": "payment", "arguments": {"order": "early", "seconds": 60}}
        again = shared_fleet.script({"calls": [call]}, {"text": "told"}, session=receipt.session_id)
        shared_fleet.wait(again)
        payloads = shared_fleet.payloads(receipt.session_id, "tool_call_success")
        assert payloads[-1]["result"]["payload"] == amount


@pytest.mark.promise("C15")
def test_a_wait_ends_at_its_deadline_without_a_signal(shared_fleet: Fleet) -> None:
    receipt = ask(shared_fleet, "never", seconds=1)

    assert told(shared_fleet, receipt) is None
    assert "signal_missed" in shared_fleet.types(receipt.session_id)


@pytest.mark.promise("C15", "A3")
@pytest.mark.hazard(47)
@pytest.mark.case("dbos-inc/dbos-transact-ts#1205")
@pytest.mark.hazard(34, 47)
def test_sending_again_with_the_same_request_id_stores_it_once(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script({"text": "hello"})
    client: Client = shared_fleet.client
    first = client.signal(receipt.session_id, "note", {"a": 1}, request_id="s-1")
    second = client.signal(receipt.session_id, "note", {"a": 1}, request_id="s-1")

    assert first.signal_id == second.signal_id
    assert len(shared_fleet.payloads(receipt.session_id, "signal_received")) == 1
    with pytest.raises(RequestConflict):
        client.signal(receipt.session_id, "note", {"a": 2}, request_id="s-1")
    with pytest.raises(UnknownSession):
        client.signal(new_session_id(), "note")


@pytest.mark.promise("C15", "C12")
def test_a_wait_for_a_signal_can_be_cancelled(shared_fleet: Fleet) -> None:
    receipt = ask(shared_fleet, "stopped")
    wait_until_it_waits(shared_fleet, receipt)

    shared_fleet.client.cancel(submission=receipt.submission_id)

    assert shared_fleet.wait(receipt).outcome == "cancelled"
    assert not shared_fleet.client.signal(receipt.session_id, "paid", key="stopped").taken
