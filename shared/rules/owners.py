"""Walks over tasks and what they own, with lists: a tree of tasks may be deeper than Python calls itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brainhands.shared.model.ids import TaskId


def owned_first(owners: Mapping[TaskId, TaskId | None]) -> list[TaskId]:
    """The tasks, given with their owners, so that each comes behind all that it owns."""
    levels = [[task_id for task_id, owner in owners.items() if owner not in owners]]
    owned = _owned(owners)
    while levels[-1]:
        levels.append([each for owner in levels[-1] for each in owned.get(owner, ())])
    return [task_id for level in reversed(levels) for task_id in sorted(level)]


def with_owned(roots: Iterable[TaskId], owners: Mapping[TaskId, TaskId | None]) -> set[TaskId]:
    """The roots that are among the tasks given with their owners, and all that these own."""
    owned = _owned(owners)
    wanted = {root for root in roots if root in owners}
    left = list(wanted)
    while left:
        more = [each for each in owned.get(left.pop(), ()) if each not in wanted]
        wanted.update(more)
        left += more
    return wanted


def _owned(owners: Mapping[TaskId, TaskId | None]) -> dict[TaskId, list[TaskId]]:
    owned: dict[TaskId, list[TaskId]] = {}
    for task_id, owner in owners.items():
        if owner is not None:
            owned.setdefault(owner, []).append(task_id)
    return owned
