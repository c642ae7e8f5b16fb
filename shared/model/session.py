"""Sessions and conversations as stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.model.ids import ConversationId, SessionId, SubmissionId, TaskId
from shared.model.submission import Mode
from shared.model.task import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One piece of ongoing work; `last_*` is the head of its log."""

    id: SessionId
    tenant: str
    log_format: int
    last_seq: int
    last_hash: bytes
    last_at: datetime
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """One line of dialogue; `agent_version` is pinned by the first Brain that prepares a request for it."""

    id: ConversationId
    session_id: SessionId
    owner_id: TaskId | None
    agent: str
    agent_version: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inbox:
    """Input that waits for its conversation to be free, in order of `position`."""

    position: int
    conversation_id: ConversationId
    submission_id: SubmissionId
    mode: Mode
    text: str
    priority: Priority
