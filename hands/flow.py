"""Business flows: a class whose phases are the durable steps of one task.

A phase runs from its start each time it is entered, also after a crash, and what it asks for (children, changes of
documents, the next phase) is stored by the one commit that ends it. So a phase may run again, but nothing it asked for
happens twice. Effects on the outside world belong into tools, which it spawns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_jsonable_python

from brainhands.hands.arguments import Arguments, arguments_of
from brainhands.hands.outcomes import result_adapter, stored_result
from brainhands.hands.tool import (
    DEFAULT_POOL,
    OUTPUT_LIMIT_BYTES,
    AnyTool,
    Tool,
    check_identity,
    run_to_end,
    signature_of,
)
from brainhands.shared.errors import BadDefinition, NotStorable
from brainhands.shared.model import edge
from brainhands.shared.model.bounds import check_seconds, check_time, shown
from brainhands.shared.model.document import Document
from brainhands.shared.model.ids import TaskId, new_task_id
from brainhands.shared.model.json import Json, clean, clean_text
from brainhands.shared.model.signal import name_problem
from brainhands.shared.model.task import Done, Fail, Next, Outcome, Sleep, Wait, WaitSignal
from brainhands.shared.model.tool import ToolSpec

DEFAULT_PHASE_SECONDS = 60.0
MAX_CHILDREN = 10_000
"""That one step makes, or waits for."""
CHECKPOINT_BYTES = 1024 * 1024
"""What a flow keeps for its next phase is written again with each step."""

AnyDocument = TypeVar("AnyDocument", bound=Document)
FlowTransition: TypeAlias = Next | Sleep | Wait | WaitSignal | Done | Fail


@dataclass(frozen=True, slots=True)
class FlowPhase:
    """One durable step of a flow; `timeout` is seconds for one attempt at it."""

    name: str
    function: Callable[..., Any]
    timeout: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowState:
    """What is stored of a flow under way: the phase that comes next, its input, and what the last phase left for it.

    Before a flow has begun, `phase` and `checkpoint` are None.
    """

    phase: str | None
    arguments: Any
    checkpoint: Json


Migration: TypeAlias = Callable[[FlowState], FlowState]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowDefinition:
    """A flow as defined: what is published, and its phases in the order declared."""

    name: str
    version: int
    description: str
    pool: str
    phases: Mapping[str, FlowPhase]
    arguments: Arguments
    migrations: Mapping[int, Migration]
    """From a version to the next; those that are there lead up to this one without a gap."""

    @property
    def oldest(self) -> int:
        """The oldest version whose stored flows this one goes on with."""
        return min(self.migrations, default=self.version)

    def migrated(self, state: FlowState, version: int) -> FlowState:
        """The state of a flow of an older version in the form of this one. Raises BadDefinition."""
        # Copies, for a migration that changes what it is given.
        state = replace(state, arguments=clean(state.arguments), checkpoint=clean(state.checkpoint))
        for step in range(version, self.version):
            state = self.migrations[step](state)
        if state.phase is not None:
            self.phase(state.phase)
        return replace(state, arguments=clean(state.arguments), checkpoint=clean(state.checkpoint))

    @property
    def kind(self) -> str:
        return f"flow:{self.name}"

    @property
    def entry(self) -> FlowPhase:
        """The first phase; its parameters are the flow's input."""
        return next(iter(self.phases.values()))

    def phase(self, name: str) -> FlowPhase:
        """The phase of that name. Raises BadDefinition."""
        if name not in self.phases:
            raise BadDefinition(f"flow {self.name} has no phase {name!r}", f"it has: {', '.join(self.phases)}")
        return self.phases[name]

    def spec(self) -> ToolSpec:
        """What is published to those who offer this flow to a model."""
        return ToolSpec(
            kind=self.kind,
            name=self.name,
            version=self.version,
            description=self.description,
            parameters=self.arguments.schema,
            pool=self.pool,
        )

    def validate(self, arguments: object) -> dict[str, Any]:
        """The final input as it is stored. Raises BadArguments."""
        return self.arguments.stored(arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spawn:
    """A child that the step's commit makes. Without `kind` the name is looked up among what is published."""

    id: TaskId
    kind: str | None
    name: str
    version: int | None
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """A change that the step's commit applies to the document as it then is."""

    document: type[Document]
    change: Callable[[Any], Document]


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowStep:
    """All that one run of a phase decided."""

    transition: FlowTransition
    spawns: tuple[Spawn, ...]
    updates: tuple[Update, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """How a child ended; `error` says why unless it succeeded."""

    outcome: Outcome
    result: Json = None
    error: str | None = None


class DocumentReader(Protocol):
    """Reads a document of the session as committed."""

    def __call__(self, document: type[AnyDocument], /) -> AnyDocument | None: ...


class Flow:
    """Base of business flows: `class SendNotices(Flow, name="send_notices", version=1)`.

    The first phase declared, inherited ones before a class's own, is the entry, whose parameters are the flow's input.
    The class's docstring is what a model reads about it. A class without `name=` is a base for others and never runs.
    Stored flows of older versions go on with this one by `migrations={1: to_second, 2: to_third}`: pure functions from
    the FlowState of a version to that of the next. They are applied as a flow is read, until its next step is stored.
    """

    definition: ClassVar[FlowDefinition]

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        version: int = 1,
        pool: str = DEFAULT_POOL,
        migrations: Mapping[int, Migration] | None = None,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        if name is not None:
            cls.definition = _define(cls, name, version, pool, migrations or {})

    def __init__(
        self,
        *,
        task_id: TaskId,
        arguments: object,
        checkpoint: Json,
        signal: Json = None,
        read_document: DocumentReader,
        read_result: Callable[[TaskId], TaskResult | None],
        write_progress: Callable[[str], None],
    ) -> None:
        """One entry into a phase. Raises BadArguments if the stored arguments no longer fit."""
        self.task_id = task_id
        self.input: Any = self.definition.arguments.values(arguments)
        """The validated input, one attribute each."""
        self.checkpoint = checkpoint
        """What the last phase left for this one."""
        self.signal = signal
        """The last signal that was waited for, as {"name", "key", "payload"}; None if its deadline passed."""
        self._arguments = arguments
        self._read_document = read_document
        self._read_result = read_result
        self._write_progress = write_progress
        self._spawns: list[Spawn] = []
        self._updates: list[Update] = []

    def document(self, document: type[AnyDocument]) -> AnyDocument | None:
        """The session's document as committed, None before its first version; `update`s of this phase are not in it."""
        return self._read_document(document)

    def update(self, document: type[AnyDocument], change: Callable[[AnyDocument | None], AnyDocument]) -> None:
        """Records a change of a document: `change` gets it as it is when the step commits, and gives the next value.

        It runs inside the transaction, perhaps more than once: it must be quick, pure and touch nothing else. Raises
        BadDefinition for a view of rows, which nobody can change.
        """
        if document.derived:
            raise BadDefinition(f"document {document.kind} is a view of rows", "read it, and change what it shows")
        self._updates.append(Update(document=document, change=change))

    def spawn(self, child: AnyTool | type[Flow] | str, arguments: Mapping[str, Any]) -> TaskId:
        """Records a child, made when the step commits: a tool, a flow, or a published `name` or `name@version`.

        Raises BadArguments; those of a child given by name are judged where it runs.
        """
        if len(self._spawns) >= MAX_CHILDREN:
            raise BadDefinition(
                f"one step of a flow makes {MAX_CHILDREN:,} children at most", "make them in several steps"
            )
        spawned = _spawn(child, clean(to_jsonable_python(arguments)))
        self._spawns.append(spawned)
        return spawned.id

    def result(self, task_id: TaskId) -> TaskResult:
        """How a child ended. Raises BadDefinition for a task that this flow does not own or that has not ended."""
        (task_id,) = _task_ids([task_id], "self.result() was asked")
        result = self._read_result(task_id)
        if result is None:
            raise BadDefinition(f"task {task_id} is no child of this flow that has ended", "return Wait for it first")
        return result

    def progress(self, text: str) -> None:
        """Appends to what this attempt at the phase has shown so far; it decides nothing."""
        self._write_progress(clean_text(text))


@overload
def phase(function: Callable[..., Any], /) -> Any: ...
@overload
def phase(*, timeout: float = DEFAULT_PHASE_SECONDS) -> Callable[[Callable[..., Any]], Any]: ...
def phase(function: Callable[..., Any] | None = None, /, *, timeout: float = DEFAULT_PHASE_SECONDS) -> Any:
    """Makes a method a phase with a timeout in seconds; in what a phase returns it is named by itself or as text."""

    def mark(function: Callable[..., Any]) -> Any:
        setattr(function, _MARK, check_seconds("timeout", timeout, function.__qualname__))
        return function

    return mark if function is None else mark(function)


def run_phase(flow: Flow, name: str) -> FlowStep:
    """Runs one phase to its end and says what it decided.

    Raises what the phase raises, and BadDefinition for an unknown phase or a return value that cannot be carried out.
    """
    definition = flow.definition
    entered = definition.phase(name)
    named = definition.arguments.named(flow._arguments) if entered is definition.entry else {}
    transition = _checked(run_to_end(partial(entered.function, flow, **named)), entered, definition)
    return FlowStep(transition=transition, spawns=tuple(flow._spawns), updates=tuple(flow._updates))


_MARK = "__brainhands_phase_seconds__"
_ANY_RESULT = result_adapter(Any)


def _define(
    flow: type[Flow], name: str, version: int, pool: str, migrations: Mapping[int, Migration]
) -> FlowDefinition:
    check_identity(name, version, pool)
    if sorted(migrations) != list(range(max(1, version - len(migrations)), version)):
        raise BadDefinition(
            f"the migrations of flow {name}, from versions {sorted(migrations)}, do not lead to version {version}",
            "write one from each version to the next, up to the flow's own",
        )
    phases = _phases(flow)
    if not phases:
        raise BadDefinition(f"flow {name} has no phase", "decorate at least one method with @phase")
    inputs = {found.name: _inputs(found, name) for found in phases.values()}
    entry, *others = phases
    for other in others:
        if inputs[other][0]:
            raise BadDefinition(
                f"{name}.{other} takes parameters, which only the first phase, {entry}, can have",
                "read self.input, self.checkpoint or a document instead",
            )
    parameters, hints = inputs[entry]
    return FlowDefinition(
        name=name,
        version=version,
        description=inspect.cleandoc(flow.__doc__ or ""),
        pool=pool,
        phases=phases,
        arguments=arguments_of(parameters, hints, name),
        migrations=dict(migrations),
    )


def _phases(flow: type[Flow]) -> dict[str, FlowPhase]:
    declared = dict.fromkeys(
        name for base in reversed(flow.__mro__) for name, value in vars(base).items() if hasattr(value, _MARK)
    )
    return {name: _phase(name, getattr(flow, name), flow.__name__) for name in declared}


def _phase(name: str, function: Callable[..., Any], owner: str) -> FlowPhase:
    if name in _TAKEN:
        raise BadDefinition(f"{owner}.{name} hides what every flow has under that name", "rename the phase")
    if not hasattr(function, _MARK):
        raise BadDefinition(f"{owner}.{name} overrides a phase and is none", "decorate it with @phase")
    return FlowPhase(name, function, getattr(function, _MARK))


_TAKEN = frozenset(dir(Flow)) | {"definition", "task_id", "input", "checkpoint", "signal"}


def _inputs(phase: FlowPhase, owner: str) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    parameters, hints = signature_of(phase.function, f"{owner}.{phase.name}")
    if not parameters:
        raise BadDefinition(f"{owner}.{phase.name} does not take self", "write it as a method")
    del parameters[next(iter(parameters))]
    return parameters, hints


def _spawn(child: AnyTool | type[Flow] | str, arguments: dict[str, Any]) -> Spawn:
    if isinstance(child, str):
        name, _, version = child.partition("@")
        if version and not (version.isdecimal() and len(version) < 10):
            raise BadDefinition(f"{shown(child)} names no version", 'write "name" or "name@version"')
        return Spawn(
            id=new_task_id(), kind=None, name=name, version=int(version) if version else None, arguments=arguments
        )
    known = child if isinstance(child, Tool) else getattr(child, "definition", None)
    if known is None:
        raise BadDefinition(f"{shown(child)} is no child of a flow", "give a tool, a flow with a name, or a name")
    known.validate(arguments)  # told to the flow's author here; the child decides what of it is stored
    return Spawn(id=new_task_id(), kind=known.kind, name=known.name, version=known.version, arguments=arguments)


def _checked(returned: object, phase: FlowPhase, definition: FlowDefinition) -> FlowTransition:
    """The transition in plain values that the engine can carry out. Raises BadDefinition that names the phase."""
    said = f"{definition.name}.{phase.name} returned {type(returned).__name__}"
    match returned:
        case Done():
            return replace(returned, result=stored_result(returned.result, _ANY_RESULT, OUTPUT_LIMIT_BYTES))
        case Fail():
            result = stored_result(returned.result, _ANY_RESULT, OUTPUT_LIMIT_BYTES)
            return replace(returned, error=clean_text(str(returned.error))[: edge.MAX_TEXT], result=result)
        case Wait():
            tasks = _task_ids(returned.tasks, said)
            return replace(_going_on(returned, said, definition), tasks=tasks, fail_fast=bool(returned.fail_fast))
        case Sleep():
            sleep = _going_on(returned, said, definition)
            if returned.until is None:
                return replace(sleep, seconds=_sleep_seconds(returned.seconds, said))
            return replace(sleep, seconds=0.0, until=check_time("until", returned.until, said, now=datetime.now(UTC)))
        case WaitSignal():
            wait = _going_on(returned, said, definition)
            given: object = returned.key
            key = str(given) if isinstance(given, UUID) else returned.key
            if problem := name_problem(returned.name, key):
                raise BadDefinition(f"{said}: {problem}", 'write WaitSignal("name", self.phase, seconds, key="key")')
            return replace(wait, key=key, seconds=check_seconds("seconds", returned.seconds, said))
        case Next():
            return _going_on(returned, said, definition)
        case _:
            raise BadDefinition(said, "a phase returns Next, Sleep, Wait, WaitSignal, Done or Fail")


GoingOn = TypeVar("GoingOn", Next, Sleep, Wait, WaitSignal)


def _going_on(transition: GoingOn, said: str, definition: FlowDefinition) -> GoingOn:
    given: object = transition.phase
    name = given if isinstance(given, str) else getattr(given, "__name__", shown(given))
    return replace(
        transition, phase=definition.phase(name).name, checkpoint=_stored_checkpoint(transition.checkpoint, said)
    )


def _sleep_seconds(given: object, said: str) -> float:
    """What is left until a time may be less than nothing."""
    if isinstance(given, int | float) and given < 0:
        return 0.0
    return check_seconds("seconds", given, said, zero=True)


def _stored_checkpoint(checkpoint: object, said: str) -> Json:
    try:
        return clean(to_jsonable_python(checkpoint), limit=CHECKPOINT_BYTES)
    except (NotStorable, PydanticSerializationError, ValueError, RecursionError) as error:
        raise BadDefinition(
            f"{said}: its checkpoint cannot be stored: {edge.text(error)}",
            "keep little and plain JSON in it, or use a document",
        ) from None


def _task_ids(given: object, said: str) -> tuple[TaskId, ...]:
    """The ids to wait for; one that came back from a checkpoint is text."""
    try:
        if isinstance(given, str):
            raise ValueError(given)
        ids = tuple(islice(cast("Iterable[object]", given), MAX_CHILDREN + 1))
        if len(ids) > MAX_CHILDREN:
            raise BadDefinition(f"{said} for too many tasks", f"wait for {MAX_CHILDREN:,} at most")
        return tuple(TaskId(each if isinstance(each, UUID) else UUID(str(each))) for each in ids)
    except (TypeError, ValueError):
        raise BadDefinition(f"{said} for {shown(given)}", "give a list of ids that self.spawn returned") from None
