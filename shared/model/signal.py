"""Signals: what external jobs, webhooks, people and other sessions tell a session, kept until it is taken once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.model.ids import SessionId, SignalId, TaskId
from shared.model.json import Json

NAME_LIMIT = 500
"""Characters of a signal's name, and of its key; who sends and who waits are refused beyond."""


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
