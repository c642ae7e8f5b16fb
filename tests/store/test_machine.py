"""Any order of what workers, sweeps, clients and clocks do leaves a store that is in order and can be finished.

Each worker runs in a thread of its own and stops at the beginning of every phase until the machine tells it how the
phase goes on, so only one of them moves at a time: what hypothesis chooses is what happens.
"""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.engine import endings
from shared.engine.definition import Step
from shared.engine.draft import Draft
from shared.engine.run import Run
from shared.engine.worker import Worker
from shared.kernel import intake
from shared.model.event import TaskPhase
from shared.model.ids import SessionId, TaskId, new_task_id
from shared.model.task import Done, Fail, Next, Outcome, Sleep, Status, Task, Transition, Wait
from shared.runtime.servers import Postgres
from shared.runtime.settings import libpq_url
from shared.store import attempts, health, hints, workers
from tests.conftest import migrated, new_database
from tests.instruments.invariants import check, violations
from tests.store.stage import OFFERS, PLAY, Act, Gone, Stage, play_task

PATIENCE = 30.0
SECOND = {PLAY: "second", "generation": "request"}


class Actor:
    """A worker at one hint: it stands before a phase, or has come to its end."""

    def __init__(self, worker: Worker, task_id: TaskId) -> None:
        self.task_id = task_id
        self.standing: Run | None = None
        self._reached: queue.Queue[Run | BaseException | None] = queue.Queue()
        self._orders: queue.Queue[Act] = queue.Queue()
        self._thread = threading.Thread(target=self._live, args=(worker,), daemon=True)
        self._thread.start()
        self._look()

    def perform(self, run: Run) -> Step:
        """In the worker's thread: stand before the phase until the machine says what it does."""
        self._reached.put(run)
        return self._orders.get()(run)

    def go_on(self, act: Act) -> None:
        """Let the phase do this, and look where the worker comes to stand."""
        self._orders.put(act)
        self._look()

    def _live(self, worker: Worker) -> None:
        ACTORS[threading.get_ident()] = self
        try:
            worker.advance([(self.task_id, SessionId(self.task_id))])
            self._reached.put(None)
        except Gone:
            self._reached.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the machine's thread
            self._reached.put(error)

    def _look(self) -> None:
        reached = self._reached.get(timeout=PATIENCE)
        if isinstance(reached, BaseException):
            raise reached
        self.standing = reached
        if reached is None:
            self._thread.join(PATIENCE)


ACTORS: dict[int, Actor] = {}


class ActorsStage(Stage):
    """A stage whose phases are played by actors."""

    def perform(self, run: Run) -> Step:
        return ACTORS[threading.get_ident()].perform(run)


