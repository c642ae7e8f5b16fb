"""Background responses as far as the engine knows them: the handle that a generation polls, and its cancel.

While the provider works on a response, its generation sleeps with the handle in its checkpoint. Whatever ends the
generation then, or gives the response up, makes a task that has the provider stop. That task belongs to nobody, so that
nothing waits for it and no cancel ends it, except one that names it when nobody can run it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Status, Task
from brainhands.shared.rules.first_work import GENERATION

HANDLE = "handle"
"""Where a generation's checkpoint keeps what it knows of its response: `{"response_id", "tokens_in", ...}`."""

RESPONSE_CANCEL = "response_cancel"
RESPONSE_CANCEL_VERSION = 1


def handle(task: Task) -> dict[str, Any] | None:
    """What a generation knows of the response that it waits for, if it waits for one."""
    return task.checkpoint.get(HANDLE) if task.kind == GENERATION and task.is_open else None


def with_handle_of(task: Task, checkpoint: Json) -> Task:
    """The task with the handle of a checkpoint that is not stored: the provider works on that response all the same."""
    if task.kind != GENERATION or not checkpoint or HANDLE not in checkpoint:
        return task
    return replace(task, checkpoint={**task.checkpoint, HANDLE: checkpoint[HANDLE]})


def response_cancel_task(task_id: TaskId, generation: Task, response_id: str, *, now: datetime) -> Task:
    """Has the provider stop a response that nobody waits for any more."""
    return Task(
        id=task_id,
        session_id=generation.session_id,
        conversation_id=generation.conversation_id,
        owner_id=None,
        submission_id=None,
        kind=RESPONSE_CANCEL,
        version=RESPONSE_CANCEL_VERSION,
        # In any version: the one that asked may be gone by now.
        requires=replace(generation.requires, version=None),
        input={"response_id": response_id},
        cause=generation.checkpoint["request_seq"],
        priority=generation.priority,
        status=Status.PENDING,
        phase="cancel",
        created_at=now,
    )
