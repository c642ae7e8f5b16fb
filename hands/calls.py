"""The tool-call task: intent, effect, result, and what is done when the effect is unknown.

    call -> execute -> done
               |  Retry, or an exception of a safe tool: sleeping -> again -> execute
               |  unknown effect of a reconcile tool: reconcile -> (sleeping) -> found: done | not found: again

`call` validates and commits the intent: final arguments, operation id, replay policy, and `acts_until`, the time until
which this attempt can still take effect. `again` commits the intent of a further attempt. A claim of `execute` that
finds earlier attempts without a commit does not know what they did; the replay policy decides, which is the stored one
only where the tool's present definition says the same.

| replay | effect unknown |
|---|---|
| unsafe | interrupted, with what it had shown; never run again |
| safe | run again with the stored arguments and operation id |
| reconcile | a late result, else the look-up; "not found" counts where the service deduplicates or after `acts_until` |
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from brainhands.hands.arguments import BadArguments
from brainhands.hands.context import ToolContext
from brainhands.hands.outcomes import NotFound, Retry, ToolError, Unknown, shortest_result
from brainhands.hands.policy import Decision
from brainhands.hands.tool import AnyTool
from brainhands.shared.engine import approvals, ends
from brainhands.shared.engine.definition import Decide, Kind, Phase, PhaseResult, deciding_phase
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import BadInput
from brainhands.shared.model import edge
from brainhands.shared.model.approval import Answer, Approval, Question
from brainhands.shared.model.event import PolicyDecided, ToolCallInterrupted, ToolCallStart, ToolCallSuccess
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Attempt, Done, Interrupt, Next, Sleep, Task, Transition
from brainhands.shared.model.tool import Replay
from brainhands.shared.rules.backoff import backoff_seconds
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import reads
from brainhands.shared.store.locked import CLOCK

LOOK_UPS = 10
"""Look-ups of one unknown effect before it stays unknown."""

log = logger("calls")


def tool_kind(tool: AnyTool) -> Kind:
    """The task kind that runs calls of this tool."""
    return Kind(
        name=tool.kind,
        version=tool.version,
        oldest=tool.accepts,
        phases={
            "call": deciding_phase(partial(_call, tool)),
            "execute": Phase(
                run=partial(_execute, tool),
                seconds=lambda _task: tool.timeout,
                whole_lease=tool.replay is Replay.UNSAFE,
            ),
            "reconcile": Phase(run=partial(_reconcile, tool), seconds=lambda _task: tool.timeout),
            "again": deciding_phase(partial(_again, tool)),
            "answered": deciding_phase(partial(_answered, tool)),
            "reviewed": deciding_phase(partial(_reviewed, tool)),
        },
    )


def _call(tool: AnyTool, run: Run) -> PhaseResult:
    """Validate, judge, and store the intent."""
    task = run.task
    judged = _judged(tool, task, task.input["arguments"])
    if isinstance(judged, str):
        return PhaseResult(partial(ends.refuse_call, task=task, error=judged))
    call, decision = judged
    return PhaseResult(partial(_begin, tool=tool, task=task, call=call, decision=decision))


def _judged(tool: AnyTool, task: Task, raw: Json) -> tuple[dict[str, Json], Decision] | str:
    """The final call and what the rules say of it, or why it cannot run.

    The author's validators and rules have no effect yet, so what they raise is definite.
    """
    try:
        arguments = edge.call(tool.validate, raw, words=(BadArguments,))
        operation_id = tool.operation_id(str(task.id), arguments)
        decision = tool.judge(arguments, task.input.get("rule"))
    except BadArguments as error:
        return f"the arguments do not fit: {error}"
    except (edge.ForeignError, BadInput) as error:
        return f"not run: {error}"
    call_id = task.input["call_id"]
    call = {"call_id": call_id, "arguments": arguments, "operation_id": operation_id, "replay": tool.replay}
    return call, decision


def _begin(
    draft: Draft,
    *,
    tool: AnyTool,
    task: Task,
    call: dict[str, Json],
    decision: Decision,
    found_out: str | None = None,
) -> Transition:
    """Let the call run, refuse it, or ask: about itself, or about an equal one whose effect is still unknown.

    `found_out` is the equal one of which a person has just found out that it did not happen.
    """
    owned = draft.task(task.id)
    causes = [ends.last_seq(task)]
    if decision.rule != "allow" or tool.policy != "allow":
        decided = PolicyDecided(**_named(tool, call), rule=decision.rule, by=decision.by)
        causes = [draft.event(decided, causes=causes, task=owned)]
    # A denial comes first: people are asked only about what may run. An equal call whose effect is unknown comes before
    # an approval, since what is found out about it decides whether there is anything left to approve.
    if decision.rule == "deny":
        return ends.refuse_call(draft, task=task, error=f"denied by a rule of the {decision.by}")
    if (earlier := _equal_unknown(draft, tool, call, found_out)) is not None:
        about = f"an equal call (task {earlier.id}) ended without it being known whether it took effect"
        more = {"of": str(earlier.id)}
        return approvals.ask(draft, task, _named(tool, call), Question.REVIEW, about, causes, more=more)
    if decision.rule == "ask":
        about = approvals.why_asked(decision.by, decision.read_as)
        return approvals.ask(draft, task, _named(tool, call), Question.APPROVAL, about, causes, decision.ask)
    return _store_intent(draft, tool=tool, task=task, call=call, causes=causes)


def _equal_unknown(draft: Draft, tool: AnyTool, call: dict[str, Json], found_out: str | None = None) -> Task | None:
    """A call with the same arguments in this session that may have acted; a safe tool may act twice."""
    if tool.replay is Replay.SAFE:
        return None
    return next(
        (
            task
            for task in draft.locked.unknown_calls(tool.kind)
            if task.checkpoint.get("call", {}).get("arguments") == call["arguments"] and str(task.id) != found_out
        ),
        None,
    )


def _answered(tool: AnyTool, run: Run) -> PhaseResult:
    """Go on with a person's answer; proposed arguments are validated and judged like those of the model."""
    task = run.task
    approval = approvals.asked(run)
    call = task.checkpoint["call"]
    if approval.is_proposed:
        judged = _judged(tool, task, approval.edited_arguments)
        if isinstance(judged, str):
            return PhaseResult(partial(approvals.ask_again, task=task, approval=approval, reason=judged))
        call, decision = judged
        if decision.rule == "deny":
            reason = f"a rule of the {decision.by} denies them"
            return PhaseResult(partial(approvals.ask_again, task=task, approval=approval, reason=reason))
    elif approval.holds is not Answer.APPROVED:
        return PhaseResult(partial(ends.refuse_call, task=task, error=approvals.why_not(approval)))
    return PhaseResult(partial(_use_approval, tool=tool, task=task, call=call, approval=approval))


