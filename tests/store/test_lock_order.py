"""The order in which rows are locked, walked with two and more connections: nobody deadlocks, nobody is a hostage."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from brainhands.shared.engine.run import Run
from brainhands.shared.model.event import TaskPhase
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.task import Status
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import attempts, slots
from brainhands.shared.store.database import Database
from brainhands.shared.store.locked import Locked, read_locked
from tests.store.stage import Stage, finish, go_on, nap

NOTE = TaskPhase(kind="play", phase="first", next_phase="second", status="running")


@contextmanager
def held(stage: Stage, session_id: SessionId, *task_ids: TaskId) -> Iterator[Locked]:
    """Somebody's commit, between its reads and its writes."""
    with stage.database.transaction() as transaction:
        view = read_locked(transaction, session_id, list(task_ids), skip_locked=False)
        assert view is not None
        yield view


@pytest.mark.promise("B2")
@pytest.mark.hazard("13a", "13d")
def test_the_sweep_leaves_a_session_that_a_commit_holds_and_settles_the_others(shared_stage: Stage) -> None:
    tasks = [(session, shared_stage.add(session)) for session in (shared_stage.session()[0] for _ in range(3))]
    for _, task_id in tasks:
        shared_stage.claim_and_die(task_id)
        shared_stage.end_lease(task_id)

    with held(shared_stage, *tasks[1]):
        shared_stage.sweep.sweep_once()
        while_held = [shared_stage.status(task_id) for _, task_id in tasks]
    shared_stage.sweep.sweep_once()

    assert while_held == [Status.PENDING, Status.RUNNING, Status.PENDING]
    assert shared_stage.status(tasks[1][1]) == Status.PENDING


@pytest.mark.promise("D3")
@pytest.mark.hazard("13b", "13c")
def test_a_renewal_leaves_a_lease_that_somebody_holds_and_renews_the_others(shared_stage: Stage) -> None:
    tasks = [(session, shared_stage.add(session)) for session in (shared_stage.session()[0] for _ in range(3))]
    claimed = [shared_stage.claim_and_die(task_id) for _, task_id in tasks]
    ids, fences = [task.id for task in claimed], [task.fence for task in claimed]
    impatient = Database(shared_stage.database_url, size=1, step_seconds=0.5)

    with held(shared_stage, *tasks[1]):
        (renewed,) = impatient.run(attempts.renew(ids[::-1], fences[::-1], 60))
    (later,) = impatient.run(attempts.renew(ids[::-1], fences[::-1], 60))
    impatient.close()

    assert {row["id"] for row in renewed.rows} == {ids[0], ids[2]}
    assert {row["id"] for row in later.rows} == set(ids)


@pytest.mark.hazard("13b")
def test_a_commit_waits_for_a_renewal_under_way_and_does_not_deadlock_with_it(shared_stage: Stage) -> None:
    """The renewal holds the second task and wants the first, which the commit holds: it lets it be."""
    session_id, _ = shared_stage.session()
    one, other = sorted((shared_stage.add(session_id), shared_stage.add(session_id)))
    fences = {task_id: shared_stage.claim_and_die(task_id).fence for task_id in (one, other)}

    with psycopg.connect(libpq_url(shared_stage.database_url)) as renewal, ThreadPoolExecutor(1) as pool:
        renewal.execute("SELECT 1 FROM brainhands.tasks WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED", [other])
        commit = pool.submit(shared_stage.commit, session_id, lambda draft: draft.event(NOTE, causes=[]), [one, other])
        shared_stage.wait_for_a_waiter()
        skipped = renewal.execute(
            "SELECT 1 FROM brainhands.tasks WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED", [one]
        ).fetchall()
        renewal.rollback()
        commit.result()

    assert skipped == []
    (renewed,) = shared_stage.database.run(attempts.renew(list(fences), list(fences.values()), 60))
    assert len(renewed.rows) == 2


