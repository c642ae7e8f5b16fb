"""Sessions as they were stored with a task in each phase of each kind, one file a moment, one row a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
from sqlalchemy import JSON, Column

from brainhands.brain.background import response_cancel_kind
from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.brain.models import chat
from brainhands.brain.subagent import agent_kind, agent_specs
from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import flow_kind
from brainhands.shared.engine.definition import Kind, registry
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.approval import Question
from brainhands.shared.model.ids import SessionId, SubmissionId, new_worker_id
from brainhands.shared.model.submission import Receipt, Submission
from brainhands.shared.model.task import Status
from brainhands.shared.model.worker import Offer, WorkerInfo
from brainhands.shared.store import workers
from brainhands.shared.store.tables import SCHEMA, metadata
from tests.golden.cast import TOOLS, GoldenSteps, careful, golden, helper, moods, patient
from tests.store.stage import NO_REDIS, Gone, Stage, stage_of

FOLDER = Path(__file__).parent / "stored_tasks"
TABLES = {
    "sessions": "id",
    "conversations": "session_id",
    "submissions": "session_id",
    "events": "session_id",
    "tasks": "session_id",
    "attempts": "task_id IN (SELECT id FROM brainhands.tasks WHERE session_id",
    "waits": "waiter_id IN (SELECT id FROM brainhands.tasks WHERE session_id",
    "approvals": "session_id",
    "signals": "session_id",
    "inbox": "session_id",
    "outbox": "session_id",
}
"""The tables of a session, in the order in which rows can be put in, and what ties them to it."""

ANSWER = {"text": "golden"}
FLOW = "flow:golden_steps"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A session is played until a task of this kind is in this phase and status."""

    kind: str
    phase: str
    status: Status = Status.PENDING
    script: tuple[Mapping[str, Any], ...] = (ANSWER,)
    moods: frozenset[str] = field(default_factory=frozenset)
    agent: str = "golden"
    within: bool = False
    """The input comes into a session that is there, as part of a caller's transaction."""


def calling(name: str, **arguments: object) -> tuple[Mapping[str, Any], ...]:
    return {"calls": [{"name": name, "arguments": arguments, "id": "call_golden"}]}, ANSWER


HELPER = "agent:golden_helper"
HELP = calling("golden_helper", task="say something")
STEPS = calling("golden_steps", text="step")
MOMENTS = {
    "intake-admit": Moment(kind="intake", phase="admit", within=True),
    "generation-prepare": Moment(kind="generation", phase="prepare"),
    "generation-request": Moment(kind="generation", phase="request", moods=frozenset({"no model"})),
    "generation-retry": Moment(
        kind="generation", phase="retry", status=Status.SLEEPING, script=({"fault": "429", "times": 1, **ANSWER},)
    ),
    "generation-tools": Moment(kind="generation", phase="tools", script=calling("golden_plain", text="a")),
    "generation-poll": Moment(
        kind="generation",
        phase="poll",
        status=Status.SLEEPING,
        script=({"looks": ["queued"], **ANSWER},),
        agent="golden_patient",
    ),
    "agent-call": Moment(kind=HELPER, phase="call", script=HELP),
    "agent-answered": Moment(kind=HELPER, phase="answered", status=Status.WAITING, script=HELP, agent="golden_careful"),
    "agent-collect": Moment(kind=HELPER, phase="collect", status=Status.WAITING, script=HELP),
    "call-call": Moment(kind="tool:golden_plain", phase="call", script=calling("golden_plain", text="a")),
    "call-execute": Moment(
        kind="tool:golden_plain",
        phase="execute",
        script=calling("golden_plain", text="a"),
        moods=frozenset({"die"}),
    ),
    "call-again": Moment(
        kind="tool:golden_later",
        phase="again",
        status=Status.SLEEPING,
        script=calling("golden_later", text="a"),
        moods=frozenset({"later"}),
    ),
    "call-reconcile": Moment(
        kind="tool:golden_sent",
        phase="reconcile",
        status=Status.SLEEPING,
        script=calling("golden_sent", to="a"),
        moods=frozenset({"unknown"}),
    ),
    "call-answered": Moment(
        kind="tool:golden_asked",
        phase="answered",
        status=Status.WAITING,
        script=calling("golden_asked", amount=5),
    ),
    "call-reviewed": Moment(
        kind="tool:golden_reviewed",
        phase="reviewed",
        status=Status.WAITING,
        script=calling("golden_reviewed", to="a"),
    ),
    "flow-call": Moment(kind=FLOW, phase="call", script=STEPS),
    "flow-answered": Moment(kind=FLOW, phase="answered", status=Status.WAITING, script=STEPS, agent="golden_careful"),
    "flow-start": Moment(kind=FLOW, phase="start", script=STEPS, moods=frozenset({"flow dies"})),
    "flow-nap": Moment(kind=FLOW, phase="nap", status=Status.WAITING, script=STEPS),
    "flow-listen": Moment(kind=FLOW, phase="listen", status=Status.SLEEPING, script=STEPS),
    "flow-tell": Moment(kind=FLOW, phase="tell", status=Status.WAITING, script=STEPS),
}
LOOKS = 200