def _use_approval(draft: Draft, *, tool: AnyTool, task: Task, call: dict[str, Json], approval: Approval) -> Transition:
    """The approval is used up by the commit that stores the intent, and covers every attempt of this operation."""
    if _equal_unknown(draft, tool, call) is not None:
        reason = "an equal call ended without it being known whether it took effect"
        if approval.is_proposed:
            return approvals.ask_again(draft, task=task, approval=approval, reason=reason)
        return ends.refuse_call(draft, task=task, error=f"not run: meanwhile {reason}")
    if (refusal := approvals.use(draft, task, approval)) is not None:
        return ends.refuse_call(draft, task=task, error=refusal)
    answered = [task.checkpoint["signal"]["answered_seq"]]
    return _store_intent(draft, tool=tool, task=task, call=call, causes=answered)


def _reviewed(tool: AnyTool, run: Run) -> PhaseResult:
    """Go on with what a person found out about an effect: of this call, or of an equal one before it."""
    task = run.task
    approval = approvals.asked(run)
    earlier = reads.task(run.database, TaskId(UUID(task.checkpoint["of"]))) if "of" in task.checkpoint else None
    decide: Decide
    comment = f": {approval.comment}" if approval.comment else ""
    match approval.holds:
        case Answer.HAPPENED:
            decide = partial(_succeed, task=task, result=approval.result, source="review")
        case Answer.DID_NOT_HAPPEN if earlier is not None:
            judged = _judged(tool, task, task.checkpoint["call"]["arguments"])
            if isinstance(judged, str):
                decide = partial(ends.refuse_call, task=task, error=judged)
            else:
                call, decision = judged
                decide = partial(
                    _begin, tool=tool, task=task, call=call, decision=decision, found_out=task.checkpoint["of"]
                )
        case Answer.DID_NOT_HAPPEN:
            decide = partial(ends.refuse_call, task=task, error=f"a person found that it did not happen{comment}")
        case _:
            error = f"{approval.about}; nobody could tell{comment}"
            shown = task.checkpoint.get("partial", "")
            return PhaseResult(partial(_leave_unknown, task=task, error=error, partial_output=shown))
    return PhaseResult(partial(_settle_and, decide=decide, earlier=earlier, approval=approval))


