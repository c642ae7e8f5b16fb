"""Any order of what workers, sweeps, clients and clocks do leaves a store that is in order and can be finished.

Each worker runs in a thread of its own and stops at the beginning of every phase until the machine tells it how the
phase goes on, so only one of them moves at a time: what hypothesis chooses is what happens.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from brainhands.shared.engine import documents, ends
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.approval import HUMAN
from brainhands.shared.model.event import TaskPhase
from brainhands.shared.model.ids import SessionId, SubmissionId, TaskId, new_task_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Done, Fail, Next, Outcome, Sleep, Status, Task, Transition, Wait, WaitSignal
from brainhands.shared.rules import first_work
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import attempts, health, turns, workers
from tests.conftest import migrated, new_database
from tests.instruments.invariants import check, violations
from tests.store.extremes import BEYOND, LONGEST_NAME, VALUES
from tests.store.stage import OFFERS, PLAY, POOL, Act, Gone, Stage, play_task

PATIENCE = 30.0
LIMITED_OFFERS = tuple(replace(offer, concurrency=1) for offer in OFFERS)
"""Of one of the workers, as in the middle of a deploy that limits something."""
WHAT_A_PHASE_DOES = [
    *("next", "next", "done", "done", "fail", "sleep", "signal", "wait", "nothing"),
    *("spawn wait", "spawn fail fast", "spawn leave", "spawn next", "hand on", "raise", "die"),
]
STEPS = [
    *("submit new", "submit twice", "submit committed", "submit rolled back", "add task", "add hinted", "cancel"),
    *(["hint pending"] * 6),
    *("hint any", "go on", "go on", "go on", "take over", "take over", "drain"),
    *("renew", "renew stale", "lease ends", "time passes", "time passes", "relay passes", "sweep", "sweep"),
]
EXTREMES: dict[str, Json] = {"small": 1, **VALUES, **BEYOND}
SECONDS = (0.0, 3600.0, 1e13, math.inf, math.nan)
SIGNALS = (LONGEST_NAME, HUMAN)
PHASES = st.lists(st.sampled_from(WHAT_A_PHASE_DOES), min_size=1, max_size=4)
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

    def perform(self, run: Run) -> PhaseResult:
        """In the worker's thread: stand before the phase until the machine says what it does."""
        self._reached.put(run)
        return self._orders.get()(run)

    def go_on(self, act: Act) -> None:
        """Let the phase do this, and look where the worker comes to stand."""
        self._orders.put(act)
        self._look()

    def ran(self) -> Task:
        """The task as the worker knows it before the phase."""
        assert self.standing is not None
        return self.standing.task

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
        self.standing = None
        reached = self._reached.get(timeout=PATIENCE)
        if isinstance(reached, BaseException):
            raise reached
        self.standing = reached
        if reached is None:
            self._thread.join(PATIENCE)


ACTORS: dict[int, Actor] = {}


