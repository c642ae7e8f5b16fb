"""Documents in the store: versions as changes over baselines, by commit, read by newer code, and views of rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from brainhands.hands.flow import Flow, phase
from brainhands.hands.flows import flow_kind
from brainhands.shared.engine.definition import PhaseResult, registry
from brainhands.shared.engine.documents import change as change_document
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.worker import Worker
from brainhands.shared.errors import BadInput, Incompatible, UnknownDocument, UnknownSession
from brainhands.shared.model import derived
from brainhands.shared.model.document import RESERVED, Document
from brainhands.shared.model.event import ModelOutput, ModelRequest, SystemPromptSet, TaskPhase, ToolReference, Usage
from brainhands.shared.model.ids import SessionId, TaskId, new_session_id, new_task_id, new_worker_id
from brainhands.shared.model.task import Done, Next, Task, Transition, Wait
from brainhands.shared.model.worker import Offer, WorkerInfo
from brainhands.shared.rules import calls
from brainhands.shared.rules.delta import MOST_DELTAS
from brainhands.shared.store import documents
from brainhands.shared.store.database import Statement
from tests.instruments import invariants
from tests.store.stage import NO_REDIS, Stage, answer, decide, finish, play_task

GOLDEN = Path(__file__).parents[1] / "golden" / "documents"
NOTE = TaskPhase(kind="play", phase="first", next_phase="second", status="running")


def _split(value: Any) -> Any:
    sent = value.pop("sent")
    return {"mails": [{"to": to, "sent": to in sent} for to in value.pop("customers")], **value}


def _in_cents(value: Any) -> Any:
    return {"mails": value["mails"], "body": value["body"], "cents": value["cost"] * 100}


class Mailing(Document, kind="mailing", schema_version=3, migrations={1: _split, 2: _in_cents}):
    """The present form of the documents in the golden files."""

    mails: tuple[dict[str, str | bool], ...]
    body: str
    cents: int | float


class FirstMailing(Document, kind="mailing"):
    """The form that older code knows."""

    customers: tuple[str, ...]
    sent: tuple[str, ...]
    body: str


class SendRest(Flow, name="send_rest", version=1):
    """Note of every mail that it is sent, with present code."""

    @phase
    def start(self) -> object:
        mailing = self.document(Mailing)
        assert mailing is not None
        sent = tuple({**mail, "sent": True} for mail in mailing.mails)
        self.update(Mailing, lambda now: (now or mailing).model_copy(update={"mails": sent}))
        return Done(len(sent))


class Spent(Flow, name="spent", version=1):
    """Read the views of rows as a flow does."""

    @phase
    def start(self) -> object:
        usage, live = self.document(derived.TokenUsage), self.document(derived.LiveState)
        assert usage is not None
        assert live is not None
        return Done({"tokens": usage.tokens_in, "alive": [task.kind for task in live.tasks]})


class OldReader(Flow, name="old_reader", version=1):
    """Read the document with older code, or change it without having read it."""

    @phase
    def start(self, how: str) -> object:
        if how == "read":
            self.document(FirstMailing)
        self.update(FirstMailing, lambda now: now or FirstMailing(customers=(), sent=(), body=""))
        return Done()


def change(stage: Stage, session_id: SessionId, value: Any, *, name: str = "plan", schema_version: int = 1) -> int:
    """Store a document's next version in a commit of two events; gives the last one's seq."""

    def write(draft: Draft) -> None:
        draft.event(NOTE, causes=[1])
        change_document(draft, name, name, schema_version, lambda _stored: value)
        draft.event(NOTE, causes=[1])

    return stage.commit(session_id, write).session.last_seq


def rows_of(stage: Stage, session_id: SessionId, name: str = "plan") -> list[dict[str, Any]]:
    return stage.sql(
        "SELECT version, schema_version, value::text AS value, delta::text AS delta, seq FROM brainhands.documents"
        " WHERE session_id = %s AND name = %s ORDER BY version",
        session_id,
        name,
    )


def plan_of(length: int) -> dict[str, Any]:
    return {"body": "word " * 200, "sent": [f"customer-{number}@example.com" for number in range(length)]}


# -- by commit -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B9", "I7")
@pytest.mark.hazard(32)
def test_a_version_belongs_to_the_commit_whose_last_event_has_its_seq(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    first = change(shared_stage, session_id, plan_of(1))
    shared_stage.commit(session_id, lambda draft: draft.event(NOTE, causes=[1]))
    other = change(shared_stage, session_id, {"n": 1}, name="other")
    second = change(shared_stage, session_id, plan_of(2))

    def as_of(seq: int) -> dict[str, Any]:
        found = documents.as_of(shared_stage.database, session_id, seq)
        assert [each.value for each in shared_stage.client.documents(session_id, at=seq)] == [e.value for e in found]
        return {each.name: (each.version, each.seq) for each in found}

    assert as_of(first - 1) == {}
    assert as_of(first) == as_of(other - 1) == {"plan": (1, first)}
    assert as_of(other) == as_of(second - 1) == {"other": (1, other), "plan": (1, first)}
    assert as_of(second) == as_of(second + 10**12) == {"other": (1, other), "plan": (2, second)}
    assert shared_stage.client.document(session_id, "plan", at=second - 1).value == plan_of(1)
    assert [row["delta"] is None for row in rows_of(shared_stage, session_id)] == [True, False]


@pytest.mark.promise("B9", "B1")
def test_a_commit_that_only_changes_documents_says_so_in_the_log(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()

    def write(draft: Draft) -> None:
        for name in ("b", "a"):
            change_document(draft, name, name, 1, lambda _stored: {})

    commit = shared_stage.commit(session_id, write)

    (event,) = shared_stage.client.events(session_id, after=commit.session.last_seq - 1)
    assert (event.type, json.loads(event.payload_text)) == ("documents_changed", {"documents": ["a", "b"]})
    assert {each.seq for each in shared_stage.client.documents(session_id)} == {event.seq}


@pytest.mark.promise("B9")
def test_several_changes_in_one_commit_are_one_version(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    change(shared_stage, session_id, plan_of(3))

    def add(number: int) -> Callable[[Any], Any]:
        return lambda stored: {**stored.value, "sent": [*stored.value["sent"], number]}

    def write(draft: Draft) -> None:
        for number in (1, 2):
            change_document(draft, "plan", "plan", 1, add(number))

    shared_stage.commit(session_id, write)

    found = shared_stage.client.document(session_id, "plan")
    assert (found.version, found.value["sent"][3:]) == (2, [1, 2])
    assert shared_stage.client.document_history(session_id, "plan")[1].change == [[["sent"], 3, 0, [1, 2]]]


@pytest.mark.promise("B9")
def test_a_change_that_works_on_the_value_it_was_given_is_stored_all_the_same(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    change(shared_stage, session_id, plan_of(3))

    def in_place(stored: Any) -> Any:
        stored.value["sent"].append("more")
        return stored.value

    shared_stage.commit(session_id, lambda draft: change_document(draft, "plan", "plan", 1, in_place))

    assert shared_stage.client.document(session_id, "plan").value == {
        **plan_of(3),
        "sent": [*plan_of(3)["sent"], "more"],
    }
    assert rows_of(shared_stage, session_id)[1]["delta"] is not None


@pytest.mark.promise("B9")
def test_the_history_has_each_version_with_its_commit_its_time_and_what_changed(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PAGE", 10)
    session_id, _ = shared_stage.session()
    seqs = [change(shared_stage, session_id, plan_of(number)) for number in range(MOST_DELTAS + 5)]

    history = shared_stage.client.document_history(session_id, "plan")

    at = {event.seq: event.at for event in shared_stage.client.events(session_id)}
    assert [(each.version, each.seq, each.at) for each in history] == [
        (number, seq, at[seq]) for number, seq in enumerate(seqs, 1)
    ]
    assert history[0].change == [[[], plan_of(0)]]
    assert [each.change for each in history[1:]] == [
        [[["sent"], number, 0, [f"customer-{number}@example.com"]]] for number in range(len(seqs) - 1)
    ]
    whole = [row["version"] for row in rows_of(shared_stage, session_id) if row["delta"] is None]
    assert whole == [1, MOST_DELTAS + 2]
    for version in range(1, len(seqs) + 1):
        assert shared_stage.client.document(session_id, "plan", version=version).value == plan_of(version - 1)


@pytest.mark.promise("B9")
def test_a_document_that_is_not_there_is_refused_with_what_to_do(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    seq = change(shared_stage, session_id, {"n": 1})
    client = shared_stage.client

    for options in ({"version": 2}, {"version": 0}, {"version": 10**20}, {"at": seq - 1}, {"at": 0}):
        with pytest.raises(UnknownDocument, match=r"no document 'plan' (in version|as of event)") as refusal:
            client.document(session_id, "plan", **options)
        assert "brainhands document" in refusal.value.next_step
    with pytest.raises(UnknownDocument, match="no document 'plam'"):
        client.document(session_id, "plam")
    with pytest.raises(UnknownDocument):
        client.document_history(session_id, "plam")
    with pytest.raises(UnknownSession):
        client.document(new_session_id(), "plan")
    for wrong in ({"version": 1, "at": 1}, {"version": -1}, {"at": -1}):
        with pytest.raises(BadInput):
            client.document(session_id, "plan", **wrong)
    with pytest.raises(BadInput):
        client.document(session_id, "\x00")


# -- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("I10", "B9")
def test_reading_and_changing_a_document_takes_as_many_rows_after_a_long_history_as_before(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, _ = stage.session()
    change(stage, session_id, {"n": 0}, name="another")
    for number in range(MOST_DELTAS + 1):
        change(stage, session_id, plan_of(number))

    def cost() -> list[tuple[int, int]]:
        costs = []
        for read in (
            lambda: change(stage, session_id, plan_of(7)),
            lambda: stage.client.document(session_id, "plan"),
            lambda: stage.client.documents(session_id, at=5),
            lambda: stage.client.session(session_id),
        ):
            with counted_rows(monkeypatch) as count:
                read()
            costs.append((count["statements"], count["rows"]))
        return costs

    before = cost()
    stage.sql(
        "INSERT INTO brainhands.documents (session_id, name, version, kind, schema_version, value, delta, seq)"
        " SELECT session_id, name, version + n * 22, kind, schema_version, value, delta, seq + n * 50"
        "   FROM brainhands.documents, generate_series(1, 300) AS n"
        "  WHERE session_id = %s AND name = 'plan' AND version <= 22",
        session_id,
    )
    after = cost()

    assert [statements for statements, _ in after] == [statements for statements, _ in before]
    for (_, rows), (_, rows_before) in zip(after, before, strict=True):
        assert rows <= rows_before + MOST_DELTAS
    stage.sql("ANALYZE brainhands.documents")
    for name, bound in (("DOCUMENT", "version"), ("DOCUMENT_AS_OF", "seq"), ("SESSION_DOCUMENTS", "seq")):
        values = {"session_id": session_id, "name": "plan", bound: 6000}
        text = literal(getattr(documents, name), values)
        (read,) = stage.sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}")
        assert max(looked_at(read["QUERY PLAN"][0]["Plan"])) <= 2 * MOST_DELTAS, name


@contextmanager
def counted_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many statements are sent, and how many rows come back from all of them."""
    count: Counter[str] = Counter()
    execute, fetchall = psycopg.Cursor.execute, psycopg.Cursor.fetchall

    def counted_execute(self: Any, *arguments: Any, **options: Any) -> Any:
        count["statements"] += 1
        return execute(self, *arguments, **options)

    def counted_fetchall(self: Any) -> Any:
        rows = fetchall(self)
        count["rows"] += len(rows)
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", counted_execute)
        patch.setattr(psycopg.Cursor, "fetchall", counted_fetchall)
        yield count


