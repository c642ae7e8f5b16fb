"""Awaking a session moves what has stopped or come due in it, without a relay, and touches nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from brainhands.shared.client import Client
from brainhands.shared.errors import UnknownSession
from brainhands.shared.model.approval import HUMAN
from brainhands.shared.model.awake import AwakeReceipt
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.task import Done, Sleep, Task, Transition, WaitSignal
from brainhands.shared.store.due import NO_WORKER
from brainhands.shared.store.hints import UNPUBLISHABLE
from tests.instruments.invariants import violations
from tests.store.stage import NO_REDIS, Stage, answer, decide, finish, nap, play_task, spawn_and_wait


def drop_hint(stage: Stage, task_id: TaskId) -> None:
    stage.sql("DELETE FROM brainhands.outbox WHERE task_id = %s", task_id)


def block(stage: Stage, task_id: TaskId, reason: str) -> None:
    stage.sql("UPDATE brainhands.tasks SET blocked = %s WHERE id = %s", reason, task_id)
    drop_hint(stage, task_id)


def a_lost_hint(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    drop_hint(stage, task_id)
    return task_id


def a_parked_hint(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.sql("UPDATE brainhands.outbox SET parked = %s WHERE task_id = %s", UNPUBLISHABLE, task_id)
    return task_id


def one_blocked_by_a_parked_hint(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = a_parked_hint(stage, session_id)
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked == UNPUBLISHABLE
    return task_id


def one_whose_worker_has_come(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    block(stage, task_id, f"{NO_WORKER} play@1")
    return task_id


def an_expired_lease(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.claim_and_die(task_id)
    stage.end_lease(task_id)
    return task_id


def a_due_sleeper(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, nap)
    stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", task_id)
    return task_id


def a_wait_on_nothing_open(stage: Stage, session_id: SessionId) -> TaskId:
    parent, child = stage.add(session_id), new_task_id()
    stage.advance(parent, spawn_and_wait(child))
    drop_hint(stage, child)
    stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'succeeded' WHERE id = %s", child)
    return parent


def a_missed_signal(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, answer(WaitSignal("paid", "second", 3600)))
    stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", task_id)
    return task_id


def one_completing_with_nothing_open(stage: Stage, session_id: SessionId) -> TaskId:
    parent, child = stage.add(session_id), new_task_id()

    def leave_it(draft: Any, task: Task) -> Transition:
        draft.spawn(play_task(draft, child, owner_id=task.id))
        return Done("mine is done")

    stage.advance(parent, decide(leave_it))
    drop_hint(stage, child)
    stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'succeeded' WHERE id = %s", child)
    return parent


STOPPED: dict[str, tuple[Callable[[Stage, SessionId], TaskId], str, str, str]] = {
    "a lost hint": (a_lost_hint, "pending", "hint_added", "pending"),
    "a parked hint": (a_parked_hint, "pending", "hint_unparked", "pending"),
    "one blocked by a parked hint": (one_blocked_by_a_parked_hint, "pending", "unblocked", "pending"),
    "one whose worker has come": (one_whose_worker_has_come, "pending", "unblocked", "pending"),
    "an expired lease": (an_expired_lease, "running", "lease_ended", "pending"),
    "a due sleeper": (a_due_sleeper, "sleeping", "woken", "pending"),
    "a wait on nothing open": (a_wait_on_nothing_open, "waiting", "wait_over", "pending"),
    "a missed signal": (a_missed_signal, "waiting", "signal_missed", "pending"),
    "one completing with nothing open": (one_completing_with_nothing_open, "completing", "ended", "done"),
}


@pytest.mark.promise("I6")
@pytest.mark.hazard(47, 48)
@pytest.mark.parametrize("what", STOPPED)
def test_what_has_stopped_is_moved_and_the_receipt_and_the_log_say_so(shared_stage: Stage, what: str) -> None:
    stage = shared_stage
    session_id, generation = stage.session()
    arrange, was, done, becomes = STOPPED[what]
    task_id = arrange(stage, session_id)
    before = len(stage.types(session_id))

    receipt = stage.client.awake(session_id, "wake-1")

    assert [(each.task, each.was, each.done) for each in receipt.moved] == [(str(task_id), was, done)]
    assert stage.status(task_id) == becomes
    hinted = {task_id, generation} if becomes == "pending" else {generation}
    assert hinted <= stage.hinted()
    assert stage.sql("SELECT 1 FROM brainhands.outbox WHERE parked IS NOT NULL") == []
    (said,) = [event for event in stage.client.events(session_id) if event.type == "session_resumed"]
    assert (said.seq, said.causes) == (receipt.seq, tuple(stage.task(task_id).causes))
    assert len(stage.types(session_id)) > before
    assert violations(stage.database_url) == []
    once = stage.types(session_id)
    assert stage.client.awake(session_id, "wake-1") == receipt
    again = stage.client.awake(session_id)
    assert (again.moved, again.seq) == ((), None)
    assert stage.types(session_id) == once


def _live_lease(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.claim_and_die(task_id)
    return task_id


def _sleeper(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, answer(Sleep(60, "second")))
    return task_id


def _signal_waiter(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, answer(WaitSignal("paid", "second", 60)))
    return task_id


def _question(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, answer(WaitSignal(HUMAN, "second", 60, str(UUID(int=5)))))
    return task_id


def _parent(stage: Stage, session_id: SessionId) -> TaskId:
    parent = stage.add(session_id)
    stage.advance(parent, spawn_and_wait(new_task_id()))
    return parent


def _pause_after_a_crash(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    for _ in range(2):
        stage.claim_and_die(task_id)
        stage.lose(task_id)
    return task_id


def _published_hint(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.forget_first_hint(task_id)
    return task_id


def _no_worker_yet(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.sql("UPDATE brainhands.tasks SET requires_name = 'nobody' WHERE id = %s", task_id)
    block(stage, task_id, f"{NO_WORKER} nobody@1")
    return task_id


def _done(stage: Stage, session_id: SessionId) -> TaskId:
    task_id = stage.add(session_id)
    stage.advance(task_id, finish())
    return task_id


@pytest.mark.promise("I6")
@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    "arrange",
    [
        _live_lease,
        _sleeper,
        _signal_waiter,
        _question,
        _parent,
        _pause_after_a_crash,
        _published_hint,
        _no_worker_yet,
        _done,
    ],
)
def test_what_moves_by_itself_or_waits_is_left_alone(
    shared_stage: Stage, arrange: Callable[[Stage, SessionId], TaskId]
) -> None:
    stage = shared_stage
    session_id, _ = stage.session()
    task_id = arrange(stage, session_id)

    def everything() -> object:
        hints = stage.sql("SELECT * FROM brainhands.outbox WHERE session_id = %s ORDER BY task_id", session_id)
        return stage.client.session(session_id), hints

    before = everything()

    receipt = stage.client.awake(session_id)

    assert (receipt.moved, receipt.seq) == ((), None)
    assert everything() == before
    assert stage.task(task_id) is not None


@pytest.mark.promise("I6")
@pytest.mark.hazard(48)
def test_an_input_that_nothing_takes_is_admitted_and_one_for_a_busy_conversation_is_not(stage: Stage) -> None:
    session_id, generation = stage.session()
    stage.submit("more", session=session_id)
    assert stage.client.awake(session_id).moved == ()

    drop_hint(stage, generation)
    # Only damage leaves a conversation so.
    stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'failed' WHERE id = %s", generation)
    (moved,) = stage.client.awake(session_id).moved

    assert (moved.was, moved.done) == (None, "input_admitted")
    assert moved.task == str(stage.open_generation(session_id))


@pytest.mark.promise("I6", "C10")
@pytest.mark.hazard(48)
def test_awaking_counts_as_no_attempt_and_lets_a_task_that_keeps_crashing_end_at_its_limit(stage: Stage) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    for _ in range(3):
        stage.claim_and_die(task_id)
        stage.end_lease(task_id)
        stage.client.awake(session_id)
        stage.client.awake(session_id)

    assert stage.task(task_id).outcome == "failed"
    assert stage.types(session_id).count("session_resumed") == 3
    assert stage.types(session_id).count("task_recovered") == 2


@pytest.mark.promise("I6")
@pytest.mark.hazard(47, 48)
def test_many_who_awake_a_session_at_once_move_it_once_beside_the_sweep(shared_stage: Stage) -> None:
    stage = shared_stage
    session_id, _ = stage.session()
    lost = [a_lost_hint(stage, session_id) for _ in range(3)]
    expired = an_expired_lease(stage, session_id)

    def awake(_number: int) -> AwakeReceipt:
        client = Client(stage.database_url, NO_REDIS)
        try:
            return client.awake(session_id)
        finally:
            client.close()

    with ThreadPoolExecutor(5) as pool:
        sweeping = pool.submit(stage.sweep.sweep_once)
        receipts = list(pool.map(awake, range(8)))
        sweeping.result()

    moved = [each.task for receipt in receipts for each in receipt.moved]
    assert len(moved) == len(set(moved))
    assert stage.types(session_id).count("session_resumed") == len([each for each in receipts if each.moved])
    assert stage.types(session_id).count("task_recovered") == 1
    assert {*lost, expired} <= stage.hinted()
    assert violations(stage.database_url) == []


@pytest.mark.promise("I6")
def test_a_session_of_another_tenant_cannot_be_awoken(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    stranger = Client(shared_stage.database_url, NO_REDIS, tenant="another")

    with pytest.raises(UnknownSession):
        stranger.awake(session_id)
    stranger.close()
