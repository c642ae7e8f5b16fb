"""A commit stores all of a step or nothing, one after the other in a session, and only for who still owns the task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select, text

from brainhands.shared.engine import documents
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import NotStorable, StaleWrite, Unsettled
from brainhands.shared.model.commit import Commit, Guard, TaskChange
from brainhands.shared.model.event import Event, ModelInterrupted, TaskPhase, Usage
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.task import Done, Fail, Next, Outcome, Sleep, Status, Task, Transition, Wait
from brainhands.shared.rules import chain, moves
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import attempts, health
from brainhands.shared.store.database import Database, Statement
from brainhands.shared.store.locked import Locked
from tests.store.stage import (
    Act,
    Gone,
    Stage,
    answer,
    decide,
    finish,
    go_on,
    nap,
    play_task,
    spawn_and_wait,
)

NOTE = TaskPhase(kind="play", phase="first", next_phase="second", status="running")


def _note(draft: Draft) -> None:
    draft.event(NOTE, causes=[1])


# -- all or nothing ------------------------------------------------------------------------------------------------


@pytest.mark.promise("B1", "B5")
@pytest.mark.parametrize(
    "breaks",
    [
        lambda draft: draft.event(NOTE, causes=[999]),
        lambda draft: documents.change(draft, "plan", "plan", 1, lambda _stored: 1 / 0),
        lambda draft: documents.change(draft, "plan", "plan", 1, lambda _stored: object()),
        lambda draft: draft.change(moves.wake(play_task(draft, new_task_id()))),
    ],
    ids=["a cause that is later", "a change that raises", "a value that is no JSON", "an illegal move"],
)
def test_a_failure_while_a_commit_is_prepared_leaves_nothing_behind(
    shared_stage: Stage, breaks: Callable[[Draft], Any]
) -> None:
    session_id, _ = shared_stage.session()
    before = _everything_of(shared_stage, session_id)

    def change(draft: Draft) -> None:
        _note(draft)
        draft.add(play_task(draft, new_task_id()))
        documents.change(draft, "notes", "notes", 1, lambda _stored: {"n": 1})
        breaks(draft)

    with pytest.raises((ValueError, ZeroDivisionError, NotStorable, Unsettled)):
        shared_stage.commit(session_id, change)

    assert _everything_of(shared_stage, session_id) == before
    assert shared_stage.commit(session_id, _note).session.last_seq == 3


@pytest.mark.promise("B1", "B5", "C11")
def test_a_write_that_the_database_refuses_takes_the_whole_step_with_it(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    before = _everything_of(shared_stage, session_id)

    def change(draft: Draft) -> None:
        _note(draft)
        parent = play_task(draft, new_task_id())
        draft.add(parent)
        draft.add(replace(play_task(draft, new_task_id()), fence=-1))

    with pytest.raises(psycopg.errors.CheckViolation):
        shared_stage.commit(session_id, change)

    assert _everything_of(shared_stage, session_id) == before


@pytest.mark.promise("B1", "C11", "A4")
def test_children_their_hints_the_wait_and_the_events_of_a_step_are_one_commit(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    parent = shared_stage.add(session_id)
    children = [new_task_id(), new_task_id()]

    shared_stage.advance(parent, spawn_and_wait(*children))

    (row,) = shared_stage.sql(
        """
        SELECT count(DISTINCT x) AS transactions, count(*) AS rows FROM (
            SELECT xmin::text AS x FROM brainhands.tasks WHERE id = ANY(%s)
            UNION ALL SELECT xmin::text FROM brainhands.waits WHERE waiter_id = %s
            UNION ALL SELECT xmin::text FROM brainhands.outbox WHERE task_id = ANY(%s)
            UNION ALL SELECT xmin::text FROM brainhands.events WHERE session_id = %s AND type = 'task_created'
        ) AS everything
        """,
        [parent, *children],
        parent,
        children,
        session_id,
    )
    assert (row["transactions"], row["rows"]) == (1, 3 + 2 + 2 + 2)


@pytest.mark.promise("B4")
def test_nobody_sees_a_change_before_it_is_durable(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    before = _everything_of(shared_stage, session_id)

    with psycopg.connect(libpq_url(shared_stage.database_url)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT 1 FROM brainhands.outbox WHERE task_id = %s FOR UPDATE", [task_id])
        commit = pool.submit(shared_stage.advance, task_id, finish())
        shared_stage.wait_for_a_waiter()
        while_it_is_written = _everything_of(shared_stage, session_id)
        other.rollback()
        commit.result()

    assert while_it_is_written == before
    assert shared_stage.status(task_id) == Status.DONE


# -- one after the other ---------------------------------------------------------------------------------------------


@pytest.mark.promise("B2", "B3")
@pytest.mark.hazard(4)
def test_parallel_commits_of_a_session_are_serial_and_its_log_has_no_gap(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()

    def write(_: int) -> None:
        for _ in range(10):
            shared_stage.commit(session_id, _note)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    events = shared_stage.client.events(session_id)
    assert [event.seq for event in events] == list(range(1, 43))
    assert all(later.prev_hash == earlier.hash for earlier, later in itertools.pairwise(events))
    assert all(chain.event_hash(event) == event.hash for event in events)


@pytest.mark.promise("B2")
def test_a_phase_under_way_holds_no_lock_and_no_transaction(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    open_transactions: list[int] = []

    def act(run: Run) -> Any:
        with psycopg.connect(libpq_url(shared_stage.database_url), autocommit=True) as other:
            other.execute("SET lock_timeout = '500ms'")
            other.execute("SELECT 1 FROM brainhands.sessions WHERE id = %s FOR UPDATE", [session_id])
            other.execute("SELECT 1 FROM brainhands.tasks WHERE id = %s FOR UPDATE", [task_id])
            found = other.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND xact_start IS NOT NULL"
            ).fetchone()
            assert found is not None
            open_transactions.append(found[0])
        return finish()(run)

    shared_stage.advance(task_id, go_on, act)

    assert open_transactions == [0]
    assert shared_stage.status(task_id) == Status.DONE


@pytest.mark.promise("B3", "C7", "F9")
@pytest.mark.hazard(4)
@pytest.mark.parametrize("_again", range(4))
def test_the_last_two_children_to_end_at_the_same_time_wake_their_parent(shared_stage: Stage, _again: int) -> None:
    session_id, _ = shared_stage.session()
    parent = shared_stage.add(session_id)
    children = [new_task_id(), new_task_id()]
    shared_stage.advance(parent, spawn_and_wait(*children))
    together = threading.Barrier(2)

    def meet(run: Run) -> Any:
        together.wait(timeout=30)
        return finish()(run)

    shared_stage.acts.extend([meet, meet])
    workers = [shared_stage.first, shared_stage.worker()]
    with ThreadPoolExecutor(2) as pool:
        for child in children:
            shared_stage.forget_first_hint(child)
        list(pool.map(lambda pair: pair[0].advance([(pair[1], session_id)]), zip(workers, children, strict=True)))

    assert [shared_stage.status(child) for child in children] == [Status.DONE, Status.DONE]
    assert shared_stage.status(parent) == Status.PENDING
    assert parent in shared_stage.hinted()


@pytest.mark.hazard(4)
def test_what_a_commit_decides_on_is_read_after_the_wait_for_the_lock(stage: Stage) -> None:
    session_id, _ = stage.session()
    locked, let_go = threading.Event(), threading.Event()

    def first(draft: Draft) -> None:
        locked.set()
        assert let_go.wait(30)
        documents.change(draft, "count", "count", 1, lambda _stored: 1)

    seen: list[Any] = []

    def second(draft: Draft) -> None:
        found = draft.locked.document("count")
        seen.append((None if found is None else found.value, draft.now))

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(stage.commit, session_id, first)
        assert locked.wait(30)
        other = pool.submit(stage.commit, session_id, second)
        stage.wait_for_a_waiter()
        let_go.set()
        committed = one.result()
        other.result()

    assert seen[0][0] == 1
    assert seen[0][1] > committed.at


# -- waits -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("C6", "C7")
@pytest.mark.hazard(5)
def test_a_wait_on_tasks_that_have_ended_is_over_at_once(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    ended = [shared_stage.add(session_id), shared_stage.add(session_id)]
    for task_id in ended:
        shared_stage.advance(task_id)
    waiter = shared_stage.add(session_id)

    shared_stage.advance(waiter, answer(Wait(ended, phase="second")))

    assert shared_stage.status(waiter) == Status.PENDING
    assert waiter in shared_stage.hinted()
    assert shared_stage.sql("SELECT 1 FROM brainhands.waits WHERE waiter_id = %s", waiter) == []


@pytest.mark.promise("C6")
@pytest.mark.hazard(5)
def test_a_wait_on_nothing_is_over_at_once(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    waiter = shared_stage.add(session_id)

    shared_stage.advance(waiter, answer(Wait([], phase="second")))

    assert (shared_stage.status(waiter), shared_stage.task(waiter).phase) == (Status.PENDING, "second")


@pytest.mark.promise("C7")
def test_a_wait_for_several_ends_with_the_last_of_them_whatever_came_of_the_others(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    parent = shared_stage.add(session_id)
    children = [new_task_id() for _ in range(3)]
    shared_stage.advance(parent, spawn_and_wait(*children))
    statuses = []

    for child, act in zip(children, [answer(Fail("no")), nap, finish()], strict=True):
        shared_stage.advance(child, act)
        statuses.append(shared_stage.status(parent))
    shared_stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", children[1])
    shared_stage.sweep.sweep_once()
    shared_stage.advance(children[1])

    assert statuses == [Status.WAITING] * 3
    assert shared_stage.status(parent) == Status.PENDING


@pytest.mark.promise("C6")
@pytest.mark.hazard(5)
def test_the_sweep_ends_a_wait_with_nothing_left_open(shared_stage: Stage) -> None:
    """Only damage leaves such a wait behind; whatever did, it does not stand for ever."""
    session_id, _ = shared_stage.session()
    parent = shared_stage.add(session_id)
    child = new_task_id()
    shared_stage.advance(parent, spawn_and_wait(child))
    shared_stage.sql("DELETE FROM brainhands.outbox WHERE task_id = %s", child)
    shared_stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'succeeded' WHERE id = %s", child)

    shared_stage.sweep.sweep_once()

    assert shared_stage.status(parent) == Status.PENDING
    assert parent in shared_stage.hinted()


@pytest.mark.promise("C8")
def test_a_task_with_its_outcome_decided_is_completing_until_its_owned_work_has_ended(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    grandparent = shared_stage.add(session_id)
    parent, child = new_task_id(), new_task_id()

    def leave_it(draft: Draft, task: Task) -> Transition:
        draft.spawn(play_task(draft, child, owner_id=task.id))
        return Done("mine is done")

    shared_stage.advance(grandparent, spawn_and_wait(parent))
    shared_stage.advance(parent, decide(leave_it))
    completing = shared_stage.task(parent)
    shared_stage.advance(child, answer(Fail("late")))

    assert (completing.status, completing.outcome, completing.result) == ("completing", "succeeded", "mine is done")
    done = shared_stage.task(parent)
    assert (done.status, done.outcome, done.result) == (Status.DONE, Outcome.SUCCEEDED, "mine is done")
    assert shared_stage.status(grandparent) == Status.PENDING


@pytest.mark.promise("C5", "D4")
@pytest.mark.case("restatedev/restate#3057")
def test_a_sleeper_keeps_its_due_time_and_wakes_when_that_has_passed(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    shared_stage.advance(task_id, answer(Sleep(3600, "second", {"kept": 1})))
    asleep = shared_stage.task(task_id)

    for _ in range(3):
        shared_stage.sweep.sweep_once()
        shared_stage.advance(task_id, _must_not_run)
        shared_stage.acts.clear()
    still = shared_stage.task(task_id)
    shared_stage.sql("UPDATE brainhands.tasks SET wake_at = now() - interval '1 hour' WHERE id = %s", task_id)
    shared_stage.sweep.sweep_once()
    awake = shared_stage.task(task_id)

    assert still == asleep
    assert (asleep.status, asleep.worker_id, asleep.lease_until) == (Status.SLEEPING, None, None)
    assert (awake.status, awake.phase, awake.checkpoint) == (Status.PENDING, "second", {"kept": 1})
    assert task_id in shared_stage.hinted()


@pytest.mark.promise("C2", "C3", "C4")
def test_recovery_enters_the_stored_phase_again_with_what_is_stored(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    seen: list[tuple[str, Any]] = []

    def look_and_die(run: Run) -> Any:
        seen.append((run.task.phase, run.task.checkpoint))
        raise Gone

    with pytest.raises(Gone):
        shared_stage.advance(task_id, answer(Next("second", {"mails": [1, 2]})), look_and_die)
    shared_stage.lose(task_id)
    with pytest.raises(Gone):
        shared_stage.advance(task_id, look_and_die, worker=shared_stage.worker())
    shared_stage.lose(task_id)

    assert seen == [("second", {"mails": [1, 2]})] * 2


@pytest.mark.promise("C9")
def test_a_done_task_keeps_its_result_and_never_runs_again(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    shared_stage.advance(task_id, finish({"sent": 1}))
    before = shared_stage.sql("SELECT * FROM brainhands.tasks WHERE id = %s", task_id)

    for _ in range(3):
        shared_stage.advance(task_id, _must_not_run)
        shared_stage.acts.clear()
    shared_stage.sweep.sweep_once()

    assert shared_stage.sql("SELECT * FROM brainhands.tasks WHERE id = %s", task_id) == before
    assert shared_stage.task(task_id).result == {"sent": 1}


# -- ownership -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D1", "H3")
@pytest.mark.hazard(6)
def test_of_many_workers_with_the_same_hint_one_runs(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    workers = [shared_stage.worker() for _ in range(6)]
    runs: list[int] = []

    def count(run: Run) -> Any:
        runs.append(run.task.fence)
        return finish()(run)

    shared_stage.acts.extend([count] * 6)
    shared_stage.forget_first_hint(task_id)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda worker: worker.advance([(task_id, session_id)] * 2), workers))
    shared_stage.acts.clear()

    assert runs == [1]
    assert shared_stage.sql("SELECT fence FROM brainhands.attempts WHERE task_id = %s", task_id) == [{"fence": 1}]


@pytest.mark.promise("D2")
@pytest.mark.hazard("6a", "6b", "19a", "19d")
@pytest.mark.parametrize("taken_over", [False, True], ids=["lease ended", "taken over"])
@pytest.mark.parametrize("late", [Done("late"), Next("third"), Sleep(5, "third"), Fail("late")], ids=str)
@pytest.mark.case("aegra/aegra#547")
def test_who_lost_the_lease_stores_nothing_but_a_late_result_in_its_own_attempt(
    shared_stage: Stage, taken_over: bool, late: Transition
) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    other = shared_stage.worker()
    stored: list[Any] = []

    def too_late(run: Run) -> Any:
        shared_stage.lose(task_id)
        if taken_over:
            shared_stage.claim_and_die(task_id, worker=other)
        stored.append(_everything_of(shared_stage, session_id))

        def change(draft: Draft) -> Transition:
            _note(draft)
            draft.add(play_task(draft, new_task_id(), owner_id=task_id))
            documents.change(draft, "mine", "mine", 1, lambda _stored: 1)
            return late

        return replace(answer(late)(run), decide=change, evidence={"receipt": "r-1"})

    shared_stage.advance(task_id, go_on, too_late)

    after = _everything_of(shared_stage, session_id)
    first_attempt = after["attempts"][0]
    assert first_attempt["late_result"] == {"receipt": "r-1"}
    first_attempt["late_result"] = None
    assert after == stored[0]
    assert shared_stage.status(task_id) == (Status.RUNNING if taken_over else Status.PENDING)


@pytest.mark.promise("D2", "B7")
@pytest.mark.hazard("19b")
def test_progress_of_a_lost_claim_reaches_its_own_attempt_only(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    first = shared_stage.claim_and_die(task_id)
    shared_stage.lose(task_id)
    second = shared_stage.claim_and_die(task_id)
    before = shared_stage.task(task_id)

    shared_stage.database.run(attempts.write_progress(task_id, second.fence, "mine"))
    shared_stage.database.run(attempts.write_progress(task_id, first.fence, "stale"))

    found = attempts.of_task(shared_stage.database, task_id)
    assert [(each.fence, each.progress) for each in found] == [(first.fence, "stale"), (second.fence, "mine")]
    assert shared_stage.task(task_id) == before


@pytest.mark.hazard("6a")
def test_every_change_of_ownership_gives_a_new_fence(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    fences = []

    fences.append(shared_stage.claim_and_die(task_id).fence)
    shared_stage.lose(task_id)
    fences.append(shared_stage.task(task_id).fence)
    shared_stage.advance(task_id, nap)
    fences.append(shared_stage.task(task_id).fence)
    shared_stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", task_id)
    shared_stage.sweep.sweep_once()
    fences.append(shared_stage.claim_and_die(task_id).fence)

    assert fences == sorted(set(fences))


@pytest.mark.promise("D4")
@pytest.mark.hazard("6a", "13e")
def test_a_lease_is_not_renewed_once_it_has_ended_nor_for_a_fence_that_is_over(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    first = shared_stage.claim_and_die(task_id)

    (in_time,) = shared_stage.database.run(attempts.renew([task_id], [first.fence], 60))
    shared_stage.end_lease(task_id)
    (too_late,) = shared_stage.database.run(attempts.renew([task_id], [first.fence], 60))
    shared_stage.sweep.sweep_once()
    (of_nobody,) = shared_stage.database.run(attempts.renew([task_id], [first.fence], 60))
    second = shared_stage.claim_and_die(task_id)
    (of_another,) = shared_stage.database.run(attempts.renew([task_id], [first.fence], 60))

    assert len(in_time.rows) == 1
    assert (too_late.rows, of_nobody.rows, of_another.rows) == ([], [], [])
    assert shared_stage.task(task_id).lease_until == second.lease_until


@pytest.mark.hazard("10")
def test_a_lease_is_never_renewed_past_its_phases_deadline(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    claimed = shared_stage.claim_and_die(task_id)

    shared_stage.database.run(attempts.renew([task_id], [claimed.fence], 10_000))
    at_the_deadline = shared_stage.task(task_id)
    (again,) = shared_stage.database.run(attempts.renew([task_id], [claimed.fence], 10_000))

    assert at_the_deadline.lease_until == at_the_deadline.deadline
    assert again.rows == []


@pytest.mark.hazard("6b", "6c")
def test_a_write_by_compare_and_set_is_refused_whole_when_its_row_has_moved(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    pending = shared_stage.task(task_id)
    shared_stage.claim_and_die(task_id)
    before = _everything_of(shared_stage, session_id)

    def cancel_what_was_pending(view: Locked) -> Commit:
        draft = Draft(view, NOBODY)
        _note(draft)
        cancelled = replace(pending, status=Status.DONE, outcome=Outcome.CANCELLED, fence=pending.fence + 1)
        return replace(freeze(draft), tasks=(TaskChange(before=pending, after=cancelled),))

    with pytest.raises(Unsettled):
        shared_stage.writer.apply(session_id, [], cancel_what_was_pending)

    assert _everything_of(shared_stage, session_id) == before


@pytest.mark.hazard("6b", "7")
@pytest.mark.parametrize(("fence", "step"), [(0, 0), (2, 0), (1, 1), (1, -1)])
def test_an_owners_commit_names_its_fence_and_its_step(shared_stage: Stage, fence: int, step: int) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    shared_stage.claim_and_die(task_id)
    before = _everything_of(shared_stage, session_id)

    with pytest.raises(StaleWrite):
        shared_stage.writer.apply(
            session_id,
            [task_id],
            lambda _locked: pytest.fail("a stale owner was asked what to store"),
            guard=Guard(task_id=task_id, fence=fence, step=step),
        )

    assert _everything_of(shared_stage, session_id) == before


@pytest.mark.promise("D4")
@pytest.mark.hazard(52)
def test_leases_and_timers_go_by_the_clock_of_the_database(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, _ = shared_stage.session()
    running, sleeping = shared_stage.add(session_id), shared_stage.add(session_id)

    for wrong in (-10 * 365 * 86400, 10 * 365 * 86400):
        monkeypatch.setattr("time.time", lambda wrong=wrong: 1.8e9 + wrong)
        monkeypatch.setattr("time.time_ns", lambda wrong=wrong: int((1.8e9 + wrong) * 1e9))
        monkeypatch.setattr("time.monotonic", lambda wrong=wrong: 1e9 + wrong)
        shared_stage.claim_and_die(running)
        if wrong < 0:
            shared_stage.advance(sleeping, answer(Sleep(3600, "second")))
        shared_stage.sweep.sweep_once()

        (row,) = shared_stage.sql(
            "SELECT lease_until - clock_timestamp() AS lease, status FROM brainhands.tasks WHERE id = %s", running
        )
        (nap_row,) = shared_stage.sql(
            "SELECT wake_at - clock_timestamp() AS left, status FROM brainhands.tasks WHERE id = %s", sleeping
        )
        assert row["status"] == "running"
        assert timedelta(0) < row["lease"] <= timedelta(seconds=30)
        assert nap_row["status"] == "sleeping"
        assert timedelta(minutes=50) < nap_row["left"] <= timedelta(hours=1)
        shared_stage.lose(running)

    for event in shared_stage.client.events(session_id):
        (at,) = shared_stage.sql("SELECT clock_timestamp() - %s::timestamptz AS ago", event.at)
        assert timedelta(0) <= at["ago"] < timedelta(minutes=5)


@pytest.mark.promise("I1")
@pytest.mark.hazard(52)
def test_an_events_time_is_never_earlier_than_the_one_before_it(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    shared_stage.sql(
        "UPDATE brainhands.sessions SET last_at = last_at + interval '1 day' WHERE id = %s RETURNING last_at",
        session_id,
    )

    event = shared_stage.commit(session_id, _note).of(Event)[0]

    (head,) = shared_stage.sql("SELECT last_at, created_at FROM brainhands.sessions WHERE id = %s", session_id)
    assert event.at == head["last_at"]
    assert event.at > head["created_at"] + timedelta(hours=23)


@pytest.mark.promise("I1", "C1")
def test_an_event_says_who_wrote_it_when_why_and_in_what(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    def speak(draft: Draft, task: Task) -> Transition:
        payload = ModelInterrupted(text="half", reason="cut", usage=Usage(tokens_in=7, tokens_out=3))
        draft.event(payload, causes=[2, 1, 2], task=task)
        return Done()

    shared_stage.advance(task_id, decide(speak))

    event = shared_stage.client.events(session_id)[-1]
    info = shared_stage.first.info
    assert (event.type, event.version, event.causes) == ("model_interrupted", 1, (1, 2))
    assert (event.worker_id, event.pool, event.environment) == (info.id, info.pool, info.environment)
    assert (event.task_id, event.fence, event.tokens_in, event.tokens_out) == (task_id, 1, 7, 3)
    assert event.at.tzinfo is not None
    assert '"text":"half"' in event.payload_text
    assert event.hash == chain.event_hash(event)


# -- the restart count -----------------------------------------------------------------------------------------------


@pytest.mark.promise("C10")
@pytest.mark.hazard("12a", "12b")
def test_a_task_that_kills_its_worker_in_a_phase_is_counted_and_stops_at_the_limit(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    fences = []

    for _ in range(3):
        claimed = shared_stage.claim_and_die(task_id)
        fences.append((claimed.fence, claimed.phase_attempts))
        shared_stage.database.run(attempts.write_progress(task_id, claimed.fence, "20 tokens"))
        shared_stage.lose(task_id)

    ended = shared_stage.task(task_id)
    assert fences == [(1, 1), (3, 2), (5, 3)]
    assert (ended.status, ended.outcome) == (Status.DONE, Outcome.FAILED)
    assert ended.error is not None
    assert "3 attempts in phase first" in ended.error
    assert shared_stage.types(session_id)[2:] == [
        "task_recovered",
        "task_recovered",
        "task_failed",
        "tool_call_error",
    ]


@pytest.mark.promise("C10")
@pytest.mark.hazard("12a")
def test_a_hint_that_was_sent_again_is_claimed_in_a_commit_of_its_own_before_the_phase_runs(
    shared_stage: Stage,
) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    seen: list[tuple[Status, int]] = []

    def look(run: Run) -> Any:
        stored = shared_stage.task(task_id)
        seen.append((stored.status, stored.phase_attempts))
        return answer(Sleep(3600, "first"))(run)

    shared_stage.advance(task_id, look)
    shared_stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", task_id)
    shared_stage.sweep.sweep_once()
    shared_stage.forget_first_hint(task_id)
    shared_stage.advance(task_id, look)

    assert seen == [(Status.PENDING, 0), (Status.RUNNING, 1)]


@pytest.mark.promise("C10")
@pytest.mark.hazard("12b")
def test_a_commit_of_the_phase_resets_the_count_and_progress_does_not(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    shared_stage.claim_and_die(task_id)
    shared_stage.lose(task_id)
    shared_stage.claim_and_die(task_id)
    shared_stage.lose(task_id)
    counted = shared_stage.task(task_id).phase_attempts

    shared_stage.advance(task_id, go_on, nap)

    assert counted == 2
    assert (shared_stage.task(task_id).phase, shared_stage.task(task_id).phase_attempts) == ("second", 0)


@pytest.mark.promise("C10", "C14")
@pytest.mark.hazard("12c")
def test_a_clean_release_gives_the_attempt_back(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    for _ in range(5):
        draining = shared_stage.worker()

        def drained(run: Run, draining: Any = draining) -> Any:
            draining.keeper.drain()
            return go_on(run)

        shared_stage.forget_first_hint(task_id)
        shared_stage.advance(task_id, drained, worker=draining)
        released = shared_stage.task(task_id)
        assert (released.status, released.phase, released.phase_attempts) == (Status.PENDING, "second", 0)

    shared_stage.advance(task_id, finish())
    assert shared_stage.status(task_id) == Status.DONE


@pytest.mark.promise("C10")
def test_a_phase_that_raises_is_counted_like_a_crash_and_keeps_its_reason(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    def fault(_run: Run) -> Any:
        raise RuntimeError("the disk is full")

    for _ in range(3):
        shared_stage.forget_first_hint(task_id)
        shared_stage.advance(task_id, fault)

    ended = shared_stage.task(task_id)
    assert (ended.status, ended.outcome) == (Status.DONE, Outcome.FAILED)
    assert "RuntimeError: the disk is full" in str(ended.error)


# -- law 8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_every_unfinished_task_of_a_busy_store_has_a_next_mover(stage: Stage) -> None:
    session_id, generation = stage.session()
    sleeping, running, parent, completing = (stage.add(session_id) for _ in range(4))
    child, grandchild = new_task_id(), new_task_id()
    stage.advance(sleeping, nap)
    stage.advance(parent, spawn_and_wait(child))

    def leave_it(draft: Draft, task: Task) -> Transition:
        draft.spawn(play_task(draft, grandchild, owner_id=task.id))
        return Done()

    stage.advance(completing, decide(leave_it))
    stage.claim_and_die(running)
    stage.forget_first_hint(child)

    statuses = {row["status"] for row in stage.sql("SELECT status FROM brainhands.tasks")}
    assert statuses == {"pending", "running", "sleeping", "waiting", "completing"}
    assert health.without_mover(stage.database) == []
    assert generation in stage.hinted()


DEAD = {
    "a lease that ended long ago": "UPDATE brainhands.tasks SET lease_until = now() - interval '60 s' WHERE id = %s",
    "a hint that was lost": "DELETE FROM brainhands.outbox WHERE task_id = %s",
    "a hint that was set aside": "UPDATE brainhands.outbox SET parked = 'broken' WHERE task_id = %s",
    "a wake time long past": "UPDATE brainhands.tasks SET wake_at = now() - interval '1 minute' WHERE id = %s",
    "a wait without anything open": "DELETE FROM brainhands.waits WHERE waiter_id = %s",
}


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
@pytest.mark.parametrize("how", DEAD)
def test_a_task_without_a_mover_is_found(stage: Stage, how: str) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    match how:
        case "a lease that ended long ago":
            stage.claim_and_die(task_id)
        case "a wake time long past":
            stage.advance(task_id, nap)
        case "a wait without anything open":
            stage.advance(task_id, spawn_and_wait(new_task_id()))
    assert health.without_mover(stage.database) == []

    stage.sql(DEAD[how], task_id)

    assert [str(task_id) in finding.subject for finding in health.without_mover(stage.database)] == [True]


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_two_tasks_that_wait_for_each_other_have_no_mover(stage: Stage) -> None:
    session_id, _ = stage.session()
    one, other = stage.add(session_id), stage.add(session_id)
    stage.advance(one, answer(Wait([other], phase="second")))
    assert health.without_mover(stage.database) == []

    stage.advance(other, answer(Wait([one], phase="second")))

    assert len(health.without_mover(stage.database)) == 2


# -- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B9")
@pytest.mark.hazard(9)
def test_parallel_tasks_that_change_one_document_lose_none_of_each_others_changes(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    mails = [shared_stage.add(session_id) for _ in range(4)]
    workers = [shared_stage.worker() for _ in mails]
    together = threading.Barrier(len(mails))

    def write_receipt(run: Run) -> Any:
        together.wait(timeout=30)

        def change(draft: Draft, task: Task) -> Transition:
            documents.change(
                draft, "mails", "mails", 1, lambda stored: {**(stored.value if stored else {}), str(task.id): "receipt"}
            )
            return Done()

        return decide(change)(run)

    shared_stage.acts.extend([write_receipt] * len(mails))
    for task_id in mails:
        shared_stage.forget_first_hint(task_id)
    with ThreadPoolExecutor(len(mails)) as pool:
        list(pool.map(lambda pair: pair[0].advance([(pair[1], session_id)]), zip(workers, mails, strict=True)))

    versions = [shared_stage.client.document(session_id, "mails", version=each).value for each in (1, 2, 3, 4)]
    assert [len(value) for value in versions] == [1, 2, 3, 4]
    assert set(versions[-1]) == {str(task_id) for task_id in mails}
    assert shared_stage.client.document(session_id, "mails").version == 4


@pytest.mark.promise("B9", "B10")
def test_a_document_is_stored_with_its_kind_its_schema_version_and_its_place_in_the_log(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()

    def twice(draft: Draft) -> None:
        _note(draft)
        documents.change(draft, "rules", "rules_of_the_house", 3, lambda _stored: {"n": 1})
        documents.change(draft, "rules", "rules_of_the_house", 3, lambda stored: {"n": (stored.value["n"] + 1)})  # type: ignore[union-attr]

    shared_stage.commit(session_id, twice)
    shared_stage.commit(
        session_id, lambda draft: documents.change(draft, "rules", "rules_of_the_house", 3, lambda _stored: {"n": 9})
    )

    view = shared_stage.client.session(session_id)
    (newest,) = view.documents
    (first,) = shared_stage.sql("SELECT * FROM brainhands.documents WHERE session_id = %s AND version = 1", session_id)
    assert (newest.kind, newest.schema_version, newest.version, newest.value) == ("rules_of_the_house", 3, 2, {"n": 9})
    assert (first["value"], first["seq"]) == ({"n": 2}, 3)


# -- what the tests share --------------------------------------------------------------------------------------------


def _everything_of(stage: Stage, session_id: SessionId) -> dict[str, list[dict[str, Any]]]:
    """Every row that belongs to a session."""
    of_session = ("sessions", "conversations", "events", "documents", "tasks", "submissions", "inbox", "outbox")
    found = {
        table: stage.sql(
            f"SELECT to_jsonb(t) AS row FROM brainhands.{table} t"
            f" WHERE {'id' if table == 'sessions' else 'session_id'} = %s ORDER BY to_jsonb(t)::text",
            session_id,
        )
        for table in of_session
    }
    found["attempts"] = [
        dict(row)
        for row in stage.sql(
            "SELECT a.* FROM brainhands.attempts a JOIN brainhands.tasks t ON t.id = a.task_id"
            " WHERE t.session_id = %s ORDER BY a.task_id, a.fence",
            session_id,
        )
    ]
    found["waits"] = stage.sql(
        "SELECT w.* FROM brainhands.waits w JOIN brainhands.tasks t ON t.id = w.waiter_id"
        " WHERE t.session_id = %s ORDER BY 1, 2",
        session_id,
    )
    return found


def _must_not_run(_run: Run) -> Any:
    raise AssertionError("the phase ran")


SYNCHRONOUS = Statement(select(func.current_setting("synchronous_commit").label("value")))
UPDATES = Statement(
    select(
        func.pg_stat_get_xact_tuples_updated(text("'brainhands.tasks'::regclass")).label("updated"),
        func.pg_stat_get_xact_tuples_hot_updated(text("'brainhands.tasks'::regclass")).label("hot"),
    )
)


@pytest.mark.promise("B7")
@pytest.mark.hazard(41)
def test_progress_waits_for_no_disk_and_commits_do(shared_stage: Stage) -> None:
    soft_database = Database(shared_stage.database_url, durable=False)
    try:
        found = [each.run(SYNCHRONOUS())[0].rows[0]["value"] for each in (shared_stage.database, soft_database)]
    finally:
        soft_database.close()

    assert found == ["on", "off"]


@pytest.mark.hazard(40)
def test_renewing_a_lease_touches_no_index(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task = shared_stage.claim_and_die(shared_stage.add(session_id))

    with shared_stage.database.transaction() as transaction:
        for _ in range(3):
            transaction.run(attempts.renew([task.id], [task.fence], 60))
        (counted,) = transaction.run(UPDATES())

    assert counted.rows == [{"updated": 3, "hot": 3}]


@pytest.mark.promise("C10")
@pytest.mark.hazard(35)
def test_a_task_that_was_in_two_crashes_shares_its_process_with_no_other(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    crashed, neighbour, another = (shared_stage.add(session_id) for _ in range(3))
    for _ in range(2):
        shared_stage.claim_and_die(crashed)
        shared_stage.lose(crashed)
    worker = shared_stage.worker()
    seen: list[Status] = []

    def beside(task_id: TaskId) -> Act:
        def act(run: Run) -> PhaseResult:
            worker.advance([(task_id, session_id)])
            seen.append(shared_stage.status(task_id))
            return finish()(run)

        return act

    shared_stage.advance(neighbour, beside(crashed), worker=worker)
    shared_stage.advance(crashed, beside(another), worker=worker)
    shared_stage.advance(another, worker=worker)

    assert seen == [Status.PENDING, Status.PENDING]
    assert {shared_stage.status(each) for each in (crashed, neighbour, another)} == {Status.DONE}