def literal(statement: Statement, values: dict[str, Any]) -> str:
    """A statement's text with its values in it."""
    return re.sub(r"\$(\d+)", lambda place: f"'{values[statement.sql.names[int(place[1]) - 1]]}'", statement.sql.text)


def looked_at(node: dict[str, Any]) -> Iterator[int]:
    """How many rows each scan of a plan has touched in one pass, those it threw away too."""
    if "Relation Name" in node:
        yield node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    for inner in node.get("Plans", []):
        yield from looked_at(inner)


# -- older and newer code --------------------------------------------------------------------------------------------


@pytest.mark.promise("H8", "B9")
@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.json")), ids=lambda file: file.stem)
def test_documents_that_earlier_code_stored_are_read_by_the_present_code(shared_stage: Stage, file: Path) -> None:
    golden = json.loads(file.read_text())
    session_id, _ = shared_stage.session()
    put_golden(shared_stage, session_id, golden)
    before = rows_of(shared_stage, session_id, "mailing")

    newest = shared_stage.client.document(session_id, "mailing")
    history = [shared_stage.client.document(session_id, "mailing", version=row["version"]) for row in golden["rows"]]

    assert Mailing.read(newest).model_dump(mode="json") == golden["read"]
    assert [each.schema_version for each in history] == [row["schema_version"] for row in golden["rows"]]
    for each in history:
        Mailing.read(each)
    assert rows_of(shared_stage, session_id, "mailing") == before


