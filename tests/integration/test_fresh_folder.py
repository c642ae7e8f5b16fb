"""An agent and a tool are a folder of the user's own: the command line is told of them, and nothing else is touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.demo import model_server
from deploy.demo.model_scripts import Call, Reply, Request
from tests.instruments.processes import Children, child_environment

ROOT = Path(__file__).parents[2]
BRAINHANDS = (sys.executable, "-m", "brainhands.shared.cli.main")

AGENT = """\
name: desk
version: 1
instructions: |
  Answer customers.
  Look orders up.
tools:
  - delivery_day
"""
TOOL = '''\
from brainhands import tool


@tool(replay="safe")
def delivery_day(order: int) -> str:
    """Say when an order will be delivered."""
    return f"order {order} arrives on Friday"
'''


@pytest.mark.promise("K4")
@pytest.mark.slow
def test_an_agent_from_yaml_answers_with_a_new_tool_and_no_file_of_the_runtime_changes(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    shop = tmp_path / "shop"
    (shop / "agents").mkdir(parents=True)
    (shop / "agents" / "desk.yaml").write_text(AGENT)
    (shop / "shop_tools.py").write_text(TOOL)
    asked: list[Request] = []

    def answer(request: Request) -> Reply:
        asked.append(request)
        said = request["messages"][-1]
        if said["role"] == "tool":
            return Reply(text=f"Your {said['content']}.")
        return Reply(calls=(Call(name="delivery_day", arguments={"order": 42}),))

    with model_server.start({"shop": answer}) as model, Children(tmp_path) as children:
        environment = child_environment(
            DATABASE_URL=database_url,
            REDIS_URL=redis_url,
            OPENAI_API_KEY="none",
            OPENAI_BASE_URL=f"{model.url}/v1",
            BRAINHANDS_MODEL="shop",
            PYTHONPATH=str(ROOT),
        )
        up = children.start(
            *(*BRAINHANDS, "up", "--agents", "agents", "--tools", "shop_tools", "--no-flower"),
            *("--brain-concurrency", "1", "--hands-concurrency", "1"),
            environment=environment,
            folder=shop,
        )
        up.wait_for_line("up     | ready:", timeout=90)
        submitted = subprocess.run(
            [*BRAINHANDS, "submit", "desk", "Where is order 42?", "--follow", "--json"],
            env=environment,
            cwd=shop,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        assert submitted.returncode == 0, f"{submitted.stderr}\n{up.output}"
        *events, done = (json.loads(line) for line in submitted.stdout.splitlines())
        up.stop()

    assert done["output"] == "Your order 42 arrives on Friday."
    assert result_of(events) == {"tool": "delivery_day", "result": "order 42 arrives on Friday"}
    assert asked[0]["messages"][0]["content"] == "Answer customers.\nLook orders up.\n"


def result_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What the one tool call of a session gave."""
    (payload,) = (event["payload"] for event in events if event["type"] == "tool_call_success")
    return {name: payload[name] for name in ("tool", "result")}
