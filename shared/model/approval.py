"""Questions to people: may this call run (approval), did this effect happen (review)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.bounds import check_seconds, shown
from brainhands.shared.model.ids import ApprovalId, SessionId, TaskId
from brainhands.shared.model.json import Json


class Question(StrEnum):
    APPROVAL = "approval"
    """May this call run, with these arguments?"""
    REVIEW = "review"
    """Did the effect of this call happen?"""


class Answer(StrEnum):
    """What became of a question; all but `pending` are final."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    """Nobody answered until the deadline."""
    CANCELLED = "cancelled"
    """The call ended before anybody answered."""


AnswerName: TypeAlias = Answer | Literal["approved", "denied", "happened", "did_not_happen", "unknown"]
"""An answer as callers may write it."""
SettledName: TypeAlias = Answer | Literal["happened", "did_not_happen"]
"""What can be found out later of a call of unknown outcome."""

ANSWERS = {
    Question.APPROVAL: frozenset({Answer.APPROVED, Answer.DENIED}),
    Question.REVIEW: frozenset({Answer.HAPPENED, Answer.DID_NOT_HAPPEN, Answer.UNKNOWN}),
}
"""What a person can answer to each question."""

HUMAN = "human:answer"
"""The signal that a task waits for while its question is open; no sender can use this name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Ask a person: how long for an answer, how long an approval can be used, and what holds without an answer."""

    answer_seconds: float = 86_400.0
    use_seconds: float = 3_600.0
    default: str = "deny"

    def __post_init__(self) -> None:
        check_seconds("answer_seconds", self.answer_seconds, "Ask")
        check_seconds("use_seconds", self.use_seconds, "Ask")
        if self.default not in ("deny", "approve"):
            raise BadDefinition(f"Ask: default={shown(self.default)} is no answer", 'give "deny" or "approve"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """One question, bound to one operation and the digest of tool, version and final arguments."""

    id: ApprovalId
    session_id: SessionId
    task_id: TaskId
    question: Question
    tool: str
    version: int
    operation_id: str
    arguments: Json
    digest: str
    about: str
    """Why it is asked: the rule, or what is known of an unknown effect."""
    default_answer: Answer
    """What holds when nobody answers: approved or denied; a review stays unknown."""
    use_seconds: float
    asked_at: datetime
    answer_by: datetime
    answer: Answer = Answer.PENDING
    answered_at: datetime | None = None
    answered_by: str | None = None
    comment: str | None = None
    edited_arguments: Json = None
    result: Json = None
    use_by: datetime | None = None
    used_at: datetime | None = None
    """When the intent was stored that this approval allowed: it allows no other."""

    @property
    def is_proposed(self) -> bool:
        """Whether a person approved it with other arguments, which do not count before the call's worker takes them."""
        return self.answer is Answer.PENDING and self.edited_arguments is not None

    @property
    def holds(self) -> Answer:
        """The answer that counts: the default where nobody gave one."""
        return self.default_answer if self.answer is Answer.EXPIRED else self.answer


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerReceipt:
    """The question as it stands now; `accepted` is False where another answer, or its deadline, came first.

    Other arguments count once the call's worker has validated and judged them. Until then `approval.answer` is pending
    and `approval.is_proposed` holds; if they do not do, the question is open again, and its `about` says why.
    """

    approval: Approval
    accepted: bool
