"""What a host is told that stops a pool's workers while there is nothing for them to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from brainhands.shared.errors import BadInput
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.model.worker import Offer
from brainhands.shared.store import workers
from tests.store.stage import PLAY, Stage, nap

POOL = "hands.default"
"""The pool of the stage's workers, which offer `play` and the agent."""


def published(pool: str) -> ToolSpec:
    return ToolSpec(kind=PLAY, name=PLAY, version=1, description="", parameters={}, pool=pool)


@pytest.mark.hazard(51)
def test_a_pool_has_work_when_a_hint_is_due_and_none_before_a_sleeper_wakes(stage: Stage) -> None:
    nothing = stage.client.next_wake(POOL)
    session_id, generation = stage.session()
    waiting = stage.client.next_wake(POOL)
    stage.advance(generation, nap)
    task_id = stage.add(session_id)
    stage.sql("UPDATE brainhands.outbox SET not_before = now() + interval '1 minute' WHERE task_id = %s", task_id)
    delayed = stage.client.next_wake(POOL)
    stage.advance(task_id)
    asleep = stage.client.next_wake(POOL)
    wake_at = stage.task(generation).wake_at

    assert (nothing.ready, nothing.at) == (False, None)
    assert (waiting.ready, waiting.at) == (True, None)
    assert not delayed.ready
    assert delayed.at is not None
    assert delayed.at < datetime.now(UTC) + timedelta(minutes=2)
    assert (asleep.ready, asleep.at) == (False, wake_at)


@pytest.mark.hazard(51)
def test_a_lease_that_will_end_is_foreseen_and_one_that_has_ended_is_work(stage: Stage) -> None:
    task_id = stage.add(_done_session(stage))
    stage.claim_and_die(task_id)

    while_it_runs = stage.client.next_wake(POOL)
    lease_until = stage.task(task_id).lease_until
    stage.end_lease(task_id)

    assert (while_it_runs.ready, while_it_runs.at) == (False, lease_until)
    assert stage.client.next_wake(POOL).ready


@pytest.mark.hazard(51)
def test_a_pool_without_workers_is_woken_for_what_was_published_for_it_and_no_other_pool_is(stage: Stage) -> None:
    session_id = _done_session(stage)
    workers.publish(stage.database, [published("hands.gpu")])
    stage.sql("DELETE FROM brainhands.workers")
    stage.add(session_id)

    while_it_is_hinted = {pool: stage.client.next_wake(pool).ready for pool in (POOL, "hands.gpu", "brain.default")}
    stage.sql("UPDATE brainhands.outbox SET created_at = now() - interval '1 minute'")
    stage.sweep.sweep_once()
    assert stage.hinted() == set(), "it is blocked for want of a worker"

    assert while_it_is_hinted == {POOL: False, "hands.gpu": True, "brain.default": False}
    assert stage.client.next_wake("hands.gpu").ready


@pytest.mark.hazard(51)
def test_a_brain_pool_without_workers_is_woken_for_agents_that_no_other_pool_offers(stage: Stage) -> None:
    stage.session()
    elsewhere = stage.client.next_wake("brain.default").ready
    stage.sql("DELETE FROM brainhands.workers")

    assert not elsewhere
    assert stage.client.next_wake("brain.default").ready
    stage.worker(offers=(Offer(name=PLAY, low=1, high=1),))
    assert stage.client.next_wake("brain.default").ready
    assert not stage.client.next_wake(POOL).ready


@pytest.mark.parametrize("name", ["", "brain", "relay", "submissions", "mind.default", "hands."])
def test_what_is_no_pool_is_refused(stage: Stage, name: str) -> None:
    with pytest.raises(BadInput):
        stage.client.next_wake(name)


def _done_session(stage: Stage) -> SessionId:
    session_id, generation = stage.session()
    stage.advance(generation)
    return session_id
