"""The flow task: an author's phases on the engine; `call` validates and starts, then each phase is a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from brainhands.hands.arguments import BadArguments
from brainhands.hands.flow import Flow, FlowPhase, FlowState, FlowStep, Spawn, TaskResult, Update, run_phase
from brainhands.hands.outcomes import ToolError
from brainhands.shared.engine import approvals, documents, ends
from brainhands.shared.engine.definition import Kind, Phase, PhaseResult, deciding_phase
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import BadDefinition, BadInput
from brainhands.shared.model import edge
from brainhands.shared.model.document import Document, StoredDocument
from brainhands.shared.model.event import TaskPhase, ToolCallStart, ToolCallSuccess
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Done, Fail, Next, Sleep, Status, Task, Transition, Wait, WaitSignal
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.rules import calls
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import derived, reads, workers
from brainhands.shared.store.database import Database

log = logger("flows")

MAX_DEPTH = 16
"""How many flows may be at work one inside the other."""


def flow_kind(flow: type[Flow]) -> Kind:
    """The task kind that runs this flow."""
    definition = flow.definition
    phases = {
        name: Phase(run=partial(_enter, flow, name), seconds=partial(_phase_seconds, phase))
        for name, phase in definition.phases.items()
    }
    if taken := phases.keys() & {"call", "answered"}:
        raise BadDefinition(f"{definition.name}: every flow has a phase {min(taken)} of its own", "rename the phase")
    start = deciding_phase(partial(_call, flow))
    answered = deciding_phase(partial(_answered, flow))
    return Kind(
        name=definition.kind,
        version=definition.version,
        oldest=definition.oldest,
        migrate=partial(_migrate, flow),
        phases={"call": start, "answered": answered, **phases},
    )


def _migrate(flow: type[Flow], task: Task) -> Task:
    """A flow of an older version in the form of the present one."""
    begun = task.phase not in ("call", "answered")
    call = task.checkpoint.get("call")
    state = flow.definition.migrated(
        FlowState(
            phase=task.phase if begun else None,
            arguments=call["arguments"] if call else task.input["arguments"],
            checkpoint=task.checkpoint.get("author"),
        ),
        task.version,
    )
    if call is None:
        return replace(task, input={**task.input, "arguments": state.arguments})
    checkpoint = {**task.checkpoint, "call": {**call, "arguments": state.arguments}}
    if not begun:
        return replace(task, checkpoint=checkpoint)
    return replace(task, phase=state.phase or task.phase, checkpoint={**checkpoint, "author": state.checkpoint})


def _phase_seconds(phase: FlowPhase, _task: Task) -> float:
    return phase.timeout


def _call(flow: type[Flow], run: Run) -> PhaseResult:
    """Validate the input, heed the agent's rule, and store that the flow starts."""
    if reads.calls_above(run.database, run.task.id, "flow:") >= MAX_DEPTH:
        error = f"not run: flows call each other no deeper than {MAX_DEPTH}"
        return PhaseResult(partial(ends.refuse_call, task=run.task, error=error))
    validate = partial(_validated, flow, run.task)
    read_as = partial(edge.call, flow.definition.arguments.read_as)
    return approvals.begin(run, validate, partial(_start, flow=flow, task=run.task), read_as)


def _validated(flow: type[Flow], task: Task, raw: Json) -> dict[str, Json] | str:
    """The call with its final arguments, or why it cannot run."""
    definition = flow.definition
    try:
        arguments = edge.call(definition.validate, raw, words=(BadArguments,))
    except BadArguments as error:
        return f"the arguments do not fit: {error}"
    except edge.ForeignError as error:
        return f"not run: {error}"
    call = {"call_id": task.input["call_id"], "arguments": arguments, "operation_id": str(task.id), "replay": None}
    return {**call, "tool": definition.name, "version": definition.version}


def _answered(flow: type[Flow], run: Run) -> PhaseResult:
    """Go on with a person's answer."""
    validate = partial(_validated, flow, run.task)
    return approvals.go_on(run, validate, partial(_start, flow=flow, task=run.task))


def _start(draft: Draft, call: dict[str, Json], causes: list[int], *, flow: type[Flow], task: Task) -> Transition:
    seq = draft.event(ToolCallStart(**call, acts_until=None), causes=causes, task=draft.task(task.id))
    kept = {name: call[name] for name in ("call_id", "arguments", "operation_id", "replay")}
    checkpoint = {"call": kept, "start_seq": seq, "last_seq": seq, "author": None}
    return Next(flow.definition.entry.name, checkpoint=checkpoint)


def _enter(flow: type[Flow], name: str, run: Run) -> PhaseResult:
    """Run one phase of the author's; what it raises beyond its words is tried again up to the restart limit.

    ToolError is its word for a failure. A mistake of the author's, such as a return value that cannot be carried out,
    would come again with each attempt, so it ends the flow at once and says what to write.
    """
    task = run.task
    try:
        step = edge.call(_decided, flow, name, run, words=(ToolError, BadInput))
        _check_wait(run.database, task, step)
        specs = _published(run.database, step)
    except ToolError as error:
        return PhaseResult(partial(ends.refuse_call, task=task, error=edge.text(error)))
    except BadInput as error:
        log.warning("flow_refused", task=task.id, kind=task.kind, phase=task.phase, reason=type(error).__name__)
        reason = ": ".join(part for part in (edge.text(error), error.next_step) if part)
        return PhaseResult(partial(ends.refuse_call, task=task, error=reason))
    return PhaseResult(partial(_store, task=task, step=step, specs=specs))


