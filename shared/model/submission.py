"""Submissions: the receipt for one accepted input, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Literal, TypeAlias

from brainhands.shared.model.ids import ConversationId, SessionId, SubmissionId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Outcome, Priority


class SubmissionStatus(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"


class Mode(StrEnum):
    """When input for a busy conversation joins it."""

    FOLLOW_UP = "follow_up"
    """After the work that is under way."""
    STEER = "steer"
    """At the next safe boundary of that work: before its next model request, never between a call and its result."""


ModeName: TypeAlias = Mode | Literal["follow_up", "steer"]
"""A mode as callers may write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """One accepted input as stored; `output` is the answer, `error` why there is none.

    Of a reply that was cut, `output` is the text that came, beside the error.
    Tokens and `cost` (USD) are what the model calls of the tasks at work on it used so far.
    """

    id: SubmissionId
    tenant: str
    request_id: str
    session_id: SessionId
    conversation_id: ConversationId
    agent: str
    mode: Mode
    input: str
    input_digest: str
    priority: Priority = Priority.INTERACTIVE
    status: SubmissionStatus
    outcome: Outcome | None = None
    output: Json = None
    error: str | None = None
    created_at: datetime
    done_at: datetime | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    cost: Decimal = Decimal(0)


class CancelState(StrEnum):
    """What came of a wish to cancel."""

    CANCELLED = "cancelled"
    """It has ended, and nothing of it runs any more."""
    ENDING = "ending"
    """The wish is stored and what runs is told; a completion that is under way may still win."""
    TOO_LATE = "too_late"
    """It had ended before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancellation:
    """The answer to a cancel; `outcome` is how the submission or task ended, None while it has not."""

    session_id: SessionId
    state: CancelState
    outcome: Outcome | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What a caller gets at once: the identity of the accepted input.

    `head` (`SEQ:HASH`) is what the session's log said with it, for a later `verify`; None where the log was not written
    by this call (an earlier receipt, or a caller's transaction on a session that exists).
    """

    submission_id: SubmissionId
    session_id: SessionId
    request_id: str
    status: SubmissionStatus
    head: str | None = None
