"""What the author of a tool can write, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, EmailStr

from brainhands.hands.arguments import BadArguments
from brainhands.hands.context import ToolContext
from brainhands.hands.loading import tools_in
from brainhands.hands.outcomes import NotFound, Retry, ToolError, Unknown
from brainhands.hands.tool import AnyTool, tool
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.edge import ForeignError
from brainhands.shared.model.ids import new_session_id, new_task_id
from brainhands.shared.model.json import canonical
from brainhands.shared.model.tool import Replay


class Receipt(BaseModel):
    mail: str
    at: datetime


@tool
def send_email(ctx: ToolContext, to: EmailStr, subject: str, when: datetime, copies: list[EmailStr] = []) -> Receipt:  # noqa: B006
    """Send one mail."""
    ctx.progress(f"sending {subject}")
    assert isinstance(when, datetime)
    return Receipt(mail=f"{ctx.operation_id} to {to} and {len(copies)}", at=when)


ARGUMENTS = {"to": "customer-1@example.com", "subject": "Notice", "when": "2026-10-01T08:00:00Z"}


def context(shown: list[str] | None = None, cancelled: bool = False) -> ToolContext:
    return ToolContext(
        operation_id="op-1",
        task_id=new_task_id(),
        session_id=new_session_id(),
        attempt=1,
        deadline=datetime(2026, 10, 1, tzinfo=UTC),
        write_progress=([] if shown is None else shown).append,
        ask_cancelled=lambda: cancelled,
    )


@pytest.mark.promise("F1")
def test_a_plain_typed_function_becomes_a_tool_with_a_schema_from_its_signature() -> None:
    spec = send_email.spec()

    assert (spec.kind, spec.name, spec.version, spec.pool) == ("tool:send_email", "send_email", 1, "hands.default")
    assert spec.description == "Send one mail."
    assert list(spec.parameters["properties"]) == ["to", "subject", "when", "copies"]
    assert spec.parameters["properties"]["to"]["format"] == "email"
    assert spec.parameters["required"] == ["to", "subject", "when"]
    assert send_email.replay is Replay.UNSAFE


@pytest.mark.promise("F1")
def test_a_tool_stays_callable_as_the_function_it_was() -> None:
    moment = datetime(2026, 10, 1, tzinfo=UTC)

    receipt = send_email(context(), to="customer-1@example.com", subject="Notice", when=moment)

    assert receipt == Receipt(mail="op-1 to customer-1@example.com and 0", at=moment)


def test_a_tool_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        send_email.timeout = 5  # type: ignore[misc]


@pytest.mark.promise("F2")
def test_stored_arguments_are_final_and_give_the_function_the_same_values_at_each_attempt() -> None:
    stored = send_email.validate(ARGUMENTS)
    shown: list[str] = []

    assert stored == {**ARGUMENTS, "copies": []}
    assert send_email.validate(stored) == stored
    receipt = send_email.call(context(shown), send_email.arguments.named(stored))
    assert send_email.result(receipt) == {
        "mail": "op-1 to customer-1@example.com and 0",
        "at": "2026-10-01T08:00:00Z",
    }
    assert shown == ["sending Notice"]


@pytest.mark.promise("E12")
@pytest.mark.case("pydantic/pydantic-ai#6979")
def test_arguments_that_do_not_fit_are_told_one_problem_a_line() -> None:
    wrong = {"to": "nobody", "when": {"x" * 500: 1}, "cc": "x", "copies": ["customer-2@example.com", "nobody"]}

    with pytest.raises(BadArguments) as refused:
        send_email.validate(wrong)

    lines = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["to", "subject", "when", "copies.1", "cc"]
    assert lines[1] == "subject: is required"
    assert lines[4] == "cc: is no argument; there are: to, subject, when, copies"
    assert "http" not in str(refused.value)
    assert all(len(line) < 500 for line in lines)


@pytest.mark.promise("E12")
def test_a_thousand_problems_are_told_in_a_few_lines() -> None:
    with pytest.raises(BadArguments) as refused:
        send_email.validate({**ARGUMENTS, "copies": ["nobody"] * 1_000})

    lines = str(refused.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "and 980 more problems"


@pytest.mark.promise("E12")
@pytest.mark.parametrize("arguments", [None, [], "text", 7])
def test_arguments_that_are_no_object_are_refused(arguments: object) -> None:
    with pytest.raises(BadArguments, match="arguments: "):
        send_email.validate(arguments)


@pytest.mark.case("NousResearch/hermes-agent#68254")
def test_characters_that_postgres_refuses_never_reach_the_stored_arguments() -> None:
    assert send_email.validate({**ARGUMENTS, "subject": "a\x00b\ud83cc"})["subject"] == "a\ufffdb\ufffdc"


def test_infinite_numbers_survive_storing() -> None:
    @tool
    def wait_for(seconds: float) -> float:
        return seconds

    stored = wait_for.validate({"seconds": "inf"})

    assert stored == {"seconds": "Infinity"}
    assert wait_for.arguments.named(stored) == {"seconds": float("inf")}


@pytest.mark.promise("F1")
def test_an_async_tool_runs_in_an_event_loop() -> None:
    @tool
    async def add(first: int, second: int) -> int:
        await asyncio.sleep(0)
        return first + second

    assert add.call(context(), {"first": 1, "second": 2}) == 3
    assert add.takes_context is False


def test_what_a_module_keeps_of_an_event_loop_works_over_calls_also_after_one_that_failed() -> None:
    kept = asyncio.Lock()
    loops = []

    @tool
    async def use(how: str) -> str:
        loops.append(asyncio.get_running_loop())
        async with kept:
            held = asyncio.create_task(kept.acquire())  # a lock is bound to its loop once somebody waits for it
            await asyncio.sleep(0)
            held.cancel()
            if how == "stop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(60)
            if how == "fail":
                raise asyncio.CancelledError
        return how

    assert use.call(context(), {"how": "work"}) == "work"
    for how in ("fail", "stop"):
        with pytest.raises(ForeignError):
            use.call(context(), {"how": how})
    assert use.call(context(), {"how": "work"}) == "work"
    assert len(set(map(id, loops))) == 1


def test_what_an_async_call_leaves_behind_does_not_act_in_the_time_of_another() -> None:
    acted: list[str] = []

    async def later(name: str, *, stubborn: bool) -> None:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            if not stubborn:
                raise
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.3)
                    acted.append(name)
        acted.append(name)

    @tool
    async def leave(name: str, stubborn: bool) -> str:
        left.append(asyncio.create_task(later(name, stubborn=stubborn)))
        await asyncio.sleep(0)
        return name

    @tool
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)

    left: list[asyncio.Task[None]] = []
    assert leave.call(context(), {"name": "cancelled", "stubborn": False}) == "cancelled"
    assert leave.call(context(), {"name": "stubborn", "stubborn": True}) == "stubborn"
    before = list(acted)
    wait.call(context(), {"seconds": 0.5})
    assert acted == before
    assert "cancelled" not in acted


@pytest.mark.promise("F7")
@pytest.mark.parametrize("word", [ToolError("no such customer"), Retry("busy", after=3)])
def test_the_words_of_a_tool_come_out_as_they_are(word: Exception) -> None:
    @tool
    async def fail() -> None:
        raise word

    with pytest.raises(type(word)) as raised:
        fail.call(context(), {})

    assert raised.value is word


def test_a_retry_never_asks_for_a_delay_that_cannot_be_kept() -> None:
    assert [Retry(after=given).after for given in (None, 2.5, -1, float("nan"), float("inf"), 1e300)] == [
        None,
        2.5,
        0.0,
        None,
        None,
        86_400.0,
    ]


def test_a_running_tool_can_ask_whether_it_should_stop() -> None:
    assert context(cancelled=True).cancelled is True


# Definitions that cannot work


def define(function: Callable[..., Any], **options: Any) -> AnyTool:
    made: AnyTool = tool(**options)(function)
    return made


def everything(*anything: str) -> None: ...
def anything_named(**anything: str) -> None: ...
def by_position(value: int, /) -> None: ...
def untyped(value) -> None: ...  # type: ignore[no-untyped-def]
def late_context(value: int, ctx: ToolContext) -> None: ...
def hidden(_value: int) -> None: ...
def callback(value: Callable[[], int]) -> None: ...
def no_default(value: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013
def unresolved(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def generator(value: int) -> Iterator[int]:
    yield value


def fine(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (everything, r"everything: parameter \*anything: '?str'? cannot be sent by name"),
        (anything_named, r"parameter \*\*anything"),
        (by_position, "parameter value: '?int'? cannot be sent by name"),
        (untyped, "untyped: parameter 'value' has no annotation"),
        (late_context, "'ctx' is a ToolContext and not the first parameter"),
        (hidden, "'_value' starts with an underscore"),
        (callback, "the parameters of callback have no JSON schema"),
        (no_default, "the default of 'value' does not fit"),
        (unresolved, "an annotation of unresolved cannot be resolved"),
        (generator, "generator is a generator"),
        (len, "len is no function"),
        (lambda: None, "'<lambda>' cannot name a tool"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        define(function)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unknown": "nobody"}, "unknown='nobody' is nobody to tell"),
        ({"policy": "maybe"}, "'maybe' is no rule"),
        ({"replay": "always"}, "replay='always' is unknown"),
        ({"timeout": 0}, "timeout=0 is no duration"),
        ({"timeout": float("inf")}, "timeout=inf is no duration"),
        ({"settle": -1}, "settle=-1 is no duration"),
        ({"retries": -1}, "retries=-1 is not possible"),
        ({"version": 0}, "version=0 is not possible"),
        ({"version": True}, "version=True is not possible"),
        ({"name": "send mail"}, "'send mail' cannot name a tool"),
        ({"pool": "gpu"}, "'gpu' is no pool of hands"),
        ({"output_limit": 0}, "output_limit=0 is not possible"),
        ({"concurrency": 0}, "concurrency=0 is not possible"),
    ],
)
def test_an_option_that_cannot_be_kept_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        define(fine, **options)


# Operations and look-ups


def test_an_operation_is_the_task_unless_the_tool_derives_it_from_its_arguments() -> None:
    def key(arguments: Any) -> str:
        return f"{arguments.to}/{arguments.when:%Y-%m}/{arguments.subject}"

    keyed = tool(operation=key, name="send")(send_email.function)

    assert send_email.operation_id("task-1", ARGUMENTS) == "task-1"
    assert keyed.operation_id("task-1", ARGUMENTS) == "send:customer-1@example.com/2026-10/Notice"
    assert keyed.operation_id("task-2", ARGUMENTS) == keyed.operation_id("task-1", ARGUMENTS)
    assert len(keyed.operation_id("task-1", {**ARGUMENTS, "subject": "x" * 1_000})) == len("send:") + 64


def test_an_operation_without_a_key_is_refused() -> None:
    with pytest.raises(BadDefinition, match="operation= of fine returned ''"):
        define(fine, operation=lambda _: "").operation_id("task-1", {"value": 1})


@pytest.mark.promise("F5")
@pytest.mark.parametrize("answer", [NotFound, NotFound(), Unknown, Unknown(), "receipt-1"])
def test_a_look_up_answers_with_a_result_or_a_marker(answer: object) -> None:
    reconciled = define(fine, replay="reconcile")

    @reconciled.lookup(dedupes=True)
    async def find(ctx: ToolContext) -> object:
        assert ctx.operation_id == "op-1"
        return answer

    found = reconciled.find_effect(context())
    assert reconciled.found_by is not None
    assert reconciled.found_by.dedupes is True
    assert found == answer or isinstance(found, answer if isinstance(answer, type) else type(answer))


def test_only_a_reconcile_tool_takes_one_look_up_of_the_context() -> None:
    reconciled = define(fine, replay="reconcile")

    with pytest.raises(BadDefinition, match="fine is safe and needs no look-up"):
        define(fine, replay="safe").lookup()(lambda _: None)
    with pytest.raises(BadDefinition, match="must take the context and nothing else"):
        reconciled.lookup()(lambda: None)  # type: ignore[arg-type, misc]
    reconciled.lookup()(lambda _: None)
    with pytest.raises(BadDefinition, match="fine has two look-ups"):
        reconciled.lookup()(lambda _: None)


# Results


@dataclass
class Point:
    x: float
    at: datetime


class Opaque:
    def __repr__(self) -> str:
        return "<opaque \x00>"


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError


def circle() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (Point, Point(1.5, datetime(2026, 1, 1, tzinfo=UTC)), {"x": 1.5, "at": "2026-01-01T00:00:00Z"}),
        (Receipt, {"not": "a receipt"}, {"not": "a receipt"}),
        (float, float("nan"), "NaN"),
        (Any, {"days": {1}, 2: b"b", "odd": Opaque()}, {"days": [1], "2": "b", "odd": "<opaque \ufffd>"}),
        (str, "a\ud800", "a\ufffd"),
        (Opaque, Opaque(), "<opaque \ufffd>"),
        (Any, b"\xff", "b'\\xff'"),
        (Any, circle(), "[[...]]"),
        (None, None, None),
    ],
)
def test_a_result_is_stored_as_json_whatever_it_is(annotation: Any, value: object, stored: object) -> None:
    def give() -> None: ...

    give.__annotations__["return"] = annotation

    assert define(give).result(value) == stored


def test_a_result_that_cannot_even_be_shown_is_still_a_result() -> None:
    assert "Unspeakable object" in define(fine).result(Unspeakable())


@pytest.mark.promise("F11")
def test_a_result_over_the_limit_is_cut_and_says_so() -> None:
    short = define(fine, output_limit=10)

    assert short.result("é" * 5) == "é" * 5
    assert short.result("é" * 6) == {"truncated": True, "text": "é" * 5}
    assert short.result("aé" * 5) == {"truncated": True, "text": "aéaéaéa"}
    assert short.result({"items": [1, 2, 3]}) == {"truncated": True, "text": '{"items":['}
    assert len(canonical(define(fine).result("x" * 5_000_000))) < 66_000


# Loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


HEAD = "from brainhands import Done, Flow, phase, tool\n"
ECHO = "@tool\ndef echo(text: str) -> str:\n    return text\n"
FLOW = "class {}(Flow, name='{}'):\n    @phase\n    def start(self): return Done()\n"


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(HEAD + text)


@pytest.mark.promise("F1")
def test_tools_and_flows_are_found_in_modules_of_the_working_folder_each_once(folder: Path) -> None:
    write(
        folder,
        app_tools=ECHO + "again = echo\n" + FLOW.format("Notify", "notify") + "class Unnamed(Flow): pass\n",
        app_more="from app_tools import echo, Notify\nclass Child(Notify): pass\n",
    )

    loaded = tools_in(["app_tools", "app_more"])

    assert [found.kind for found in loaded.tools] == ["tool:echo"]
    assert [found.definition.kind for found in loaded.flows] == ["flow:notify"]
    assert sys.path[0] == str(folder)


def test_several_versions_of_a_tool_live_side_by_side(folder: Path) -> None:
    write(folder, app_tools=ECHO + "second = tool(version=2)(echo.function)\n")

    assert [found.version for found in tools_in(["app_tools"]).tools] == [1, 2]


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"app_one": ECHO, "app_two": ECHO}, "echo@1 is defined twice, in app_one and in app_two"),
        ({"app_one": ECHO, "app_two": FLOW.format("Echo", "echo")}, "'echo' names both a tool and a flow"),
        ({"app_one": ECHO.replace("@tool", "@tool(replay='reconcile')")}, "echo is reconcile and has no look-up"),
    ],
)
def test_definitions_that_clash_or_lack_something_are_refused(folder: Path, modules: dict[str, str], said: str) -> None:
    write(folder, **modules)

    with pytest.raises(BadDefinition, match=said):
        tools_in(modules)


@pytest.mark.parametrize("name", ["no_such_module", "app_tools.no_such_part", "", "app tools", ".relative"])
def test_a_module_that_does_not_exist_is_named(folder: Path, name: str) -> None:
    write(folder, app_tools=ECHO)

    with pytest.raises(BadDefinition, match=f"there is no module '{name}'"):
        tools_in([name])


def test_an_import_that_fails_inside_a_module_is_not_taken_for_a_missing_module(folder: Path) -> None:
    write(folder, app_tools="import no_such_library\n")

    said = r"app_tools.py:\d+: module app_tools cannot be imported: ModuleNotFoundError: .*'no_such_library'"
    with pytest.raises(BadDefinition, match=said):
        tools_in(["app_tools"])
