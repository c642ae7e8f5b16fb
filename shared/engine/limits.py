"""Limits on how many tasks run at a time: a claim that leaves its task running takes a slot for each that applies.

A task without limits is claimed without a look at any slot. One that finds no slot free is not claimed: its hint is due
again a little later, or at once when a commit frees such a slot.
"""

from __future__ import annotations

from brainhands.shared.engine.definition import Registry
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.task import Task
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import slots
from brainhands.shared.store.database import Database

log = logger("worker")

PUT_OFF_SECONDS = 1.0
"""After so long a refused hint is due again, should no commit have made it due sooner."""

KNOWN_NAMES = 10_000


class Limits:
    """The limits that one worker heeds."""

    def __init__(self, database: Database, registry: Registry, tenant_concurrency: int | None) -> None:
        self._database = database
        self._registry = registry
        self._tenant_concurrency = tenant_concurrency
        self._made: dict[str, int] = {}

    def take(self, draft: Draft, hinted: TaskId) -> bool:
        """Take what the task that this draft claims must hold; False if it cannot be claimed now.

        `hinted` is the task whose hint is put off then.
        """
        task = draft.running_claim()
        limits = {} if task is None else self._of(task, draft.session.tenant)
        if task is None or not limits:
            return True
        self._make(limits)
        if draft.locked.take_slots(task.id, limits):
            draft.hold_slots(task)
            return True
        draft.locked.put_off(hinted, limits, PUT_OFF_SECONDS)
        log.info("claim_put_off", task=hinted, limits=", ".join(limits))
        return False

    def _of(self, task: Task, tenant: str) -> dict[str, int]:
        """How many slots there are of each name of which the task must hold one."""
        limits = {}
        if (most := self._registry.concurrency(task)) is not None:
            limits[task.requires.name] = most
        if self._tenant_concurrency is not None:
            limits[f"{slots.TENANT_SLOT}{tenant}"] = self._tenant_concurrency
        return limits

    def _make(self, limits: dict[str, int]) -> None:
        """Make slots that may be missing, once in a process: on another connection, so that nobody waits for them."""
        unknown = {name: most for name, most in limits.items() if self._made.get(name) != most}
        if not unknown:
            return
        self._database.run(slots.make(unknown))
        if len(self._made) >= KNOWN_NAMES:
            self._made.clear()
        self._made.update(unknown)