def _decided(flow: type[Flow], name: str, run: Run) -> FlowStep:
    task = run.task
    entered = flow(
        task_id=task.id,
        arguments=task.checkpoint["call"]["arguments"],
        checkpoint=task.checkpoint["author"],
        signal=task.checkpoint.get("signal"),
        read_document=edge.ours(partial(_read_document, run.database, task)),
        read_result=edge.ours(partial(_read_result, run.database, task)),
        write_progress=edge.ours(run.progress),
    )
    return run_phase(entered, name)


def _check_wait(database: Database, task: Task, step: FlowStep) -> None:
    """A flow waits for its children: of other tasks one could wait for it, and both for ever. Raises BadDefinition."""
    if not isinstance(step.transition, Wait):
        return
    known = {spawn.id for spawn in step.spawns}
    earlier = [each for each in step.transition.tasks if each not in known]
    if strangers := set(earlier) - reads.children(database, task.id, earlier):
        raise BadDefinition(
            f"{task.kind} waits in {task.phase} for task {min(strangers)}, which it did not spawn",
            "wait for ids that self.spawn returned",
        )


def _read_document(database: Database, task: Task, kind: type[Document]) -> Any:
    if kind.derived:
        return kind.read(derived.read(database, task.session_id, kind.kind))
    return _value(kind, reads.document(database, task.session_id, kind.kind))


def _value(kind: type[Document], stored: StoredDocument | None) -> Any:
    return None if stored is None else kind.read(stored)


def _read_result(database: Database, owner: Task, task_id: TaskId) -> TaskResult | None:
    child = reads.task(database, task_id)
    if child is None or child.owner_id != owner.id or child.status is not Status.DONE or child.outcome is None:
        return None
    return TaskResult(outcome=child.outcome, result=child.result, error=child.error)


def _published(database: Database, step: FlowStep) -> Mapping[str, ToolSpec]:
    """The specs of children that were named only. Raises BadDefinition for a name that nobody published."""
    names = [_reference(spawn) for spawn in step.spawns if spawn.kind is None]
    if not names:
        return {}
    specs = workers.read_catalogue(database)
    found = {name: workers.newest_specs(specs, [name]) for name in names}
    if missing := [name for name, (_, not_found) in found.items() if not_found]:
        raise BadDefinition(f"no Hands worker has published {', '.join(missing)}", "start a worker that offers it")
    return {name: specs[0] for name, (specs, _) in found.items()}


def _reference(spawn: Spawn) -> str:
    return spawn.name if spawn.version is None else f"{spawn.name}@{spawn.version}"


def _store(draft: Draft, *, task: Task, step: FlowStep, specs: Mapping[str, ToolSpec]) -> Transition:
    """Documents, children and the flow's own move are one commit."""
    for update in step.updates:
        _change(draft, update)
    for spawn in step.spawns:
        _spawn(draft, task, spawn, specs)
    transition = step.transition
    match transition:
        case Done(result=result):
            payload = ToolCallSuccess(**ends.call_fields(task), result=result)
            draft.event(payload, causes=[task.checkpoint["last_seq"]], task=task)
            return transition
        case Fail(error=error):
            ends.refuse_call(draft, task=task, error=error)
            return transition
        case Next(phase=phase, checkpoint=checkpoint):
            return Next(phase, _moved(draft, task, phase, "running", checkpoint))
        case Sleep(phase=phase, checkpoint=checkpoint):
            moved = _moved(draft, task, phase, "sleeping", checkpoint)
            return Sleep(transition.seconds, phase, moved, transition.until)
        case WaitSignal(phase=phase, checkpoint=checkpoint):
            return replace(transition, checkpoint=_moved(draft, task, phase, "waiting", checkpoint))
        case Wait(tasks=tasks, phase=phase, checkpoint=checkpoint):
            return Wait(tasks, phase, _moved(draft, task, phase, "waiting", checkpoint), transition.fail_fast)


def _change(draft: Draft, update: Update) -> None:
    kind = update.document

    def change(stored: StoredDocument | None) -> Json:
        changed = edge.call(update.change, _value(kind, stored))
        if not isinstance(changed, kind):
            raise BadDefinition(
                f"a change of document {kind.kind} gave {type(changed).__name__}", f"let it return a {kind.__name__}"
            )
        return edge.call(partial(changed.model_dump, mode="json"))

    documents.change(draft, kind.kind, kind.kind, kind.schema_version, change)


def _spawn(draft: Draft, owner: Task, spawn: Spawn, specs: Mapping[str, ToolSpec]) -> None:
    spec = specs.get(_reference(spawn))
    kind, version = (spec.kind, spec.version) if spec else (spawn.kind, spawn.version)
    assert kind is not None
    assert version is not None
    draft.spawn(
        calls.call_task(
            spawn.id,
            owner=owner,
            kind=kind,
            version=version,
            call_id=None,
            arguments=spawn.arguments,
            cause=owner.checkpoint["last_seq"],
            now=draft.now,
        )
    )


def _moved(draft: Draft, task: Task, phase: str, status: str, author: Json) -> Json:
    payload = TaskPhase(kind=task.kind, phase=task.phase, next_phase=phase, status=status)
    seq = draft.event(payload, causes=[task.checkpoint["last_seq"]], task=task)
    kept = task.checkpoint["author"] if author is None else author
    return {**task.checkpoint, "last_seq": seq, "author": kept}
