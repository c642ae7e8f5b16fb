"""`up` says what stands in the way of a start, once, and ends; it neither tries for ever nor claims to be ready."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from brainhands.shared.local.servers import free_port
from brainhands.shared.runtime.settings import settings
from tests.conftest import readable_folder
from tests.instruments.fleet import wait_until
from tests.instruments.processes import Child, Children, child_environment
from tests.integration.test_flower import Page, answers
from tests.integration.test_worker_processes import objects

AGENT = 'from brainhands import Agent\n\ndesk = Agent(name="desk", version=1, instructions="Answer.", tools=["date"])\n'
TOOL = 'from brainhands import tool\n\n\n@tool\ndef date(order: int) -> str:\n    return "Friday"\n'


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with readable_folder() as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("agent", "tool", "name", "told"),
    [
        (AGENT, TOOL.replace(": int", ""), "hands", "shop_tools.py:4: date: parameter 'order' has no annotation"),
        (AGENT.replace("version=1", "version=0"), TOOL, "brain", "shop_agents.py:3: agent 'desk': version: "),
        (AGENT, f"{TOOL}\n\nraise SystemExit(7)\n", "hands", ""),
    ],
    ids=["tool", "agent", "silent"],
)
def test_a_definition_with_which_no_worker_can_start_ends_up_and_is_named_with_its_place(
    home: Path, tmp_path: Path, agent: str, tool: str, name: str, told: str, form: str
) -> None:
    (tmp_path / "shop_agents.py").write_text(agent)
    (tmp_path / "shop_tools.py").write_text(tool)

    with Children(tmp_path) as children:
        up = start_up(children, home, tmp_path, "--no-flower", BRAINHANDS_LOG=form)
        assert up.wait(90) == 1
        lines = [str(line.get("event")) for line in objects(up)] if form == "json" else up.output.splitlines()

    said = "\n".join(lines)
    (refused,) = [line for line in lines if line.startswith("error: ") and "cannot start" in line]
    assert refused.startswith(f"error: {name} cannot start: {told}")
    assert not refused.endswith(": ")
    assert "next try" not in said
    assert "ready:" not in said
    assert said.index("OPENAI_API_KEY is not set") < said.index("cannot start")


@pytest.mark.slow
@pytest.mark.promise("H13")
def test_as_json_every_line_of_up_and_its_parts_is_an_object_of_who_wrote_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "shop_agents.py").write_text(AGENT)
    (tmp_path / "shop_tools.py").write_text(TOOL)
    port = free_port()

    with Children(tmp_path) as children:
        up = start_up(children, home, tmp_path, f"--flower-port={port}", BRAINHANDS_LOG="json")
        up.wait_for_line("ready: ", 90)
        wait_until(lambda: answers(port), 60, "Flower")
        page = Page(port, (home / "home" / "flower-password").read_text())
        up.wait_for_line(page.makes_flower_log())
        env = json.loads((home / "home" / "servers.json").read_text())
        up.send(signal.SIGINT)
        assert up.wait(60) == 0
        lines = objects(up)

    assert {line["process"] for line in lines} == {"up", "relay", "brain", "hands", "flower"}
    assert len({line["pid"] for line in lines if line["process"] in ("up", "flower")}) == 2
    assert "stopping" in [line["event"] for line in lines if line["process"] == "up"]
    passwords = [urlsplit(env[name]).password for name in ("database_url", "redis_url")]
    assert [password for password in passwords if str(password) in up.output] == []


def start_up(children: Children, home: Path, folder: Path, *options: str, **environment: str) -> Child:
    places = {"BRAINHANDS_HOME": str(home / "home"), "BRAINHANDS_SERVERS": settings().servers}
    return children.start(
        *(sys.executable, "-m", "brainhands.shared.cli.main", "up", *options),
        *("--agents", "shop_agents", "--tools", "shop_tools"),
        environment=child_environment(**places, **environment),
        folder=folder,
    )
