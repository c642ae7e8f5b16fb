"""A hint lives from the commit that makes its task pending until the claim, whatever relay and broker do meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from brainhands.shared.model.ids import TaskId, new_task_id, new_worker_id
from brainhands.shared.model.task import Status
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import health, hints, turns, workers
from tests.store.stage import AGENT, PLAY, POOL, Stage, finish, nap, play_task, sweep_of


def take(stage: Stage, room: int = 1000, pool: str = POOL) -> set[TaskId]:
    """What a relay's pass takes."""
    (taken,) = stage.database.run(turns.take(pool, room))
    return {row["task_id"] for row in taken.rows}


def overdue(stage: Stage) -> set[TaskId]:
    """What a relay looks for in the queues."""
    (found,) = stage.database.run(hints.overdue())
    return {row["task_id"] for row in found.rows}


def publish_long_ago(stage: Stage, task_id: TaskId) -> None:
    stage.sql(
        "UPDATE brainhands.outbox SET published_at = now() - interval '10 s', attempts = 1 WHERE task_id = %s", task_id
    )


@pytest.mark.promise("H3", "D5")
@pytest.mark.hazard(14)
def test_a_published_hint_stays_until_the_claim_and_goes_with_it(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    taken = take(stage)
    published = stage.hinted()
    stage.claim_and_die(task_id)

    assert task_id in taken
    assert task_id in published
    assert task_id not in stage.hinted()


@pytest.mark.promise("H3")
@pytest.mark.hazard("14b")
def test_a_task_that_is_pending_again_while_its_old_hint_is_being_published_has_a_new_one(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    take(stage)

    stage.advance(task_id, nap)  # the hint that was sent is taken and done with
    stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", task_id)
    stage.sweep.sweep_once()
    stage.database.run(hints.give_back([task_id]))  # the relay finishes with what it had taken

    (row,) = stage.sql("SELECT * FROM brainhands.outbox WHERE task_id = %s", task_id)
    assert (row["published_at"], row["attempts"], row["parked"]) == (None, 0, None)
    assert task_id in take(stage)


@pytest.mark.promise("H3", "H4")
@pytest.mark.hazard("14d", "15")
def test_a_hint_that_was_published_and_not_claimed_is_published_again_and_not_at_once(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    first, at_once = take(stage), take(stage)
    missed_at_once = overdue(stage)
    publish_long_ago(stage, task_id)
    missed_later, while_it_may_be_queued = overdue(stage), take(stage)
    stage.database.run(hints.lose([task_id]))
    later = take(stage)
    stage.database.run(hints.lose([task_id]))

    assert task_id in first
    assert task_id not in at_once | missed_at_once | while_it_may_be_queued
    assert task_id in missed_later
    assert task_id in later
    assert task_id not in take(stage), "it has just been sent again"


@pytest.mark.promise("H4")
@pytest.mark.hazard("14c")
def test_a_broker_that_is_away_counts_against_no_hint(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    for _ in range(50):
        assert task_id in take(stage)
        stage.database.run(hints.give_back([task_id]))

    (row,) = stage.sql("SELECT attempts, parked FROM brainhands.outbox WHERE task_id = %s", task_id)
    assert row == {"attempts": 0, "parked": None}


@pytest.mark.promise("H6")
@pytest.mark.hazard("14a")
def test_a_row_that_one_relay_takes_holds_up_neither_another_relay_nor_a_commit_of_another_task(stage: Stage) -> None:
    session_id, _ = stage.session()
    held, free = stage.add(session_id), stage.add(session_id)

    with psycopg.connect(libpq_url(stage.database_url)) as relay:
        relay.execute("SELECT 1 FROM brainhands.outbox WHERE task_id = %s FOR UPDATE", [held])
        taken = take(stage)
        stage.advance(free)

    assert held not in taken
    assert stage.status(free) == Status.DONE
    assert held in take(stage)


@pytest.mark.promise("H6")
def test_relays_at_the_same_time_take_each_hint_once(stage: Stage) -> None:
    def add_many(draft: Any) -> None:
        for _ in range(10):
            draft.add(play_task(draft, new_task_id()))

    for _ in range(6):
        stage.commit(stage.session()[0], add_many)

    def drain(_: int) -> list[TaskId]:
        mine: list[TaskId] = []
        while batch := take(stage, room=7):
            mine += batch
        return mine

    with ThreadPoolExecutor(4) as pool:
        taken = [task_id for mine in pool.map(drain, range(4)) for task_id in mine]

    assert len(taken) == len(set(taken)) == 66, "ten of each session, and its generation"


@pytest.mark.promise("H7")
def test_a_hint_goes_only_where_its_version_is_offered(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    other = Offer(name="other", low=1, high=1)
    pools = {
        "hands.newer": (Offer(name=PLAY, low=2, high=9),),
        "hands.other": (other,),
        "hands.none": (),
        "hands.both": (other, Offer(name=PLAY, low=0, high=3)),
    }
    for pool, offers in pools.items():
        stage.worker(pool=pool, offers=offers)

    assert [pool for pool in pools if task_id in take(stage, pool=pool)] == ["hands.both"]


@pytest.mark.promise("H7", "H11")
def test_a_deploy_that_restarts_the_only_worker_writes_nothing_and_whoever_looks_sees_why(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where nobody has come for a while does an event say so, once."""
    receipt = stage.submit()
    session_id = receipt.session_id
    sweep = sweep_of(stage.database, blocked_after_seconds=60)
    before = stage.sql("SELECT * FROM brainhands.sessions WHERE id = %s", session_id)

    def looks() -> tuple[set[str | None], list[str], list[str]]:
        sweep.sweep_once()
        blocked = {task.blocked for task in stage.client.session(session_id).tasks}
        waits_for = stage.client.waits_for(receipt.submission_id)
        return blocked, waits_for, [finding.problem for finding in health.blocked(stage.database)]

    stage.sql("UPDATE brainhands.outbox SET created_at = now() - interval '1 hour'")
    stage.database.run(workers.leave(stage.first.info.id))
    stage.database.run(*workers.see(replace(stage.first.info, id=new_worker_id(), role="relay", offers=())))
    reason = f"no live worker offers agent:{AGENT}"
    (stored,) = stage.client.document(session_id, "live").value["tasks"]
    assert stored["blocked"] == reason
    assert looks() == ({reason}, [f"a worker for the model: {reason}; start one that offers agent:{AGENT}"], [reason])

    stage.worker()
    assert looks() == ({None}, ["its turn for the model"], [])
    assert stage.sql("SELECT * FROM brainhands.sessions WHERE id = %s", session_id) == before

    stage.sql("DELETE FROM brainhands.offers")
    sweep.sweep_once()
    later = time.monotonic() + 61
    monkeypatch.setattr("brainhands.outbox.sweep.time.monotonic", lambda: later)
    assert looks()[0] == {reason}
    sweep.sweep_once()
    assert stage.types(session_id).count("task_blocked") == 1


@pytest.mark.promise("H3")
@pytest.mark.hazard("14", "10")
@pytest.mark.case("vercel/workflow#3119")
def test_the_sweep_gives_a_task_its_missing_hint_back_and_removes_a_useless_one(stage: Stage) -> None:
    session_id, _ = stage.session()
    lost, done = stage.add(session_id), stage.add(session_id)
    stage.sql("CREATE TEMPORARY TABLE kept AS SELECT * FROM brainhands.outbox WHERE task_id = %s", done)
    stage.advance(done)
    stage.sql("INSERT INTO brainhands.outbox SELECT * FROM kept")
    stage.sql("UPDATE brainhands.outbox SET created_at = now() - interval '1 minute'")
    stage.sql("DELETE FROM brainhands.outbox WHERE task_id = %s", lost)

    stage.sweep.sweep_once()

    assert lost in stage.hinted()
    assert done not in stage.hinted()
    assert lost in take(stage)


@pytest.mark.promise("H7", "D5")
@pytest.mark.hazard("14c", "10")
def test_a_task_whose_hint_was_set_aside_or_that_nobody_can_run_says_why(stage: Stage) -> None:
    session_id, _ = stage.session()
    parked, foreign = stage.add(session_id), new_task_id()

    def add_foreign(draft: Any) -> None:
        task = play_task(draft, foreign)
        draft.add(replace(task, requires=replace(task.requires, version=2)))

    stage.commit(session_id, add_foreign)
    stage.database.run(hints.park(parked, f"{hints.UNPUBLISHABLE}: broken"))
    stage.sql("UPDATE brainhands.outbox SET created_at = now() - interval '1 minute'")
    stage.sweep.sweep_once()
    reasons = (stage.task(parked).blocked, stage.task(foreign).blocked)
    hinted_while_blocked = stage.hinted()
    stage.sweep.sweep_once()

    assert reasons == (f"{hints.UNPUBLISHABLE}: broken", "no live worker offers play@2")
    assert not {parked, foreign} & hinted_while_blocked
    stage.advance(foreign)
    assert stage.status(foreign) == Status.PENDING
    assert stage.types(session_id).count("task_blocked") == 2

    newer = stage.worker(offers=(Offer(name=PLAY, low=2, high=2),))
    stage.sweep.sweep_once()
    assert stage.task(foreign).blocked is None
    assert foreign in stage.hinted()
    stage.database.run(workers.leave(newer.info.id))


@pytest.mark.promise("H3")
def test_late_doubled_and_forged_hints_do_nothing(stage: Stage) -> None:
    session_id, _ = stage.session()
    done, running, sleeping = (stage.add(session_id) for _ in range(3))
    stage.advance(done)
    stage.claim_and_die(running)
    stage.advance(sleeping, nap)
    before = stage.sql("SELECT * FROM brainhands.tasks ORDER BY id")
    other = stage.worker()

    for task_id in (done, running, sleeping, TaskId(session_id)):
        stage.advance(task_id, finish("again"), worker=other)
        stage.acts.clear()

    assert stage.sql("SELECT * FROM brainhands.tasks ORDER BY id") == before


@pytest.mark.promise("H3", "D5")
@pytest.mark.case("kamu-data/kamu-cli#1398")
def test_a_hint_that_is_committed_after_later_ones_were_taken_is_taken_too(stage: Stage) -> None:
    session_id, _ = stage.session()
    early = stage.add(session_id)
    with psycopg.connect(libpq_url(stage.database_url)) as late:
        late.execute("DELETE FROM brainhands.outbox WHERE task_id = %s", [early])
        late.commit()
        late.execute(
            "INSERT INTO brainhands.outbox (task_id, session_id, tenant, priority, requires_name, not_before)"
            " VALUES (%s, %s, 'default', 0, %s, clock_timestamp())",
            [early, session_id, PLAY],
        )
        later = stage.add(session_id)
        assert later in take(stage)
        late.commit()

    assert early in take(stage)
