"""A real Brain and Hands on a stage, in this process, with a model that says what a test tells it to."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import pytest

from brainhands.brain.agent import Agent
from brainhands.brain.background import response_cancel_kind
from brainhands.brain.compaction import compaction_kind
from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.hands.calls import tool_kind
from brainhands.shared.engine.definition import Kind, registry
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.ids import SessionId, new_worker_id
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Task
from brainhands.shared.model.worker import Offer, WorkerInfo
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import workers
from deploy.demo import model_server
from deploy.demo.model_scripts import ASKS_FOR_SUMMARY, Call, Fault, Reply, Request
from tests.sample.tools import echo as echo_tool
from tests.store.stage import NO_REDIS, Stage, close_worker

MODEL = "desk"


class Desk:
    """Plays a session hint by hint. The model refuses what is longer than its `window`, in characters."""

    def __init__(self, stage: Stage, **agent: Any) -> None:
        self.stage = stage
        self.window = 1_000_000
        self.replies: deque[Reply] = deque()
        self.summaries: deque[Reply] = deque()
        self.asked: list[Request] = []
        self._workers = [self.brain(**agent), echo_hands(stage)]

    def close(self) -> None:
        """A stage outlives many desks."""
        for worker in self._workers:
            close_worker(worker)

    def brain(self, **fields: Any) -> Worker:
        asked: dict[str, Any] = {} if "models" in fields else {"model": MODEL}
        agent = Agent(name="desk", version=1, instructions="Help.", tools=["echo"], **asked, **fields)
        agents = {("desk", 1): agent}
        kinds = (generation_kind(agents), compaction_kind(agents), intake_kind(), response_cancel_kind())
        return worker_of(self.stage, "brain", kinds, Offer(name="agent:desk", low=1, high=1))

    def change_agent(self, **fields: Any) -> None:
        """Put another Brain in place of the one there is."""
        close_worker(self._workers[0])
        self._workers[0] = self.brain(**fields)

    def says(self, *replies: str | Reply) -> None:
        """What the model says next: text, or a whole reply."""
        self.replies.extend(Reply(text=each) if isinstance(each, str) else each for each in replies)

    def answer(self, request: Request) -> Reply:
        """The script of the model."""
        self.asked.append(request)
        messages = request["messages"]
        if len(json.dumps(messages)) > self.window:
            return Reply(fault=Fault.CONTEXT_LENGTH)
        if ASKS_FOR_SUMMARY in messages[0]["content"]:
            return self.summaries.popleft() if self.summaries else Reply(text="They talked.")
        return self.replies.popleft()

    def submit(self, text: str, **options: Any) -> Receipt:
        return self.stage.client.submit(agent="desk", input=text, **options)

    def turn(self, text: str, *replies: str | Reply, session: SessionId | None = None) -> Receipt:
        """One input, played to its end."""
        self.says(*replies)
        receipt = self.submit(text, session=session)
        self.play()
        return receipt

    def play(self, until: str | None = None) -> None:
        """Hand out hints until nothing is left to do, sleepers included, or until a task of this kind has a hint."""
        while True:
            hints = self.stage.sql(
                "SELECT task_id, o.session_id, kind FROM brainhands.outbox o JOIN brainhands.tasks ON id = task_id"
            )
            if any(hint["kind"] == until for hint in hints):
                return
            for hint in hints:
                for worker in self._workers:
                    worker.advance([(hint["task_id"], hint["session_id"])])
            if not hints and not self.wake():
                return

    def wake(self) -> bool:
        """Let those that sleep go on now; whether there were any."""
        woken = self.stage.sql(
            "UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE status = 'sleeping' RETURNING id"
        )
        self.stage.sweep.sweep_once()
        return bool(woken)

    def advance(self, task: Task) -> None:
        """One hint for one task."""
        self._workers[0].advance([(task.id, task.session_id)])

    def task(self, session: UUID, kind: str) -> Task:
        """The newest task of a kind."""
        return [task for task in self.stage.client.session(session).tasks if task.kind == kind][-1]

    def payloads(self, session: UUID, *types: str) -> list[dict[str, Any]]:
        return [json.loads(each.payload_text) for each in self.stage.client.events(session) if each.type in types]


def echo_hands(stage: Stage) -> Worker:
    """A Hands that has the tool `echo`, and says so in the store."""
    workers.publish(stage.database, [echo_tool.spec()])
    kind = tool_kind(echo_tool)
    return worker_of(stage, "hands", (kind,), Offer(name=kind.name, low=kind.version, high=kind.version))


def worker_of(stage: Stage, role: str, kinds: tuple[Kind, ...], offer: Offer) -> Worker:
    """A worker in this process that runs real kinds on the stage's store; only a test hints it."""
    info = WorkerInfo(
        id=new_worker_id(),
        role=role,
        pool=f"{role}.default",
        host="here",
        pid=1,
        parent_pid=1,
        slots=1,
        environment="test",
        offers=(offer,),
    )
    stage.register(info)
    return Worker(
        info,
        registry(kinds, (offer,)),
        database_url=stage.database_url,
        redis_url=NO_REDIS,
        lease_seconds=30,
        restart_limit=3,
        ends_process=False,
    )


def echoes(text: str, id: str | None = None, **reply: Any) -> Reply:
    """A reply that calls the tool `echo`."""
    call = Call(name="echo", arguments={"text": text}, **({"id": id} if id else {}))
    return Reply(calls=(call,), **reply)


@contextmanager
def desk_of(stage: Stage, monkeypatch: pytest.MonkeyPatch, **agent: Any) -> Iterator[Desk]:
    """A desk whose agent has these fields."""
    with closing(Desk(stage, **agent)) as desk, model_server.start({MODEL: desk.answer}) as model:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        settings.cache_clear()
        yield desk
