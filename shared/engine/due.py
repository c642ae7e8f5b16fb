"""What time and the ends of others make due of a task, judged under its session's lock: for the sweep and for awake."""

from __future__ import annotations

from brainhands.shared.engine import ends, signals
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.event import TaskBlocked, TaskUnblocked
from brainhands.shared.model.task import Status, Task
from brainhands.shared.rules import compat, moves
from brainhands.shared.store.due import NO_WORKER, Due


def judge(draft: Draft, task: Task, due: Due, *, restart_limit: int, reason: str | None = None) -> bool:
    """Carry out what was found due of a task, if it still is, and say whether it was.

    `reason` is why a task is to be blocked.
    """
    match due:
        case Due.WAKE if task.status is Status.SLEEPING and task.wake_at is not None and task.wake_at <= draft.now:
            draft.change(moves.wake(task))
        case Due.EXPIRE if not compat.readable(draft.locked.session.log_format):
            return False  # What the end of this attempt means depends on phases that are not known here.
        case Due.EXPIRE if task.status is Status.RUNNING and task.lease_until and task.lease_until < draft.now:
            ends.end_attempt(draft, task, _how_it_ended(draft, task), restart_limit)
        case Due.READY if _waits_for_tasks(task) and not draft.locked.open_dependencies(task.id):
            draft.end_wait(task)
        case Due.MISS if task.signal_name is not None and task.wake_at is not None and task.wake_at <= draft.now:
            signals.miss(draft, task)
        case Due.COMPLETE if task.status is Status.COMPLETING and not draft.locked.open_children(task.id):
            assert task.outcome is not None
            draft.finish(task, task.outcome, result=task.result, error=task.error)
        case Due.BLOCK if task.status is Status.PENDING and task.blocked is None:
            reason = reason or f"{NO_WORKER} {task.requires}"
            draft.event(TaskBlocked(kind=task.kind, reason=reason), causes=task.causes, task=task)
            draft.change(moves.block(task, reason))
        case Due.UNBLOCK if task.status is Status.PENDING and task.blocked is not None:
            draft.event(TaskUnblocked(kind=task.kind), causes=task.causes, task=task)
            draft.change(moves.unblock(task))
        case _:
            return False
    return True


def _how_it_ended(draft: Draft, task: Task) -> str:
    if task.deadline is not None and task.deadline <= draft.now:
        return "it ran past its deadline"
    return "its worker died or was cut off"


def _waits_for_tasks(task: Task) -> bool:
    return task.status is Status.WAITING and task.signal_name is None
