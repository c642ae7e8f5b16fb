"""The life of a task: what the table allows happens as it says, and everything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from brainhands.shared.errors import StaleWrite
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.rules import moves
from brainhands.shared.rules.moves import TASK_MOVES, Move
from tests.rules.tasks import NOW, WORKER, task

BUILDERS: dict[Move, Callable[[Task], Task]] = {
    Move.CLAIM: lambda t: moves.claim(t, worker_id=WORKER, now=NOW, lease_seconds=30, phase_seconds=60),
    Move.NEXT: lambda t: moves.go_on(t, phase="second", checkpoint=1, now=NOW, lease_seconds=30, phase_seconds=60),
    Move.RELEASE: lambda t: moves.release(t, phase="second", checkpoint=1, stepped=True),
    Move.EXPIRE: moves.expire,
    Move.SLEEP: lambda t: moves.sleep(t, phase="second", checkpoint=1, wake_at=NOW),
    Move.WAKE: moves.wake,
    Move.WAIT: lambda t: moves.wait(t, phase="second", checkpoint=1),
    Move.READY: moves.ready,
    Move.COMPLETE: lambda t: moves.complete(t, outcome=Outcome.FAILED, result=7, error="why"),
    Move.END: lambda t: moves.end(t, outcome=Outcome.FAILED, result=7, error="why"),
    Move.BLOCK: lambda t: moves.block(t, "no worker"),
    Move.UNBLOCK: moves.unblock,
    Move.CANCEL: moves.want_cancel,
}
ALL = [(status, move) for status in Status for move in Move]
GIVES_UP = {Move.RELEASE, Move.EXPIRE, Move.SLEEP, Move.WAIT, Move.COMPLETE, Move.END}
COMMITS_A_STEP = {Move.NEXT, Move.RELEASE, Move.SLEEP, Move.WAIT, Move.COMPLETE, Move.END}


def test_every_move_has_its_builder() -> None:
    assert BUILDERS.keys() == set(Move)


@pytest.mark.promise("C1")
@pytest.mark.parametrize(("status", "move"), [pair for pair in ALL if pair in TASK_MOVES], ids="-".join)
def test_a_legal_move_leads_where_the_table_says(status: Status, move: Move) -> None:
    before = task(status)

    after = BUILDERS[move](before)

    assert after.status is TASK_MOVES[status, move]
    assert (after.id, after.session_id, after.input, after.kind) == (
        before.id,
        before.session_id,
        before.input,
        before.kind,
    )


@pytest.mark.promise("C1", "C9")
@pytest.mark.parametrize(("status", "move"), [pair for pair in ALL if pair not in TASK_MOVES], ids="-".join)
def test_a_move_that_is_not_in_the_table_is_refused(status: Status, move: Move) -> None:
    with pytest.raises(StaleWrite, match=f"is {status} and cannot {move}"):
        BUILDERS[move](task(status))


@pytest.mark.promise("C9")
def test_nothing_leads_out_of_done_and_every_status_leads_there() -> None:
    assert not [move for status, move in TASK_MOVES if status is Status.DONE]

    reached = {Status.PENDING}
    while more := {after for (before, _), after in TASK_MOVES.items() if before in reached} - reached:
        reached |= more
    assert reached == set(Status)


@pytest.mark.promise("C1")
@pytest.mark.parametrize(("status", "move"), [pair for pair in ALL if pair in TASK_MOVES], ids="-".join)
def test_every_move_leaves_a_lawful_task(status: Status, move: Move) -> None:
    """What the CHECKs of the table say, of what the kernel makes."""
    after = BUILDERS[move](task(status))

    owned = (after.worker_id, after.lease_until, after.deadline)
    assert all(part is not None for part in owned) == (after.status is Status.RUNNING)
    assert any(part is not None for part in owned) == (after.status is Status.RUNNING)
    assert (after.outcome is not None) == (after.status in (Status.COMPLETING, Status.DONE))
    assert (after.wake_at is not None) == (after.status is Status.SLEEPING)
    assert after.blocked is None or after.status is Status.PENDING


@pytest.mark.promise("D2")
@pytest.mark.hazard(6)
@pytest.mark.parametrize(("status", "move"), [pair for pair in ALL if pair in TASK_MOVES], ids="-".join)
def test_every_change_of_ownership_gives_a_new_fence(status: Status, move: Move) -> None:
    before = task(status)

    after = BUILDERS[move](before)

    changes_owner = (before.status is Status.RUNNING) != (after.status is Status.RUNNING)
    assert after.fence >= before.fence
    if changes_owner:
        assert after.fence == before.fence + 1


@pytest.mark.hazard(7)
@pytest.mark.parametrize("move", [move for status, move in TASK_MOVES if status is Status.RUNNING])
def test_what_an_owner_commits_raises_the_step_and_what_befalls_it_does_not(move: Move) -> None:
    before = task(Status.RUNNING)

    after = BUILDERS[move](before)

    assert after.step == before.step + (move in COMMITS_A_STEP)


@pytest.mark.promise("D4")
@pytest.mark.parametrize(("lease", "phase", "until"), [(30, 60, 30), (60, 30, 30), (30, 30, 30)])
def test_a_lease_never_reaches_past_its_phases_deadline(lease: float, phase: float, until: float) -> None:
    claimed = moves.claim(task(), worker_id=WORKER, now=NOW, lease_seconds=lease, phase_seconds=phase)
    went_on = moves.go_on(claimed, phase="b", checkpoint=None, now=NOW, lease_seconds=lease, phase_seconds=phase)

    for owned in (claimed, went_on):
        assert owned.lease_until == NOW + timedelta(seconds=until)
        assert owned.deadline == NOW + timedelta(seconds=phase)


@pytest.mark.promise("C10")
@pytest.mark.hazard(12)
def test_the_count_is_raised_by_a_claim_kept_by_a_crash_reset_by_a_commit_and_given_back_by_a_release() -> None:
    fresh = task(phase_attempts=0)
    claimed = BUILDERS[Move.CLAIM](fresh)
    crashed = moves.expire(claimed)
    again = BUILDERS[Move.CLAIM](crashed)
    given_back = moves.release(again, phase="first", checkpoint=None, stepped=False)
    committed = BUILDERS[Move.NEXT](again)

    counts = [each.phase_attempts for each in (claimed, crashed, again, given_back, committed)]
    assert counts == [1, 1, 2, 1, 1]
    assert {BUILDERS[move](again).phase_attempts for move in (Move.SLEEP, Move.WAIT, Move.RELEASE)} == {0}
    assert (crashed.phase, crashed.checkpoint, crashed.step) == (fresh.phase, fresh.checkpoint, fresh.step)


@pytest.mark.promise("C2", "C10")
def test_a_crash_leaves_the_stored_phase_and_checkpoint_as_they_were() -> None:
    running = task(Status.RUNNING)

    after = moves.expire(running)

    assert replace(after, status=running.status, fence=running.fence) == replace(
        running, worker_id=None, lease_until=None, deadline=None
    )


@pytest.mark.promise("C8", "C13")
def test_a_completing_task_keeps_the_outcome_it_had() -> None:
    ended = moves.end(task(Status.COMPLETING), outcome=Outcome.SUCCEEDED, result="other", error="other")

    assert (ended.outcome, ended.result, ended.error) == (Outcome.CANCELLED, "decided", None)