class StoreMachine(RuleBasedStateMachine):
    """One session or two with all that may happen to them."""

    postgres: Postgres

    def __init__(self) -> None:
        super().__init__()
        self.exits = ExitStack()
        url = self.exits.enter_context(new_database(self.postgres, template=migrated(self.postgres)))
        self.stage = ActorsStage(url, restart_limit=2)
        self.exits.callback(self.stage.close)
        self.workers = [self.stage.first, self.stage.worker(), self.stage.worker()]
        self.sessions: list[SessionId] = []
        self.actors: list[Actor] = []
        self.done: dict[TaskId, Task] = {}
        self.fences: dict[TaskId, int] = {}
        self.requests = 0

    @initialize()
    def begin(self) -> None:
        self.submit_new()
        self.submit_new()

    # -- clients

    @precondition(lambda self: len(self.sessions) < 3)
    @rule()
    def submit_new(self) -> None:
        self.sessions.append(self.stage.submit(request_id=self._request_id()).session_id)

    @rule(session=st.integers(0), twice=st.booleans())
    def submit_more(self, session: int, twice: bool) -> None:
        request_id = self._request_id()
        session_id = self.sessions[session % len(self.sessions)]
        receipts = {
            self.stage.submit("more", session=session_id, request_id=request_id).submission_id for _ in range(1 + twice)
        }
        assert len(receipts) == 1

    @rule(session=st.integers(0), commits=st.booleans())
    def submit_in_a_transaction(self, session: int, commits: bool) -> None:
        session_id = self.sessions[session % len(self.sessions)]
        with psycopg.connect(libpq_url(self.stage.database_url)) as connection:
            self.stage.submit("within", session=session_id, request_id=self._request_id(), connection=connection)
            connection.commit() if commits else connection.rollback()

    @rule(session=st.integers(0), hinted=st.booleans())
    def add_task(self, session: int, hinted: bool) -> None:
        task_id = self.stage.add(self.sessions[session % len(self.sessions)])
        if hinted:
            self.stage.forget_first_hint(task_id)

    @rule(task=st.integers(0), wanted=st.sampled_from([False, False, False, True]))
    def cancel(self, task: int, wanted: bool) -> None:
        if wanted and (open_tasks := self.tasks("status <> 'done' AND kind <> 'intake'")):
            self.stage.client.cancel(task=open_tasks[task % len(open_tasks)])

    # -- workers

    @rule(task=st.integers(0), worker=st.integers(0, 2), whatever=st.sampled_from([False, False, False, True]))
    def hint(self, task: int, worker: int, whatever: bool) -> None:
        """A hint reaches a worker: that of a pending task, or one that is late, doubled or forged."""
        tasks = self.tasks("true" if whatever else "status = 'pending'")
        if tasks and len(self.actors) < 4:
            actor = Actor(self.workers[worker], tasks[task % len(tasks)])
            if actor.standing is not None:
                self.actors.append(actor)

    @rule(task=st.integers(0), worker=st.integers(0, 2), what=st.sampled_from(["next", "sleep", "wait", "done"]))
    def hint_and_go_on(self, task: int, worker: int, what: str) -> None:
        self.hint(task, worker, False)
        if self.actors:
            self.phase_comes_to(-1, what)

    @precondition(lambda self: self.actors)
    @rule(actor=st.integers(0), what=st.sampled_from(["done", "fail", "next", "next", "sleep", "wait", "nothing"]))
    def phase_comes_to(self, actor: int, what: str) -> None:
        self._order(actor, _coming_to(self, what))

    @precondition(lambda self: self.actors)
    @rule(actor=st.integers(0), children=st.integers(1, 3), how=st.sampled_from(["wait", "fail fast", "leave", "next"]))
    def phase_spawns(self, actor: int, children: int, how: str) -> None:
        self._order(actor, _spawning([new_task_id() for _ in range(children)], how))

    @precondition(lambda self: self.actors)
    @rule(actor=st.integers(0))
    def phase_hands_on(self, actor: int) -> None:
        self._order(actor, _handing_on)

    @precondition(lambda self: self.actors)
    @rule(actor=st.integers(0), how=st.sampled_from(["raises", "dies"]))
    def phase_breaks(self, actor: int, how: str) -> None:
        self._order(actor, _raising if how == "raises" else _dying)

    @rule(worker=st.integers(0, 2))
    def drain_and_replace(self, worker: int) -> None:
        """A worker is told to stop; another one takes its place."""
        self.workers[worker].keeper.drain()
        self.workers[worker] = self.stage.worker()

    # -- keepers, clocks, relays and sweeps

    @rule(task=st.integers(0), swept=st.booleans())
    def lease_ends(self, task: int, swept: bool) -> None:
        if running := self.tasks("status = 'running'"):
            self.stage.end_lease(running[task % len(running)])
        if swept:
            self.sweep()

    @rule(task=st.integers(0), stale=st.booleans())
    def renew(self, task: int, stale: bool) -> None:
        if tasks := self.tasks("fence > 0"):
            found = self.stage.task(tasks[task % len(tasks)])
            fence = found.fence - 1 if stale else found.fence
            (renewed,) = self.stage.database.run(attempts.renew([found.id], [fence], 30.0))
            assert not (stale and renewed.rows)

    @rule()
    def wake_times_come(self) -> None:
        self.stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE status = 'sleeping'")

    @rule()
    def relay_passes(self) -> None:
        offers = [{"name": offer.name, "low": offer.low, "high": offer.high} for offer in OFFERS]
        self.stage.database.run(hints.take_due(offers, 3))

    @rule(lost=st.booleans())
    def published_hints_grow_old(self, lost: bool) -> None:
        self.stage.sql(
            "UPDATE brainhands.outbox SET published_at = published_at - interval '10 s',"
            " created_at = created_at - interval '10 s'"
        )
        if lost:
            self.stage.sql("UPDATE brainhands.outbox SET attempts = attempts + 1")

    @rule()
    def sweep(self) -> None:
        self._all_workers_live()
        self.stage.sweep.sweep_once()

    # -- what must hold

    @invariant()
    def the_store_is_in_order(self) -> None:
        assert violations(self.stage.database_url) == []

    @invariant()
    def what_is_done_stays_and_fences_only_grow(self) -> None:
        for id in self.tasks("true"):
            task = self.stage.task(id)
            assert task.fence >= self.fences.get(id, 0)
            self.fences[id] = task.fence
            if task.status is Status.DONE:
                assert self.done.setdefault(id, task) == task

    @invariant()
    def everything_unfinished_has_a_mover(self) -> None:
        self._all_workers_live()
        assert health.without_mover(self.stage.database) == []

    def teardown(self) -> None:
        try:
            while self.actors:
                self._order(0, _dying)
            if self.sessions:
                self._finish_everything()
        finally:
            ACTORS.clear()
            self.exits.close()

    def _finish_everything(self) -> None:
        """However it stands, the fleet can bring it to its end."""
        worker = self.stage.worker()
        for _ in range(200):
            for task_id in self.tasks("status = 'running'"):
                self.stage.end_lease(task_id)
            self.wake_times_come()
            self.sweep()
            pending = self.tasks("status = 'pending'")
            if not pending and not self.tasks("status <> 'done'"):
                break
            for task_id in pending:
                actor = Actor(worker, task_id)
                while actor.standing is not None:
                    actor.go_on(_coming_to(self, "done"))
        check(self.stage.database_url, at_rest=True)

    # -- how

    def _request_id(self) -> str:
        self.requests += 1
        return f"request-{self.requests}"

    def tasks(self, condition: str) -> list[TaskId]:
        rows = self.stage.sql(f"SELECT id FROM brainhands.tasks WHERE {condition} ORDER BY created_at, id")
        return [row["id"] for row in rows]

    def _all_workers_live(self) -> None:
        self.stage.database.run(*(workers.see(worker.info) for worker in self.workers))

    def _order(self, place: int, act: Act) -> None:
        actor = self.actors[place % len(self.actors)]
        actor.go_on(act)
        if actor.standing is None:
            self.actors.remove(actor)


