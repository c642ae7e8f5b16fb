"""A store with workers and a sweep in this process, and task kinds whose phases a test plays by hand."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import UUID

from psycopg.rows import dict_row

from brainhands.brain.generation import intake_kind
from brainhands.outbox.sweep import Sweep
from brainhands.shared.bus.bell import Bell
from brainhands.shared.client import Client
from brainhands.shared.engine import ends
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.definition import Kind, Phase, PhaseResult, Registry, registry
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.engine.writer import Writer
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.event import ToolCallInterrupted, ToolCallStart
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id, new_worker_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import (
    Done,
    Next,
    Outcome,
    Priority,
    Requirement,
    Sleep,
    Status,
    Task,
    Transition,
    Wait,
)
from brainhands.shared.model.worker import Offer, WorkerInfo
from brainhands.shared.store import connections, reads, workers
from brainhands.shared.store.database import Database
from brainhands.shared.store.locked import Locked

NO_REDIS = "redis://127.0.0.1:9/0"
"""Nobody listens there: bells stay silent, and nothing else may depend on them."""

AGENT = "sample"
POOL = "hands.default"
PLAY = "play"
OFFERS = (Offer(name=PLAY, low=1, high=1), Offer(name=f"agent:{AGENT}", low=1, high=1))

Act: TypeAlias = Callable[[Run], PhaseResult]


class Gone(BaseException):
    """The process that runs the phase dies at this point."""


class Stage:
    """Each phase that a worker of this stage enters performs the next act, or ends its task when none is left."""

    def __init__(self, database_url: str, *, lease_seconds: float = 30.0, restart_limit: int = 3) -> None:
        self.database_url = database_url
        self.database = Database(database_url)
        self.client = Client(database_url, NO_REDIS)
        self.writer = Writer(self.database, Bell(NO_REDIS))
        self.sweep = sweep_of(self.database, restart_limit=restart_limit)
        self.acts: deque[Act] = deque()
        self._lease_seconds = lease_seconds
        self._restart_limit = restart_limit
        self._workers: list[Worker] = []
        self._sql = connections.connect(database_url)
        self._sql.row_factory = dict_row
        self.first = self.worker()

    def worker(
        self,
        *,
        offers: tuple[Offer, ...] = OFFERS,
        database_url: str | None = None,
        tenant_concurrency: int | None = None,
        pool: str = POOL,
    ) -> Worker:
        """One more live worker, on the store at this address."""
        info = WorkerInfo(
            id=new_worker_id(),
            role="hands",
            pool=pool,
            host="here",
            pid=os.getpid(),
            parent_pid=os.getpid(),
            slots=4,
            environment="test",
            offers=offers,
            tenant_concurrency=tenant_concurrency,
        )
        self.register(info)
        made = Worker(
            info,
            self.registry(offers),
            database_url=database_url or self.database_url,
            redis_url=NO_REDIS,
            lease_seconds=self._lease_seconds,
            restart_limit=self._restart_limit,
            ends_process=False,
        )
        self._workers.append(made)
        return made

    def register(self, info: WorkerInfo) -> None:
        """Let a worker count as live, however long the test takes."""
        self.database.run(*workers.see(info))
        self.sql("UPDATE brainhands.workers SET seen_at = now() + interval '1 hour' WHERE id = %s", info.id)

    def registry(self, offers: tuple[Offer, ...] = OFFERS) -> Registry:
        return registry((self.play_kind(), self._generation_kind(), intake_kind()), offers)

    def play_kind(self) -> Kind:
        phases = {"first": self._phase(only_decides=True), "second": self._phase(), "third": self._phase()}
        return Kind(name=PLAY, version=1, phases=phases)

    def _generation_kind(self) -> Kind:
        decides = self._phase(only_decides=True)
        phases = {"prepare": decides, "request": self._phase(), "tools": decides}
        return Kind(name="generation", version=1, phases=phases)

    def _phase(self, *, only_decides: bool = False) -> Phase:
        return Phase(run=self.perform, seconds=lambda _task: 600.0, only_decides=only_decides)

    def perform(self, run: Run) -> PhaseResult:
        """What a phase does."""
        return (self.acts.popleft() if self.acts else finish())(run)

    def submit(self, text: str = "hello", **options: Any) -> Receipt:
        return self.client.submit(agent=AGENT, input=text, **options)

    def session(self) -> tuple[SessionId, TaskId]:
        """A new session, and its pending generation."""
        receipt = self.submit()
        return receipt.session_id, self.open_generation(receipt.session_id)

    def open_generation(self, session_id: SessionId) -> TaskId:
        (row,) = self.sql(
            "SELECT id FROM brainhands.tasks WHERE session_id = %s AND kind = 'generation' AND status <> 'done'",
            session_id,
        )
        return TaskId(row["id"])

    def add(self, session_id: SessionId, *, owner_id: TaskId | None = None) -> TaskId:
        """A pending `play` task."""
        task_id = new_task_id()
        self.commit(session_id, lambda draft: draft.add(play_task(draft, task_id, owner_id=owner_id)))
        return task_id

    def commit(self, session_id: SessionId, change: Callable[[Draft], object], tasks: Sequence[TaskId] = ()) -> Commit:
        """Store what a change makes of a draft, as somebody who owns nothing."""

        def fill(view: Locked) -> Commit:
            draft = Draft(view, NOBODY)
            change(draft)
            return freeze(draft)

        commit = self.writer.apply(session_id, tasks, fill)
        assert commit is not None
        return commit

    def advance(self, task_id: TaskId, *acts: Act, worker: Worker | None = None) -> None:
        """Give a worker a hint, and let the phases that it enters perform these acts."""
        self.acts.extend(acts)
        (worker or self.first).advance([(task_id, SessionId(task_id))])

    def claim_and_die(self, task_id: TaskId, *, worker: Worker | None = None) -> Task:
        """Let a worker claim a task and die in the phase; gives the task as claimed."""
        claimed: list[Task] = []

        def die(run: Run) -> PhaseResult:
            claimed.append(run.task)
            raise Gone

        self.forget_first_hint(task_id)
        try:
            self.advance(task_id, die, worker=worker)
        except Gone:
            return claimed[0]
        raise AssertionError(f"task {task_id} was not to be had")

    def forget_first_hint(self, task_id: TaskId) -> None:
        """Say that the hint was published before, so that the claim is a commit of its own."""
        self.sql("UPDATE brainhands.outbox SET attempts = 2, published_at = now() WHERE task_id = %s", task_id)

    def end_lease(self, task_id: TaskId) -> None:
        """Let the lease of a running task be over."""
        self.sql(
            "UPDATE brainhands.tasks SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE id = %s AND status = 'running'",
            task_id,
        )

    def lose(self, task_id: TaskId) -> None:
        """Let the lease of a running task end and the sweep take the task back."""
        self.end_lease(task_id)
        self.sweep.sweep_once()

    def task(self, task_id: TaskId) -> Task:
        found = reads.task(self.database, task_id)
        assert found is not None
        return found

    def status(self, task_id: TaskId) -> Status:
        return self.task(task_id).status

    def types(self, session_id: UUID) -> list[str]:
        return [event.type for event in self.client.events(session_id)]

    def hinted(self) -> set[TaskId]:
        return {row["task_id"] for row in self.sql("SELECT task_id FROM brainhands.outbox")}

    def sql(self, statement: str, *parameters: object) -> list[dict[str, Any]]:
        """Run a statement of the test's own."""
        cursor = self._sql.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description is not None else []

    def wait_for_a_waiter(self) -> None:
        """Until some connection of this database waits for a lock."""
        while not self.sql(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            time.sleep(0.01)

    def close(self) -> None:
        for worker in self._workers:
            close_worker(worker)
        self.client.close()
        self.database.close()
        self._sql.close()


def close_worker(worker: Worker) -> None:
    """Give back a worker's connections."""
    for database in (worker.database, worker._soft_database, worker.keeper._database):
        database.close()


@contextmanager
def stage_of(database_url: str, **options: Any) -> Iterator[Stage]:
    stage = Stage(database_url, **options)
    try:
        yield stage
    finally:
        stage.close()


def sweep_of(database: Database, *, restart_limit: int = 3, blocked_after_seconds: float = 0) -> Sweep:
    """A relay's sweep on this store."""
    return Sweep(
        Writer(database, Bell(NO_REDIS)),
        NOBODY,
        restart_limit=restart_limit,
        blocked_after_seconds=blocked_after_seconds,
        stopping=threading.Event(),
    )


def play_task(draft: Draft, task_id: TaskId, *, owner_id: TaskId | None = None) -> Task:
    return Task(
        id=task_id,
        session_id=draft.session.id,
        conversation_id=None,
        owner_id=owner_id,
        submission_id=None,
        kind=PLAY,
        version=1,
        requires=Requirement(name=PLAY, version=1),
        input={"call_id": None},
        cause=draft.session.last_seq,
        priority=Priority.INTERACTIVE if owner_id is None else draft.task(owner_id).priority,
        status=Status.PENDING,
        phase="first",
        created_at=draft.now,
    )


def call_of_unknown_effect(stage: Stage, session_id: SessionId) -> TaskId:
    """A call that has ended, of which nobody knows whether it took effect."""
    call = new_task_id()

    def change(draft: Draft) -> None:
        task = replace(
            play_task(draft, call),
            kind="tool:play",
            status=Status.DONE,
            outcome=Outcome.INTERRUPTED,
            phase="execute",
            checkpoint={"call": {"arguments": {}, "operation_id": "o", "replay": "unsafe"}},
            error="it died",
        )
        draft.add(task)
        fields = ends.call_fields(task)
        begun = draft.event(ToolCallStart(**fields, acts_until=None), causes=[task.cause], task=task)
        draft.event(ToolCallInterrupted(**fields, partial="", error="it died"), causes=[begun], task=task)

    stage.commit(session_id, change)
    return call


def answer(transition: Transition) -> Act:
    """An act that comes to this."""
    return lambda _run: PhaseResult(lambda _draft: transition)


def finish(result: Json = None) -> Act:
    """An act that ends its task well; a generation's submission ends with it."""

    def act(run: Run) -> PhaseResult:
        def decide(draft: Draft) -> Transition:
            task = draft.task(run.task.id)
            if task.kind == "generation":
                ends.end_generation(draft, task, Outcome.SUCCEEDED, causes=[task.cause], output=result)
            return Done(result)

        return PhaseResult(decide)

    return act


def decide(change: Callable[[Draft, Task], Transition]) -> Act:
    """An act that fills the draft of its step."""
    return lambda run: PhaseResult(lambda draft: change(draft, draft.task(run.task.id)))


def spawn_and_wait(*children: TaskId, phase: str = "second") -> Act:
    """An act that makes owned tasks and waits for them, in one commit."""

    def change(draft: Draft, task: Task) -> Transition:
        for child in children:
            draft.spawn(play_task(draft, child, owner_id=task.id))
        return Wait(children, phase=phase)

    return decide(change)


go_on = answer(Next("second"))
nap = answer(Sleep(3600.0, "second"))