def _settle_and(draft: Draft, *, decide: Decide, earlier: Task | None, approval: Approval) -> Transition:
    """What was found out about an equal call before this one settles that one too."""
    if earlier is not None:
        approvals.store_settlement(draft, earlier, approval)
    return decide(draft)


def _store_intent(draft: Draft, *, tool: AnyTool, task: Task, call: dict[str, Json], causes: list[int]) -> Transition:
    # The intent is committed before the tool runs: whoever finds the task in `execute` knows that it may have acted.
    acts_until = _acts_until(draft, tool)
    payload = ToolCallStart(**_named(tool, call), acts_until=acts_until)
    seq = draft.event(payload, causes=causes, task=draft.task(task.id))
    checkpoint = {"call": call, "start_seq": seq, "acts_until": acts_until.isoformat(), "runs": 1, "look_ups": 0}
    return Next("execute", checkpoint=checkpoint)


def _named(tool: AnyTool, call: dict[str, Json]) -> dict[str, Json]:
    return {**call, "tool": tool.name, "version": tool.version}


def _acts_until(draft: Draft, tool: AnyTool) -> datetime:
    return draft.now + timedelta(seconds=tool.timeout + tool.settle)


def _again(tool: AnyTool, run: Run) -> PhaseResult:
    """Store the intent of a further attempt of the same operation."""
    checkpoint = run.task.checkpoint

    def store(draft: Draft) -> Transition:
        acts_until = _acts_until(draft, tool)
        again = {"acts_until": acts_until.isoformat(), "runs": checkpoint["runs"] + 1}
        return Next("execute", checkpoint={**checkpoint, **again})

    return PhaseResult(store)


def _execute(tool: AnyTool, run: Run) -> PhaseResult:
    # The present claim is counted too, so a second one means that an earlier one ended without a commit.
    if run.task.phase_attempts > 1:
        return _recover(tool, run)
    return _attempt(tool, run)


def _recover(tool: AnyTool, run: Run) -> PhaseResult:
    """An earlier attempt ended without a commit: what it did is unknown."""
    task = run.task
    earlier = run.earlier_attempts()
    # A late result is proof that the effect happened, whatever the replay policy would do.
    if (late := _late_result(earlier)) is not None:
        return _succeeded(task, late["result"], "late")
    match _replay(tool, task):
        case Replay.SAFE:
            return _attempt(tool, run)
        case Replay.RECONCILE:
            return _go_and_look(tool, task, [each.deadline for each in earlier if each.phase == "execute"])
        case Replay.UNSAFE:
            last = earlier[-1] if earlier else None
            return PhaseResult(
                partial(_interrupt, tool=tool, task=task, error=_how_it_ended(tool, last), partial_output=_shown(last))
            )


def _replay(tool: AnyTool, task: Task) -> Replay:
    """The policy that both the stored intent and the tool as it is now allow."""
    stored = Replay(task.checkpoint["call"]["replay"])
    return stored if stored is tool.replay else Replay.UNSAFE


