"""`@tool`: a typed Python function becomes a durable tool.

The signature is the contract: parameters become the JSON schema the model sees, annotations validate what it sends
(`hands/arguments.py`).
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, get_type_hints, overload

from pydantic import TypeAdapter

from brainhands.hands.arguments import Arguments, BadArguments, arguments_of
from brainhands.hands.context import ToolContext
from brainhands.hands.outcomes import NotFound, Retry, ToolError, Unknown, result_adapter, stored_result
from brainhands.hands.policy import Decision, Policy, check_rule, judge
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model import edge
from brainhands.shared.model.bounds import MAX_CONCURRENCY, MAX_TRIES, check_count, check_seconds, shown
from brainhands.shared.model.json import Json, clean_text, digest
from brainhands.shared.model.tool import Replay, ToolSpec

DEFAULT_POOL = "hands.default"
OUTPUT_LIMIT_BYTES = 65_536
MAX_OUTPUT_BYTES = 1024 * 1024
"""A result is part of every later request of its session, and is stored with the arguments in one event."""
MAX_OPERATION_KEY = 200
LEFT_SECONDS = 1.0
"""How long tasks that a call left behind may take to end."""

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_POOL = re.compile(r"hands\.[a-z0-9_-]+")


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Read = TypeVar("Read")
LookUpFunction: TypeAlias = Callable[[ToolContext], Any]
ReplayName: TypeAlias = Replay | Literal["unsafe", "safe", "reconcile"]
WhoIsTold: TypeAlias = Literal["model", "review"]


@dataclass(frozen=True, slots=True)
class LookUp:
    """How a reconcile tool finds out whether an operation took effect."""

    function: LookUpFunction
    dedupes: bool
    """Whether the service refuses a second effect of one operation id."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool(Generic[Parameters, Returned]):
    """A tool as defined; calling it calls the plain function, with its signature."""

    function: Callable[Parameters, Returned]
    name: str
    version: int
    accepts: int
    """The oldest version whose stored calls this one runs as they are."""
    description: str
    replay: Replay
    timeout: float
    """Seconds for one attempt."""
    retries: int
    """Attempts after the first; of a tool that is not safe, only a `Retry` it raises leads to one."""
    settle: float
    """Seconds after an attempt's deadline in which its effect may still appear."""
    operation: Callable[[Any], str] | None
    unknown: WhoIsTold
    """Who is told of an effect that stays unknown: the `model`, or a person by a `review`."""
    policy: Policy
    pool: str
    output_limit: int
    """Bytes of a result that are kept."""
    concurrency: int | None = None
    """Calls of this name that run at a time, in all versions and over all workers; None: no limit."""
    arguments: Arguments
    takes_context: bool
    results: TypeAdapter[Any]
    found_by: LookUp | None = field(default=None, init=False)

    @property
    def kind(self) -> str:
        return f"tool:{self.name}"

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments object."""
        return self.arguments.schema

    def __call__(self, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        return self.function(*arguments, **named)

    def spec(self) -> ToolSpec:
        """What is published to those who offer this tool to a model."""
        return ToolSpec(
            kind=self.kind,
            name=self.name,
            version=self.version,
            description=self.description,
            parameters=self.parameters,
            pool=self.pool,
        )

    def validate(self, arguments: object) -> dict[str, Any]:
        """The final arguments as they are stored with the intent. Raises BadArguments."""
        return self.arguments.stored(arguments)

    def operation_id(self, task_id: str, arguments: dict[str, Json]) -> str:
        """Identity of the call's effect: the task's id, or the tool's name and its key for these arguments.

        A key of more than 200 characters is replaced by its SHA-256. Raises BadDefinition for an empty key.
        """
        if self.operation is None:
            return task_id
        key: object = edge.call(self.operation, self._read(self.arguments.values, arguments))
        if not isinstance(key, str) or not key:
            raise BadDefinition(f"operation= of {self.name} returned {shown(key)}", "return a text that is not empty")
        key = clean_text(key)
        return f"{self.name}:{key if len(key) <= MAX_OPERATION_KEY else digest(key)}"

    def judge(self, arguments: dict[str, Json], agent_rule: str | None) -> Decision:
        """Whether a call with these arguments runs, is refused or is asked about. Raises BadDefinition."""
        values = self._read(self.arguments.values, arguments) if callable(self.policy) else None
        decision = edge.call(judge, self.policy, values, agent_rule, words=(BadDefinition,))
        if decision.rule != "ask":
            return decision
        return replace(decision, read_as=self._read(self.arguments.read_as, arguments))

    def _read(self, read: Callable[[dict[str, Json]], Read], arguments: dict[str, Json]) -> Read:
        return edge.call(read, arguments, words=(BadArguments,))

    def call(self, context: ToolContext, named: Mapping[str, Any]) -> object:
        """Runs the function to its end with these Python values.

        Raises ToolError and Retry, which are the function's word, and ForeignError for whatever else it raises.
        """
        function: Callable[..., object] = self.function
        entered = partial(function, context, **named) if self.takes_context else partial(function, **named)
        return edge.call(run_to_end, entered, words=(ToolError, Retry))

    def find_effect(self, context: ToolContext) -> object | NotFound | Unknown:
        """Asks the look-up about the context's operation; anything but the two markers is the call's result."""
        if self.found_by is None:
            raise BadDefinition(f"{self.name} has no look-up", f"define one with @{self.name}.lookup()")
        answer = edge.call(run_to_end, partial(self.found_by.function, context))
        for marker in (NotFound, Unknown):
            if answer is marker:
                return marker()
        return answer

    def result(self, value: object) -> Json:
        """A result in the form that is stored; see `stored_result`."""
        return stored_result(value, self.results, self.output_limit)

    def lookup(self, *, dedupes: bool = False) -> Callable[[LookUpFunction], LookUpFunction]:
        """Decorates the function that finds an earlier effect by `ctx.operation_id`, and leaves it as it is.

        It returns the result, NotFound or Unknown. Without `dedupes`, NotFound counts only once nothing sent before can
        still take effect.
        """

        def register(function: LookUpFunction) -> LookUpFunction:
            if self.replay is not Replay.RECONCILE:
                raise BadDefinition(f"{self.name} is {self.replay} and needs no look-up", 'use replay="reconcile"')
            if self.found_by is not None:
                raise BadDefinition(f"{self.name} has two look-ups", "keep one")
            _refuse_generator(function, self.name)
            try:
                inspect.signature(function).bind(None)
            except TypeError:
                raise BadDefinition(f"the look-up of {self.name} must take the context and nothing else") from None
            object.__setattr__(self, "found_by", LookUp(function, dedupes))  # the one thing a definition gains later
            return function

        return register


AnyTool: TypeAlias = Tool[..., Any]


@overload
def tool(function: Callable[Parameters, Returned], /) -> Tool[Parameters, Returned]: ...
@overload
def tool(
    *,
    replay: ReplayName = "unsafe",
    timeout: float = 60.0,
    retries: int = 3,
    settle: float = 0.0,
    operation: Callable[[Any], str] | None = None,
    unknown: WhoIsTold = "model",
    policy: Policy = "allow",
    version: int = 1,
    accepts: int | None = None,
    pool: str = DEFAULT_POOL,
    name: str | None = None,
    output_limit: int = OUTPUT_LIMIT_BYTES,
    concurrency: int | None = None,
) -> Callable[[Callable[Parameters, Returned]], Tool[Parameters, Returned]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    replay: ReplayName = "unsafe",
    timeout: float = 60.0,
    retries: int = 3,
    settle: float = 0.0,
    operation: Callable[[Any], str] | None = None,
    unknown: WhoIsTold = "model",
    policy: Policy = "allow",
    version: int = 1,
    accepts: int | None = None,
    pool: str = DEFAULT_POOL,
    name: str | None = None,
    output_limit: int = OUTPUT_LIMIT_BYTES,
    concurrency: int | None = None,
) -> AnyTool | Callable[[Callable[..., Any]], AnyTool]:
    """Makes a typed function, sync or async, a tool.

    `replay` says what may be done when it is unknown whether a call took effect: nothing (unsafe), run it again (safe),
    or look it up (reconcile, see `Tool.lookup`). `timeout` and `settle` are seconds. `operation` gives the key of the
    effect from the validated arguments (one attribute each). `unknown` says who is told when an effect stays unknown,
    the "model" or a person ("review"). `policy` is "allow", "deny", "ask", Ask(...), or a function of the validated
    arguments that gives one of these. `concurrency` is how many calls of this name run at a time, over all workers and
    versions; where versions differ, the newest decides. `accepts` is the oldest version whose stored calls this one
    runs as they are, for when the older versions leave the modules. Raises BadDefinition.
    """

    def define(function: Callable[..., Any]) -> AnyTool:
        called = name if name is not None else getattr(function, "__name__", repr(function))
        check_identity(called, version, pool)
        oldest = version if accepts is None else check_count("accepts", accepts, called)
        if oldest > version:
            raise BadDefinition(f"{called}: accepts={oldest} is newer than version {version}", "give an older version")
        signature, hints = signature_of(function, called)
        first = next(iter(signature), None)
        takes_context = first is not None and hints.get(first) is ToolContext
        if first is not None and takes_context:
            del signature[first]
        return Tool(
            function=function,
            name=called,
            version=version,
            accepts=oldest,
            description=inspect.getdoc(function) or "",
            replay=_replay(replay, called),
            timeout=check_seconds("timeout", timeout, called),
            retries=check_count("retries", retries, called, least=0, most=MAX_TRIES),
            settle=check_seconds("settle", settle, called, zero=True),
            operation=operation,
            unknown=unknown,
            policy=policy,
            pool=pool,
            output_limit=check_count("output_limit", output_limit, called, most=MAX_OUTPUT_BYTES),
            concurrency=None if concurrency is None else _concurrency(concurrency, called),
            arguments=arguments_of(signature, hints, called),
            takes_context=takes_context,
            results=result_adapter(hints.get("return", Any)),
        )

    if unknown not in ("model", "review"):
        raise BadDefinition(f"unknown={unknown!r} is nobody to tell", 'use "model" or "review"')
    if not callable(policy):
        check_rule(policy)
    return define if function is None else define(function)


def signature_of(function: Callable[..., Any], owner: str) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """The parameters of a function and its annotations, resolved. Raises BadDefinition."""
    if not inspect.isfunction(function):
        raise BadDefinition(f"{owner} is no function", "decorate a function written with def or async def")
    _refuse_generator(function, owner)
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs whatever is written there
        raise BadDefinition(
            f"an annotation of {owner} cannot be resolved: {error}", "use types defined or imported at module level"
        ) from None
    return dict(inspect.signature(function).parameters), hints


def check_identity(name: str, version: int, pool: str) -> None:
    """Raises BadDefinition for a name, version or pool under which nothing could be published."""
    if not _NAME.fullmatch(name):
        raise BadDefinition(f"{name!r} cannot name a tool", "use at most 64 letters, digits, _ and -")
    check_count("version", version, name)
    if not _POOL.fullmatch(pool):
        raise BadDefinition(f"{name}: {pool!r} is no pool of hands", f"name it like {DEFAULT_POOL!r}")


def run_to_end(entered: Callable[[], object]) -> object:
    """What the function returns, or what its coroutine returns when run in this thread's event loop.

    The loop stays open, so that a client, a lock or a pool that a module keeps works over calls. Tasks that a coroutine
    leaves behind are cancelled at its end: they would act in the time of another call.
    """
    value = entered()
    return _LOOPS.run(value) if inspect.iscoroutine(value) else value


class _Loops(threading.local):
    """An event loop for each thread: Hands runs its calls in the main thread of its processes, one after the other."""

    loop: asyncio.AbstractEventLoop | None = None
    """Made by the first coroutine, so never before a process forks."""

    def run(self, coroutine: Coroutine[Any, Any, object]) -> object:
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        loop = self.loop
        try:
            return loop.run_until_complete(coroutine)
        finally:
            if not _end_tasks(loop):
                self.loop = None  # what does not end is never run again


def _end_tasks(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether all tasks have ended that a coroutine left behind; raises nothing, since its result is there."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    try:
        return not left or not loop.run_until_complete(asyncio.wait(left, timeout=LEFT_SECONDS))[1]
    except BaseException:  # noqa: BLE001 - what a task raises while it is cancelled
        return False


_LOOPS = _Loops()


def _refuse_generator(function: Callable[..., Any], owner: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadDefinition(f"{owner} is a generator, whose body a call does not run", "return the result instead")


def _replay(value: str, owner: str) -> Replay:
    try:
        return Replay(value)
    except ValueError:
        raise BadDefinition(f"{owner}: replay={value!r} is unknown", f"use one of {', '.join(Replay)}") from None


def _concurrency(given: object, owner: str) -> int:
    return check_count("concurrency", given, owner, most=MAX_CONCURRENCY)
