"""Slots: a claim that leaves its task running takes them, whatever ends the claim frees them, and no hint is eaten."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from brainhands.shared.doors import cancel
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.ids import TaskId, new_task_id
from brainhands.shared.model.task import Done, Fail, Next, Status, Task, Transition, Wait
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules import first_work
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import due, health, reads, slots
from tests.instruments import invariants
from tests.store.stage import AGENT, PLAY, Gone, Stage, answer, decide, finish, go_on, nap

AGENT_OFFER = Offer(name=f"agent:{AGENT}", low=1, high=1)


def limited(stage: Stage, most: int, **options: Any) -> Worker:
    """A worker that lets so many `play` tasks run at a time."""
    return stage.worker(offers=(Offer(name=PLAY, low=1, high=1, concurrency=most), AGENT_OFFER), **options)


def held(stage: Stage) -> dict[TaskId, list[str]]:
    """Who holds what."""
    rows = stage.sql(
        "SELECT task_id, array_agg(name) AS names FROM brainhands.slots WHERE task_id IS NOT NULL GROUP BY 1"
    )
    return {row["task_id"]: sorted(row["names"]) for row in rows}


def run_and_die(stage: Stage, task_id: TaskId, worker: Worker) -> None:
    """Let a first phase go on to the second under the same claim, and its worker die in that."""

    def die(_run: Run) -> PhaseResult:
        raise Gone

    with pytest.raises(Gone):
        stage.advance(task_id, go_on, die, worker=worker)
    assert stage.task(task_id).phase == "second"


def hint(stage: Stage, task_id: TaskId) -> dict[str, Any]:
    (row,) = stage.sql(
        "SELECT *, not_before > clock_timestamp() AS later FROM brainhands.outbox WHERE task_id = %s", task_id
    )
    return row


@pytest.mark.promise("F11")
@pytest.mark.hazard(16)
def test_the_last_slot_is_for_one_and_the_hint_of_the_other_is_due_when_it_is_free(stage: Stage) -> None:
    session, other_session = stage.session()[0], stage.session()[0]
    first, second = stage.add(session), stage.add(other_session)
    worker = limited(stage, 1)
    run_and_die(stage, first, worker)
    stage.sql("UPDATE brainhands.outbox SET published_at = now(), attempts = 1 WHERE task_id = %s", second)

    stage.advance(second, go_on, worker=worker)
    stage.acts.clear()
    refused, then = hint(stage, second), stage.status(second)
    holders = held(stage)
    stage.lose(first)
    freed = hint(stage, second)
    stage.advance(second, go_on, finish(), worker=worker)

    assert holders == {first: [PLAY]}
    assert (then, refused["later"], refused["published_at"], refused["attempts"]) == (Status.PENDING, True, None, 0)
    assert refused["awaits"] == [PLAY]
    assert (freed["later"], freed["awaits"]) == (False, None)
    assert stage.status(second) == Status.DONE
    assert held(stage) == {}
    invariants.check(stage.database_url)


@pytest.mark.promise("F11")
@pytest.mark.hazard("16d")
def test_of_claims_at_the_same_time_no_more_succeed_than_there_are_slots(stage: Stage) -> None:
    tasks = [(stage.add(session), session) for session in (stage.session()[0] for _ in range(12))]
    workers = [limited(stage, 3) for _ in range(12)]
    may_end = threading.Event()

    def act(run: Run) -> PhaseResult:
        if run.task.phase == "first":
            return go_on(run)
        assert may_end.wait(60)
        return finish()(run)

    stage.acts.extend([act] * 24)
    with ThreadPoolExecutor(12) as pool:
        claims = [pool.submit(worker.advance, [task]) for worker, task in zip(workers, tasks, strict=True)]
        refused = as_completed(claims, timeout=60)
        for _ in range(9):
            next(refused).result()
        holders = held(stage)
        may_end.set()
        wait(claims)

    assert len(holders) == 3
    assert {task_id for task_id, _ in tasks if stage.status(task_id) == Status.DONE} == set(holders)
    assert held(stage) == {}
    invariants.check(stage.database_url)


ENDS: dict[str, Any] = {
    "done": [finish()],
    "failed": [answer(Fail("no"))],
    "asleep": [nap],
    "waiting": None,
    "crash of the phase": [lambda _run: 1 / 0],
}


@pytest.mark.promise("F11")
@pytest.mark.parametrize("end", sorted(ENDS))
def test_whatever_a_phase_comes_to_frees_the_slot_when_the_claim_ends(stage: Stage, end: str) -> None:
    session_id, generation = stage.session()
    task_id = stage.add(session_id)
    acts = ENDS[end] or [answer(Wait([generation], phase="third"))]
    seen: list[dict[TaskId, list[str]]] = []

    def look(run: Run) -> PhaseResult:
        seen.append(held(stage))
        return go_on(run)

    stage.advance(task_id, go_on, look, *acts, worker=limited(stage, 2))

    assert seen == [{task_id: [PLAY]}]
    assert held(stage) == {}
    invariants.check(stage.database_url)


@pytest.mark.promise("F11", "C13")
def test_a_cancel_and_the_restart_limit_free_the_slot_too(stage: Stage) -> None:
    cancelled, crashed = stage.add(stage.session()[0]), stage.add(stage.session()[0])
    worker = limited(stage, 2)
    run_and_die(stage, cancelled, worker)
    cancel.cancel_task(stage.writer, stage.task(cancelled), reason="no more")
    told = held(stage)
    stage.lose(cancelled)
    stage.claim_and_die(crashed, worker=worker)
    for _ in range(2):
        stage.lose(crashed)
        stage.claim_and_die(crashed, worker=worker)
    held_by_crashed = held(stage)
    stage.lose(crashed)

    assert told == {cancelled: [PLAY]}
    assert held_by_crashed == {crashed: [PLAY]}
    assert stage.status(cancelled) == stage.status(crashed) == Status.DONE
    assert held(stage) == {}


@pytest.mark.promise("F11", "F13")
def test_what_waits_for_an_answer_or_ends_in_its_first_commit_needs_no_slot(stage: Stage) -> None:
    session_id, _ = stage.session()
    running, waiting, short = (stage.add(session_id) for _ in range(3))
    worker = limited(stage, 1)
    run_and_die(stage, running, worker)

    stage.advance(waiting, nap, worker=worker)
    stage.advance(short, finish(), worker=worker)

    assert (stage.status(waiting), stage.status(short)) == (Status.SLEEPING, Status.DONE)
    assert held(stage) == {running: [PLAY]}


@pytest.mark.promise("F11")
def test_a_limit_that_was_raised_or_lowered_holds_for_what_is_claimed_from_then_on(stage: Stage) -> None:
    tasks = [stage.add(stage.session()[0]) for _ in range(6)]

    at_two = claim_what_can_be(stage, tasks, limited(stage, 2))
    at_four = claim_what_can_be(stage, tasks, limited(stage, 4))
    at_one = claim_what_can_be(stage, tasks, limited(stage, 1))
    for task_id in at_four:
        stage.end_lease(task_id)
    stage.sweep.sweep_once()
    at_one_later = claim_what_can_be(stage, tasks, limited(stage, 1))

    assert (len(at_two), len(at_four), len(at_one_later)) == (2, 4, 1)
    assert at_two < at_four == at_one, "what runs goes on"


def claim_what_can_be(stage: Stage, tasks: list[TaskId], worker: Worker) -> set[TaskId]:
    """Who holds slots after a worker has tried to claim each pending task, and died in it."""

    def die(_run: Run) -> PhaseResult:
        raise Gone

    for task_id in tasks:
        with suppress(Gone):
            stage.advance(task_id, go_on, die, worker=worker)
        stage.acts.clear()
    return set(held(stage))


@pytest.mark.promise("H10")
def test_a_tenant_has_no_more_running_than_its_limit_and_another_tenant_has_its_own(stage: Stage) -> None:
    worker = stage.worker(tenant_concurrency=1)
    mine = [stage.add(stage.session()[0]) for _ in range(2)]
    stage.client.tenant = "other"
    theirs = stage.add(stage.session()[0])

    claim_what_can_be(stage, [*mine, theirs], worker)

    assert held(stage) == {mine[0]: ["tenant:default"], theirs: ["tenant:other"]}
    assert hint(stage, mine[1])["awaits"] == ["tenant:default"]


@pytest.mark.promise("H10")
@pytest.mark.parametrize("early", [True, False])
def test_a_generation_that_hands_the_next_one_on_has_one_slot_at_a_time(stage: Stage, early: bool) -> None:
    """Its tools are done; the round closes and the next one begins, in one commit or in one after the claim's."""
    worker = stage.worker(tenant_concurrency=1)
    _, generation = stage.session()
    made: list[TaskId] = []
    seen: list[dict[TaskId, list[str]]] = []

    def close(draft: Any, task: Task) -> Transition:
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
        made.append(onward.id)
        draft.hand_on(onward, lambda _draft: Next("request"))
        return Done()

    def look(run: Run) -> PhaseResult:
        seen.append(held(stage))
        return finish("all done")(run)

    if not early:
        stage.forget_first_hint(generation)
    stage.advance(generation, decide(close), look, worker=worker)

    assert seen == [{made[-1]: ["tenant:default"]}]
    assert held(stage) == {}
    invariants.check(stage.database_url, at_rest=True)


