"""Driving one session on from its last commit, at any time: what the sweep would do for it, at once and in one commit.

Nothing that moves by itself is touched: a live lease, a sleep or a pause that is not over, a question to a person. A
hint that is there is left alone too, since the relay publishes it again by itself; it is only woken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from brainhands.shared.engine import inbox
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.due import judge
from brainhands.shared.engine.writer import Writer
from brainhands.shared.model.awake import AwakeReceipt
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.event import MovedTask, SessionResumed
from brainhands.shared.model.ids import ConversationId, SessionId, TaskId
from brainhands.shared.model.task import Status, Task
from brainhands.shared.rules import moves
from brainhands.shared.rules.first_work import GENERATION, INTAKE
from brainhands.shared.store.database import Row
from brainhands.shared.store.due import NO_WORKER, Due
from brainhands.shared.store.hints import UNPUBLISHABLE
from brainhands.shared.store.locked import Locked

WHAT_MAY_BE_DUE = {
    Status.SLEEPING: Due.WAKE,
    Status.RUNNING: Due.EXPIRE,
    Status.WAITING: Due.READY,
    Status.COMPLETING: Due.COMPLETE,
}
DONE = {
    Due.WAKE: "woken",
    Due.EXPIRE: "lease_ended",
    Due.READY: "wait_over",
    Due.MISS: "signal_missed",
    Due.COMPLETE: "ended",
    Due.UNBLOCK: "unblocked",
}
"""What the receipt says was done."""


def awake(writer: Writer, session_id: SessionId, request_id: str, *, restart_limit: int) -> AwakeReceipt:
    """Move what has stopped or come due in a session, and say what that was; a repeated request gets its receipt."""
    receipt = AwakeReceipt(session_id=session_id, request_id=request_id)

    def fill(locked: Locked) -> Commit | None:
        nonlocal receipt
        if (resumed := locked.resumed(request_id)) is not None:
            receipt = _receipt(session_id, resumed)
            return None
        draft = Draft(locked, NOBODY)
        open_tasks = locked.open_tasks()
        draft.load(open_tasks.values())
        moved, causes = _move_tasks(draft, list(open_tasks.values()), restart_limit)
        moved += _admit_inputs(draft, open_tasks.values())
        if not moved:
            return None
        seq = draft.event(SessionResumed(request_id=request_id, moved=moved), causes=causes)
        receipt = AwakeReceipt(session_id=session_id, request_id=request_id, moved=tuple(moved), seq=seq)
        return freeze(draft)

    if writer.apply(session_id, [], fill) is None:
        writer.bell.ring(session_id, hints=True, ended=False)
    return receipt


def _receipt(session_id: SessionId, resumed: Row) -> AwakeReceipt:
    said = SessionResumed.model_validate(resumed["payload"])
    return AwakeReceipt(session_id=session_id, request_id=said.request_id, moved=tuple(said.moved), seq=resumed["seq"])


def _move_tasks(draft: Draft, tasks: Sequence[Task], restart_limit: int) -> tuple[list[MovedTask], set[int]]:
    """Carry out what is due of each task; what that was, and the events that the moved tasks answer."""
    pending = [task.id for task in tasks if task.status is Status.PENDING]
    hints, fitted = draft.locked.hints(pending), draft.locked.fitted(pending)
    moved: list[MovedTask] = []
    causes: set[int] = set()
    for task in tasks:
        done = None
        if task.status is Status.PENDING and task.blocked is None:
            done = _mend_hint(draft, task, hints)
        elif (due := _may_be_due(task, fitted)) is not None and judge(draft, task, due, restart_limit=restart_limit):
            done = DONE[due]
        if done is not None:
            moved.append(MovedTask(task=str(task.id), was=task.status, done=done))
            causes.update(task.causes)
    return moved, causes


def _may_be_due(task: Task, fitted: Collection[TaskId]) -> Due | None:
    if task.status is not Status.PENDING:
        return Due.MISS if task.signal_name is not None else WHAT_MAY_BE_DUE[task.status]
    assert task.blocked is not None
    fits = task.blocked.startswith(NO_WORKER) and task.id in fitted
    # Whether its hint can be published now shows when it is tried again.
    return Due.UNBLOCK if fits or task.blocked.startswith(UNPUBLISHABLE) else None


def _mend_hint(draft: Draft, task: Task, hints: Mapping[TaskId, str | None]) -> str | None:
    """Give a task that can run its hint anew, if that is gone or set aside."""
    if task.id in hints and hints[task.id] is None:
        return None
    # The same task again: the commit writes the hint of each task that it leaves runnable.
    draft.change(moves.unblock(task))
    return "hint_unparked" if task.id in hints else "hint_added"


def _admit_inputs(draft: Draft, open_tasks: Collection[Task]) -> list[MovedTask]:
    """Let conversations with nothing under way take their next input."""
    busy = {task.conversation_id for task in open_tasks if task.kind in (GENERATION, INTAKE)}
    waiting: dict[ConversationId, None] = dict.fromkeys(entry.conversation_id for entry in draft.locked.inputs())
    made = [inbox.take_next(draft, each) for each in waiting if each not in busy]
    return [MovedTask(task=str(task.id), was=None, done="input_admitted") for task in made if task is not None]