def _coming_to(machine: StoreMachine, what: str) -> Act:
    def act(run: Run) -> Step:
        if run.task.kind not in SECOND:
            raise AssertionError("the intake plays itself")
        second = SECOND[run.task.kind]
        later = machine.tasks(f"status <> 'done' AND kind = 'play' AND session_id = '{run.task.session_id}'")

        def decide(draft: Draft) -> Transition:
            task = draft.task(run.task.id)
            draft.event(TaskPhase(kind=task.kind, phase=task.phase, next_phase=what, status="running"), causes=[1])
            draft.change_document("steps", "steps", 1, lambda stored: (0 if stored is None else stored.value) + 1)
            match what:
                case "done":
                    return _end(draft, task, Done("result"))
                case "fail":
                    return _end(draft, task, Fail("no"))
                case "sleep":
                    return Sleep(3600.0, second)
                case "wait":
                    # Only for what was made later, so that no two wait for each other.
                    return Wait([each for each in later if each > task.id][:2], phase=second)
                case "nothing":
                    return Wait([], phase=second)
                case _:
                    return Next(second)

        return Step(decide, evidence={"late": what})

    return act


def _end(draft: Draft, task: Task, transition: Done | Fail) -> Transition:
    if task.kind == intake.GENERATION:
        outcome = Outcome.SUCCEEDED if isinstance(transition, Done) else Outcome.FAILED
        endings.end_generation(draft, task, outcome, causes=[task.cause])
    return transition


def _spawning(children: list[TaskId], how: str) -> Act:
    def act(run: Run) -> Step:
        def decide(draft: Draft) -> Transition:
            task = draft.task(run.task.id)
            for child in children:
                draft.spawn(play_task(draft, child, owner_id=task.id))
            second = SECOND[task.kind]
            match how:
                case "leave":
                    return _end(draft, task, Done("left"))
                case "next":
                    return Next(second)
                case _:
                    return Wait(children, phase=second, fail_fast=how == "fail fast")

        return Step(decide)

    return act


def _handing_on(run: Run) -> Step:
    """A generation's round closes and hands the next one on; any other task ends."""

    def decide(draft: Draft) -> Transition:
        task = draft.task(run.task.id)
        if task.kind == intake.GENERATION and task.conversation_id is not None:
            conversation, _, _ = draft.view.conversation(task.conversation_id)
            onward = intake.generation_task(
                new_task_id(),
                conversation,
                submission_id=task.submission_id,
                cause=task.cause,
                round_number=2,
                now=draft.now,
            )
            draft.hand_on(onward, Step(lambda _draft: Next("request")))
        return Done("handed on")

    return Step(decide)


def _raising(_run: Run) -> Step:
    raise RuntimeError("the phase raised")


def _dying(_run: Run) -> Step:
    raise Gone


@pytest.mark.slow
@pytest.mark.promise("B1", "B6", "C1", "C2", "C5", "C6", "C7", "C8", "C9", "C10", "C12", "D1", "D2", "D5", "H3", "A9")
@pytest.mark.hazard(4, 5, 6, 9, 12, 14, 17, 18)
def test_the_store_stays_in_order_whatever_happens(postgres: Postgres) -> None:
    StoreMachine.postgres = postgres
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=15,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
