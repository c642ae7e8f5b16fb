"""Asking people about a call: may it run, or did its effect happen. A question holds nothing while it waits.

An approval is bound to one operation and its final arguments. The commit that stores the intent uses it up; it covers
every attempt of that operation and nothing else, and lapses if it is not used in time.

Other arguments that a person approves are a proposal: the question stays open until the call's worker has validated and
judged them. If they do, that is the answer; if not, the question is put again, with what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from uuid import UUID

from brainhands.shared.engine import ends, questions
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.model.approval import HUMAN, Answer, Approval, Ask, Question
from brainhands.shared.model.commit import ApprovalChange
from brainhands.shared.model.event import PolicyDecided, ToolCallSettled
from brainhands.shared.model.ids import ApprovalId, new_approval_id
from brainhands.shared.model.json import Json, canonical, digest
from brainhands.shared.model.task import Task, Transition, WaitSignal
from brainhands.shared.rules.times import later
from brainhands.shared.store import reads

REVIEW_SECONDS = 7 * 86_400.0
"""How long a person has to find out about an unknown effect before it stays unknown."""

MAX_ABOUT = 2_000
"""Characters of each part of why a question is asked."""

PHASES = {Question.APPROVAL: "answered", Question.REVIEW: "reviewed"}


Validate: TypeAlias = Callable[[Json], "dict[str, Json] | str"]
"""From raw arguments to the call (the fields of a tool event) with its final ones, or why it cannot run."""

Start: TypeAlias = Callable[[Draft, dict[str, Json], list[int]], Transition]
"""Begins a call that may run, given what it follows from."""


ReadAs: TypeAlias = Callable[["dict[str, Json]"], "dict[str, Json]"]
"""What those arguments are read as whose stored form does not show it."""


def begin(run: Run, validate: Validate, start: Start, read_as: ReadAs) -> PhaseResult:
    """Start a call that only the rule of its agent judges: run it, refuse it, or ask a person."""
    task = run.task
    call = validate(task.input["arguments"])
    if isinstance(call, str):
        return PhaseResult(partial(ends.refuse_call, task=task, error=call))
    rule = task.input.get("rule")
    about = why_asked("agent", read_as(call["arguments"])) if rule == "ask" else ""

    def judge(draft: Draft) -> Transition:
        causes = [task.cause]
        if rule is not None:
            decided = PolicyDecided(**call, rule=rule, by="agent")
            causes = [draft.event(decided, causes=causes, task=draft.task(task.id))]
        if rule == "deny":
            return ends.refuse_call(draft, task=task, error="denied by a rule of the agent")
        if rule == "ask":
            return ask(draft, task, call, Question.APPROVAL, about, causes)
        return start(draft, call, causes)

    return PhaseResult(judge)


def go_on(run: Run, validate: Validate, start: Start) -> PhaseResult:
    """Start such a call, or not, with a person's answer; proposed arguments are validated."""
    task = run.task
    approval = asked(run)
    if not approval.is_proposed and approval.holds is not Answer.APPROVED:
        return PhaseResult(partial(ends.refuse_call, task=task, error=why_not(approval)))
    call = validate(approval.edited_arguments if approval.is_proposed else approval.arguments)
    if isinstance(call, str):
        if approval.is_proposed:
            return PhaseResult(partial(ask_again, task=task, approval=approval, reason=call))
        return PhaseResult(partial(ends.refuse_call, task=task, error=f"approved, but {call}"))

    def use_and_start(draft: Draft) -> Transition:
        if (refusal := use(draft, task, approval)) is not None:
            return ends.refuse_call(draft, task=task, error=refusal)
        return start(draft, call, [task.checkpoint["signal"]["answered_seq"]])

    return PhaseResult(use_and_start)


