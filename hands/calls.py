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

from hands.context import ToolContext
from hands.outcomes import NotFound, Retry, ToolError, Unknown
from hands.tool import BadArguments, Tool
from shared.engine import endings
from shared.engine.definition import Kind, Phase, Step
from shared.engine.draft import Draft
from shared.engine.run import Run
from shared.kernel.backoff import backoff_seconds
from shared.model.event import ToolCallError, ToolCallInterrupted, ToolCallStart, ToolCallSuccess
from shared.model.json import Json, clean_text
from shared.model.task import Attempt, Done, Fail, Interrupt, Next, Sleep, Task, Transition
from shared.model.tool import Replay
from shared.store.view import CLOCK

PIN_SECONDS = 60.0
LOOK_UPS = 10
"""Look-ups of one unknown effect before it stays unknown."""
ERROR_CHARACTERS = 2_000


def tool_kind(tool: Tool) -> Kind:
    """The task kind that runs calls of this tool."""
    return Kind(
        name=tool.kind,
        version=tool.version,
        first="call",
        phases={
            "call": Phase(run=partial(_call, tool), seconds=_pin_seconds, pinned=True),
            "execute": Phase(
                run=partial(_execute, tool),
                seconds=lambda _task: tool.timeout,
                whole_lease=tool.replay is Replay.UNSAFE,
            ),
            "reconcile": Phase(run=partial(_reconcile, tool), seconds=lambda _task: tool.timeout),
            "again": Phase(run=partial(_again, tool), seconds=_pin_seconds, pinned=True),
        },
    )


def _pin_seconds(_task: Task) -> float:
    return PIN_SECONDS


def _call(tool: Tool, run: Run) -> Step:
    """Validate, and store the intent; the author's validators have no effect yet, so what they raise is definite."""
    task = run.task
    try:
        arguments = tool.validate(task.input["arguments"])
        operation_id = tool.operation_id(str(task.id), arguments)
    except BadArguments as error:
        return Step(partial(_refuse, task=task, error=f"the arguments do not fit: {error}"))
    except Exception as error:  # noqa: BLE001 - validators and operation= are the author's code
        return Step(partial(_refuse, task=task, error=f"not run: {_text(error)}"))
    call = {
        "call_id": task.input["call_id"],
        "arguments": arguments,
        "operation_id": operation_id,
        "replay": tool.replay,
    }
    return Step(partial(_store_intent, tool=tool, task=task, call=call))


def _store_intent(draft: Draft, *, tool: Tool, task: Task, call: dict[str, Json]) -> Transition:
    acts_until = _acts_until(draft, tool)
    payload = ToolCallStart(**call, tool=tool.name, version=tool.version, acts_until=acts_until)
    seq = draft.event(payload, causes=[task.cause], task=draft.task(task.id))
    checkpoint = {"call": call, "start_seq": seq, "acts_until": acts_until.isoformat(), "runs": 1, "look_ups": 0}
    return Next("execute", checkpoint=checkpoint)


def _acts_until(draft: Draft, tool: Tool) -> datetime:
    return draft.now + timedelta(seconds=tool.timeout + tool.settle)


def _again(tool: Tool, run: Run) -> Step:
    """Store the intent of a further attempt of the same operation."""
    checkpoint = run.task.checkpoint

    def store(draft: Draft) -> Transition:
        acts_until = _acts_until(draft, tool)
        again = {"acts_until": acts_until.isoformat(), "runs": checkpoint["runs"] + 1}
        return Next("execute", checkpoint={**checkpoint, **again})

    return Step(store)


def _execute(tool: Tool, run: Run) -> Step:
    if run.task.phase_attempts > 1:
        return _recover(tool, run)
    return _attempt(tool, run)


def _recover(tool: Tool, run: Run) -> Step:
    """An earlier attempt ended without a commit: what it did is unknown."""
    task = run.task
    earlier = run.earlier_attempts()
    if (late := _late_result(earlier)) is not None:
        return Step(partial(_succeed, task=task, result=late["result"], source="late"))
    match _replay(tool, task):
        case Replay.SAFE:
            return _attempt(tool, run)
        case Replay.RECONCILE:
            return _go_and_look(tool, task, [each.deadline for each in earlier if each.phase == "execute"])
        case Replay.UNSAFE:
            last = earlier[-1] if earlier else None
            return Step(partial(_interrupt, task=task, error=_how_it_ended(tool, last), partial_output=_shown(last)))


def _replay(tool: Tool, task: Task) -> Replay:
    """The policy that both the stored intent and the tool as it is now allow."""
    stored = Replay(task.checkpoint["call"]["replay"])
    return stored if stored is tool.replay else Replay.UNSAFE


def _attempt(tool: Tool, run: Run) -> Step:
    """Run the tool and take its word; whatever is not its word leaves the effect unknown."""
    task = run.task
    try:
        value = tool.call(_context(run), task.checkpoint["call"]["arguments"])
    except ToolError as error:
        return Step(partial(_refuse, task=task, error=_text(error)))
    except BadArguments as error:
        return Step(partial(_refuse, task=task, error=f"the stored arguments no longer fit: {error}"))
    except Retry as error:
        return _try_again(tool, task, _text(error), error.after)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - every way out has its outcome
        return _unknown(tool, run, f"{type(error).__name__}: {_text(error)}")
    result = tool.result(value)
    return Step(partial(_succeed, task=task, result=result, source="run"), evidence={"result": result})


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


