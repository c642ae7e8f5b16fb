"""A connection that is lost in COMMIT ends in exactly one application, whether or not the commit had gone through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from brainhands.shared.client import Client
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.event import TaskPhase
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.model.submission import CancelState
from brainhands.shared.model.task import Done, Fail, Next, Status, Task, Transition
from brainhands.shared.store.database import Database
from brainhands.shared.store.locked import CLOCK
from tests.instruments.invariants import violations
from tests.store.commit_cutter import CommitCutter, When
from tests.store.stage import (
    AGENT,
    NO_REDIS,
    Act,
    Stage,
    answer,
    call_of_unknown_effect,
    decide,
    finish,
    go_on,
    nap,
    play_task,
    spawn_and_wait,
    sweep_of,
)

NOTE = TaskPhase(kind="play", phase="first", next_phase="second", status="running")

pytestmark = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture
def cutter(stage: Stage) -> Iterator[CommitCutter]:
    address = urlsplit(stage.database_url)
    assert address.hostname is not None
    assert address.port is not None
    with CommitCutter(address.hostname, address.port) as made:
        yield made


@pytest.fixture
def cut_worker(stage: Stage, cutter: CommitCutter) -> Worker:
    worker = stage.worker(database_url=_through(stage, cutter))
    worker.database.run(CLOCK())  # so that the next COMMIT on the wire is the worker's own
    return worker


@pytest.fixture
def cut_client(stage: Stage, cutter: CommitCutter) -> Iterator[Client]:
    client = Client(_through(stage, cutter), NO_REDIS)
    client.submit(agent=AGENT, input="first", request_id="r-0")  # as above
    yield client
    client.close()


def _through(stage: Stage, cutter: CommitCutter) -> str:
    address = urlsplit(stage.database_url)
    return stage.database_url.replace(f":{address.port}/", f":{cutter.port}/")


@pytest.mark.promise("B6", "A2")
@pytest.mark.hazard(7, 22)
def test_a_new_session_is_submitted_once(stage: Stage, cutter: CommitCutter, cut_client: Client, when: When) -> None:
    cutter.arm(when)
    receipt = cut_client.submit(agent=AGENT, input="hello", request_id="r-1")
    again = cut_client.submit(agent=AGENT, input="hello", request_id="r-1")

    assert cutter.cuts == 1
    assert (again.submission_id, again.session_id) == (receipt.submission_id, receipt.session_id)
    assert _count(stage, "sessions", "submissions", "tasks", "outbox") == [2, 2, 2, 2]
    assert stage.types(receipt.session_id) == ["session_created", "user_message"]
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "A2")
@pytest.mark.hazard(7, 22)
@pytest.mark.parametrize("busy", [False, True], ids=["free", "busy"])
def test_an_input_for_a_session_is_submitted_once(
    stage: Stage, cutter: CommitCutter, cut_client: Client, when: When, busy: bool
) -> None:
    session_id, generation = stage.session()
    if not busy:
        stage.advance(generation)

    cutter.arm(when)
    receipt = cut_client.submit(agent=AGENT, input="more", session=session_id, request_id="r-2")

    assert cutter.cuts == 1
    assert receipt.session_id == session_id
    assert _count(stage, "submissions", "inbox") == [3, 1 if busy else 0]
    assert stage.types(session_id).count("user_message") == (1 if busy else 2)
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "C13")
@pytest.mark.hazard(7, 47)
def test_a_cancel_is_carried_out_once_and_its_caller_told_so(
    stage: Stage, cutter: CommitCutter, cut_client: Client, when: When
) -> None:
    session_id, _ = stage.session()

    cutter.arm(when)
    cancelled = cut_client.cancel(session=session_id, reason="no more", who="ada")

    assert cutter.cuts == 1
    assert cancelled.state is CancelState.CANCELLED
    (wish,) = (each for each in stage.client.events(session_id) if each.type == "cancel_requested")
    assert json.loads(wish.payload_text) == {"scope": "session", "subject": None, "reason": "no more", "who": "ada"}
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "I3")
@pytest.mark.hazard(7, 44)
def test_a_redaction_and_an_erasure_are_made_once_and_their_receipts_say_so(
    stage: Stage, cutter: CommitCutter, cut_client: Client, when: When
) -> None:
    session_id, generation = stage.session()
    stage.advance(generation)

    cutter.arm(when)
    redacted = cut_client.redact(session_id, [2], reason="why")
    cutter.arm(when)
    erased = cut_client.erase(session_id, reason="why")

    assert cutter.cuts == 2
    assert redacted.redacted == (2,)
    assert erased.erased_at == stage.client.session(session_id).session.erased_at
    assert stage.types(session_id)[3:] == ["events_redacted", "session_erased"]
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6")
@pytest.mark.hazard(7)
def test_a_claim_is_made_once_and_its_phase_runs_once(
    stage: Stage, cutter: CommitCutter, cut_worker: Worker, when: When
) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    stage.forget_first_hint(task_id)
    runs: list[int] = []

    def count(run: Run) -> Any:
        runs.append(run.task.fence)
        return finish("once")(run)

    cutter.arm(when)
    stage.advance(task_id, count, count, worker=cut_worker)

    assert cutter.cuts == 1
    assert runs == [1]
    assert (stage.status(task_id), stage.task(task_id).result) == (Status.DONE, "once")
    assert len(stage.sql("SELECT 1 FROM brainhands.attempts WHERE task_id = %s", task_id)) == 1
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6")
@pytest.mark.hazard(7)
def test_a_first_phase_that_shares_the_claims_commit_is_applied_once(
    stage: Stage, cutter: CommitCutter, cut_worker: Worker, when: When
) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    cutter.arm(when)
    stage.advance(task_id, _noting(go_on), finish("once"), worker=cut_worker)

    assert cutter.cuts == 1
    assert stage.status(task_id) == Status.DONE
    assert stage.types(session_id).count("task_phase") == 1
    assert violations(stage.database_url) == []


def _spawning(draft: Draft, task: Task) -> Transition:
    _note(draft)
    draft.spawn(play_task(draft, new_task_id(), owner_id=task.id))
    return Done("decided")


def _note(draft: Draft) -> None:
    draft.event(NOTE, causes=[1])


def _noting(act: Act) -> Act:
    """The act, and an event that can be counted."""

    def noted(run: Run) -> Any:
        step = act(run)

        def change(draft: Draft) -> Transition:
            _note(draft)
            return step.decide(draft)

        return replace(step, decide=change)

    return noted


STEPS: dict[str, tuple[Act, Status]] = {
    "goes to a phase": (go_on, Status.DONE),
    "sleeps": (nap, Status.SLEEPING),
    "waits": (lambda run: spawn_and_wait(new_task_id())(run), Status.WAITING),
    "ends": (finish("r"), Status.DONE),
    "is completing": (decide(_spawning), Status.COMPLETING),
    "fails": (answer(Fail("no")), Status.DONE),
}


@pytest.mark.promise("B6", "B1")
@pytest.mark.hazard(7)
@pytest.mark.parametrize("what", STEPS)
def test_a_step_is_applied_once(stage: Stage, cutter: CommitCutter, cut_worker: Worker, when: When, what: str) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    stage.forget_first_hint(task_id)
    act, status = STEPS[what]

    def cut_next(run: Run) -> Any:
        cutter.arm(when)
        return act(run)

    stage.advance(task_id, _noting(cut_next), worker=cut_worker)

    assert cutter.cuts == 1
    assert stage.status(task_id) == status
    assert stage.types(session_id).count("task_phase") == (2 if what == "is completing" else 1)
    steps = stage.sql("SELECT step FROM brainhands.attempts WHERE task_id = %s", task_id)
    assert steps == [{"step": 2 if what == "goes to a phase" else 1}]
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "C4")
@pytest.mark.hazard(7)
def test_a_lease_that_ended_is_recovered_once(stage: Stage, cutter: CommitCutter, when: When) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    stage.claim_and_die(task_id)
    stage.end_lease(task_id)
    database = Database(_through(stage, cutter), size=1)
    sweeper = sweep_of(database)
    sweeper.sweep_once()  # so that the connection is there, and its COMMIT the next on the wire

    stage.claim_and_die(task_id)
    stage.end_lease(task_id)
    cutter.arm(when)
    sweeper.sweep_once()
    sweeper.sweep_once()
    database.close()

    assert cutter.cuts == 1
    assert stage.types(session_id).count("task_recovered") == 2
    assert stage.status(task_id) == Status.PENDING
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "E8")
@pytest.mark.hazard(7)
@pytest.mark.parametrize("first_hint", [True, False])
def test_a_task_handed_on_in_the_commit_goes_on_at_once(
    stage: Stage, cutter: CommitCutter, cut_worker: Worker, when: When, first_hint: bool
) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    onward = new_task_id()
    if not first_hint:
        stage.forget_first_hint(task_id)

    def hand_on(draft: Draft, _task: Task) -> Transition:
        _note(draft)
        draft.hand_on(play_task(draft, onward), lambda _draft: Next("second"))
        return Done()

    def cut_next(run: Run) -> Any:
        cutter.arm(when)
        return decide(hand_on)(run)

    stage.advance(task_id, cut_next, finish("went on"), worker=cut_worker)

    assert cutter.cuts == 1
    assert stage.types(session_id).count("task_phase") == 1
    assert (stage.status(onward), stage.task(onward).result) == (Status.DONE, "went on")
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "I7")
@pytest.mark.hazard(7, 47)
def test_a_session_is_forked_once(stage: Stage, cutter: CommitCutter, cut_client: Client, when: When) -> None:
    session_id, _ = stage.session()

    cutter.arm(when)
    receipt = cut_client.fork(session_id, 2)

    assert cutter.cuts == 1
    assert stage.types(receipt.session_id)[2:] == ["session_forked"]
    assert _count(stage, "sessions") == [3]
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "I6")
@pytest.mark.hazard(7, 47)
def test_who_awakes_a_session_hears_once_what_was_moved(
    stage: Stage, cutter: CommitCutter, cut_client: Client, when: When
) -> None:
    session_id, generation = stage.session()
    stage.sql("DELETE FROM brainhands.outbox WHERE task_id = %s", generation)

    cutter.arm(when)
    receipt = cut_client.awake(session_id)

    assert cutter.cuts == 1
    assert [(each.task, each.done) for each in receipt.moved] == [(str(generation), "hint_added")]
    assert stage.types(session_id)[receipt.seq - 1 :] == ["session_resumed"]  # type: ignore[operator]
    assert violations(stage.database_url) == []


@pytest.mark.promise("B6", "F6")
@pytest.mark.hazard(7)
def test_a_call_is_settled_once_and_who_settled_it_hears_so(
    stage: Stage, cutter: CommitCutter, cut_client: Client, when: When
) -> None:
    session_id, _ = stage.session()
    call = call_of_unknown_effect(stage, session_id)

    cutter.arm(when)
    receipt = cut_client.settle(call, "happened", result="seen", who="dora")

    assert cutter.cuts == 1
    assert receipt is not None
    assert (receipt.accepted, receipt.approval.result) == (True, "seen")
    assert stage.sql("SELECT id FROM brainhands.approvals WHERE task_id = %s", call) == [{"id": receipt.approval.id}]
    assert stage.types(session_id).count("tool_call_settled") == 1
    assert cut_client.settle(call, "happened", result="seen", who="dora") is None
    assert violations(stage.database_url) == []


def _count(stage: Stage, *tables: str) -> list[int]:
    return [stage.sql(f"SELECT count(*) AS n FROM brainhands.{table}")[0]["n"] for table in tables]
