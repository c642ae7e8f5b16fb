"""Calls as tasks: a tool or a flow, called by the model or by a flow, is a task that its caller owns."""

from __future__ import annotations

from datetime import datetime

from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Requirement, Status, Task

FIRST_PHASE = "call"
"""Validates the arguments and stores the intent."""


def call_task(
    task_id: TaskId,
    *,
    owner: Task,
    kind: str,
    version: int,
    call_id: str | None,
    arguments: Json,
    cause: int,
    now: datetime,
    rule: str | None = None,
) -> Task:
    """The call of a published tool or flow; `call_id` is the model's, None for a flow's own call.

    `rule` is what the agent says of calls of this tool: allow, ask or deny.
    """
    return Task(
        id=task_id,
        session_id=owner.session_id,
        conversation_id=owner.conversation_id,
        owner_id=owner.id,
        submission_id=owner.submission_id,
        kind=kind,
        version=version,
        requires=Requirement(name=kind, version=version),
        input={"call_id": call_id, "arguments": arguments, **({} if rule is None else {"rule": rule})},
        cause=cause,
        priority=owner.priority,
        status=Status.PENDING,
        phase=FIRST_PHASE,
        created_at=now,
    )