class Theatre:
    """A store with one Brain and one Hands worker in this process, which take one hint after another."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        kinds = (*(tool_kind(each) for each in TOOLS), flow_kind(GoldenSteps))
        specs = (*(each.spec() for each in TOOLS), GoldenSteps.definition.spec(), *agent_specs([helper]))
        workers.publish(stage.database, specs)
        agents = {(agent.name, agent.version): agent for agent in (golden, careful, patient, helper)}
        thinking = (generation_kind(agents), intake_kind(), response_cancel_kind(), agent_kind(helper))
        self._workers = (
            self._worker("brain", thinking, *(f"agent:{name}" for name, _ in agents)),
            self._worker("hands", kinds, *(kind.name for kind in kinds)),
        )

    def _worker(self, role: str, kinds: tuple[Kind, ...], *names: str) -> Worker:
        offers = tuple(Offer(name=name, low=1, high=1) for name in names)
        info = WorkerInfo(
            id=new_worker_id(),
            role=role,
            pool=f"{role}.golden",
            host="here",
            pid=1,
            parent_pid=1,
            slots=1,
            environment="golden",
            offers=offers,
        )
        self.stage.register(info)
        return Worker(
            info,
            registry(kinds, offers),
            database_url=self.stage.database_url,
            redis_url=NO_REDIS,
            lease_seconds=30,
            restart_limit=3,
            ends_process=False,
        )

    def close(self) -> None:
        for worker in self._workers:
            worker.database.close()

    def submit(self, moment: Moment) -> Receipt:
        client, text = self.stage.client, json.dumps({"script": list(moment.script)})
        if not moment.within:
            return client.submit(agent=moment.agent, input=text)
        first = client.submit(agent=moment.agent, input="hello")
        self.finish(first.session_id, first.submission_id)
        with psycopg.connect(self.stage.database_url) as connection:
            return client.submit(agent=moment.agent, input=text, session=first.session_id, connection=connection)

    def bring_to(self, moment: Moment) -> Receipt:
        """Play a new session up to its moment."""
        receipt = self.submit(moment)
        moods.update(moment.moods)
        try:
            for _ in range(LOOKS):
                self._sweep()
                if self._is_there(receipt, moment):
                    return receipt
                self._wake()
                self._step(receipt.session_id)
        finally:
            moods.clear()
        raise AssertionError(f"no {moment.kind} came to {moment.phase}, {moment.status}")

    def finish(self, session_id: SessionId, submission_id: SubmissionId) -> Submission:
        """Play a session to its end: what sleeps is woken, who is asked answers, and the signal comes."""
        client = self.stage.client
        for _ in range(LOOKS):
            submission = client.submission(submission_id)
            if submission.outcome is not None and not any(task.is_open for task in client.session(session_id).tasks):
                return submission
            for question in client.approvals():
                review = question.question is Question.REVIEW
                client.answer(question.id, "happened" if review else "approved", result="did" if review else None)
            for task in client.session(session_id).tasks:
                if task.signal_name == "golden":
                    client.signal(session_id, "golden", {"heard": True}, key="step")
            self._sweep()
            self._wake()
            self._step(session_id)
        raise AssertionError(f"session {session_id} does not end")

    def _is_there(self, receipt: Receipt, moment: Moment) -> bool:
        return any(
            (task.kind, task.phase, task.status) == (moment.kind, moment.phase, moment.status)
            for task in self.stage.client.session(receipt.session_id).tasks
        )

    def _sweep(self) -> None:
        """Sweep while both workers say that they live."""
        self.stage.database.run(*(call for worker in self._workers for call in workers.see(worker.info)))
        self.stage.sweep.sweep_once()

    def _wake(self) -> None:
        self.stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE status = 'sleeping'")
        self._sweep()

    def _step(self, session_id: SessionId) -> None:
        """Let the worker that offers what the next hint asks for take it; one that dies has lost its lease."""
        hints = self.stage.sql(
            "SELECT task_id, session_id, requires_name FROM brainhands.outbox WHERE session_id = %s"
            " ORDER BY task_id LIMIT 1",
            session_id,
        )
        for hint in hints:
            (worker,) = (
                worker
                for worker in self._workers
                if hint["requires_name"] in {offer.name for offer in worker.info.offers}
            )
            with self._struck():
                worker.advance([(hint["task_id"], hint["session_id"])])
            self.stage.end_lease(hint["task_id"])

    @contextmanager
    def _struck(self) -> Iterator[None]:
        """What the mood of the moment makes die."""

        def die(*_: object, **__: object) -> None:
            raise Gone

        with suppress(Gone), ExitStack() as patches:
            if "no model" in moods:
                patches.enter_context(patch.object(chat, "send", die))
            if "flow dies" in moods:
                patches.enter_context(patch("brainhands.hands.flows.run_phase", die))
            yield


@contextmanager
def theatre_of(database_url: str) -> Iterator[Theatre]:
    """A theatre on a migrated store, with a model server; whoever opens it gives OPENAI_BASE_URL to the settings."""
    with stage_of(database_url) as stage:
        theatre = Theatre(stage)
        try:
            yield theatre
        finally:
            theatre.close()


def write_missing(theatre: Theatre) -> Iterator[Path]:
    """Play each moment that has no file, write it down, and give its file."""
    FOLDER.mkdir(exist_ok=True)
    for name, moment in MOMENTS.items():
        file = FOLDER / f"{name}.jsonl"
        if not file.exists():
            receipt = theatre.bring_to(moment)
            file.write_text("".join(f"{line}\n" for line in _rows(theatre.stage, receipt)))
            yield file


def _rows(stage: Stage, receipt: Receipt) -> Iterator[str]:
    """The session's rows, each with its table; JSON columns as Postgres has them."""
    for table, tie in TABLES.items():
        end = ")" if "(" in tie else ""
        found = stage.sql(
            f"SELECT row_to_json(t)::text AS row FROM brainhands.{table} t WHERE {tie} = %s{end}", receipt.session_id
        )
        yield from (f'{{"table": "{table}", "row": {each["row"]}}}' for each in found)


