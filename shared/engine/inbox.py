"""Inputs of a session: admitted to their conversation, joined to its present work, or ended."""

from __future__ import annotations

from collections.abc import Iterable

from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.commit import Redaction, SubmissionEnd, SubmissionStart, TakenInput
from brainhands.shared.model.event import SubmissionDone, UserMessage
from brainhands.shared.model.ids import ConversationId, SubmissionId, new_task_id
from brainhands.shared.model.json import Json, canonical, storable, storable_text
from brainhands.shared.model.session import Conversation, Inbox
from brainhands.shared.model.task import Outcome, Priority, Task
from brainhands.shared.rules import first_work


def admit(draft: Draft, conversation: Conversation, submission_id: SubmissionId, text: str, priority: Priority) -> Task:
    """Let an input join its conversation, which is free: the user's message and the generation that answers it."""
    payload = UserMessage(text=text, submission=str(submission_id))
    seq = draft.event(payload, causes=(), conversation_id=conversation.id)
    task = first_work.generation_task(
        new_task_id(),
        conversation,
        submission_id=submission_id,
        cause=seq,
        round_number=1,
        priority=priority,
        now=draft.now,
    )
    draft.add(task)
    return task


def take_next(draft: Draft, conversation_id: ConversationId) -> Task | None:
    """Admit the oldest input that waits for the conversation, unless a generation of it is open."""
    if any(_is_generation(task, conversation_id) and task.is_open for task in draft.made.values()):
        return None
    taken = [each.submission_id for each in draft.of(TakenInput)]
    conversation, entry, active = draft.locked.conversation(conversation_id, taken=taken)
    # What the lock shows as active was so before this draft.
    ended = any(_is_generation(task, conversation_id) and not task.is_open for task in draft.changed.values())
    if entry is None or (active and not ended):
        return None
    if draft.session.erased_at is not None:
        # A caller's transaction that was open while the session was erased brought it.
        withdraw(draft, entry, reason="the session was erased")
        draft.write(Redaction(inputs=(entry.submission_id,)))
        return None
    draft.write(TakenInput(entry.submission_id))
    return admit(draft, conversation, entry.submission_id, entry.text, entry.priority)


def _is_generation(task: Task, conversation_id: ConversationId) -> bool:
    return task.kind == first_work.GENERATION and task.conversation_id == conversation_id


def take_steering(draft: Draft, conversation_id: ConversationId) -> list[tuple[SubmissionId, int]]:
    """Let inputs that wait to join the present work do so; gives each submission with its message's seq."""
    joined = []
    taken = {each.submission_id for each in draft.of(TakenInput)}
    for entry in draft.locked.steering(conversation_id):
        if entry.submission_id in taken:
            continue
        draft.write(TakenInput(entry.submission_id), SubmissionStart(entry.submission_id))
        payload = UserMessage(text=entry.text, submission=str(entry.submission_id))
        joined.append((entry.submission_id, draft.event(payload, causes=(), conversation_id=conversation_id)))
    return joined


def withdraw(draft: Draft, entry: Inbox, *, reason: str) -> None:
    """End a submission whose input was never admitted."""
    draft.write(TakenInput(entry.submission_id))
    end_submission(
        draft, entry.submission_id, Outcome.CANCELLED, causes=(), conversation_id=entry.conversation_id, error=reason
    )


def end_submission(
    draft: Draft,
    submission_id: SubmissionId,
    outcome: Outcome,
    *,
    causes: Iterable[int],
    task: Task | None = None,
    conversation_id: ConversationId | None = None,
    output: Json = None,
    error: str | None = None,
) -> None:
    """End a submission with its answer, or with the reason why there is none."""
    payload = SubmissionDone(submission=str(submission_id), outcome=outcome, output=output, error=error)
    draft.event(payload, causes=causes, task=task, conversation_id=conversation_id)
    draft.write(
        SubmissionEnd(
            submission_id=submission_id,
            outcome=outcome,
            output=None if output is None else canonical(storable(output)),
            error=None if error is None else storable_text(error),
        )
    )
