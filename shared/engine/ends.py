"""Ends that the engine itself writes: a lease that ran out, a task that keeps crashing, a cancel, a submission's end.

A cancel is a stored intent that goes down the tree of owners; what is owned ends before its owner. A task that nobody
runs ends in the same commit, in whatever status it is and without any worker. One that runs is marked: its keeper tells
the phase, and shortens the lease, so that what does not listen ends soon as well. A completion that was stored first
wins, and so does one that comes from the running phase; nothing new is made under a task that shall end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from pydantic import ValidationError

from brainhands.shared.engine import inbox, questions
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.event import (
    ModelInterrupted,
    TaskCancelled,
    TaskFailed,
    TaskRecovered,
    ToolCallError,
    ToolCallInterrupted,
    ToolEvent,
    Usage,
)
from brainhands.shared.model.ids import SubmissionId, TaskId, new_task_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.prices import Prices
from brainhands.shared.model.task import Fail, Outcome, Status, Task
from brainhands.shared.rules import background, moves, recovery
from brainhands.shared.rules.first_work import GENERATION
from brainhands.shared.rules.owners import owned_first, with_owned
from brainhands.shared.rules.tokens import CHARACTERS_A_TOKEN, MOST_TOKENS, estimate_text

RETRY_PAUSE_SECONDS = 1.0
"""Wait before a task whose attempt crashed is hinted again, times its attempts."""


def end_attempt(draft: Draft, task: Task, reason: str, restart_limit: int) -> None:
    """The claim of a running task is over without a commit: it runs again, or fails at the restart limit.

    One that is to be cancelled ends now.
    """
    task = draft.task(task.id)
    if task.cancel_wanted:
        cancel(draft, task)
        return
    if recovery.asked_the_model(task):
        keep_partial_text(draft, task, reason)
    if not recovery.may_run_again(task, restart_limit):
        fail(draft, task, f"stopped after {task.phase_attempts} attempts in phase {task.phase}: {reason}")
        return
    payload = TaskRecovered(kind=task.kind, phase=task.phase, reason=reason, attempts=task.phase_attempts)
    draft.event(payload, causes=task.causes, task=task)
    draft.change(moves.expire(task))
    if task.phase_attempts > 1:
        draft.hint_delays[task.id] = RETRY_PAUSE_SECONDS * (task.phase_attempts - 1)


def keep_partial_text(draft: Draft, task: Task, reason: str) -> None:
    """What a model request showed before it was cut stays as a record; its tokens, in and out, are an estimate."""
    shown = _shown(draft, task)
    # Not read as a ModelRequest: one of a newer version must not keep this process from ending the attempt.
    request = task.checkpoint.get("request") or task.input.get("request") or {}
    handle = background.handle(task)
    asked = handle["tokens_in"] if handle else _asked(draft, task, request)
    usage = Usage(tokens_in=asked, tokens_out=estimate_text(shown), estimated=True)
    payload = ModelInterrupted(text=shown, reason=reason, usage=usage.charged(_prices(request)))
    cause = task.checkpoint.get("request_seq")
    draft.event(payload, causes=[cause] if cause else task.causes, task=task)


def _prices(request: dict[str, Json]) -> Prices | None:
    """What a request is charged at; nothing where newer code has pinned prices that this code does not read."""
    try:
        return Prices.model_validate(request["prices"]) if request.get("prices") else None
    except ValidationError:
        return None


def _asked(draft: Draft, task: Task, request: dict[str, Json]) -> int:
    """About how many tokens a request has."""
    if task.conversation_id is None or "cutoff" not in request:
        return 0
    tokens, characters = draft.locked.context_size(task.conversation_id, request["cutoff"])
    return min(MOST_TOKENS, tokens + characters // CHARACTERS_A_TOKEN)


def give_up_response(draft: Draft, generation: Task) -> None:
    """Nobody waits any more for what the provider works on for this generation: a task of its own has it stop."""
    if handle := background.handle(generation):
        draft.add(background.response_cancel_task(new_task_id(), generation, handle["response_id"], now=draft.now))


def fail(draft: Draft, task: Task, error: str) -> None:
    """End a task that its own code cannot end, and close what it leaves open."""
    questions.close(draft, task)
    seq = draft.event(TaskFailed(kind=task.kind, phase=task.phase, error=error), causes=task.causes, task=task)
    if task.kind == GENERATION:
        if background.handle(task):
            keep_partial_text(draft, task, error)
            give_up_response(draft, task)
        end_generation(draft, task, Outcome.FAILED, causes=[seq], error=error)
        draft.finish(task, Outcome.FAILED, error=error)
    elif recovery.effect_is_unknown(task):
        _leave_unknown(draft, task, error, cause=seq)
    elif recovery.is_call(task):
        draft.event(ToolCallError(**call_fields(task), error=error), causes=[seq], task=task)
        draft.finish(task, Outcome.FAILED, error=error)
    else:
        draft.finish(task, Outcome.FAILED, error=error)


def cancel(draft: Draft, task: Task) -> None:
    """End a task for a cancel; a call whose intent is stored may have acted, and ends as unknown."""
    if background.handle(task) or (task.status is Status.RUNNING and recovery.asked_the_model(task)):
        keep_partial_text(draft, task, "cancelled")
    give_up_response(draft, task)
    questions.close(draft, task)
    seq = draft.event(TaskCancelled(kind=task.kind, phase=task.phase), causes=task.causes, task=task)
    if recovery.effect_is_unknown(task):
        _leave_unknown(draft, task, "cancelled; its effect may have happened", cause=seq)
        return
    if recovery.is_call(task):
        error = "cancelled while it was at work" if "start_seq" in task.checkpoint else "cancelled before it ran"
        draft.event(ToolCallError(**call_fields(task), error=error), causes=[seq], task=task)
    draft.finish(task, Outcome.CANCELLED, error="cancelled")


def cancel_trees(draft: Draft, roots: Iterable[TaskId], open_tasks: Mapping[TaskId, Task]) -> None:
    """Cancel tasks and all they own, deepest first; `open_tasks` are all open ones of the session."""
    draft.load(open_tasks.values())
    owners = {task.id: task.owner_id for task in open_tasks.values()}
    wanted = with_owned(roots, owners)
    for task_id in owned_first(owners):
        task = draft.task(task_id)
        if task_id not in wanted or not task.is_open or task_id in draft.finishing:
            continue
        if task.status is Status.COMPLETING or task.cancel_wanted:
            continue
        if task.status is Status.RUNNING:
            draft.change(moves.want_cancel(task))
        else:
            cancel(draft, task)


def _leave_unknown(draft: Draft, task: Task, error: str, *, cause: int) -> None:
    shown = task.checkpoint.get("partial") or _shown(draft, task)
    draft.event(ToolCallInterrupted(**call_fields(task), partial=shown, error=error), causes=[cause], task=task)
    draft.finish(task, Outcome.INTERRUPTED, error=error)


def _shown(draft: Draft, task: Task) -> str:
    """What the last attempt had shown."""
    last = draft.locked.last_attempt(task.id)
    return "" if last is None else last.progress


def end_generation(
    draft: Draft,
    task: Task,
    outcome: Outcome,
    *,
    causes: list[int],
    output: Json = None,
    error: str | None = None,
) -> None:
    """The last generation for an input ends its submission, and those whose input joined it."""
    for submission_id in submissions_of(task):
        inbox.end_submission(draft, submission_id, outcome, causes=causes, task=task, output=output, error=error)


def submissions_of(generation: Task) -> list[SubmissionId]:
    """The submissions that a generation answers; one that another agent asked for answers that agent."""
    if generation.owner_id is not None:
        return []
    joined = generation.checkpoint.get("joined", generation.input.get("joined", []))
    first = [] if generation.submission_id is None else [generation.submission_id]
    return [*first, *(SubmissionId(UUID(each)) for each in joined)]


def refuse_call(draft: Draft, *, task: Task, error: str) -> Fail:
    """End a call as a definite failure, with a result that its caller can read."""
    draft.event(ToolCallError(**call_fields(task), error=error), causes=[last_seq(task)], task=task)
    return Fail(error)


def last_seq(task: Task) -> int:
    """The event that a call stands at: a flow's last phase, a person's answer, a question, its intent, its caller."""
    answered = (task.checkpoint.get("signal") or {}).get("answered_seq")
    known: list[int | None] = [
        answered,
        *(task.checkpoint.get(each) for each in ("last_seq", "asked_seq", "start_seq")),
    ]
    return max([task.cause, *(seq for seq in known if seq is not None)])


def call_fields(task: Task) -> dict[str, Json]:
    """What every event of a tool call or flow says of it; final arguments once its intent is stored."""
    fields = {**task.input, **task.checkpoint.get("call", {})}
    return {
        **{name: fields.get(name) for name in ToolEvent.model_fields},
        "tool": task.kind.partition(":")[2],
        "version": task.version,
    }
