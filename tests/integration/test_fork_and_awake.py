"""Forks and awaking with real processes: no effect before a cut is repeated, lost hints come back without a sweep."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from brainhands.outbox.publisher import Publisher
from brainhands.outbox.relay import Relay
from brainhands.shared.bus.bell import RelayBell
from brainhands.shared.cli.main import commands
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.approval import Answer
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from brainhands.shared.store.database import Database
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.sessions import events_of, fleet_for_many, open_gate, query, tool_messages


@pytest.fixture(scope="module")
def relays() -> list[Child]:
    """The relay of the shared fleet, for a test that stops it."""
    return []


@pytest.fixture(scope="module")
def shared_fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis, relays: list[Child]
) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process."""
    with fleet_for_many(tmp_path_factory.mktemp("forks"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.agents,tests.sample.odd_agents",
            "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.odd_tools",
        }
        relays.append(fleet.relay())
        fleet.brain(), fleet.hands()
        fleet.wait_for_workers(brain=1, hands=1, relay=1)
        yield fleet


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def seq_of(fleet: Fleet, session: SessionId, type: str, place: int = 0) -> int:
    return events_of(fleet, session, type)[place].seq


def sent(fleet: Fleet, to: str) -> int:
    """How often something was sent to somebody."""
    return sum(line.split()[1] == to for line in fleet.effects())


@pytest.mark.promise("I7")
@pytest.mark.hazard(32)
def test_a_finished_session_is_forked_at_an_earlier_event_and_goes_on_without_repeating_effects(
    shared_fleet: Fleet,
) -> None:
    fleet = shared_fleet
    first = fleet.script(
        call("send_reconcile", to="f-ann"),
        call("send_unsafe", to="f-bob"),
        call("batch", texts=["f-note"]),
        {"text": "all sent"},
    )
    assert fleet.wait(first).output == "all sent"
    source = first.session_id
    at = seq_of(fleet, source, "tool_call_success")

    fork = fleet.client.fork(source, at, "fork-mails")
    again = fleet.script(call("send_safe", to="f-cyd"), {"text": "forked on"}, session=fork.session_id)

    assert fleet.wait(again).output == "forked on"
    assert fleet.client.fork(source, at, "fork-mails").session_id == fork.session_id
    assert [sent(fleet, to) for to in ("f-ann", "f-bob", "f-note", "f-cyd")] == [1, 1, 1, 1]
    assert tool_messages(fleet, "f-cyd") == ["sent to f-ann", "sent to f-cyd"]
    log = fleet.client.events(fork.session_id)
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert fleet.client.verify(fork.session_id, fork.head) is None
    view, old = fleet.client.session(fork.session_id), fleet.client.session(source)
    assert view.documents == ()
    assert old.documents[0].name == "tally"
    past = sum(event.tokens_in or 0 for event in log if event.session_id == source)
    assert 0 < past < view.tokens_in
    # The same agent goes on in the first session too, and in a fork of the fork.
    second = fleet.client.fork(fork.session_id, len(log))
    more = [fleet.script({"text": "more"}, session=each) for each in (source, second.session_id)]
    assert [fleet.wait(each).output for each in more] == ["more", "more"]
    assert sum(sent(fleet, to) for to in ("f-ann", "f-bob", "f-cyd")) == 3
    invariants.check(fleet.database_url)


@pytest.mark.promise("I7", "F16")
@pytest.mark.hazard(32)
@pytest.mark.parametrize("answer", [Answer.HAPPENED, Answer.DID_NOT_HAPPEN])
def test_a_call_equal_to_one_that_had_begun_at_the_cut_is_asked_about_in_the_fork(
    shared_fleet: Fleet, answer: Answer
) -> None:
    fleet, to = shared_fleet, f"g-{answer}"
    first = fleet.script(call("send_unsafe", to=to), {"text": "sent"})
    assert fleet.wait(first).output == "sent"
    fork = fleet.client.fork(first.session_id, seq_of(fleet, first.session_id, "tool_call_start"))

    again = fleet.script(call("send_unsafe", to=to), {"text": "gone on"}, session=fork.session_id)
    (asked,) = questions(fleet, fork.session_id)
    assert sent(fleet, to) == 1
    fleet.client.answer(asked, answer, result="it is there")

    assert fleet.wait(again).output == "gone on"
    assert sent(fleet, to) == (1 if answer is Answer.HAPPENED else 2)
    settled, own = tool_messages(fleet, to)
    assert "found out that this call" in settled
    assert own == ("it is there" if answer is Answer.HAPPENED else f"sent to {to}")
    invariants.check(fleet.database_url)


def questions(fleet: Fleet, session: SessionId) -> list[Any]:
    def found() -> list[Any]:
        return [each.id for each in fleet.client.approvals() if each.session_id == session]

    wait_until(lambda: bool(found()), 30, "a question is asked")
    return found()


@pytest.mark.promise("I7", "I6")
@pytest.mark.hazard(32, 48)
def test_a_session_at_work_is_forked_and_awoken_and_goes_on_as_if_nothing_had_been(shared_fleet: Fleet) -> None:
    fleet = shared_fleet
    receipt = fleet.script(
        {"calls": [{"name": "gated", "arguments": {"name": "fork"}}, {"name": "note", "arguments": {"text": "h-1"}}]},
        {"text": "both"},
        agent="odd",
    )
    fleet.wait_for_effect("gated fork")
    before = [task.fence for task in fleet.client.session(receipt.session_id).tasks if task.status == "running"]

    with ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(lambda _: fleet.client.awake(receipt.session_id), range(12)))
    head = fleet.client.session(receipt.session_id).session.last_seq
    fork = fleet.client.fork(receipt.session_id, head)
    forked = fleet.script({"text": "not the gate"}, agent="odd", session=fork.session_id)

    assert fleet.wait(forked).output == "not the gate"
    running = [task.fence for task in fleet.client.session(receipt.session_id).tasks if task.status == "running"]
    open_gate(fleet, "fork")
    assert fleet.wait(receipt).output == "both"
    assert [each.moved for each in receipts] == [()] * 12
    assert before == running
    assert "session_resumed" not in fleet.types(receipt.session_id)
    assert sent(fleet, "fork") == sent(fleet, "h-1") == 1
    assert "session that this one was forked from" in tool_messages(fleet, "not the gate")[0]
    invariants.check(fleet.database_url)


