"""Content can be taken out of a session: of events or of all of it, wherever it is kept, and the log says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from brainhands.shared.cli.main import commands
from brainhands.shared.doors.redact import telling_texts
from brainhands.shared.errors import ErasedSession, StillNeeded
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model import wire
from brainhands.shared.model.event import RedactedPayload, read_payload
from brainhands.shared.model.submission import CancelState, Receipt
from brainhands.shared.rules.verify import head_of
from brainhands.shared.store import places as find_places
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import events_of, fleet_for_many, query, wait_for_task

TABLES = (
    "approvals",
    "attempts",
    "documents",
    "events",
    "inbox",
    "outbox",
    "sessions",
    "signals",
    "submissions",
    "tasks",
)


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("redaction"), postgres, redis_server) as fleet:
        fleet.everything()
        yield fleet


def places(fleet: Fleet, text: str) -> list[str]:
    """The tables in which a text stands, in whatever column."""
    return [
        table
        for table in TABLES
        if query(fleet, f"SELECT 1 FROM brainhands.{table} t WHERE t::text LIKE %s LIMIT 1", f"%{text}%")
    ]


def seqs(fleet: Fleet, session: UUID, *types: str) -> list[int]:
    return [event.seq for event in events_of(fleet, session, *types)]


def noted(fleet: Fleet, text: str, answer: str, **options: object) -> Receipt:
    """A session whose agent has noted a text and said something."""
    step = {"calls": [{"name": "note", "arguments": {"text": text}}]}
    receipt = fleet.script(step, {"text": answer}, **options)
    assert fleet.wait(receipt).output == answer
    return receipt


@pytest.mark.promise("I3")
@pytest.mark.hazard(23)
def test_what_is_redacted_is_nowhere_in_the_store_and_the_chain_holds(shared_fleet: Fleet) -> None:
    client = shared_fleet.client
    receipt = noted(shared_fleet, "grey-heron", "white-stork")
    session = receipt.session_id
    head = head_of(client.session(session).session)
    before = client.events(session)
    assert set(places(shared_fleet, "grey-heron")) == {"events", "submissions", "tasks"}
    ends = seqs(shared_fleet, session, "tool_call_success")
    asked, answered = seqs(shared_fleet, session, "model_output")

    first = client.redact(session, ends, reason="a bird was named", who="ann")
    assert first.redacted == tuple(ends)
    assert first.repeated_in == (asked, *seqs(shared_fleet, session, "tool_call_start"))
    second = client.redact(session, [*first.repeated_in, *seqs(shared_fleet, session, "user_message")], reason="more")
    assert second.repeated_in == ()
    assert places(shared_fleet, "grey-heron") == []

    third = client.redact(session, [answered], reason="the answer")
    assert third.redacted == (answered, *seqs(shared_fleet, session, "submission_done"))
    assert places(shared_fleet, "white-stork") == []

    assert client.verify(session) is None
    assert client.verify(session, head) is None
    assert client.verify(session, third.head) is None
    after = client.events(session)
    assert [(event.type, event.at, event.causes, event.payload_digest, event.hash) for event in before] == [
        (event.type, event.at, event.causes, event.payload_digest, event.hash) for event in after[: len(before)]
    ]
    told = shared_fleet.payloads(session, "events_redacted")
    assert told[0] == {"seqs": ends, "reason": "a bird was named", "who": "ann"}
    gone = after[answered - 1]
    assert (wire.event(gone)["payload"], wire.event(gone)["redacted"], wire.event(after[0])["redacted"]) == (
        None,
        True,
        False,
    )
    assert isinstance(read_payload(gone.type, gone.version, wire.payload(gone)), RedactedPayload)
    done = client.submission(receipt.submission_id)
    assert (done.outcome, done.output, done.input) == ("succeeded", None, "[redacted]")
    assert client.redact(session, [answered], reason="again").redacted == ()
    assert len(client.events(session)) == len(after)
    invariants.check(shared_fleet.database_url)


ROW_IDS = {
    "events": ("event", "seq::text"),
    "documents": ("document", "name || '@' || version"),
    "tasks": ("task", "id::text"),
    "attempts": ("attempt", "task_id || '@' || fence"),
    "submissions": ("submission", "id::text"),
    "approvals": ("question", "id::text"),
    "signals": ("signal", "id::text"),
}


def rows_with(fleet: Fleet, sessions: tuple[UUID, ...], text: str) -> set[tuple[str, str, str]]:
    """Every row of these sessions in which a text stands: session, kind, id."""
    found: set[tuple[str, str, str]] = set()
    for table, (kind, id) in ROW_IDS.items():
        session = (
            "(SELECT session_id FROM brainhands.tasks WHERE id = task_id)" if table == "attempts" else "session_id"
        )
        rows = query(
            fleet,
            f"SELECT {session}::text AS session, {id} AS id FROM brainhands.{table} t WHERE t::text LIKE %s",
            f"%{text}%",
        )
        found |= {(row["session"], kind, row["id"]) for row in rows if row["session"] in map(str, sessions)}
    return found


@pytest.mark.promise("I3")
@pytest.mark.parametrize(
    "told",
    ["kestrel-4242", "Ask 'kestrel-4242' twice", 'say "kestrel-4242"\nand\\or leave', "für kestrel-4242 🙂\u2028ende"],
)
def test_where_content_that_was_taken_out_still_stands_is_named_with_its_place(told: str, shared_fleet: Fleet) -> None:
    client = shared_fleet.client
    calls = [{"name": "pay", "arguments": {"to": told, "amount": 50}}]
    receipt = shared_fleet.script({"calls": calls}, {"text": f"done for {told}"}, agent="careful", request_id=told)
    session = receipt.session_id
    wait_until(lambda: any(each.session_id == session for each in client.approvals()), 30, "a question is asked")
    (asked,) = [each for each in client.approvals() if each.session_id == session]
    client.answer(asked.id, "approved", comment=f"so {told} wishes")
    shared_fleet.wait(receipt)
    client.signal(session, "heard", {"of": [{"deep": told}]}, key=told)
    step = {"calls": [{"name": "pay", "arguments": {"to": f"a {told}", "amount": 5}}]}
    fork = client.fork(session, client.session(session).session.last_seq).session_id
    shared_fleet.wait(shared_fleet.script(step, {"text": "noted"}, session=fork, agent="careful"))
    query(
        shared_fleet,
        "INSERT INTO brainhands.documents (session_id, name, version, kind, schema_version, value, seq)"
        " VALUES (%s, 'plan', 1, 'plan', 1, %s::json, 1)",
        session,
        json.dumps({"for": [told]}),
    )
    family = (session, fork)

    done = client.redact(session, seqs(shared_fleet, session, "tool_call_success"), reason="a person's wish")

    named = {(str(place.session_id), place.kind, place.id) for place in done.found_in}
    named |= {(str(session), "event", str(seq)) for seq in done.repeated_in}
    assert named >= rows_with(shared_fleet, family, "kestrel-4242")
    assert {kind for _, kind, _ in named} >= {"event", "document", "task", "submission", "question", "signal"}
    assert done.searched
    parts = {(place.kind, place.part) for place in done.found_in}
    assert {("document", "value"), ("signal", "key"), ("question", "comment"), ("submission", "request_id")} <= parts
    query(shared_fleet, "DELETE FROM brainhands.documents WHERE name = 'plan'")


def test_what_is_looked_for_is_long_enough_to_tell_and_bounded() -> None:
    short: list[dict[str, Any]] = [{"text": "short one"}, {"result": 12345678901}, {"arguments": {"to": "a" * 11}}]
    assert telling_texts(short) == ([], True)
    told, whole = telling_texts([{"result": {"card": 4242_4242_4242_4242, "key": ["x" * 500]}, "tool": "a long name"}])
    assert (told, whole) == (["x" * 200, "4242424242424242"], True)
    called = [{"calls": [{"call_id": "c" * 20, "name": "n" * 20, "arguments": '{"to": "ann@example.org"}'}]}]
    assert telling_texts(called)[0] == ['{"to": "ann@example.org"}', "ann@example.org"]
    many = [{"text": " ".join(f"word-number-{number}" for number in range(1_000))}]
    assert (len(telling_texts(many)[0]), telling_texts(many)[1]) == (200, False)
    deep: object = "a text that lies deep"
    for _ in range(2_000):
        deep = [deep]
    assert telling_texts([{"result": deep}])[0] == ["a text that lies deep"]


@pytest.mark.parametrize("bound", ["SEARCH_SECONDS", "MOST_PLACES", "MOST_SESSIONS"])
def test_a_search_that_meets_its_bound_says_so(
    bound: str, shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_places, bound, 0)
    receipt = noted(shared_fleet, "a-long-enough-text", "a-long-enough-text")
    ends = seqs(shared_fleet, receipt.session_id, "tool_call_success")
    done = shared_fleet.client.redact(receipt.session_id, ends, reason="r")
    assert (done.redacted, done.searched) == (tuple(ends), False)


@pytest.mark.promise("I3", "E11")
def test_the_conversation_goes_on_and_the_model_sees_what_was_redacted_as_such(shared_fleet: Fleet) -> None:
    receipt = noted(shared_fleet, "first", "said first")
    noted(shared_fleet, "second", "said second", session=receipt.session_id)
    session = receipt.session_id
    outputs = seqs(shared_fleet, session, "model_output")
    messages = seqs(shared_fleet, session, "user_message")
    results = seqs(shared_fleet, session, "tool_call_success")

    shared_fleet.client.redact(session, [messages[0], outputs[0], results[1]], reason="half of each")
    noted(shared_fleet, "third", "said third", session=session)

    *_, last = [body["messages"] for body in shared_fleet.model_requests() if '"third"' in str(body["messages"])]
    (system, *said) = [(message["role"], message["content"]) for message in last]
    assert system[0] == "system"
    assert said[:2] == [("user", "[redacted]"), ("assistant", "[redacted]\n\nsaid first")]
    assert said[3:6] == [("assistant", None), ("tool", "[redacted]"), ("assistant", "said second")]
    assert said[-1] == ("tool", "noted third")
    assert shared_fleet.client.verify(session) is None
    invariants.check(shared_fleet.database_url)


@pytest.mark.promise("I3")
@pytest.mark.hazard(44)
def test_an_erased_session_has_no_content_anywhere_and_takes_nothing_more(shared_fleet: Fleet) -> None:
    client = shared_fleet.client
    calls = [
        {"name": "pay", "arguments": {"to": "red-kite", "amount": 50}},
        {"name": "batch", "arguments": {"texts": ["red-kite"]}},
        {"name": "send_unsafe", "arguments": {"to": "red-kite"}},
    ]
    receipt = shared_fleet.script(
        {"calls": calls}, {"text": "red-kite is done"}, agent="careful", request_id="about red-kites"
    )
    session = receipt.session_id
    client.signal(session, "heard", {"of": "red-kite"}, key="red-kite")
    for _ in range(2):
        wait_until(lambda: any(each.session_id == session for each in client.approvals()), 30, "a question is asked")
        (asked, *_) = [each for each in client.approvals() if each.session_id == session]
        client.answer(asked.id, "approved", comment="red-kite may", who="red-kite's keeper")
    assert shared_fleet.wait(receipt).output == "red-kite is done"
    assert set(places(shared_fleet, "red-kite")) == {
        *("approvals", "attempts", "events", "signals", "submissions", "tasks"),
    }
    assert query(shared_fleet, "SELECT 1 FROM brainhands.documents WHERE session_id = %s", session) != []
    before, head = client.events(session), head_of(client.session(session).session)

    erased = client.erase(session, reason="the law", who="ann")

    assert places(shared_fleet, "red-kite") == ["submissions"], "only the caller's own request_id is left"
    assert query(shared_fleet, "SELECT 1 FROM brainhands.documents WHERE session_id = %s", session) == []
    assert [client.verify(session, known) for known in (None, head, erased.head)] == [None, None, None]
    *emptied, tombstone = client.events(session)
    assert [(event.type, event.at, event.hash) for event in emptied] == [
        (event.type, event.at, event.hash) for event in before
    ]
    assert json.loads(tombstone.payload_text) == {"through": len(before), "reason": "the law", "who": "ann"}
    view = client.session(session)
    assert view.session.erased_at is not None
    assert {task.status for task in view.tasks} == {"done"}

    with pytest.raises(ErasedSession):
        client.submit(agent="careful", input="more", session=session)
    with pytest.raises(ErasedSession):
        client.signal(session, "heard")
    assert client.cancel(session=session).state is CancelState.TOO_LATE
    again = client.erase(session, reason="once more")
    assert (again.erased_at, again.head) == (erased.erased_at, erased.head)
    assert client.submission(receipt.submission_id).outcome == "succeeded"
    invariants.check(shared_fleet.database_url)


def test_an_erased_session_still_knows_its_request_ids(shared_fleet: Fleet) -> None:
    first = noted(shared_fleet, "one", "said one")
    client, session = shared_fleet.client, first.session_id
    more = client.submit(agent="worker", input="say more", session=session, request_id="more")
    shared_fleet.wait(more)
    client.erase(session, reason="the law")

    again = client.submit(agent="worker", input="say more", session=session, request_id="more")

    assert again.submission_id == more.submission_id


@pytest.mark.promise("I3")
@pytest.mark.hazard(44)
def test_what_open_work_may_read_is_neither_redacted_nor_erased(shared_fleet: Fleet) -> None:
    client = shared_fleet.client
    receipt = shared_fleet.script({"calls": [{"name": "payment", "arguments": {"order": "o", "seconds": 600}}]})
    session = receipt.session_id
    wait_for_task(shared_fleet, session, "flow:payment", "waiting")
    started = seqs(shared_fleet, session, "tool_call_start")

    with pytest.raises(StillNeeded, match=r"while generation .* is waiting") as refused:
        client.redact(session, started, reason="too early")
    assert "cancel" in refused.value.next_step
    with pytest.raises(StillNeeded, match=r"has open work: generation .* is waiting; flow:payment"):
        client.erase(session, reason="too early")
    assert client.events(session)[started[0] - 1].redacted_at is None

    client.cancel(session=session)
    wait_until(lambda: client.submission(receipt.submission_id).status == "done", 30, "the work has ended")
    assert client.redact(session, started, reason="in time").redacted == tuple(started)
    client.erase(session, reason="in time")
    assert client.verify(session) is None


@pytest.mark.promise("I3")
@pytest.mark.hazard(3)
def test_a_call_of_unknown_effect_keeps_its_arguments_until_it_is_settled(shared_fleet: Fleet) -> None:
    receipt = noted(shared_fleet, "boom", "it may have happened")
    client, session = shared_fleet.client, receipt.session_id
    (interrupted,) = seqs(shared_fleet, session, "tool_call_interrupted")
    task = events_of(shared_fleet, session, "tool_call_interrupted")[0].task_id
    assert task is not None

    with pytest.raises(StillNeeded, match="nobody knows whether it took effect"):
        client.redact(session, [interrupted], reason="too early")
    client.settle(task, "happened", result="green-plover")
    settled = seqs(shared_fleet, session, "tool_call_settled")
    redacted = client.redact(session, [interrupted, *settled], reason="settled")

    assert redacted.redacted == (interrupted, *settled)
    assert places(shared_fleet, "green-plover") == []
    noted(shared_fleet, "boom", "again", session=session)
    assert shared_fleet.effects().count("note boom") == 2
    assert client.verify(session) is None


@pytest.mark.promise("I3")
def test_the_commands_redact_erase_and_show_it(shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", shared_fleet.database_url)
    monkeypatch.setenv("REDIS_URL", shared_fleet.redis_url)
    receipt = noted(shared_fleet, "night-jar", "said")
    session = str(receipt.session_id)
    runner = CliRunner()
    (result,) = seqs(shared_fleet, receipt.session_id, "tool_call_success")

    redacted = runner.invoke(commands, ["redact", session, str(result), "--reason", "a bird", "--yes"])
    assert (redacted.exit_code, redacted.output.splitlines()[0]) == (0, f"redacted  {result}")
    assert "parts of it are also in" in redacted.output
    again = runner.invoke(commands, ["redact", session, str(result), "--reason", "a bird", "--yes", "--json"])
    assert json.loads(again.output)["redacted"] == []
    shown = runner.invoke(commands, ["show", session]).output
    assert [line.split()[-3] for line in shown.splitlines() if "tool_call_success" in line] == ["[redacted]"]
    assert any(f"{result}: a bird (by " in line for line in shown.splitlines())

    with pytest.raises(Exception, match="for good"):
        runner.invoke(commands, ["erase", session, "--reason", "the law"], catch_exceptions=False)
    erased = runner.invoke(commands, ["erase", session, "--reason", "the law", "--yes", "--json"])
    assert json.loads(erased.output)["head"] == head_of(shared_fleet.client.session(session).session)
    assert runner.invoke(commands, ["verify", session]).exit_code == 0
    shown = runner.invoke(commands, ["show", session]).output
    assert "night-jar" not in shown
    assert "session_erased" in shown
    assert f"{session}  worker                   erased" in runner.invoke(commands, ["sessions"]).output
    events = json.loads(runner.invoke(commands, ["show", session, "--json"]).output)["events"]
    assert [event["payload"] for event in events if event["redacted"]] == [None] * (len(events) - 1)