def test_a_slot_that_an_older_worker_left_behind_is_free_again_after_a_while_and_no_other_is(stage: Stage) -> None:
    left, kept = stage.add(stage.session()[0]), stage.add(stage.session()[0])
    worker = limited(stage, 2)
    for task_id in (left, kept):
        run_and_die(stage, task_id, worker)
    stage.sql("UPDATE brainhands.tasks SET holds_slots = false WHERE id = %s", left)
    stage.lose(left)
    at_once = set(held(stage))
    stage.sql("UPDATE brainhands.slots SET taken_at = taken_at - interval '1 minute' WHERE task_id IS NOT NULL")

    stage.sweep.sweep_once()

    assert at_once == {left, kept}
    assert set(held(stage)) == {kept}


@pytest.mark.promise("D5")
def test_a_hint_that_waits_for_a_slot_is_no_finding_and_one_that_waits_for_an_idle_worker_is(stage: Stage) -> None:
    running, waiting = stage.add(stage.session()[0]), stage.add(stage.session()[0])
    stage.sql("DELETE FROM brainhands.offers")
    worker = limited(stage, 1)
    run_and_die(stage, running, worker)
    long_ago = "clock_timestamp() - interval '1 hour'"
    stage.sql(f"UPDATE brainhands.workers SET started_at = {long_ago}")
    stage.sql(f"UPDATE brainhands.attempts SET started_at = {long_ago}")
    stage.sql(f"UPDATE brainhands.outbox SET not_before = {long_ago} WHERE task_id = %s", waiting)

    with_the_slot_held = _found(stage, waiting)
    stage.sql("UPDATE brainhands.slots SET task_id = NULL, taken_at = NULL")

    assert not with_the_slot_held
    assert _found(stage, waiting)