def _attempt(tool: AnyTool, run: Run) -> PhaseResult:
    """Run the tool and take its word; whatever is not its word leaves the effect unknown."""
    task = run.task
    # The arguments are read before the tool is entered: what its body raises, BadArguments of another tool included,
    # may come after its effect.
    try:
        named = edge.call(tool.arguments.named, task.checkpoint["call"]["arguments"], words=(BadArguments,))
    except (BadArguments, edge.ForeignError) as error:
        return PhaseResult(partial(ends.refuse_call, task=task, error=f"the stored arguments no longer fit: {error}"))
    try:
        value = tool.call(_context(run), named)
    except ToolError as error:
        return PhaseResult(partial(ends.refuse_call, task=task, error=edge.text(error)))
    except Retry as error:
        return _try_again(tool, task, edge.text(error), error.after)
    except edge.ForeignError as error:
        log.warning("tool_raised", task=task.id, tool=tool.name, error=type(error.__cause__).__name__)
        return _unknown(tool, run, str(error))
    return _succeeded(task, tool.result(value), "run")


def _context(run: Run) -> ToolContext:
    task = run.task
    assert task.deadline is not None
    return ToolContext(
        operation_id=task.checkpoint["call"]["operation_id"],
        task_id=task.id,
        session_id=task.session_id,
        attempt=task.checkpoint["runs"] + task.phase_attempts - 1,
        deadline=task.deadline,
        write_progress=run.progress,
        ask_cancelled=lambda: run.cancelled or run.stopped,
    )


def _unknown(tool: AnyTool, run: Run, error: str) -> PhaseResult:
    task = run.task
    match _replay(tool, task):
        case Replay.SAFE:
            return _try_again(tool, task, error, None)
        case Replay.RECONCILE:
            assert task.deadline is not None
            return _go_and_look(tool, task, [task.deadline], error)
        case Replay.UNSAFE:
            return PhaseResult(partial(_interrupt, tool=tool, task=task, error=error, partial_output=run.shown or ""))


def _go_and_look(tool: AnyTool, task: Task, deadlines: list[datetime], error: str | None = None) -> PhaseResult:
    """Go on to the look-up; an attempt that was claimed after its intent can act for longer than the intent says."""
    stored = datetime.fromisoformat(task.checkpoint["acts_until"])
    acts_until = max([stored, *(deadline + timedelta(seconds=tool.settle) for deadline in deadlines)])
    checkpoint = {**task.checkpoint, "acts_until": acts_until.isoformat()}
    if error is not None:
        checkpoint["error"] = error
    return PhaseResult(lambda _draft: Next("reconcile", checkpoint=checkpoint))


def _try_again(tool: AnyTool, task: Task, error: str, after: float | None) -> PhaseResult:
    """A durable retry: nothing is held until its time."""
    runs = task.checkpoint["runs"]
    if runs > tool.retries:
        return PhaseResult(partial(ends.refuse_call, task=task, error=f"{error or 'failed'} (after {runs} attempts)"))
    seconds = backoff_seconds(runs, asked_for=after, spread=random.random())
    return PhaseResult(lambda _draft: Sleep(seconds, phase="again", checkpoint={**task.checkpoint, "error": error}))


def _reconcile(tool: AnyTool, run: Run) -> PhaseResult:
    """Find out by the operation id whether the effect happened."""
    task = run.task
    if (late := _late_result(run.earlier_attempts())) is not None:
        return _succeeded(task, late["result"], "late")
    # The time is taken before the look-up: what it does not find may have come while it looked.
    (clock,) = run.database.run(CLOCK())
    assert clock.first is not None
    asked_at: datetime = clock.first["now"]
    try:
        found = tool.find_effect(_context(run))
    except edge.ForeignError as error:
        return _ask_later(tool, task, f"the look-up failed: {error}")
    match found:
        case Unknown():
            return _ask_later(tool, task, "the look-up does not know yet")
        case NotFound():
            return _not_found(tool, task, asked_at)
        case _:
            return _succeeded(task, tool.result(found), "lookup")


