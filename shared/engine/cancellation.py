"""Cancel: a stored intent that goes down the tree of owners; what is owned ends before its owner.

A task that nobody runs ends in the same commit, in whatever status it is and without any worker. One that runs is
marked: its keeper tells the phase, and shortens the lease, so that what does not listen ends soon as well. A completion
that was stored first wins, and so does one that comes from the running phase; nothing new is made under a task that
shall end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from brainhands.shared.engine import endings
from brainhands.shared.kernel import moves
from brainhands.shared.kernel.owners import owned_first, with_owned
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.task import Status, Task

if TYPE_CHECKING:
    from brainhands.shared.engine.draft import Draft


def cancel_trees(draft: Draft, roots: Iterable[TaskId], open_tasks: Mapping[TaskId, Task]) -> None:
    """Cancel tasks and all they own, deepest first; `open_tasks` are all open ones of the session."""
    draft.load(open_tasks.values())
    owners = {task.id: task.owner_id for task in open_tasks.values()}
    wanted = with_owned(roots, owners)
    for task_id in owned_first(owners):
        task = draft.task(task_id)
        if task_id not in wanted or not task.is_open or draft.is_finishing(task_id):
            continue
        if task.status is Status.COMPLETING or task.cancel_wanted:
            continue
        if task.status is Status.RUNNING:
            draft.change(moves.want_cancel(task))
        else:
            endings.cancel(draft, task)
