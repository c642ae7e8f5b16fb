"""A conversation as its model is shown it: read from the log, and no more of it than the newest compaction leaves."""

from __future__ import annotations

from brainhands.brain.prompt import ContextEvent
from brainhands.shared.model.event import PAYLOADS, read_payload
from brainhands.shared.model.task import Task
from brainhands.shared.store import reads
from brainhands.shared.store.database import Database

RESULT_TYPES = ("tool_call_success", "tool_call_error", "tool_call_interrupted")
ANSWER_TYPES = ("human_approval_requested", "human_approval_answered")
CONTEXT_TYPES = ("user_message", "task_given", "model_output", "tool_call_settled", *RESULT_TYPES, *ANSWER_TYPES)

NOT_IN_CONTEXT = sorted({type for type, _ in PAYLOADS} - set(CONTEXT_TYPES))
"""Types of which it is known that what is said between does not depend on them; others are never left out."""


def read_context(database: Database, task: Task, cutoff: int) -> list[ContextEvent]:
    """The events of the task's conversation up to the cutoff on which a request depends, in order."""
    assert task.conversation_id is not None
    continues = "continues" in task.checkpoint
    found = reads.context(database, task.session_id, task.conversation_id, cutoff, NOT_IN_CONTEXT, continues=continues)
    return [
        ContextEvent(
            seq=row["seq"],
            type=row["type"],
            version=row["version"],
            payload=read_payload(row["type"], row["version"], row["payload"]),
        )
        for row in found
    ]
