"""What comes of taking content out of a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.model.ids import SessionId


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionReceipt:
    """`redacted` went with this call, also ends of submissions that repeated an answer; `head` is the log's now.

    `repeated_in` are events that keep, beside their own content, parts of what went, such as a call's arguments.
    """

    session_id: SessionId
    redacted: tuple[int, ...]
    repeated_in: tuple[int, ...]
    head: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureReceipt:
    """Since when the session's content is gone, and the head of its log."""

    session_id: SessionId
    erased_at: datetime
    head: str
