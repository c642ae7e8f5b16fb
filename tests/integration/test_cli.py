"""The command line on a running system: `up` starts everything, and leaves nothing behind."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from brainhands.shared.local.servers import free_port
from brainhands.shared.runtime.settings import settings
from deploy.demo import model_server
from tests.conftest import readable_folder
from tests.instruments.processes import Child, Children, child_environment

ROOT = Path(__file__).parents[2]
BRAINHANDS = (sys.executable, "-m", "brainhands.shared.cli.main")


@dataclass(frozen=True, kw_only=True)
class System:
    """A running `up` with the sample agent, and the command line beside it."""

    up: Child
    home: Path
    flower_port: int
    environment: dict[str, str]

    def run(self, *arguments: str, status: int = 0) -> str:
        """What a command prints, which must exit with this status."""
        done = subprocess.run(
            [*BRAINHANDS, *arguments],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.up.output}"
        return done.stdout

    def json(self, *arguments: str, status: int = 0) -> list[Any]:
        """The JSON values that a command prints, one a line."""
        return [json.loads(line) for line in self.run(*arguments, "--json", status=status).splitlines()]

    def processes(self) -> list[psutil.Process]:
        """`up` and everything below it."""
        return [psutil.Process(self.up.pid), *psutil.Process(self.up.pid).children(recursive=True)]


@contextmanager
def running_system() -> Iterator[System]:
    with readable_folder() as folder, Children(folder) as children:
        model = model_server.start()
        home, port = folder / "home", free_port()
        environment = child_environment(
            BRAINHANDS_HOME=str(home),
            BRAINHANDS_SERVERS=settings().servers,
            BRAINHANDS_MODEL="demo",
            OPENAI_API_KEY="none",
            OPENAI_BASE_URL=f"{model.url}/v1",
            COLUMNS="100",
        )
        up = children.start(
            *(*BRAINHANDS, "up", "--agents", "tests.sample.agents", "--tools", "tests.sample.tools"),
            *("--brain-concurrency", "4", "--hands-concurrency", "2", "--flower-port", str(port)),
            name="up",
            environment=environment,
            folder=ROOT,
        )
        up.wait_for_line("up     | ready:", timeout=90)
        system = System(up=up, home=home, flower_port=port, environment=environment)
        started = system.processes()
        yield system
        up.stop()
        for process in started:
            if process.is_running():
                process.kill()
        model.stop()


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running


@pytest.mark.promise("K1")
@pytest.mark.slow
def test_an_input_is_answered_by_what_one_command_started(system: System) -> None:
    *events, done = system.json("submit", "echo", "echo hello", "--request-id", "hello-1", "--follow")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events if event["type"].startswith("tool_call")] == [
        "tool_call_start",
        "tool_call_success",
    ]
    assert (done["status"], done["outcome"], done["output"]) == ("done", "succeeded", "hello")
    assert done["session_id"] == events[0]["session"]

    (receipt,) = system.json("submit", "echo", "echo hello", "--request-id", "hello-1")
    assert receipt == {
        "submission_id": done["submission_id"],
        "session_id": done["session_id"],
        "request_id": "hello-1",
        "status": "done",
        "head": None,
    }


def test_events_have_the_same_form_at_every_command(system: System) -> None:
    *events, done = system.json("submit", "echo", "echo the form", "--follow")
    (shown,) = system.json("show", done["session_id"])
    assert set(shown) == {"session", "conversations", "tasks", "submissions", "events"}
    assert shown["events"] == events
    named = {"session", "seq", "type", "version", "at", "causes", "payload", "worker", "task", "fence", "hash"}
    for before, event in pairwise(events):
        assert named <= set(event)
        assert event["prev_hash"] == before["hash"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", event["at"])
    (listed,) = system.json("sessions", "--agent", "echo", "--idle", "--since", "2026-01-01", "--limit", "1")
    assert [session["id"] for session in listed] == [done["session_id"]]
    assert system.json("sessions", "--until", "2026-01-01") == [[]]
    assert all(task["outcome"] == "succeeded" for task in shown["tasks"])


def test_a_session_goes_on_with_the_next_input(system: System) -> None:
    *_, first = system.json("submit", "echo", "echo one", "--follow")
    *events, second = system.json("submit", "echo", "echo two", "--session", first["session_id"], "--follow")
    assert second["session_id"] == first["session_id"]
    assert second["output"] == "two"
    assert "echo one" not in [event["payload"].get("text") for event in events]


def test_show_is_readable_in_a_hundred_columns(system: System) -> None:
    *_, done = system.json("submit", "echo", f"echo {'long ' * 100}\x1b[31m\nend", "--follow")
    lines = system.run("show", done["session_id"]).splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert "\x1b" not in "".join(lines)
    for expected in ("echo@1", "succeeded in", "tool:echo", "tool_call_success", "<- "):
        assert any(expected in line for line in lines), expected


@pytest.mark.promise("B9", "B10")
def test_documents_are_shown_as_they_are_and_as_they_were(system: System) -> None:
    script = {"script": [{"calls": [{"name": "batch", "arguments": {"texts": ["\x1b[31m"]}}]}, {"text": "done"}]}
    *_, done = system.json("submit", "worker", json.dumps(script), "--follow")
    session = done["session_id"]

    ((listed,),) = system.json("document", session)
    (tally,) = system.json("document", session, "tally")
    assert tally == listed
    assert (tally["session"], tally["name"], tally["kind"]) == (session, "tally", "tally")
    assert (tally["version"], tally["schema_version"], tally["value"]) == (1, 1, {"counted": ["started"]})
    assert system.json("document", session, "tally", "--version", "1") == [tally]
    assert system.json("document", session, "tally", "--at", str(tally["seq"])) == [tally]
    assert system.json("document", session, "--at", str(tally["seq"] - 1)) == [[]]
    ((version,),) = system.json("document", session, "tally", "--history")
    assert (version["seq"], version["change"]) == (tally["seq"], [[[], tally["value"]]])
    (shown,) = system.json("show", session)
    assert version["at"] == shown["events"][tally["seq"] - 1]["at"]

    (usage,) = system.json("document", session, "usage")
    assert usage["value"]["tokens_in"] == shown["session"]["tokens_in"] > 0
    assert system.json("document", session, "live")[0]["value"] == {"tasks": []}

    assert "tally" in system.run("document", session)
    assert "usage" in system.run("document", session)
    assert json.loads(system.run("document", session, "tally")) == tally["value"]
    assert "started" in system.run("document", session, "tally", "--history")
    for wrong in (
        ("no-such",),
        ("tally", "--at", "1"),
        ("tally", "--version", "9"),
        ("tally", "--version", "1", "--at", "1"),
        ("--version", "1"),
        ("--history",),
        ("usage", "--at", "1"),
        ("usage", "--history"),
    ):
        assert system.run("document", session, *wrong, status=2) == ""


@pytest.mark.promise("D5")
def test_doctor_finds_nothing_in_a_system_that_works(system: System) -> None:
    for number in range(5):
        system.json("submit", "echo", f"echo {number}")
    assert system.json("doctor") == [{"ok": True, "findings": []}]
    assert system.run("doctor") == "ok: nothing is wrong\n"


def test_a_failed_outcome_is_shown_and_exits_with_one(system: System) -> None:
    script = json.dumps({"script": [{"fault": "insufficient_quota"}]})
    *_, done = system.json("submit", "echo", script, "--follow", status=1)
    assert done["outcome"] == "failed"
    assert done["error"]
    ((finding,),) = [report["findings"] for report in system.json("doctor", status=1)]
    assert (finding["check"], finding["subject"]) == ("model", "agent echo")
    assert done["session_id"] in finding["problem"]


def test_watch_follows_a_session_and_ends_quietly_on_ctrl_c(system: System, tmp_path: Path) -> None:
    *events, done = system.json("submit", "echo", "echo first", "--follow")
    with Children(tmp_path) as children:
        watching = children.start(
            *BRAINHANDS,
            "watch",
            done["session_id"],
            "--after",
            "2",
            "--json",
            environment=system.environment,
            folder=ROOT,
        )
        watching.wait_for_line(events[-1]["hash"])
        system.json("submit", "echo", "echo second", "--session", done["session_id"])
        watching.wait_for_line('"output": "second"')
        watching.send(signal.SIGINT)
        assert watching.wait() == 130
        seen = [json.loads(line) for line in watching.output.splitlines()]
    assert [event["seq"] for event in seen] == list(range(3, len(seen) + 3))


def test_batch_work_is_taken_as_such_and_a_pool_without_work_has_nothing_due(system: System) -> None:
    *_, done = system.json("submit", "echo", "echo later", "--batch", "--follow")
    assert (done["priority"], done["output"]) == ("batch", "later")
    assert system.json("due", "hands.nowhere") == [{"pool": "hands.nowhere", "ready": False, "at": None}]
    assert system.run("due", "hands.nowhere") == "nothing is foreseen\n"


def test_bad_input_and_unknown_ids_exit_with_two(system: System) -> None:
    system.run("show", "no-id", status=2)
    system.run("show", "01890a5d-ac96-774b-bcce-b302099a8057", status=2)
    system.run("submit", "echo", " ", status=2)
    system.run("submit", "echo", "hello", "--mode", "no-mode", status=2)
    system.run("due", "no-pool", status=2)


def test_a_second_up_in_the_same_home_says_who_runs_the_first(system: System) -> None:
    system.run("up", "--agents", "tests.sample.agents", "--tools", "tests.sample.tools", status=1)


@pytest.mark.promise("K2")
@pytest.mark.slow
def test_flower_shows_both_fleets_and_readable_hints_behind_a_password_and_changes_nothing(system: System) -> None:
    password = (system.home / "flower-password").read_text()
    assert (system.home / "flower-password").stat().st_mode & 0o777 == 0o600
    command_lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert all(password not in " ".join(command_line) for command_line in command_lines)

    *_, done = system.json("submit", "echo", "echo in flower", "--follow")
    assert eventually(lambda: flower(system, "/api/tasks", password="wrong")[0], bool) == 401
    assert flower(system, "/tasks", password="wrong")[0] == 401
    workers = eventually(
        lambda: flower(system, "/api/workers?refresh=true", password=password)[1],
        lambda seen: {name.split("-")[0] for name in seen} == {"brain", "hands"},
    )
    hints = eventually(
        lambda: [
            hint
            for hint in flower(system, "/api/tasks", password=password)[1].values()
            if done["session_id"] in hint["kwargs"]
        ],
        lambda seen: {hint["name"] for hint in seen} == {"brain.advance", "hands.advance"},
    )
    assert all("echo" in hint["kwargs"] for hint in hints)
    refused, _ = flower(system, f"/api/worker/shutdown/{next(iter(workers))}", password=password, method="POST")
    assert refused == 403


Seen = TypeVar("Seen")


def eventually(look: Callable[[], Seen], is_right: Callable[[Seen], bool]) -> Seen:
    """What Flower shows once it is right: its picture is made of events that reach it some time later."""
    for _ in range(60):
        seen = look()
        if is_right(seen):
            return seen
        time.sleep(0.5)
    raise AssertionError(f"Flower shows {seen}")


def flower(system: System, path: str, *, password: str, method: str = "GET") -> tuple[int, Any]:
    """Status (0 while it does not listen yet) and, where it is one, the JSON answer of Flower."""
    credentials = base64.b64encode(f"operator:{password}".encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{system.flower_port}{path}",
        headers={"Authorization": f"Basic {credentials}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        return refused.code, None
    except urllib.error.URLError:
        return 0, None


@pytest.mark.promise("K1")
@pytest.mark.crash
@pytest.mark.slow
def test_a_part_that_dies_is_started_again_and_a_stop_leaves_no_process() -> None:
    with running_system() as system:
        everything = system.processes()
        for name, module in (("relay", "brainhands.outbox.app"), ("hands", "brainhands.hands.app")):
            parts = psutil.Process(system.up.pid).children()
            next(part for part in parts if module in part.cmdline()).kill()
            system.up.wait_for_line(f"{name} was killed by SIGKILL")
        *_, done = system.json("submit", "echo", "echo after the kill", "--follow")
        assert done["output"] == "after the kill"
        everything += system.processes()
        system.up.send(signal.SIGTERM)
        assert system.up.wait(60) == 0
        _, left = psutil.wait_procs(everything, timeout=10)
        assert left == []


@pytest.mark.crash
@pytest.mark.slow
def test_when_up_is_killed_everything_it_started_ends_too() -> None:
    with running_system() as system:
        everything = system.processes()
        system.up.send(signal.SIGKILL)
        _, left = psutil.wait_procs(everything, timeout=30)
        assert left == []
