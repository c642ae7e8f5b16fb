"""How a phase's answer becomes a move of its task."""

from __future__ import annotations

from typing import assert_never

from brainhands.shared.engine import signals
from brainhands.shared.engine.definition import Kind
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.json import Json, clean_inside, storable
from brainhands.shared.model.task import Done, Fail, Interrupt, Next, Outcome, Sleep, Task, Transition, Wait, WaitSignal
from brainhands.shared.rules import moves
from brainhands.shared.rules.times import LAST_TIME, later


def move(
    draft: Draft,
    owned: Task,
    transition: Transition,
    kind: Kind,
    *,
    progress: str | None,
    lease_seconds: float,
    goes_on: bool,
) -> None:
    """Carry out what the phase of an owned task returned. `goes_on` False gives a task back that could go on here."""
    deadline = None
    match transition:
        case Next(phase=name):
            phase = kind.phases[name]
            if goes_on:
                after = moves.go_on(
                    owned,
                    phase=name,
                    checkpoint=_checkpoint(transition.checkpoint, owned),
                    now=draft.now,
                    phase_seconds=phase.seconds(owned),
                    lease_seconds=phase.seconds(owned) if phase.whole_lease else lease_seconds,
                )
                deadline = after.deadline
                draft.change(after)
            else:
                checkpoint = _checkpoint(transition.checkpoint, owned)
                draft.change(moves.release(owned, phase=name, checkpoint=checkpoint, stepped=True))
        case Sleep():
            wake_at = min(transition.until, LAST_TIME) if transition.until else later(draft.now, transition.seconds)
            checkpoint = _checkpoint(transition.checkpoint, owned)
            draft.change(moves.sleep(owned, phase=transition.phase, checkpoint=checkpoint, wake_at=wake_at))
        case Wait():
            checkpoint = _checkpoint(transition.checkpoint, owned)
            waiting = moves.wait(owned, phase=transition.phase, checkpoint=checkpoint)
            draft.change(waiting)
            draft.wait(waiting, transition.tasks, fail_fast=transition.fail_fast)
        case WaitSignal(name=name, key=key):
            until = later(draft.now, transition.seconds)
            checkpoint = _checkpoint(transition.checkpoint, owned)
            waiting = moves.wait_for_signal(
                owned, phase=transition.phase, checkpoint=checkpoint, name=name, key=key, until=until
            )
            draft.change(waiting)
            signals.await_signal(draft, waiting)
        case Done():
            draft.finish(owned, Outcome.SUCCEEDED, result=storable(transition.result))
        case Fail():
            draft.finish(owned, Outcome.FAILED, result=storable(transition.result), error=transition.error)
        case Interrupt():
            draft.finish(owned, Outcome.INTERRUPTED, error=transition.error)
        case _:
            assert_never(transition)
    draft.record_step(owned, progress=progress, deadline=deadline)


def _checkpoint(given: Json, owned: Task) -> Json:
    return owned.checkpoint if given is None else clean_inside(given)