class ActorsStage(Stage):
    """A stage whose phases are played by actors."""

    def perform(self, run: Run) -> PhaseResult:
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
        limited = self.stage.worker(offers=LIMITED_OFFERS, tenant_concurrency=2)
        self.workers = [self.stage.first, limited, self.stage.worker()]
        self.sessions: list[SessionId] = []
        self.actors: list[Actor] = []
        self.done: dict[TaskId, Task] = {}
        self.fences: dict[TaskId, int] = {}
        self.requests = 0
        self.value: Json = None
        """What the phases of this step store; so are the next two."""
        self.seconds = 0.0
        self.signal = HUMAN

    @initialize()
    def begin(self) -> None:
        self.submit_new()
        self.submit_new()

    @rule(
        what=st.sampled_from(STEPS),
        place=st.integers(0, 30),
        worker=st.integers(0, 2),
        does=PHASES,
        other_does=PHASES,
        value=st.sampled_from(sorted(EXTREMES)),
        seconds=st.sampled_from(SECONDS),
        signal=st.sampled_from(SIGNALS),
    )
    def step(
        self,
        what: str,
        place: int,
        worker: int,
        does: list[str],
        other_does: list[str],
        value: str,
        seconds: float,
        signal: str,
    ) -> None:
        """One rule for all, since hypothesis leaves whole rules out of a run, and every run needs workers at work."""
        self.value, self.seconds, self.signal = EXTREMES[value], seconds, signal
        match what.partition(" "):
            case ("submit", _, how):
                self._submit(how, self.sessions[place % len(self.sessions)])
            case ("add", _, how):
                self._add_task(self.sessions[place % len(self.sessions)], hinted=how == "hinted")
            case ("cancel", _, _):
                self._on_one(place, "status <> 'done' AND kind <> 'intake'", self._cancel)
            case ("hint", _, to):
                condition = "status = 'pending'" if to == "pending" else "true"
                self._on_one(place, condition, lambda task: self._send(self.workers[worker], task, does))
            case ("go", _, _) if self.actors:
                self._play(self.actors[place % len(self.actors)], does)
            case ("take", _, _) if self.actors:
                self._take_over(self.actors[place % len(self.actors)], self.workers[worker], does, other_does)
            case ("drain", _, _):
                self.workers[worker].keeper.drain()
                self.workers[worker] = self.stage.worker()
            case ("renew", _, how):
                self._on_one(place, "fence > 0", lambda task: self._renew(task, stale=how == "stale"))
            case ("lease", _, _):
                self._on_one(place, "status = 'running'", self.stage.end_lease)
            case ("time", _, _):
                self._time_passes()
            case ("relay", _, _):
                self.stage.database.run(turns.take(POOL, 3))
            case _:
                self.sweep()

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
                self._order(self.actors[0], _dying)
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

    def submit_new(self) -> None:
        self.sessions.append(self.stage.submit(request_id=self._request_id()).session_id)

    def wake_times_come(self) -> None:
        self.stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE wake_at IS NOT NULL")

    def _time_passes(self) -> None:
        """Sleepers and waits for signals are due, and hints that were published look lost."""
        self.wake_times_come()
        self.stage.sql(
            "UPDATE brainhands.outbox SET published_at = published_at - interval '10 s',"
            " created_at = created_at - interval '10 s', attempts = attempts + 1"
        )

    def sweep(self) -> None:
        self._all_workers_live()
        self.stage.sweep.sweep_once()

    def _submit(self, how: str, session_id: SessionId) -> None:
        match how:
            case "new" if len(self.sessions) < 3:
                self.submit_new()
            case "committed" | "rolled back":
                with psycopg.connect(libpq_url(self.stage.database_url)) as connection:
                    self._submit_more(session_id, self._request_id(), connection=connection)
                    connection.commit() if how == "committed" else connection.rollback()
            case _:
                request_id = self._request_id()
                assert self._submit_more(session_id, request_id) == self._submit_more(session_id, request_id)

    def _submit_more(self, session_id: SessionId, request_id: str, **options: Any) -> SubmissionId:
        return self.stage.submit("more", session=session_id, request_id=request_id, **options).submission_id

    def _add_task(self, session_id: SessionId, *, hinted: bool) -> None:
        task_id = self.stage.add(session_id)
        if hinted:
            self.stage.forget_first_hint(task_id)

    def _cancel(self, task_id: TaskId) -> None:
        self.stage.client.cancel(task=task_id)

    def _take_over(self, silent: Actor, worker: Worker, other_does: list[str], does: list[str]) -> None:
        """A worker is silent for longer than its lease; another one gets the task; then the first one goes on."""
        self.stage.end_lease(silent.task_id)
        self.sweep()
        self._send(worker, silent.task_id, other_does)
        self._play(silent, does)

    def _on_one(self, place: int, condition: str, do: Callable[[TaskId], object]) -> None:
        if tasks := self.tasks(condition):
            do(tasks[place % len(tasks)])

    def _renew(self, task_id: TaskId, *, stale: bool) -> None:
        fence = self.stage.task(task_id).fence - stale
        (renewed,) = self.stage.database.run(attempts.renew([task_id], [fence], 30.0))
        assert not (stale and renewed.rows)

    def _send(self, worker: Worker, task_id: TaskId, does: list[str]) -> None:
        """A hint reaches a worker, maybe late, doubled or forged; the phases that it comes to do this."""
        if len(self.actors) > 3:
            return
        actor = Actor(worker, task_id)
        if actor.standing is not None:
            self.actors.append(actor)
            self._play(actor, does)

    def _play(self, actor: Actor, does: list[str]) -> None:
        for what in does:
            if actor in self.actors:
                self._order(actor, self._act(what))

    def _act(self, what: str) -> Act:
        match what.partition(" "):
            case ("spawn", _, how):
                return _spawning([new_task_id(), new_task_id()], how)
            case ("hand", _, _):
                return _handing_on
            case ("raise", _, _):
                return _raising
            case ("die", _, _):
                return _dying
            case _:
                return _coming_to(self, what)

    def _request_id(self) -> str:
        self.requests += 1
        return f"request-{self.requests}"

    def tasks(self, condition: str) -> list[TaskId]:
        rows = self.stage.sql(f"SELECT id FROM brainhands.tasks WHERE {condition} ORDER BY created_at, id")
        return [row["id"] for row in rows]

    def _all_workers_live(self) -> None:
        self.stage.database.run(*(call for worker in self.workers for call in workers.see(worker.info)))

    def _order(self, actor: Actor, act: Act) -> None:
        ran, before = actor.ran(), self.stage.task(actor.task_id)
        try:
            actor.go_on(act)
        finally:
            if actor.standing is None:
                self.actors.remove(actor)
        if (ran.status, ran.fence) != (before.status, before.fence):
            assert self.stage.task(actor.task_id) == before, "a worker wrote that had lost its claim"