@pytest.mark.promise("H6")
@pytest.mark.hazard("13d")
@pytest.mark.case("dbos-inc/dbos-transact-py#805")
def test_a_commit_frozen_half_way_is_ended_by_the_server_and_frees_its_session(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    frozen = Database(shared_stage.database_url, size=1, step_seconds=0.7)
    locked, thawed = threading.Event(), threading.Event()

    def freeze() -> None:
        with frozen.transaction() as transaction:
            read_locked(transaction, session_id, [], skip_locked=False)
            locked.set()
            assert thawed.wait(30)
            transaction.run(slots.free_abandoned())

    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(freeze)
        assert locked.wait(30)
        commit = shared_stage.commit(session_id, lambda draft: draft.event(NOTE, causes=[]))
        thawed.set()
        with pytest.raises(psycopg.OperationalError):
            stuck.result()
    frozen.close()

    assert commit.session.last_seq == 3


@pytest.mark.hazard("13a", "6c")
def test_a_claim_waits_for_the_session_before_it_locks_the_task_or_its_hint(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    with ThreadPoolExecutor(1) as pool:
        with held(shared_stage, session_id):
            claim = pool.submit(shared_stage.advance, task_id, finish())
            shared_stage.wait_for_a_waiter()
            task = shared_stage.sql("SELECT 1 FROM brainhands.tasks WHERE id = %s FOR UPDATE SKIP LOCKED", task_id)
            hint = shared_stage.sql(
                "SELECT 1 FROM brainhands.outbox WHERE task_id = %s FOR UPDATE SKIP LOCKED", task_id
            )
        claim.result()

    assert (len(task), len(hint)) == (1, 1)
    assert shared_stage.status(task_id) == Status.DONE


@pytest.mark.promise("D1", "H3", "H6")
@pytest.mark.hazard(4, 6, 13)
def test_workers_sweeps_and_keepers_at_once_never_deadlock(stage: Stage) -> None:
    chance = random.Random(7)
    sessions = [stage.session()[0] for _ in range(3)]
    tasks = [(stage.add(session), session) for session in sessions for _ in range(8)]
    runs: list[TaskId] = []

    def act(run: Run) -> Any:
        runs.append(run.task.id)
        return chance.choice([finish(), finish(), nap, go_on])(run)

    stage.acts.extend([act] * 1000)
    stop = threading.Event()

    def until_stopped(work: Any) -> None:
        while not stop.is_set():
            work()

    def hint(worker: Any) -> None:
        for _ in range(3):
            for task_id, session_id in chance.sample(tasks, len(tasks)):
                worker.advance([(task_id, session_id)])
            stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE status = 'sleeping'")

    def renew() -> None:
        with psycopg.connect(libpq_url(stage.database_url), autocommit=True) as other:
            rows = other.execute("SELECT id, fence FROM brainhands.tasks WHERE status = 'running'").fetchall()
        stage.database.run(attempts.renew([row[0] for row in rows], [row[1] for row in rows], 30))

    with ThreadPoolExecutor(5) as pool:
        beside = [pool.submit(until_stopped, stage.sweep.sweep_once), pool.submit(until_stopped, renew)]
        hints = [pool.submit(hint, stage.worker()) for _ in range(3)]
        for each in hints:
            each.result()
        stop.set()
        for each in beside:
            each.result()

    assert runs
    assert stage.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [{"deadlocks": 0}]


@pytest.mark.hazard("13e")
def test_a_renewal_that_finds_a_lock_does_not_wait_and_so_never_judges_an_old_clock(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    fence = shared_stage.claim_and_die(task_id).fence

    with held(shared_stage, session_id, task_id):
        (skipped,) = shared_stage.database.run(attempts.renew([task_id], [fence], 60))
        (still_mine,) = shared_stage.database.run(attempts.owned([task_id], [fence]))

    assert skipped.rows == []
    assert len(still_mine.rows) == 1
