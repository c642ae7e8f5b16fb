"""Cancel: a stored intent that goes down the tree of owners; what is owned ends before its owner.

A task that nobody runs ends in the same commit, in whatever status it is and without any worker. One that runs is
marked: its keeper tells the phase, and shortens the lease, so that what does not listen ends soon as well. A completion
that was stored first wins, and so does one that comes from the running phase; nothing new is made under a task that
shall end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shared.engine import endings
from shared.kernel import moves
from shared.model.ids import TaskId
from shared.model.task import Status, Task

if TYPE_CHECKING:
    from shared.engine.draft import Draft


def cancel_trees(draft: Draft, roots: Iterable[TaskId], open_tasks: Mapping[TaskId, Task]) -> None:
    """Cancel tasks and all they own, deepest first; `open_tasks` are all open ones of the session."""
    draft.load(open_tasks.values())
    wanted = _with_owned(set(roots), open_tasks)
    for task_id in sorted(wanted, key=lambda each: (-_depth(each, open_tasks), each)):
        task = draft.task(task_id)
        if not task.is_open or draft.is_finishing(task_id) or task.status is Status.COMPLETING or task.cancel_wanted:
            continue
        if task.status is Status.RUNNING:
            draft.change(moves.want_cancel(task))
        else:
            endings.cancel(draft, task)


def _with_owned(roots: set[TaskId], open_tasks: Mapping[TaskId, Task]) -> set[TaskId]:
    wanted = roots & open_tasks.keys()
    while more := {task.id for task in open_tasks.values() if task.owner_id in wanted} - wanted:
        wanted |= more
    return wanted


def _depth(task_id: TaskId, open_tasks: Mapping[TaskId, Task]) -> int:
    owner = open_tasks[task_id].owner_id
    return 1 + _depth(owner, open_tasks) if owner is not None and owner in open_tasks else 0
