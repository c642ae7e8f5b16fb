"""Code of others at each place where the engine enters it: whatever it does, its call ends at once with the true cause.

The table is edges x misbehaviour, on a real store with a real worker, without a relay: each hint is given by hand.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import psycopg
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer, model_validator

from brainhands import Document, Done, Flow, Next, Sleep, ToolContext, Wait, WaitSignal, phase, tool
from brainhands.hands.arguments import BadArguments
from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import flow_kind
from brainhands.shared.engine.definition import Kind
from brainhands.shared.errors import Incompatible, ServerUnavailable, StaleWrite
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules.calls import call_task
from tests.instruments import invariants
from tests.store.desk import worker_of
from tests.store.stage import Stage


class Own(BaseException):
    """An author's own, which is no Exception."""


class Mute(BaseException):
    def __str__(self) -> str:
        raise Own


def recurse() -> None:
    recurse()


def raises(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def misbehave(*_: object) -> Any:
        raise error()

    return misbehave


MISBEHAVIOURS: dict[str, Callable[..., Any]] = {
    "ValueError: boom": raises(lambda: ValueError("boom")),
    "CancelledError": raises(asyncio.CancelledError),
    "Own: mine": raises(lambda: Own("mine")),
    "BaseExceptionGroup: two (2 sub-exceptions): Own: a; ValueError: b": raises(
        lambda: BaseExceptionGroup("two", [Own("a"), ValueError("b")])
    ),
    "SystemExit: 3": raises(lambda: SystemExit(3)),
    "KeyboardInterrupt": raises(KeyboardInterrupt),
    "GeneratorExit": raises(GeneratorExit),
    "RecursionError": lambda *_: recurse(),
    "MemoryError": raises(MemoryError),
    "Mute: (its text cannot be read: Own)": raises(Mute),
    # The engine's own words, said by somebody else.
    "OperationalError: theirs": raises(lambda: psycopg.OperationalError("theirs")),
    "ServerUnavailable": raises(lambda: ServerUnavailable("Theirs", "away", "")),
    "StaleWrite": raises(lambda: StaleWrite("theirs")),
    "Incompatible": raises(lambda: Incompatible("theirs")),
}


@pytest.fixture(params=MISBEHAVIOURS.items(), ids=[name.partition(":")[0] for name in MISBEHAVIOURS])
def misbehaviour(request: pytest.FixtureRequest) -> tuple[str, Callable[..., Any]]:
    found: tuple[str, Callable[..., Any]] = request.param
    return found


@pytest.fixture(scope="module")
def edges(shared_stage: Stage) -> Iterator[Stage]:
    """The stage of all tests here, in whose store nothing is amiss in the end."""
    yield shared_stage
    invariants.check(shared_stage.database_url)


def call(stage: Stage, kind: Kind, arguments: Any = None) -> Task:
    """A call of this kind, played to its end, and looked at."""
    session_id, owner = stage.session()
    task_id = new_task_id()

    def add(draft: Any) -> None:
        task = call_task(
            task_id,
            owner=draft.task(owner),
            kind=kind.name,
            version=kind.version,
            call_id=None,
            arguments=arguments or {},
            cause=draft.session.last_seq,
            now=draft.now,
        )
        draft.add(task)

    stage.commit(session_id, add, [owner])
    return play(stage, kind, task_id, session_id)


def play(stage: Stage, kind: Kind, task_id: TaskId, session_id: SessionId) -> Task:
    worker = worker_of(stage, "hands", (kind,), Offer(name=kind.name, low=kind.versions[0], high=kind.version))
    for _ in range(12):
        stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE status = 'sleeping'")
        stage.sweep.sweep_once()
        worker.advance([(task_id, session_id)])
        task = stage.task(task_id)
        assert task.status is not Status.RUNNING, "the claim was dropped without a commit"
        if task.status is Status.DONE or task.blocked:
            break
    worker.database.close()
    return task


def of_tool(function: Callable[..., Any], **options: Any) -> Kind:
    return tool_kind(tool(name="made", **options)(function))


def fine() -> str:
    return "fine"


# The edges


def test_a_tool_leaves_an_unknown_effect_with_its_cause(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    said, misbehave = misbehaviour

    def plain() -> str:
        return str(misbehave())

    async def later() -> str:
        await asyncio.sleep(0)
        return str(misbehave())

    for function in (plain, later):
        unsafe = call(edges, of_tool(function))
        safe = call(edges, of_tool(function, replay="safe", retries=1))

        assert (unsafe.outcome, safe.outcome) == (Outcome.INTERRUPTED, Outcome.FAILED)
        assert (unsafe.error or "").startswith(said)
        assert (safe.error or "").startswith(said)
        assert (safe.error or "").endswith("(after 2 attempts)")


def test_a_look_up_says_nothing_and_is_asked_again(edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]) -> None:
    said, misbehave = misbehaviour
    asked: list[int] = []

    def cut() -> None:
        raise OSError("cut")

    reconciled = tool(name="made", replay="reconcile")(cut)

    @reconciled.lookup(dedupes=True)
    def find(_: ToolContext) -> object:
        asked.append(1)
        return misbehave() if len(asked) == 1 else "found"

    task = call(edges, tool_kind(reconciled))

    assert (task.outcome, task.result, len(asked)) == (Outcome.SUCCEEDED, "found", 2)
    assert said


@pytest.mark.parametrize("edge", ["validator", "policy", "operation"])
def test_what_judges_a_call_refuses_it_before_its_effect(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]], edge: str
) -> None:
    said, misbehave = misbehaviour
    ran: list[int] = []

    def effect(value: int) -> None:
        ran.append(value)

    if edge == "validator":
        effect.__annotations__["value"] = Annotated[int, AfterValidator(lambda value: misbehave(value))]
        kind = of_tool(effect)
    else:
        kind = of_tool(effect, **{edge: misbehave})
    task = call(edges, kind, {"value": 1})

    assert (task.outcome, ran) == (Outcome.FAILED, [])
    assert said.partition(":")[0] in (task.error or "") or "boom" in (task.error or "")