def load(stage: Stage, file: Path) -> tuple[SessionId, SubmissionId]:
    """Put the rows of a moment into a store; its session, and the submission that is under way."""
    ids: dict[str, UUID] = {}
    for line in file.read_text().splitlines():
        stored = json.loads(line)
        table, row = stored["table"], stored["row"]
        # A null of JSON is a value in these columns, and would come out of the record as none.
        json_columns = {each.name for each in metadata.tables[f"{SCHEMA}.{table}"].c if _holds_json_null(each)}
        values = (f"line.line -> 'row' -> '{each}'" if each in json_columns else f"r.{each}" for each in row)
        stage.sql(
            f"INSERT INTO brainhands.{table} ({', '.join(row)}) OVERRIDING SYSTEM VALUE SELECT {', '.join(values)}"
            f" FROM (SELECT %s::json AS line) AS line,"
            f" json_populate_record(NULL::brainhands.{table}, line.line -> 'row') AS r",
            line,
        )
        if table == "sessions" or (table == "submissions" and row["status"] != "done"):
            ids[table] = UUID(row["id"])
    # A person's time to find something out has run since the moment was written down.
    stage.sql("UPDATE brainhands.approvals SET answer_by = now() + interval '1 day' WHERE answer = 'pending'")
    stage.sql(
        "UPDATE brainhands.tasks SET wake_at = now() + interval '1 day' WHERE signal_name IS NOT NULL"
        " AND session_id = %s",
        ids["sessions"],
    )
    return SessionId(ids["sessions"]), SubmissionId(ids["submissions"])


def _holds_json_null(column: Column[Any]) -> bool:
    return isinstance(column.type, JSON) and not column.nullable