def ask(
    draft: Draft,
    task: Task,
    call: dict[str, Json],
    question: Question,
    about: str,
    causes: list[int],
    terms: Ask | None = None,
    *,
    more: dict[str, Json] | None = None,
) -> WaitSignal:
    """Store a question about a call (the fields of a tool event) and wait for its answer; `more` is kept with it."""
    terms = terms or Ask()
    is_review = question is Question.REVIEW
    seconds = REVIEW_SECONDS if is_review else terms.answer_seconds
    default = Answer.APPROVED if terms.default == "approve" else Answer.DENIED
    approval = Approval(
        id=new_approval_id(),
        session_id=task.session_id,
        task_id=task.id,
        question=question,
        tool=call["tool"],
        version=call["version"],
        operation_id=call["operation_id"],
        arguments=call["arguments"],
        digest=digest([call["tool"], call["version"], call["arguments"]]),
        about=about,
        default_answer=Answer.UNKNOWN if is_review else default,
        use_seconds=terms.use_seconds,
        asked_at=draft.now,
        answer_by=later(draft.now, seconds),
    )
    draft.write(approval)
    seq = questions.tell_question(draft, approval, call, task=draft.task(task.id), causes=causes)
    kept = {name: call[name] for name in ("call_id", "arguments", "operation_id", "replay")}
    put = {"call": kept, "approval": str(approval.id), "about": about, "asked_seq": seq}
    return WaitSignal(HUMAN, PHASES[question], seconds, str(approval.id), {**task.checkpoint, **put, **(more or {})})


def ask_again(draft: Draft, *, task: Task, approval: Approval, reason: str) -> WaitSignal:
    """The proposed arguments do not do: the question is as open as it was, until its deadline, and says why."""
    first, by = task.checkpoint.get("about", approval.about), approval.answered_by or "a person"
    about = f"{first}; the other arguments of {by} do not do: {reason[:MAX_ABOUT]}"
    still_open = replace(approval, about=about, edited_arguments=None, answered_by=None, comment=None, use_by=None)
    draft.write(ApprovalChange(before=approval, after=still_open))
    call = {**task.checkpoint["call"], "tool": approval.tool, "version": approval.version}
    proposed = [task.checkpoint["signal"]["answered_seq"]]
    seq = questions.tell_question(draft, still_open, call, task=draft.task(task.id), causes=proposed)
    seconds = max(0.0, (approval.answer_by - draft.now).total_seconds())
    return WaitSignal(
        HUMAN, PHASES[approval.question], seconds, str(approval.id), {**task.checkpoint, "asked_seq": seq}
    )


def why_asked(by: str, read_as: Mapping[str, Json]) -> str:
    """What a person is told about a call that a rule asks about."""
    shown = "".join(f"; {name} is read as {canonical(value)}" for name, value in read_as.items())
    return f"a rule of the {by} asks for approval{shown[:MAX_ABOUT]}"


def asked(run: Run) -> Approval:
    """The question that a task waited for, with its answer."""
    return reads.approval_of_task(run.database, ApprovalId(UUID(run.task.checkpoint["approval"])))


def use(draft: Draft, task: Task, approval: Approval) -> str | None:
    """Use an approval up, in the commit that stores the intent; or say why it cannot be used.

    Proposed arguments, which were found to do, become the answer.
    """
    assert approval.use_by is not None
    in_time = draft.now <= approval.use_by
    after = replace(approval, used_at=draft.now) if in_time else approval
    if approval.is_proposed:
        after = replace(after, answer=Answer.APPROVED, answered_at=draft.now)
        proposed = [task.checkpoint["signal"]["answered_seq"]]
        questions.tell_answer(draft, after, causes=proposed, task=draft.task(task.id))
    if after is not approval:
        draft.write(ApprovalChange(before=approval, after=after))
    return None if in_time else "not run: the approval was not used in time; it may be asked again"


def why_not(approval: Approval) -> str:
    """What the caller is told when a call may not run."""
    comment = f": {approval.comment}" if approval.comment else ""
    match approval.answer:
        case Answer.EXPIRED:
            return "not run: nobody answered in time; it may be asked again"
        case Answer.DENIED:
            return f"not run: {approval.answered_by or 'a person'} denied it{comment}"
        case _:
            return f"not run: the question was closed ({approval.answer})"


def store_settlement(draft: Draft, ended: Task, found_out: Approval) -> None:
    """What a person found out about a call that had ended as unknown, as a fact of its own."""
    review = replace(found_out, id=new_approval_id(), task_id=ended.id)
    draft.write(review)
    payload = ToolCallSettled(
        **ends.call_fields(ended),
        approval=str(review.id),
        answer=review.answer,
        result=review.result,
        comment=review.comment,
    )
    draft.event(payload, causes=[ended.checkpoint.get("start_seq", ended.cause)], task=ended)
