"""Worker processes themselves: how they start, what they refuse to start with, and what of them can be read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from brainhands.shared.local.servers import free_port
from brainhands.shared.model.task import Outcome
from tests.instruments.fleet import CELERY, Fleet, wait_until
from tests.instruments.processes import Child
from tests.integration.test_flower import Page, answers

LOUD = {"BRAINHANDS_AGENTS": "tests.sample.loud_agents", "BRAINHANDS_TOOLS": "tests.sample.loud_tools"}

BROKEN_MODULES = {
    "raises": "import os\n\nlimit = 1 / 0\n",
    "exits": "import sys\n\nsys.exit(3)\n",
    "needs": "import no_such_library\n",
    "mistyped": "from brainhands import tool\n\ndef f(:\n",
    "defines": "from brainhands import tool\n\n@tool(timeout=-1)\ndef f(x: str) -> str:\n    return x\n",
    "unready": "from brainhands import tool\n\n@tool(replay='reconcile')\ndef f(x: str) -> str:\n    return x\n",
    "unwritable": """
from typing import Annotated
from brainhands import tool
from pydantic import WithJsonSchema

@tool
def f(x: Annotated[str, WithJsonSchema({"type": object()})]) -> str:
    return x
""",
}
PLACES = {
    "raises": "broken_raises.py:3: module broken_raises cannot be imported: ZeroDivisionError: division by zero",
    "exits": "broken_exits.py:3: module broken_exits cannot be imported: SystemExit: 3",
    "needs": "broken_needs.py:1: module broken_needs cannot be imported: ModuleNotFoundError",
    "mistyped": "module broken_mistyped cannot be imported: SyntaxError",
    "defines": "broken_defines.py:",
    "unready": "broken_unready.py:3: f is reconcile and has no look-up",
    "unwritable": "broken_unwritable.py:",
}

REFUSED_LINES = {
    ("hands", "-P", "threads"): "cannot run with Celery's pool 'thread': a call that is timed out ends its process",
    ("hands", "-P", "solo"): "cannot run with Celery's pool 'solo'",
    ("brain", "-P", "solo"): "cannot run with Celery's pool 'solo': model calls are threads",
    ("hands", "-Q", "brain.default"): "reads one queue, named hands.POOL, not brain.default",
    ("brain", "-Q", "celery"): "reads one queue, named brain.POOL, not celery",
    ("hands", "-Q", "hands.default,hands.slow"): "reads one queue, named hands.POOL, not hands.default and hands.slow",
    ("hands", "-Q", "hands.nobody"): "there is no tool or flow of pool hands.nobody in tests.sample.tools",
    ("hands", "-c", "0"): "a worker has at least one slot, not 0",
    ("hands", "--time-limit", "5"): "Celery's time limits would end calls whose own time is not over",
    ("hands", "--pool-start-method", "spawn"): "forked from what it has loaded",
}


def start(fleet: Fleet, role: str, *options: str, folder: Path | None = None, **environment: str) -> Child:
    """A worker as README starts it, without waiting for it."""
    queue = () if "-Q" in options else ("-Q", f"{role}.default")
    if folder is not None:
        environment["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    return fleet._start(role, *CELERY, f"brainhands.{role}.app", "worker", *queue, *options, environment=environment)


def refusals(children: Sequence[Child]) -> list[str]:
    """How each ended, in its first line: nothing but an error and what to do."""
    said = []
    for child in children:
        assert child.wait(60) in (1, 2, 3), child.output
        lines = child.output.splitlines()
        assert lines[0].startswith("error: "), child.output
        assert len(lines) == 2, child.output
        said.append(lines[0])
    return said


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_a_line_that_asks_for_another_worker_than_there_can_be_is_refused_with_what_was_found(fleet: Fleet) -> None:
    children = [start(fleet, role, *options) for role, *options in REFUSED_LINES]
    assert [
        wanted for wanted, said in zip(REFUSED_LINES.values(), refusals(children), strict=True) if wanted not in said
    ] == []
    for named in ("-Q hands.default", "-Q brain.default", "leave out -P", "write -c 1", "start it with -Q hands."):
        assert any(named in child.output for child in children), named


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_whatever_a_module_raises_or_cannot_publish_ends_its_worker_with_the_place_and_the_reason(
    fleet: Fleet, tmp_path: Path
) -> None:
    for name, text in BROKEN_MODULES.items():
        (tmp_path / f"broken_{name}.py").write_text(text)
    children = [start(fleet, "hands", folder=tmp_path, BRAINHANDS_TOOLS=f"broken_{name}") for name in PLACES]
    children += [start(fleet, "brain", folder=tmp_path, BRAINHANDS_AGENTS=f"broken_{name}") for name in ("raises",)]
    children += [start(fleet, "brain", BRAINHANDS_AGENTS="")]

    said = refusals(children)

    wanted = [*PLACES.values(), PLACES["raises"], "there is no agent in BRAINHANDS_AGENTS, which is not set"]
    assert [each for each, line in zip(wanted, said, strict=True) if each not in line] == []


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_a_setting_that_cannot_be_used_ends_a_celery_line_without_a_trace(fleet: Fleet) -> None:
    children = [start(fleet, "brain", BRAINHANDS_LEASE_SECONDS="soon"), start(fleet, "hands", DATABASE_URL="mysql://x")]
    for named, said in zip(("BRAINHANDS_LEASE_SECONDS", "DATABASE_URL"), refusals(children), strict=True):
        assert named in said


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.promise("H13", "C14")
def test_a_child_that_hangs_at_its_start_is_replaced_and_a_hang_up_stops_a_worker_as_a_drain_does(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.environment |= LOUD
    fleet.relay(), fleet.brain()
    hands = fleet.hands(LOUD_HANGS=str(tmp_path / "hung"))
    receipt = fleet.script(
        {"calls": [{"name": "hold_unsafe", "arguments": {"text": "x"}}]}, {"text": "ok"}, agent="loud"
    )
    hands.wait_for_line("child_hangs", 40)
    fleet.wait_for_effect("hold x began")

    hands.send(signal.SIGHUP)
    assert hands.wait(30) == 0
    assert [line.split()[2] for line in fleet.effects()] == ["began", "acted"]
    assert fleet.wait(receipt).outcome is Outcome.SUCCEEDED
    calls = [event for event in fleet.types(receipt.session_id) if event.startswith("tool_call")]
    assert calls == ["tool_call_start", "tool_call_success"]


SPOKEN = (
    "printed aloud",
    "not of every terminal: ",
    "to standard error aloud",
    "logged aloud",
    "warned aloud",
    "by a program aloud",
    "without Python aloud",
    "phase_failed",
    "ZeroDivisionError",
    "loud_tools.py:",
)


def speak(fleet: Fleet) -> None:
    """Run a tool that writes in every way, and a flow that fails."""
    calls = [{"name": "speak", "arguments": {"text": "aloud"}}, {"name": "stumble", "arguments": {"text": "x"}}]
    assert fleet.wait(fleet.script({"calls": calls}, {"text": "ok"}, agent="loud"), 60).output == "ok"


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_what_a_child_logs_prints_and_traces_is_in_its_workers_output_and_nothing_of_libraries(fleet: Fleet) -> None:
    fleet.environment |= {**LOUD, "PYTHONUNBUFFERED": "", "PYTHONIOENCODING": "ascii", "BRAINHANDS_RESTART_LIMIT": "1"}
    parts = [fleet.relay(), start(fleet, "brain", "-c", "2"), start(fleet, "hands", "-c", "1")]
    speak(fleet)

    for spoken in SPOKEN:
        parts[2].wait_for_line(spoken)
    for part in parts:
        assert not [word for word in ("alembic", "superuser", "SecurityWarning", "Traceback") if word in part.output]


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_as_json_every_line_of_every_part_is_an_object(fleet: Fleet, tmp_path: Path) -> None:
    fleet.environment |= {**LOUD, "BRAINHANDS_LOG": "json", "BRAINHANDS_RESTART_LIMIT": "1"}
    fleet.environment |= {"PYTHONUNBUFFERED": "", "BRAINHANDS_HOME": str(tmp_path / "home")}
    port = free_port()
    flower = fleet._start("flower", "-m", "brainhands.shared.cli.main", "flower", "--port", str(port), environment={})
    parts = [fleet.relay(), start(fleet, "brain", "-c", "2"), start(fleet, "hands", "-c", "1")]
    refused = start(fleet, "hands", "-c", "0")
    speak(fleet)
    wait_until(lambda: answers(port), 60, "Flower")
    page = Page(port, (tmp_path / "home" / "flower-password").read_text())
    flower.wait_for_line(page.makes_flower_log())
    for part in (*parts, flower):
        part.send(signal.SIGTERM)
    assert [part.wait(40) for part in (*parts, flower)] == [0] * 4
    assert refused.wait(60) == 2

    lines = {part: objects(part) for part in (*parts, flower, refused)}
    assert {line["process"] for line in lines[flower]} == {"flower"}
    spoken = json.dumps(lines[parts[2]], ensure_ascii=False)
    assert [each for each in SPOKEN if each not in spoken] == []
    assert {"written by": "the tool", "text": "aloud"} in lines[parts[2]]
    for part, process in zip(parts, ("relay", "brain", "hands"), strict=True):
        assert {line["process"] for line in lines[part] if "process" in line} == {process}
    assert "a worker has at least one slot" in lines[refused][-1]["reason"]


def objects(part: Child) -> list[dict[str, Any]]:
    """The lines of a part that has ended, once whoever copies for it has ended too."""
    wait_until(lambda: not writers(part.log), 10, "the end of a part's output")
    return [json.loads(line) for line in part.output.splitlines()]


def writers(log: Path) -> list[str]:
    """The processes that have a file open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(entry) == str(log):
                found.append(entry.parts[2])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
