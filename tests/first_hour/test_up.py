"""`up` says what stands in the way of a start, once, and ends; it neither tries for ever nor claims to be ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.settings import settings
from tests.conftest import readable_folder
from tests.instruments.processes import Child, Children, child_environment

AGENT = 'from brain import Agent\n\ndesk = Agent(name="desk", version=1, instructions="Answer.", tools=["date"])\n'
TOOL = 'from hands import tool\n\n\n@tool\ndef date(order: int) -> str:\n    return "Friday"\n'


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with readable_folder() as folder:
        yield folder


@pytest.mark.slow
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
    home: Path, tmp_path: Path, agent: str, tool: str, name: str, told: str
) -> None:
    (tmp_path / "shop_agents.py").write_text(agent)
    (tmp_path / "shop_tools.py").write_text(tool)

    with Children(tmp_path) as children:
        up = start_up(children, home, tmp_path)
        assert up.wait(90) == 1
        said = up.output

    assert f"error: {name} cannot start: {told}" in said
    assert "next try" not in said
    assert "ready" not in [line.partition("| ")[2][:5] for line in said.splitlines() if line.startswith("up ")]
    assert said.index("OPENAI_API_KEY is not set") < said.index("cannot start")


def start_up(children: Children, home: Path, folder: Path) -> Child:
    return children.start(
        *(sys.executable, "-m", "shared.cli.main", "up", "--no-flower"),
        *("--agents", "shop_agents", "--tools", "shop_tools"),
        environment=child_environment(BRAINHANDS_HOME=str(home / "home"), BRAINHANDS_SERVERS=settings().servers),
        folder=folder,
    )
