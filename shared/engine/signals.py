"""Signals that tasks of a session wait for: taken once, or missed at a deadline."""

from __future__ import annotations

from dataclasses import replace

from brainhands.shared.engine import questions
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model import event
from brainhands.shared.model.approval import HUMAN, Answer
from brainhands.shared.model.commit import TakenSignal
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.task import Task
from brainhands.shared.rules import moves
from brainhands.shared.rules.times import later


def await_signal(draft: Draft, waiter: Task) -> None:
    """Let a waiting task go on at once if its signal has come already."""
    assert waiter.signal_name is not None
    assert waiter.signal_key is not None
    signal = draft.locked.next_signal(waiter.signal_name, waiter.signal_key)
    if signal is not None:
        draft.write(TakenSignal(signal.id, waiter.id))
        take(draft, waiter, signal)


def take(draft: Draft, waiter: Task, signal: Signal) -> None:
    """Let a task that waits for a signal go on with it."""
    payload = event.SignalTaken(signal=str(signal.id), name=signal.name, key=signal.key)
    draft.event(payload, causes=[signal.seq], task=waiter)
    told = {"name": signal.name, "key": signal.key, "payload": signal.payload}
    draft.change(moves.signalled(waiter, told))


def miss(draft: Draft, waiter: Task) -> None:
    """The deadline of a wait for a signal has passed: the task goes on without it."""
    assert waiter.signal_name is not None
    assert waiter.signal_key is not None
    # A flow may wait under the name of answers, and has put no question.
    asked = questions.open_question(draft, waiter) if waiter.signal_name == HUMAN else None
    if asked is not None:
        use_by = later(draft.now, asked.use_seconds)
        expired = replace(asked, answer=Answer.EXPIRED, answered_at=draft.now, use_by=use_by)
        questions.answer(draft, asked, expired)
        return
    payload = event.SignalMissed(name=waiter.signal_name, key=waiter.signal_key)
    draft.event(payload, causes=waiter.causes, task=waiter)
    draft.change(moves.signalled(waiter, None))