def _coming_to(machine: StoreMachine, what: str) -> Act:
    def act(run: Run) -> PhaseResult:
        if run.task.kind not in SECOND:
            raise AssertionError("the intake plays itself")
        second, checkpoint = SECOND[run.task.kind], {"left": machine.value}
        later = machine.tasks(f"status <> 'done' AND kind = 'play' AND session_id = '{run.task.session_id}'")

        def decide(draft: Draft) -> Transition:
            task = draft.task(run.task.id)
            draft.event(TaskPhase(kind=task.kind, phase=task.phase, next_phase=what, status="running"), causes=[1])
            documents.change(draft, "steps", "steps", 1, lambda stored: (0 if stored is None else stored.value) + 1)
            match what:
                case "done":
                    return _end(draft, task, Done(machine.value))
                case "fail":
                    return _end(draft, task, Fail("no", machine.value))
                case "sleep":
                    return Sleep(machine.seconds, second, checkpoint)
                case "signal":
                    return WaitSignal(machine.signal, second, machine.seconds, checkpoint=checkpoint)
                case "wait":
                    # Only for what was made later, so that no two wait for each other.
                    return Wait([each for each in later if each > task.id][:2], phase=second)
                case "nothing":
                    return Wait([], phase=second)
                case _:
                    return Next(second)

        return PhaseResult(decide, evidence={"late": what})

    return act


def _end(draft: Draft, task: Task, transition: Done | Fail) -> Transition:
    if task.kind == first_work.GENERATION:
        outcome = Outcome.SUCCEEDED if isinstance(transition, Done) else Outcome.FAILED
        ends.end_generation(draft, task, outcome, causes=[task.cause], output=transition.result)
    return transition


def _spawning(children: list[TaskId], how: str) -> Act:
    def act(run: Run) -> PhaseResult:
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

        return PhaseResult(decide)

    return act


def _handing_on(run: Run) -> PhaseResult:
    """A generation's round closes and hands the next one on; any other task ends."""

    def decide(draft: Draft) -> Transition:
        task = draft.task(run.task.id)
        if task.kind == first_work.GENERATION and task.conversation_id is not None:
            conversation, _, _ = draft.locked.conversation(task.conversation_id)
            onward = first_work.generation_task(
                new_task_id(),
                conversation,
                submission_id=task.submission_id,
                cause=task.cause,
                round_number=2,
                priority=task.priority,
                now=draft.now,
            )
            draft.hand_on(onward, lambda _draft: Next("request"))
        return Done("handed on")

    return PhaseResult(decide)


def _raising(_run: Run) -> PhaseResult:
    raise RuntimeError("the phase raised")


def _dying(_run: Run) -> PhaseResult:
    raise Gone


@pytest.mark.slow
@pytest.mark.timeout(600)  # finding the shortest way to a fault takes minutes
@pytest.mark.promise(
    "B1", "B6", "C1", "C2", "C5", "C6", "C7", "C8", "C9", "C10", "C12", "D1", "D2", "D5", "H3", "H12", "A9"
)
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
