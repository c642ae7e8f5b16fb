"""Signals: what external jobs, webhooks, people and other sessions tell a session, kept until it is taken once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from brainhands.shared.model.ids import SessionId, SignalId, TaskId
from brainhands.shared.model.json import Json, clean_text

OF_PEOPLE = "human:"
"""What the names begin with under which tasks wait for people's answers."""
NAME_LIMIT = 500
"""Characters of a signal's name, and of its key; who sends and who waits are refused beyond."""


def name_problem(name: object, key: object) -> str | None:
    """What is wrong with the name and key of a signal, for those who send it and those who wait for it."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or clean_text(name) != name:
        return f"the name must be 1 to {NAME_LIMIT} characters of clean text"
    if name.startswith(OF_PEOPLE):
        return f"names that begin with {OF_PEOPLE} are for answers of people"
    if not isinstance(key, str) or len(key) > NAME_LIMIT or clean_text(key) != key:
        return f"the key must be text, of {NAME_LIMIT} characters at most"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    """One signal as stored; `seq` is its event, `taken_by` the task that went on with it."""

    id: SignalId
    session_id: SessionId
    name: str
    key: str
    payload: Json
    seq: int
    sent_at: datetime
    taken_by: TaskId | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalReceipt:
    """What the sender gets; `taken` says that somebody waited for it already."""

    signal_id: SignalId
    session_id: SessionId
    request_id: str
    taken: bool
