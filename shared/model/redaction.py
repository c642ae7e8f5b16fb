"""What comes of taking content out of a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from brainhands.shared.model.ids import SessionId


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a text stands: a row by its kind (`event`, `document`, `task`, ...) and id, and a column of it."""

    session_id: SessionId
    kind: str
    id: str
    """A seq, an id, a document as NAME@VERSION, an attempt as TASK@FENCE."""
    part: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RedactionReceipt:
    """`redacted` went with this call, also ends of submissions that repeated an answer; `head` is the log's now.

    `repeated_in` are events of the session that keep, beside their own content, parts of what went, such as a call's
    arguments; `found_in` is where else its longer texts stand, in the session and its forks. Where `searched` is False,
    the search met a bound of its own, and there may be more.
    """

    session_id: SessionId
    redacted: tuple[int, ...]
    repeated_in: tuple[int, ...]
    found_in: tuple[Place, ...]
    searched: bool
    head: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasureReceipt:
    """Since when the session's content is gone, and the head of its log."""

    session_id: SessionId
    erased_at: datetime
    head: str
