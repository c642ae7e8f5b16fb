"""Which calls a log leaves open or unknown at a cut: a fork closes them, since it takes no task over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brainhands.shared.model.event import ModelCall, ToolCallInterrupted, ToolCallStart
from brainhands.shared.model.ids import ConversationId, TaskId
from brainhands.shared.model.json import Json

CALL_ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")
CALL_EVENTS = ("tool_call_start", *CALL_ENDS, "tool_call_settled")


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFact:
    """An event of a call, with kind and version of its task; `payload` is given for starts and unknown ends only."""

    seq: int
    type: str
    task_id: TaskId
    conversation_id: ConversationId | None
    call_id: str | None
    kind: str
    version: int
    payload: Json
    redacted: bool
    """Then it does not say which call of the model it was of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOpen:
    """What a fork has to close or to keep in mind."""

    begun: tuple[CallFact, ...]
    """Intents of calls without an end: their effects may have happened."""
    unknown: tuple[CallFact, ...]
    """Ends of calls as interrupted about which nobody has found out more."""
    not_begun: tuple[ModelCall, ...]
    """Calls of the model without an intent and without an end."""
    untold: int | None
    """An event of one of these calls, perhaps: it was redacted."""


def left_open(
    facts: Iterable[CallFact], planned: Sequence[ModelCall], planned_at: int, main: ConversationId
) -> LeftOpen:
    """What calls are open, given their events in order, and calls and seq of the main conversation's last reply."""
    begun: dict[TaskId, CallFact] = {}
    unknown: dict[TaskId, CallFact] = {}
    seen: set[str | None] = set()
    untold = None
    for fact in facts:
        if fact.conversation_id == main:
            seen.add(fact.call_id)
            untold = fact.seq if fact.redacted and fact.seq > planned_at else untold
        if fact.type == ToolCallStart.event_type:
            begun[fact.task_id] = fact
            continue
        begun.pop(fact.task_id, None)
        unknown.pop(fact.task_id, None)
        if fact.type == ToolCallInterrupted.event_type:
            unknown[fact.task_id] = fact
    not_begun = tuple(call for call in planned if call.call_id not in seen)
    return LeftOpen(
        begun=tuple(begun.values()),
        unknown=tuple(unknown.values()),
        not_begun=not_begun,
        untold=untold if not_begun else None,
    )