@pytest.mark.promise("H8", "B9", "B10")
def test_a_flow_reads_an_older_document_and_its_change_stores_the_present_form(shared_stage: Stage) -> None:
    golden = json.loads((GOLDEN / "mailing_schema_1.json").read_text())
    session_id, generation = shared_stage.session()
    put_golden(shared_stage, session_id, golden)
    before = rows_of(shared_stage, session_id, "mailing")

    task_id = run_flow(shared_stage, session_id, generation, SendRest, {})

    assert shared_stage.task(task_id).result == 2
    rows = rows_of(shared_stage, session_id, "mailing")
    assert rows[:-1] == before
    newest = shared_stage.client.document(session_id, "mailing")
    assert (newest.version, newest.schema_version) == (len(before) + 1, 3)
    assert set(newest.value) == {"mails", "body", "cents"}
    last = shared_stage.client.session(session_id).session.last_seq
    assert newest.seq == last


@pytest.mark.promise("H8")
@pytest.mark.hazard(24)
@pytest.mark.parametrize("how", ["read", "change"])
def test_older_code_leaves_a_newer_document_as_it_is(shared_stage: Stage, how: str) -> None:
    session_id, generation = shared_stage.session()
    change(shared_stage, session_id, {"mails": [], "body": "", "cents": 7}, name="mailing", schema_version=3)
    before = rows_of(shared_stage, session_id, "mailing")

    task_id = run_flow(shared_stage, session_id, generation, OldReader, {"how": how})

    assert rows_of(shared_stage, session_id, "mailing") == before
    assert shared_stage.task(task_id).is_open
    newest = shared_stage.client.document(session_id, "mailing")
    with pytest.raises(Incompatible, match="schema version 3, and this code reads 1 at most"):
        FirstMailing.read(newest)