def _found(stage: Stage, task_id: TaskId) -> bool:
    return any(str(task_id) in finding.subject for finding in health.without_mover(stage.database))


@pytest.mark.promise("F11")
def test_a_task_without_limits_is_claimed_without_a_look_at_any_slot(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def listening(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(self, query, *arguments, **options)

    task_id, limited_id = stage.add(stage.session()[0]), stage.add(stage.session()[0])
    worker = limited(stage, 1)
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", listening)
        stage.advance(task_id, go_on, finish())
        without = [text for text in sent if "brainhands.slots" in text]
        sent.clear()
        stage.advance(limited_id, go_on, finish(), worker=worker)

    assert without == []
    assert [text for text in sent if "brainhands.slots" in text] != []


def test_sweeps_that_mend_and_claims_that_take_slots_do_not_wait_for_each_other(stage: Stage) -> None:
    task_id = stage.add(stage.session()[0])
    worker = limited(stage, 2)
    stage.database.run(slots.make({PLAY: 2}))

    with psycopg.connect(libpq_url(stage.database_url)) as somebody:
        somebody.execute("SELECT FROM brainhands.slots WHERE number = 1 FOR UPDATE")
        for mend in due.Mend:
            due.mend_hints(stage.database, mend)
        stage.database.run(slots.free_abandoned())
        run_and_die(stage, task_id, worker)

    found = reads.task(stage.database, task_id)
    assert found is not None
    assert found.holds_slots
    assert stage.sql("SELECT number FROM brainhands.slots WHERE task_id = %s", task_id) == [{"number": 2}]