@pytest.mark.promise("I6")
@pytest.mark.hazard(47, 48)
def test_a_session_whose_hints_were_lost_is_awoken_without_a_relay(shared_fleet: Fleet, relays: list[Child]) -> None:
    fleet = shared_fleet
    relays.pop().stop()
    lost, parked, untouched = (fleet.submit(text) for text in ("w-lost", "w-parked", "w-untouched"))
    query(fleet, "DELETE FROM brainhands.outbox WHERE session_id = %s", lost.session_id)
    query(fleet, "UPDATE brainhands.outbox SET parked = 'by hand' WHERE session_id = %s", parked.session_id)
    with redis.Redis.from_url(fleet.redis_url) as client:
        client.flushall()

    moved = {each.session_id: fleet.client.awake(each.session_id).moved for each in (lost, parked, untouched)}

    assert [each.done for each in moved[lost.session_id]] == ["hint_added"]
    assert [each.done for each in moved[parked.session_id]] == ["hint_unparked"]
    assert moved[untouched.session_id] == ()
    rows = query(fleet, "SELECT session_id, parked FROM brainhands.outbox")
    assert {row["session_id"] for row in rows} == set(moved)
    assert {row["parked"] for row in rows} == {None}
    with publishing(fleet):
        for receipt in (lost, parked, untouched):
            assert fleet.wait(receipt).outcome is Outcome.SUCCEEDED
    assert fleet.types(lost.session_id).count("session_resumed") == 1
    invariants.check(fleet.database_url)
    relays.append(fleet.relay())


@contextmanager
def publishing(fleet: Fleet) -> Iterator[None]:
    """A relay in this process that publishes and does not sweep."""
    stopping = threading.Event()
    database, publisher = Database(fleet.database_url), Publisher(fleet.redis_url)
    relay = Relay(database, publisher, RelayBell(fleet.redis_url), stopping)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        publisher.close()
        database.close()


@pytest.mark.promise("I6", "I7")
def test_the_commands_awake_fork_and_show_a_fork(shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = shared_fleet
    receipt: Receipt = fleet.submit("hello")
    fleet.wait(receipt)
    source = str(receipt.session_id)

    fork = by_command(fleet, monkeypatch, "fork", source, "--at", "2", "--request-id", "cli", "--json")
    awake = by_command(fleet, monkeypatch, "awake", fork["session_id"], "--json")
    shown = by_command(fleet, monkeypatch, "show", fork["session_id"], "--json")
    text = CliRunner().invoke(commands, ["show", fork["session_id"]]).output
    beyond = CliRunner().invoke(commands, ["fork", source, "--at", "1000"])

    assert (fork["forked_from"], fork["at"]) == (source, 2)
    assert (awake["moved"], awake["seq"]) == ([], None)
    assert (shown["session"]["forked_from"], shown["session"]["forked_at"]) == (source, 2)
    assert [event["session"] for event in shown["events"]] == [source, source, fork["session_id"]]
    assert f"forked from session {source} at event 2" in text
    assert "has no event 1000" in str(beyond.exception)
    assert CliRunner().invoke(commands, ["verify", fork["session_id"], "--head", fork["head"]]).exit_code == 0


def by_command(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    monkeypatch.setenv("DATABASE_URL", fleet.database_url)
    monkeypatch.setenv("REDIS_URL", fleet.redis_url)
    result = CliRunner().invoke(commands, list(arguments))
    assert result.exit_code == 0, result.output
    printed: dict[str, Any] = json.loads(result.output)
    return printed