@pytest.mark.promise("H8")
def test_a_change_in_a_form_that_this_code_does_not_know_is_never_half_read(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    for number in range(3):
        change(shared_stage, session_id, plan_of(number))
    shared_stage.sql(
        "UPDATE brainhands.documents SET delta = '[[[], {}, {}]]' WHERE session_id = %s AND version = 2", session_id
    )

    for read in (
        lambda: shared_stage.client.document(session_id, "plan"),
        lambda: shared_stage.client.session(session_id),
        lambda: shared_stage.client.document_history(session_id, "plan"),
        lambda: change(shared_stage, session_id, plan_of(7)),
    ):
        with pytest.raises(Incompatible, match="version 2 of document 'plan'"):
            read()
    assert shared_stage.client.document(session_id, "plan", version=1).value == plan_of(0)


def put_golden(stage: Stage, session_id: SessionId, golden: dict[str, Any]) -> None:
    """Put rows into a session as earlier code has stored them, the log as far as they say."""
    for row in golden["rows"]:
        while stage.commit(session_id, lambda draft: draft.event(NOTE, causes=[1])).session.last_seq < row["seq"]:
            pass
        stage.sql(
            "INSERT INTO brainhands.documents (session_id, name, version, kind, schema_version, value, delta, seq)"
            " VALUES (%s, 'mailing', %s, %s, %s, %s::json, %s::json, %s)",
            session_id,
            *(row[name] for name in ("version", "kind", "schema_version", "value", "delta", "seq")),
        )


def run_flow(
    stage: Stage, session_id: SessionId, owner_id: TaskId, flow: type[Flow], arguments: dict[str, Any]
) -> TaskId:
    """Let a Hands worker take a call of a flow as far as it comes."""
    kind = flow_kind(flow)
    offer = Offer(name=kind.name, low=kind.version, high=kind.version)
    info = WorkerInfo(
        id=new_worker_id(),
        role="hands",
        pool="hands.default",
        host="here",
        pid=1,
        parent_pid=1,
        slots=1,
        environment="test",
        offers=(offer,),
    )
    stage.register(info)
    worker = Worker(
        info,
        registry((kind,), (offer,)),
        database_url=stage.database_url,
        redis_url=NO_REDIS,
        lease_seconds=30,
        restart_limit=3,
        ends_process=False,
    )
    task_id = new_task_id()

    def call(draft: Draft) -> None:
        owner = draft.task(owner_id)
        draft.spawn(
            calls.call_task(
                task_id,
                owner=owner,
                kind=kind.name,
                version=kind.version,
                call_id=None,
                arguments=arguments,
                cause=1,
                now=draft.now,
            )
        )

    stage.commit(session_id, call, [owner_id])
    worker.advance([(task_id, session_id)])
    worker.database.close()
    return task_id


# -- kinds of an application -----------------------------------------------------------------------------------------


@pytest.mark.promise("B10", "B1", "C11")
def test_a_documents_change_its_event_and_the_children_are_one_commit_or_nothing(stage: Stage) -> None:
    session_id, _ = stage.session()
    parent = stage.add(session_id)

    def step(fails: bool) -> Callable[[Draft, Task], Transition]:
        def fill(draft: Draft, task: Task) -> Transition:
            draft.event(NOTE, causes=[1], task=task)
            change_document(draft, "own_kind", "own_kind", 1, lambda _stored: {"children": 2})
            for _ in range(2):
                draft.spawn(play_task(draft, new_task_id(), owner_id=task.id))
            if fails:
                raise RuntimeError("not this time")
            return Next("third")

        return fill

    def look(_run: Any) -> PhaseResult:
        view = stage.client.session(session_id)
        assert view.documents == ()
        assert [task for task in view.tasks if task.owner_id == parent] == []
        return PhaseResult(lambda draft: step(True)(draft, draft.task(parent)))

    stage.forget_first_hint(parent)
    stage.advance(parent, answer(Next("second")), look)
    assert stage.client.documents(session_id) == []
    stage.advance(parent, decide(step(False)), answer(Done()))

    (row,) = stage.sql(
        "SELECT count(DISTINCT x) AS transactions, count(*) AS rows FROM ("
        " SELECT xmin::text AS x FROM brainhands.tasks WHERE owner_id = %s"
        " UNION ALL SELECT xmin::text FROM brainhands.documents WHERE session_id = %s"
        " UNION ALL SELECT xmin::text FROM brainhands.events WHERE session_id = %s AND type = 'task_created') AS found",
        parent,
        session_id,
        session_id,
    )
    assert (row["rows"], row["transactions"]) == (5, 1)
    invariants.check(stage.database_url)


# -- views of rows ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("B9")
@pytest.mark.hazard(39)
def test_settings_inbox_live_work_and_usage_are_documents_made_of_rows(stage: Stage) -> None:
    session_id, generation = stage.session()
    waiting = stage.submit("and then this", session=session_id)
    child = new_task_id()

    def ask(draft: Draft, task: Task) -> Transition:
        draft.event(
            SystemPromptSet(agent="sample", agent_version=1, instructions="Be brief."), causes=[task.cause], task=task
        )
        for model in ("earlier", "later"):
            request = ModelRequest(
                agent="sample",
                agent_version=1,
                model=model,
                options={"temperature": 0},
                tools=[ToolReference(name="note", version=1, digest="d")],
                cutoff=2,
            )
            draft.event(request, causes=[task.cause], task=task)
        for tokens in (5, 7):
            usage = Usage(tokens_in=10 * tokens, tokens_out=tokens)
            output = ModelOutput(text="", calls=[], finish_reason="stop", model="m", usage=usage, request_digest="d")
            draft.event(output, causes=[task.cause], task=task)
        draft.spawn(play_task(draft, child, owner_id=task.id))
        return Wait([child], phase="tools")

    stage.advance(generation, decide(ask))
    claimed = stage.claim_and_die(child)
    client = stage.client

    settings = derived.AgentSettings.read(client.document(session_id, "agent_settings"))
    inbox = derived.InboxContents.read(client.document(session_id, "inbox"))
    live = derived.LiveState.read(client.document(session_id, "live"))
    usage = derived.TokenUsage.read(client.document(session_id, "usage"))

    (talk,) = settings.conversations
    conversation = talk.conversation
    assert (talk.agent, talk.instructions, talk.model, talk.options) == (
        "sample",
        "Be brief.",
        "later",
        {"temperature": 0},
    )
    assert [tool.name for tool in talk.tools] == ["note"]
    (entry,) = inbox.inputs
    assert (entry.submission, entry.text) == (str(waiting.submission_id), "and then this")
    waiter, runner = live.tasks
    assert (waiter.task, waiter.status, waiter.waits_for) == (str(generation), "waiting", (str(child),))
    assert (runner.task, runner.status, runner.owner) == (str(child), "running", str(generation))
    assert (runner.worker, runner.attempts) == (str(claimed.worker_id), 1)
    assert (usage.tokens_in, usage.tokens_out) == (120, 12)
    assert usage.conversations == (
        derived.ConversationUsage(conversation=conversation, calls=2, tokens_in=120, tokens_out=12),
    )
    (stored,) = stage.sql("SELECT count(*) AS number FROM brainhands.documents")
    assert stored["number"] == 0
    last = client.session(session_id).session.last_seq
    assert {client.document(session_id, name).seq for name in RESERVED} == {last}


@pytest.mark.promise("B9")
@pytest.mark.hazard(39)
def test_a_flow_reads_the_views_of_its_session(shared_stage: Stage) -> None:
    session_id, generation = shared_stage.session()

    task_id = run_flow(shared_stage, session_id, generation, Spent, {})

    assert shared_stage.task(task_id).result == {"tokens": 0, "alive": ["generation", "flow:spent"]}


@pytest.mark.promise("B9")
@pytest.mark.hazard(39)
def test_the_views_follow_what_happens_and_have_no_past(shared_stage: Stage) -> None:
    session_id, generation = shared_stage.session()
    client = shared_stage.client
    assert len(client.document(session_id, "live").value["tasks"]) == 1
    assert client.document(session_id, "agent_settings").value["conversations"][0]["model"] is None

    shared_stage.advance(generation, finish("done"))

    assert client.document(session_id, "live").value == {"tasks": []}
    assert client.document(session_id, "inbox").value == {"inputs": []}
    for name in RESERVED:
        for past in ({"version": 1}, {"at": 1}):
            with pytest.raises(BadInput, match="no earlier versions"):
                client.document(session_id, name, **past)
        with pytest.raises(BadInput, match="no history"):
            client.document_history(session_id, name)
