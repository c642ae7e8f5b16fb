"""Forks: what a caller gets who forks a session."""

from __future__ import annotations

from dataclasses import dataclass

from brainhands.shared.model.ids import SessionId


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkReceipt:
    """A new session that goes on from the end of the last commit at or before the event that was named.

    `forked_from` is the session whose own log has that end: the one that was named or, where that is a fork itself,
    perhaps one of its past. `head` (`SEQ:HASH`) is what the new log said when it was made, None from a repeated call.
    """

    session_id: SessionId
    forked_from: SessionId
    at: int
    """The last event that both sessions share."""
    request_id: str
    head: str | None = None