class Result:
    def __init__(self, misbehave: Callable[..., Any]) -> None:
        self.misbehave = misbehave

    def __repr__(self) -> str:
        return str(self.misbehave())


def test_a_result_that_cannot_be_told_is_a_success_all_the_same(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    _, misbehave = misbehaviour
    ran: list[int] = []

    def unspeakable() -> Any:
        ran.append(1)
        return Result(misbehave)

    def unserializable() -> int:
        ran.append(1)
        return 7

    unserializable.__annotations__["return"] = Annotated[int, PlainSerializer(lambda value: misbehave(value))]
    told = call(edges, of_tool(unspeakable, replay="safe"))
    dumped = call(edges, of_tool(unserializable, replay="safe"))

    assert told.outcome is dumped.outcome is Outcome.SUCCEEDED
    assert "Result object at" in told.result
    assert dumped.result == 7
    assert len(ran) == 2


def test_a_phase_of_a_flow_is_tried_again_and_then_fails_with_its_cause(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    said, misbehave = misbehaviour

    class Plain(Flow, name="made"):
        @phase
        def start(self) -> Any:
            return misbehave()

    class Built(Flow, name="made"):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            misbehave()

        @phase
        def start(self) -> Any:
            return Done()

    for flow in (Plain, Built):
        task = call(edges, flow_kind(flow))

        assert task.outcome is Outcome.FAILED
        assert said in (task.error or "")


class Notes(Document, kind="notes_of_edges"):
    lines: tuple[str, ...] = ()


def test_a_change_of_a_document_fails_its_flow_with_the_cause(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    said, misbehave = misbehaviour

    class Changing(Flow, name="made"):
        @phase
        def start(self) -> Any:
            self.update(Notes, misbehave)
            return Done()

    task = call(edges, flow_kind(Changing))

    assert task.outcome is Outcome.FAILED
    assert said in (task.error or "")


def test_a_migration_that_fails_sets_its_flow_aside_with_the_cause(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    said, misbehave = misbehaviour

    class First(Flow, name="made"):
        @phase
        def start(self) -> Any:
            return Done()

    class Second(Flow, name="made", version=2, migrations={1: misbehave}):
        @phase
        def start(self) -> Any:
            return Done()

    session_id, owner = edges.session()
    task_id = new_task_id()
    edges.commit(
        session_id,
        lambda draft: draft.add(
            call_task(
                task_id,
                owner=draft.task(owner),
                kind="flow:made",
                version=1,
                call_id=None,
                arguments={},
                cause=draft.session.last_seq,
                now=draft.now,
            )
        ),
        [owner],
    )
    task = play(edges, flow_kind(Second), task_id, session_id)

    assert task.status is Status.PENDING
    assert said in (task.blocked or "")
    assert First.definition.version == 1


def test_a_document_that_cannot_be_read_sets_its_flow_aside_with_the_cause(
    edges: Stage, misbehaviour: tuple[str, Callable[..., Any]]
) -> None:
    said, misbehave = misbehaviour

    class Older(Document, kind="of_edges"):
        pass

    class Migrated(Document, kind="of_edges", schema_version=2, migrations={1: misbehave}):
        pass

    class Validated(Document, kind="of_edges"):
        check = model_validator(mode="before")(classmethod(lambda _, value: misbehave(value)))  # type: ignore[arg-type]

    for document in (Migrated, Validated):

        class Reading(Flow, name="made"):
            @phase
            def start(self) -> Any:
                self.update(Older, lambda _: Older())
                return Next(self.finish)

            @phase
            def finish(self) -> Any:
                try:
                    self.document(document)  # noqa: B023 - played before the next one is made
                except Exception:  # noqa: BLE001 - an author who catches all does not hide what the engine must know
                    return Done()
                return Done()

        task = call(edges, flow_kind(Reading))

        if said.startswith("ValueError") and document is Validated:
            assert "boom" in (task.blocked or "")
        else:
            assert said in (task.blocked or "")
        assert task.phase_attempts == 0


# Results


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


class Shouting(BaseModel):
    model_config = ConfigDict(frozen=True)
    text: str


RESULTS: dict[str, Any] = {
    "past the tool's limit": "x" * 100_000,
    "past the engine's limit": "x" * 9_000_000,
    "six times as long in JSON": "\x01" * 1_048_576,
    "twice as long in JSON": '"' * 1_048_576,
    "a list past the engine's limit": ["x" * 1_000] * 9_000,
    "as deep as the door allows": deep(100),
    "deeper": deep(101),
    "deeper than Python goes": deep(100_000),
    "a number of many digits": 10**5_000,
    "characters that Postgres refuses": "\x00\ud800",
    "no numbers": [float("nan"), float("inf")],
    "bytes": b"\xff" * 1_000,
    "a model": Shouting(text="\x00" * 1_000_000),
    "many keys": {f"{number}\x00": number for number in range(50_000)},
}


@pytest.mark.promise("H12")
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("limit", [1, 65_536, 1_048_576])
def test_no_result_can_undo_its_effect_or_let_it_happen_again(edges: Stage, result: str, limit: int) -> None:
    ran: list[int] = []

    def effect(text: str) -> Any:
        ran.append(len(text))
        return RESULTS[result]

    task = call(edges, of_tool(effect, replay="safe", output_limit=limit), {"text": "y" * 3_000_000})

    assert task.outcome is Outcome.SUCCEEDED
    assert ran == [3_000_000]


def test_bad_arguments_out_of_a_body_are_an_unknown_effect(edges: Stage) -> None:
    def validates() -> None:
        raise BadArguments("of another tool")

    task = call(edges, of_tool(validates))

    assert (task.outcome, task.error) == (Outcome.INTERRUPTED, "BadArguments: of another tool")


# What a phase returns


def returning(give: Callable[[Any], Any]) -> Kind:
    class Returning(Flow, name="made"):
        @phase
        def start(self) -> Any:
            return give(self)

        @phase
        def finish(self) -> Any:
            return Done("went on")

    return flow_kind(Returning)


def changes(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def give(flow: Any) -> Any:
        flow.update(Notes, change)
        return Done()

    return give


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a reserved name": (lambda _: WaitSignal("human:answer", "finish", 1), "names that begin with human:"),
    "a name that is no text": (lambda _: WaitSignal(42, "finish", 1), "the name must be"),  # type: ignore[arg-type]
    "a key that is no text": (lambda _: WaitSignal("paid", "finish", 1, key=42), "the key must be"),  # type: ignore[arg-type]
    "a key that no sender can use": (lambda _: WaitSignal("paid", "finish", 1, key="k" * 501), "the key must be"),
    "a wait for a signal without an end": (lambda _: WaitSignal("paid", "finish", 1e13), "seconds=.* is no duration"),
    "no number": (lambda _: Sleep("60", "finish"), "seconds='60' is no duration"),  # type: ignore[arg-type]
    "a sleep without an end": (lambda _: Sleep(1e13, "finish"), "seconds=.* is no duration"),
    "a naive time": (lambda _: Sleep(0, "finish", until=datetime(2030, 1, 1)), "an aware time"),  # noqa: DTZ001
    "its own id": (lambda flow: Wait([flow.task_id], "finish"), "which it did not spawn"),
    "nobody's id": (lambda _: Wait([new_task_id()], "finish"), "which it did not spawn"),
    "no id": (lambda _: Wait(["soon"], "finish"), "a list of ids"),  # type: ignore[list-item]
    "no list": (lambda flow: Wait(flow.task_id, "finish"), "a list of ids"),
    "text for a list": (lambda flow: Wait(str(flow.task_id), "finish"), "a list of ids"),  # type: ignore[arg-type]
    "a checkpoint that is no JSON": (lambda _: Next("finish", object()), "its checkpoint cannot be stored"),
    "a checkpoint that is too large": (lambda _: Next("finish", "x" * 1_048_577), "its checkpoint cannot be stored"),
    "an unknown phase": (lambda _: Next("nowhere"), "has no phase 'nowhere'"),
    "nothing": (lambda _: None, "returned NoneType"),
    "a child that is none": (lambda flow: flow.spawn(42, {}), "is no child of a flow"),
    "a child in a version that no column holds": (lambda flow: flow.spawn("note@99999999999", {}), "names no version"),
    "a child that nobody offers": (lambda flow: (flow.spawn("nowhere", {}), Done())[1], "has published nowhere"),
}


@pytest.mark.promise("H12")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_phase_that_returns_what_cannot_be_carried_out_fails_at_once_and_says_what_to_write(
    edges: Stage, wrong: str
) -> None:
    give, said = WRONG[wrong]
    entered: list[int] = []

    def once(flow: Any) -> Any:
        entered.append(1)
        return give(flow)

    task = call(edges, returning(once))

    assert task.outcome is Outcome.FAILED
    assert entered == [1]
    assert re.search(said, task.error or "")
    assert "task_recovered" not in edges.types(task.session_id)


def test_a_child_cannot_wait_for_its_owner(edges: Stage) -> None:
    session_id, owner = edges.session()
    task_id = new_task_id()
    kind = returning(lambda _: Wait([owner], "finish"))
    edges.commit(
        session_id,
        lambda draft: draft.add(
            call_task(
                task_id,
                owner=draft.task(owner),
                kind=kind.name,
                version=1,
                call_id=None,
                arguments={},
                cause=draft.session.last_seq,
                now=draft.now,
            )
        ),
        [owner],
    )

    task = play(edges, kind, task_id, session_id)

    assert task.outcome is Outcome.FAILED
    assert "which it did not spawn" in (task.error or "")


def test_an_id_that_came_back_as_text_is_waited_for_like_any_other(edges: Stage) -> None:
    seen: list[str] = []

    class Waiting(Flow, name="made"):
        @phase
        def start(self) -> Any:
            child = self.spawn(tool(name="child")(fine), {})
            return Next(self.wait, checkpoint=str(child))

        @phase
        def wait(self) -> Any:
            return Wait([self.checkpoint], self.finish)

        @phase
        def finish(self) -> Any:
            seen.append(self.checkpoint)
            return Done(self.result(self.checkpoint).outcome)

    kind = flow_kind(Waiting)
    task = call(edges, kind)
    (child,) = edges.sql("SELECT id FROM brainhands.tasks WHERE owner_id = %s", task.id)

    assert (task.status, seen) == (Status.WAITING, [])
    assert play(edges, of_child(), TaskId(child["id"]), task.session_id).outcome is Outcome.SUCCEEDED
    ended = play(edges, kind, task.id, task.session_id)
    assert (ended.result, UUID(seen[0])) == ("succeeded", child["id"])


def of_child() -> Kind:
    return tool_kind(tool(name="child")(fine))
