"""How people's answers reach a session: the first answer stands, within its time; and late knowledge of an effect."""

from __future__ import annotations

from dataclasses import replace

from brainhands.shared.doors.redact import refuse_erased
from brainhands.shared.engine import approvals, ends, questions
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import BadInput
from brainhands.shared.model.approval import ANSWERS, Answer, AnswerReceipt, Approval, Question
from brainhands.shared.model.commit import ApprovalChange, Commit
from brainhands.shared.model.ids import new_approval_id
from brainhands.shared.model.json import Json, digest
from brainhands.shared.model.task import Outcome, Task
from brainhands.shared.rules import recovery
from brainhands.shared.rules.times import later
from brainhands.shared.store import reads
from brainhands.shared.store.locked import Locked


def answer(
    writer: Writer,
    asked: Approval,
    given: Answer,
    *,
    arguments: Json = None,
    result: Json = None,
    comment: str | None,
    who: str | None,
) -> AnswerReceipt:
    """Answer a question. Raises BadInput for an answer that it cannot have."""
    if given not in ANSWERS[asked.question]:
        fitting = ", ".join(sorted(ANSWERS[asked.question]))
        raise BadInput(f"{asked.question} {asked.id} cannot be answered with {given}", f"answer {fitting}")
    if arguments is not None and (given is not Answer.APPROVED or not isinstance(arguments, dict)):
        raise BadInput("only an approval can change the arguments, to another JSON object")

    def fill(locked: Locked) -> Commit | None:
        before = locked.approval(asked.id)
        if (
            before is None
            or before.answer is not Answer.PENDING
            or locked.now >= before.answer_by
            or before.is_proposed
        ):
            return None
        counts = arguments is None
        after = replace(
            before,
            answer=given if counts else Answer.PENDING,
            answered_at=locked.now if counts else None,
            answered_by=who,
            comment=comment,
            edited_arguments=arguments,
            result=result,
            use_by=later(locked.now, before.use_seconds),
        )
        draft = Draft(locked, NOBODY)
        questions.answer(draft, before, after)
        return freeze(draft)

    commit = writer.apply(asked.session_id, [], fill)
    if commit is not None:
        return AnswerReceipt(approval=commit.of(ApprovalChange)[0].after, accepted=True)
    stands = reads.approval_of_task(writer.database, asked.id)
    mine = (given, who, comment, arguments, result)
    # A try whose COMMIT lost its reply finds its own answer.
    accepted = mine == (
        Answer.APPROVED if stands.is_proposed else stands.answer,
        stands.answered_by,
        stands.comment,
        stands.edited_arguments,
        stands.result,
    )
    return AnswerReceipt(approval=stands, accepted=accepted)


def report(
    writer: Writer, task: Task, given: Answer, *, result: Json, comment: str | None, who: str | None
) -> AnswerReceipt | None:
    """Say what became of a call that ended as unknown: a new fact that changes no task; None if it was said before."""
    if task.outcome is not Outcome.INTERRUPTED or not recovery.is_call(task):
        raise BadInput(f"task {task.id} is no call that ended as unknown", "settle only interrupted calls")
    if given not in (Answer.HAPPENED, Answer.DID_NOT_HAPPEN):
        raise BadInput(f"a call cannot be settled as {given}", "say happened or did_not_happen")
    tried: list[Approval] = []

    def fill(locked: Locked) -> Commit | None:
        refuse_erased(locked.session)
        if all(each.id != task.id for each in locked.unknown_calls(task.kind)):
            return None
        call = ends.call_fields(task)
        review = Approval(
            id=new_approval_id(),
            session_id=task.session_id,
            task_id=task.id,
            question=Question.REVIEW,
            tool=call["tool"],
            version=task.version,
            operation_id=call["operation_id"] or str(task.id),
            arguments=call["arguments"],
            digest=digest([call["tool"], task.version, call["arguments"]]),
            about=task.error or "",
            default_answer=Answer.UNKNOWN,
            use_seconds=0,
            asked_at=locked.now,
            answer_by=locked.now,
            answer=given,
            answered_at=locked.now,
            answered_by=who,
            comment=comment,
            result=result,
        )
        draft = Draft(locked, NOBODY)
        approvals.store_settlement(draft, task, review)
        commit = freeze(draft)
        tried.extend(commit.of(Approval))
        return commit

    commit = writer.apply(task.session_id, [], fill)
    # A try whose COMMIT lost its reply finds the call settled, by itself.
    stored = tried[-1:] if commit is not None else [each for each in tried if reads.stored(writer.database, each.id)]
    return AnswerReceipt(approval=stored[0], accepted=True) if stored else None
