"""Questions to people in a session: put, answered and closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.approval import Answer, Approval
from brainhands.shared.model.commit import ApprovalChange
from brainhands.shared.model.event import HumanApprovalAnswered, HumanApprovalRequested
from brainhands.shared.model.ids import ApprovalId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Task
from brainhands.shared.rules import moves


def tell_question(draft: Draft, approval: Approval, call: dict[str, Json], *, task: Task, causes: Iterable[int]) -> int:
    """Say that a question about a call of a task is open; the seq of that event."""
    payload = HumanApprovalRequested(
        **call,
        approval=str(approval.id),
        question=approval.question,
        about=approval.about,
        answer_by=approval.answer_by,
        default_answer=approval.default_answer,
    )
    return draft.event(payload, causes=causes, task=task)


def answer(draft: Draft, before: Approval, after: Approval) -> None:
    """Store the answer to a question, and let the task that asked go on."""
    waiter = draft.locked.asker(before)
    asked = [] if waiter is None else [waiter.checkpoint["asked_seq"]]
    seq = tell_answer(draft, after, causes=asked, task=waiter)
    draft.write(ApprovalChange(before=before, after=after))
    if waiter is not None:
        draft.load([waiter])
        draft.change(moves.signalled(draft.task(waiter.id), {"answered_seq": seq}))


def tell_answer(draft: Draft, answered: Approval, *, causes: Iterable[int], task: Task | None) -> int:
    """Say how a question was answered; the seq of that event."""
    payload = HumanApprovalAnswered(
        approval=str(answered.id),
        question=answered.question,
        answer=answered.answer,
        answered_by=answered.answered_by,
        comment=answered.comment,
        edited_arguments=answered.edited_arguments,
        result=answered.result,
    )
    return draft.event(payload, causes=causes, task=task)


def close(draft: Draft, asker: Task) -> None:
    """The call that asked has ended: nobody need answer any more."""
    if (before := open_question(draft, asker)) is not None:
        after = replace(before, answer=Answer.CANCELLED, answered_at=draft.now)
        draft.write(ApprovalChange(before=before, after=after))


def open_question(draft: Draft, asker: Task) -> Approval | None:
    """The question that a task has put and nobody has answered."""
    asked = asker.checkpoint.get("approval")
    approval = None if asked is None else draft.locked.approval(ApprovalId(UUID(asked)))
    return approval if approval is not None and approval.answer is Answer.PENDING else None
