"""Sessions and conversations as stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from brainhands.shared.model.ids import ConversationId, SessionId, SubmissionId, TaskId
from brainhands.shared.model.submission import Mode
from brainhands.shared.model.task import Priority


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One piece of ongoing work; `last_*` is the head of its log, the rest what all its model calls used so far."""

    id: SessionId
    tenant: str
    log_format: int
    last_seq: int
    last_hash: bytes
    last_at: datetime
    created_at: datetime
    erased_at: datetime | None = None
    """Since when its content is gone; it takes no more input."""
    forked_from: SessionId | None = None
    """The session whose own log has the event at `forked_at`, from where this one goes on."""
    forked_at: int | None = None
    fork_request: bytes | None = None
    """The digest of the request that made this fork."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)
    """USD, of those calls that had prices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSummary:
    """A session as a list has it: its agent, how many of its tasks are open, and the head of its log as SEQ:HASH."""

    id: SessionId
    agent: str
    open_tasks: int
    last_seq: int
    head: str
    created_at: datetime
    last_at: datetime
    erased_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """One line of dialogue; `agent_version` is pinned by the first Brain that prepares a request for it."""

    id: ConversationId
    session_id: SessionId
    owner_id: TaskId | None
    agent: str
    agent_version: int | None
    continues: ConversationId | None = None
    """The conversation of the past that this one goes on with, in a fork."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inbox:
    """Input that waits for its conversation to be free, in order of `position`."""

    position: int
    conversation_id: ConversationId
    submission_id: SubmissionId
    mode: Mode
    text: str
    priority: Priority
