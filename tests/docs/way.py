"""Counts what is read to follow one tool call, and writes build/way.json: `python -m tests.docs.way`.

One turn is played on a stage: submit, a generation that calls a tool, the call, the generation that answers. A turn
before it opens connections and fills what processes keep, as in a fleet that runs.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FrameType

from rich.console import Console
from rich.table import Table

from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.outbox.publisher import Publisher
from brainhands.outbox.relay import Relay
from brainhands.shared.bus.bell import RelayBell
from brainhands.shared.engine.definition import Kind, PhaseResult
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store.database import Database
from tests.bench.system import system
from tests.sample.agents import echo
from tests.store.desk import echo_hands, worker_of
from tests.store.stage import Stage, stage_of

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(str(ROOT / folder) + os.sep for folder in ("brain", "hands", "outbox", "shared"))
OUTPUT = Path("build/way.json")
STEPS = ("submit", "relay", "claim and prepare", "model and reply", "the call", "close and answer")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the product, by the lines of its text, decorators included."""

    file: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Count:
    """What a step enters that no step before it did; files of several steps count in each."""

    step: str
    functions: int
    lines: int
    files: int


class Trace:
    """Notes in which step each function was entered for the first time, in this thread and those that it starts."""

    def __init__(self) -> None:
        self.step: str | None = None
        self._entered: dict[CodeType, str] = {}

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        self.step = step
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            self.step = None

    def forget(self) -> None:
        self._entered.clear()

    def functions(self, step: str) -> set[Function]:
        found = (_function(code) for code, entered in self._entered.items() if entered == step)
        return {function for function in found if function is not None}

    def _note(self, frame: FrameType, what: str, _argument: object) -> None:
        if what == "call" and self.step is not None:
            self._entered.setdefault(frame.f_code, self.step)


def _function(code: CodeType) -> Function | None:
    """None for what is not the product's, and for what is part of another function's text."""
    file = _real(code.co_filename)
    return _functions(file).get(code.co_firstlineno) if file.startswith(PRODUCT) else None


_real = functools.cache(os.path.realpath)


@functools.cache
def _functions(file: str) -> dict[int, Function]:
    found = {}
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[first] = Function(file, first, node.end_lineno or first)
    return found


def counts(functions: dict[str, set[Function]]) -> list[Count]:
    """For each step, and at last for all; a line of two functions, one inside the other, counts once."""
    each = [_count(step, found) for step, found in functions.items()]
    return [*each, _count("all", set().union(*functions.values()))]


def _count(step: str, functions: set[Function]) -> Count:
    lines = {(each.file, line) for each in functions for line in range(each.first, each.last + 1)}
    return Count(step, len(functions), len(lines), len({each.file for each in functions}))


class Turn:
    """A Brain, a Hands and a relay in this process, which take one hint at a time."""

    def __init__(self, stage: Stage, database: Database, redis_url: str, trace: Trace) -> None:
        self._stage = stage
        self._trace = trace
        self._brain = _brain(stage, self._begin_request)
        self._hands = echo_hands(stage)
        self._relay = Relay(database, Publisher(redis_url), RelayBell(redis_url), threading.Event())

    def play(self, text: str) -> None:
        receipt = self._submit(text)
        self._publish()
        with self._trace.during("claim and prepare"):
            self._advance(self._brain)
        with self._trace.during("the call"):
            self._advance(self._hands)
        with self._trace.during("close and answer"):
            self._advance(self._brain)
            answer = self._stage.client.wait(receipt.submission_id, timeout=0)
        assert answer.output == text.removeprefix("echo "), answer

    def _submit(self, text: str) -> Receipt:
        with self._trace.during("submit"):
            return self._stage.client.submit(agent=echo.name, input=text)

    def _publish(self) -> None:
        with self._trace.during("relay"):
            assert self._relay.pass_once() == 1

    def _advance(self, worker: Worker) -> None:
        (hint,) = self._stage.sql("SELECT task_id, session_id FROM brainhands.outbox")
        worker.advance([(hint["task_id"], hint["session_id"])])

    def _begin_request(self) -> None:
        if self._trace.step == "claim and prepare":
            self._trace.step = "model and reply"


def _brain(stage: Stage, begin_request: Callable[[], None]) -> Worker:
    kind = generation_kind({(echo.name, echo.version): echo})
    request = kind.phases["request"]

    def run(run: Run) -> PhaseResult:
        begin_request()
        return request.run(run)

    watched: Kind = replace(kind, phases={**kind.phases, "request": replace(request, run=run)})
    return worker_of(stage, "brain", (watched, intake_kind()), Offer(name=f"agent:{echo.name}", low=1, high=1))


def measure() -> list[Count]:
    """Play the turn on servers of its own."""
    with system() as servers, stage_of(servers.database_url) as stage:
        os.environ |= {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{servers.model_url}/v1"}
        settings.cache_clear()
        database = Database(servers.database_url)
        trace = Trace()
        turn = Turn(stage, database, servers.redis_url, trace)
        try:
            turn.play("echo good morning")
            trace.forget()
            turn.play("echo good evening")
        finally:
            database.close()
    return counts({step: trace.functions(step) for step in STEPS})


def show(found: list[Count], console: Console) -> None:
    table = Table("step", "functions", "lines", "files")
    for each in found:
        table.add_row(each.step, *(f"{number:,}" for number in (each.functions, each.lines, each.files)))
    console.print(table)


def main() -> None:
    console = Console(soft_wrap=True)
    found = measure()
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    show(found, console)
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
