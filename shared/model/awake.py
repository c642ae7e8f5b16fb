"""Awaking: what a caller gets who has a session driven on."""

from __future__ import annotations

from dataclasses import dataclass

from brainhands.shared.model.event import MovedTask
from brainhands.shared.model.ids import SessionId


@dataclass(frozen=True, kw_only=True, slots=True)
class AwakeReceipt:
    """What had to be moved, as the `session_resumed` event at `seq` says; nothing, and None, if all was in order."""

    session_id: SessionId
    request_id: str
    moved: tuple[MovedTask, ...] = ()
    seq: int | None = None