def _not_found(tool: AnyTool, task: Task, asked_at: datetime) -> PhaseResult:
    """It did not happen, if nothing sent before can still act; then it is run again, within the tool's retries."""
    acts_until = datetime.fromisoformat(task.checkpoint["acts_until"])
    assert tool.found_by is not None
    if not tool.found_by.dedupes and asked_at < acts_until:
        return PhaseResult(lambda _draft: Sleep(0, phase="reconcile", until=acts_until, checkpoint=task.checkpoint))
    if task.checkpoint["runs"] > tool.retries:
        error = f"{task.checkpoint.get('error', 'the worker died')} (after {task.checkpoint['runs']} attempts)"
        return PhaseResult(partial(ends.refuse_call, task=task, error=error))
    checkpoint = {**task.checkpoint, "look_ups": 0}
    if "error" not in checkpoint:
        return PhaseResult(lambda _draft: Next("again", checkpoint=checkpoint))
    seconds = backoff_seconds(task.checkpoint["runs"], spread=random.random())
    return PhaseResult(lambda _draft: Sleep(seconds, phase="again", checkpoint=checkpoint))


def _ask_later(tool: AnyTool, task: Task, error: str) -> PhaseResult:
    look_ups = task.checkpoint["look_ups"] + 1
    if look_ups >= LOOK_UPS:
        reason = f"{task.checkpoint.get('error', 'the worker died')}; {error} (asked {look_ups} times)"
        return PhaseResult(partial(_interrupt, tool=tool, task=task, error=reason, partial_output=""))
    seconds = backoff_seconds(look_ups, spread=random.random())
    return PhaseResult(
        lambda _draft: Sleep(seconds, phase="reconcile", checkpoint={**task.checkpoint, "look_ups": look_ups})
    )


def _succeeded(task: Task, result: Json, source: str) -> PhaseResult:
    """The effect has happened: whatever becomes of the commit, its result is not lost, and it does not happen again."""
    succeed = partial(_succeed, task=task, source=source)
    return PhaseResult(
        partial(succeed, result=result),
        instead=partial(succeed, result=shortest_result(result)),
        evidence={"result": result},
    )


def _succeed(draft: Draft, *, task: Task, result: Json, source: str) -> Transition:
    payload = ToolCallSuccess(**ends.call_fields(task), result=result, source=source)
    draft.event(payload, causes=[ends.last_seq(task)], task=task)
    return Done(result)


def _interrupt(draft: Draft, *, tool: AnyTool, task: Task, error: str, partial_output: str) -> Transition:
    """The effect stays unknown: the tool says whether the model is told, or a person is asked."""
    if tool.unknown == "review":
        call, causes = task.checkpoint["call"], [task.checkpoint["start_seq"]]
        more = {"partial": partial_output}
        return approvals.ask(draft, task, _named(tool, call), Question.REVIEW, error, causes, more=more)
    return _leave_unknown(draft, task=task, error=error, partial_output=partial_output)


def _leave_unknown(draft: Draft, *, task: Task, error: str, partial_output: str) -> Transition:
    payload = ToolCallInterrupted(**ends.call_fields(task), partial=partial_output, error=error)
    draft.event(payload, causes=[ends.last_seq(task)], task=task)
    return Interrupt(error)


def _late_result(attempts: list[Attempt]) -> Json:
    """`{"result": ...}` of an attempt that ended after it had lost its claim, the best evidence there is; else None."""
    return next((each.late_result for each in attempts if each.late_result is not None), None)


def _how_it_ended(tool: AnyTool, last: Attempt | None) -> str:
    started = None if last is None else last.deadline - timedelta(seconds=tool.timeout)
    return f"the attempt that began at {started:%H:%M:%S} UTC ended without a result" if started else "no result"


def _shown(attempt: Attempt | None) -> str:
    return "" if attempt is None else attempt.progress
