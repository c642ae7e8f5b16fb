"""Which tasks a process takes beside which others, when some of them may take the process along.

A task whose phase was in two crashes runs alone if that can be had: its next crash is its last, and so is that of
whoever was in the first two beside it. What this may cost the others is bounded. A process that is not empty takes
nothing new for a moment, now and then, so that it may come to be empty; one in which such a task has run alone for a
while takes others again; and a task that has waited long for an empty process goes on beside others, but never beside a
second such task, so that no crash is the last of two tasks. An exception is no crash: its process lives on.
"""

from __future__ import annotations

import threading
import time

from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.task import Task
from brainhands.shared.store import attempts
from brainhands.shared.store.database import Database

CRASHES_BEFORE_ALONE = 2

RESERVED_SECONDS = 10.0
"""How long a process that is not empty takes nothing new, for the next hint of such a task to find it empty."""

RESERVE_EVERY_SECONDS = 60.0

ALONE_SECONDS = 60.0
"""How long nothing is taken beside such a task, if it runs for longer."""

PATIENCE_SECONDS = 120.0
"""How long such a task waits for an empty process."""


class Company:
    """The tasks that one process is at work on."""

    def __init__(self) -> None:
        self._at_work: set[TaskId] = set()
        self._suspect: TaskId | None = None
        self._closed_until = 0.0
        self._reserve_at = 0.0
        self._lock = threading.Lock()

    def admits(self, task: Task, database: Database) -> bool:
        """Whether this process takes the task now, which counts as at work until it leaves."""
        crashes, waited = 0, 0.0
        if task.phase_attempts >= CRASHES_BEFORE_ALONE:
            crashes, waited = attempts.crashes(database, task)
        with self._lock:
            now = time.monotonic()
            if crashes >= CRASHES_BEFORE_ALONE:
                admitted = self._admits_suspect(now, waited)
                self._suspect = task.id if admitted else self._suspect
            else:
                admitted = not self._at_work or now >= self._closed_until
            if admitted:
                self._at_work.add(task.id)
            return admitted

    def _admits_suspect(self, now: float, waited: float) -> bool:
        if not self._at_work:
            self._closed_until = now + ALONE_SECONDS
            return True
        if waited >= PATIENCE_SECONDS:
            return self._suspect is None
        if self._suspect is None and now >= self._reserve_at:
            self._closed_until = now + RESERVED_SECONDS
            self._reserve_at = now + RESERVE_EVERY_SECONDS
        return False

    def leave(self, task_id: TaskId) -> None:
        with self._lock:
            self._at_work.discard(task_id)
            if self._suspect == task_id:
                self._suspect = None
                self._closed_until = 0.0
