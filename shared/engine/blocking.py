"""How a task is set aside that a worker finds it cannot go on with: untouched, with the reason, its attempt given back.

The sweep lets it go on when the reason has passed (shared/rules/compat.py). A host that found it unreadable is noted
and does not try it again, so that old workers do not take turns at it.
"""

from __future__ import annotations

from brainhands.shared.engine import ends
from brainhands.shared.engine.draft import Draft
from brainhands.shared.errors import Incompatible, OlderWorkers
from brainhands.shared.model.event import TaskBlocked
from brainhands.shared.model.task import Status, Task
from brainhands.shared.rules import compat, moves


def block(draft: Draft, task: Task, problem: Incompatible, *, host: str) -> None:
    """Block a pending task, or one that this worker runs; one that is to be cancelled ends instead."""
    task = draft.task(task.id)
    if task.cancel_wanted:
        ends.cancel(draft, task)
        return
    reason = compat.reason(problem)
    draft.event(TaskBlocked(kind=task.kind, reason=reason), causes=task.causes, task=task)
    if task.status is Status.RUNNING:
        task = moves.release(task, phase=task.phase, checkpoint=task.checkpoint, stepped=False)
    draft.change(moves.block(task, reason, refused_by=None if isinstance(problem, OlderWorkers) else host))
