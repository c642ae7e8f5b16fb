"""How an accepted input becomes work: the user's message and the generation task that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from brainhands.shared.model.ids import ConversationId, SessionId, SubmissionId, TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Priority, Requirement, Status, Task

GENERATION = "generation"
GENERATION_VERSION = 1
INTAKE = "intake"
INTAKE_VERSION = 1


def generation_task(
    task_id: TaskId,
    conversation: Conversation,
    *,
    submission_id: SubmissionId | None,
    cause: int,
    round_number: int,
    now: datetime,
    priority: Priority,
    carried: Mapping[str, Json] | None = None,
) -> Task:
    """A generation of the conversation, to be prepared by a Brain that has its agent.

    `carried` is what the rounds of one input hand on: `joined`, the submissions whose input joined this work while it
    was under way and which end with it, `model`, the one that was asked last, and `unfit`, the answers so far that were
    not what was asked for.
    """
    return Task(
        id=task_id,
        session_id=conversation.session_id,
        conversation_id=conversation.id,
        owner_id=conversation.owner_id,
        submission_id=submission_id,
        kind=GENERATION,
        version=GENERATION_VERSION,
        requires=agent_requirement(conversation),
        input={"round": round_number, **(carried or {})},
        cause=cause,
        priority=priority,
        status=Status.PENDING,
        phase="prepare",
        created_at=now,
    )


def intake_task(
    task_id: TaskId,
    session_id: SessionId,
    conversation_id: ConversationId,
    *,
    submission_id: SubmissionId,
    requires: Requirement,
    priority: Priority,
    now: datetime,
) -> Task:
    """Admits an input that was accepted inside a caller's transaction, where the session could not be locked."""
    return Task(
        id=task_id,
        session_id=session_id,
        conversation_id=conversation_id,
        owner_id=None,
        submission_id=submission_id,
        kind=INTAKE,
        version=INTAKE_VERSION,
        requires=requires,
        input={},
        cause=0,
        priority=priority,
        status=Status.PENDING,
        phase="admit",
        created_at=now,
    )


def agent_requirement(conversation: Conversation) -> Requirement:
    """What a Brain must offer to go on with the conversation: its pinned agent version, or any before the pin."""
    return Requirement(name=f"agent:{conversation.agent}", version=conversation.agent_version)
