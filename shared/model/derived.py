"""Documents that every session has without anybody writing them: views of its rows and events, as they are now.

Ids are text and times are aware, as at every door.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from brainhands.shared.model.document import Document
from brainhands.shared.model.event import ToolReference


class Entry(BaseModel):
    """Base of what such documents list."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AgentSetting(Entry):
    """With what a conversation last asked its model; None and empty before its first request."""

    conversation: str
    owner: str | None
    """The task to which the conversation belongs; None for the main one."""
    agent: str
    agent_version: int | None
    instructions: str | None
    model: str | None
    options: dict[str, Any]
    tools: tuple[ToolReference, ...]


class AgentSettings(Document, kind="agent_settings", derived=True):
    """The agents of a session as its conversations have pinned them."""

    conversations: tuple[AgentSetting, ...] = ()


class WaitingInput(Entry):
    """An input that its conversation has not taken yet."""

    submission: str
    conversation: str
    mode: str
    text: str
    at: datetime


class InboxContents(Document, kind="inbox", derived=True):
    """The inputs that wait in a session, oldest first."""

    inputs: tuple[WaitingInput, ...] = ()


class LiveTask(Entry):
    """A task that has not ended: what it does, or for what it waits."""

    task: str
    kind: str
    version: int
    owner: str | None
    conversation: str | None
    status: str
    phase: str
    attempts: int
    """Claims of this phase that no commit has answered."""
    worker: str | None
    lease_until: datetime | None
    wake_at: datetime | None
    """When it wakes, or goes on without the signal that it waits for."""
    signal: str | None
    waits_for: tuple[str, ...]
    """The open tasks for which it waits."""
    blocked: str | None
    cancel_wanted: bool
    shown: str
    """What its present attempt has shown so far; it decides nothing."""


class LiveState(Document, kind="live", derived=True):
    """What is under way in a session, in the order in which it was made."""

    tasks: tuple[LiveTask, ...] = ()


class ConversationUsage(Entry):
    """What the model calls of one conversation took."""

    conversation: str | None
    calls: int
    """Model calls whose tokens are known or estimated."""
    tokens_in: int
    tokens_out: int


class TokenUsage(Document, kind="usage", derived=True):
    """The tokens of a session, estimates of interrupted calls included."""

    tokens_in: int = 0
    tokens_out: int = 0
    conversations: tuple[ConversationUsage, ...] = ()