def _unknown(tool: Tool, run: Run, error: str) -> Step:
    task = run.task
    match _replay(tool, task):
        case Replay.SAFE:
            return _try_again(tool, task, error, None)
        case Replay.RECONCILE:
            assert task.deadline is not None
            return _go_and_look(tool, task, [task.deadline], error)
        case Replay.UNSAFE:
            return Step(partial(_interrupt, task=task, error=error, partial_output=run.shown or ""))


def _go_and_look(tool: Tool, task: Task, deadlines: list[datetime], error: str | None = None) -> Step:
    """Go on to the look-up; an attempt that was claimed after its intent can act for longer than the intent says."""
    stored = datetime.fromisoformat(task.checkpoint["acts_until"])
    acts_until = max([stored, *(deadline + timedelta(seconds=tool.settle) for deadline in deadlines)])
    checkpoint = {**task.checkpoint, "acts_until": acts_until.isoformat()}
    if error is not None:
        checkpoint["error"] = error
    return Step(lambda _draft: Next("reconcile", checkpoint=checkpoint))


def _try_again(tool: Tool, task: Task, error: str, after: float | None) -> Step:
    """A durable retry: nothing is held until its time."""
    runs = task.checkpoint["runs"]
    if runs > tool.retries:
        return Step(partial(_refuse, task=task, error=f"{error or 'failed'} (after {runs} attempts)"))
    seconds = backoff_seconds(runs, asked_for=after, spread=random.random())
    return Step(lambda _draft: Sleep(seconds, phase="again", checkpoint={**task.checkpoint, "error": error}))


def _reconcile(tool: Tool, run: Run) -> Step:
    """Find out by the operation id whether the effect happened."""
    task = run.task
    if (late := _late_result(run.earlier_attempts())) is not None:
        return Step(partial(_succeed, task=task, result=late["result"], source="late"))
    (clock,) = run.database.run(CLOCK())
    assert clock.first is not None
    asked_at: datetime = clock.first["now"]
    try:
        found = tool.find_effect(_context(run))
    except Exception as error:  # noqa: BLE001 - a look-up that fails says nothing
        return _ask_later(task, f"the look-up failed: {type(error).__name__}: {_text(error)}")
    match found:
        case Unknown():
            return _ask_later(task, "the look-up does not know yet")
        case NotFound():
            return _not_found(tool, task, asked_at)
        case _:
            return Step(partial(_succeed, task=task, result=tool.result(found), source="lookup"))


def _not_found(tool: Tool, task: Task, asked_at: datetime) -> Step:
    """It did not happen, if nothing sent before can still act; then it is run again, within the tool's retries."""
    acts_until = datetime.fromisoformat(task.checkpoint["acts_until"])
    assert tool.found_by is not None
    if not tool.found_by.dedupes and asked_at < acts_until:
        return Step(lambda _draft: Sleep(0, phase="reconcile", until=acts_until, checkpoint=task.checkpoint))
    if task.checkpoint["runs"] > tool.retries:
        error = f"{task.checkpoint.get('error', 'the worker died')} (after {task.checkpoint['runs']} attempts)"
        return Step(partial(_refuse, task=task, error=error))
    checkpoint = {**task.checkpoint, "look_ups": 0}
    if "error" not in checkpoint:
        return Step(lambda _draft: Next("again", checkpoint=checkpoint))
    seconds = backoff_seconds(task.checkpoint["runs"], spread=random.random())
    return Step(lambda _draft: Sleep(seconds, phase="again", checkpoint=checkpoint))


def _ask_later(task: Task, error: str) -> Step:
    look_ups = task.checkpoint["look_ups"] + 1
    if look_ups >= LOOK_UPS:
        reason = f"{task.checkpoint.get('error', 'the worker died')}; {error} (asked {look_ups} times)"
        return Step(partial(_interrupt, task=task, error=reason, partial_output=""))
    seconds = backoff_seconds(look_ups, spread=random.random())
    return Step(lambda _draft: Sleep(seconds, phase="reconcile", checkpoint={**task.checkpoint, "look_ups": look_ups}))


def _succeed(draft: Draft, *, task: Task, result: Json, source: str) -> Transition:
    payload = ToolCallSuccess(**endings.call_fields(task), result=result, source=source)
    draft.event(payload, causes=[task.checkpoint["start_seq"]], task=task)
    return Done(result)


def _refuse(draft: Draft, *, task: Task, error: str) -> Transition:
    """A definite failure, as a result that the caller can read."""
    cause = task.checkpoint.get("start_seq", task.cause)
    draft.event(ToolCallError(**endings.call_fields(task), error=error), causes=[cause], task=task)
    return Fail(error)


def _interrupt(draft: Draft, *, task: Task, error: str, partial_output: str) -> Transition:
    payload = ToolCallInterrupted(**endings.call_fields(task), partial=partial_output, error=error)
    draft.event(payload, causes=[task.checkpoint["start_seq"]], task=task)
    return Interrupt(error)


def _late_result(attempts: list[Attempt]) -> Json:
    """`{"result": ...}` of an attempt that ended after it had lost its claim, the best evidence there is; else None."""
    return next((each.late_result for each in attempts if each.late_result is not None), None)


def _how_it_ended(tool: Tool, last: Attempt | None) -> str:
    started = None if last is None else last.deadline - timedelta(seconds=tool.timeout)
    return f"the attempt that began at {started:%H:%M:%S} UTC ended without a result" if started else "no result"


def _shown(attempt: Attempt | None) -> str:
    return "" if attempt is None else attempt.progress


def _text(error: BaseException) -> str:
    return clean_text(str(error))[:ERROR_CHARACTERS]
