"""Trees of tasks are walked to any depth: what is owned comes before its owner."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from brainhands.shared.model.ids import TaskId
from brainhands.shared.rules.owners import owned_first, with_owned


def task(number: int) -> TaskId:
    return TaskId(UUID(int=number))


def tree(size: int, *, reach: int, seed: int) -> dict[TaskId, TaskId | None]:
    """Tasks in no order, each owned by one of the `reach` before it or by none; some owners are not among them."""
    drawn = random.Random(seed)
    owners = {
        task(number): task(drawn.randrange(max(0, number - reach), number)) if number > 3 else None
        for number in range(size)
    }
    for _ in range(size // 50):
        owners.pop(drawn.choice(sorted(owners)))
    return dict(drawn.sample(sorted(owners.items()), len(owners)))


TREES = [pytest.param(tree(5_000, reach=reach, seed=reach), id=f"reach {reach}") for reach in (1, 3, 5_000)]


@pytest.mark.promise("H12")
@pytest.mark.parametrize("owners", TREES)
def test_each_task_comes_behind_all_that_it_owns(owners: dict[TaskId, TaskId | None]) -> None:
    order = owned_first(owners)

    place = {task_id: number for number, task_id in enumerate(order)}
    assert sorted(order) == sorted(owners)
    assert all(place[task_id] < place[owner] for task_id, owner in owners.items() if owner in place)


@pytest.mark.promise("H12")
@pytest.mark.parametrize("owners", TREES)
def test_what_goes_with_some_tasks_is_all_that_they_own_and_nothing_else(owners: dict[TaskId, TaskId | None]) -> None:
    roots = [*sorted(owners)[::700], task(10_000)]

    found = with_owned(roots, owners)

    expected: set[TaskId] = set()
    for task_id in sorted(owners):
        if task_id in roots or owners[task_id] in expected:
            expected.add(task_id)
    assert found == expected
