"""A user's own type checker, without plugins, agrees with what the pages show and refuses wrong words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, get_args

import pytest

from brainhands.hands.policy import RULES, Rule
from brainhands.hands.tool import ReplayName
from brainhands.shared.model.approval import ANSWERS, AnswerName
from brainhands.shared.model.submission import Mode, ModeName
from brainhands.shared.model.task import Priority, PriorityName
from brainhands.shared.model.tool import Replay
from tests.first_hour.pages import ROOT, write_blocks

SAMPLE = ROOT / "tests" / "sample"
WRONG = """\
from brainhands import Agent, Client, ToolContext, tool
from uuid import UUID

Agent(name="desk", version=1)  # wrong
Agent(name="desk", version=1, instructions="", tools="search")  # wrong
Agent(name="desk", version=1, instructions="", rules={"search": "perhaps"})  # wrong
Agent(name="desk", version=1, instructions="", instruction="")  # wrong

client = Client()
id = UUID(int=1)
client.submit(agent="desk", input="", mode="follow_up", priority="batch")
client.submit(agent="desk", input="", mode="follow-up")  # wrong
client.submit(agent="desk", input="", priority="high")  # wrong
client.answer(id, "approved")
client.answer(id, "yes")  # wrong
client.settle(id, "happened")
client.settle(id, "approved")  # wrong

@tool(replay="never")  # wrong
def first() -> None: ...

@tool(unknown="nobody")  # wrong
def second() -> None: ...

@tool(policy="perhaps")  # wrong
def third() -> None: ...

@tool(replay="safe", unknown="review", policy="ask")
def search(ctx: ToolContext, text: str, most: int = 10) -> list[str]:
    return [text] * most

@tool
def plain(number: int) -> int:
    return number

def use(ctx: ToolContext) -> int:
    found: list[str] = search(ctx, "tea", most=3)
    plain("one")  # wrong
    search(ctx)  # wrong
    search(ctx, "tea", least=3)  # wrong
    return search(ctx, "tea")  # wrong
"""

Checker = Callable[[Path, list[Path]], list[str]]


def mypy(folder: Path, files: list[Path]) -> list[str]:
    """The problems that mypy finds by its defaults and `strict`, as FILE:LINE: PROBLEM."""
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", *map(str, files)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": note:" not in line]


def pyright(folder: Path, files: list[Path]) -> list[str]:
    """The same for basedpyright in pyright's own default mode, `standard`."""
    options = {
        "typeCheckingMode": "standard",
        "include": [str(file) for file in files],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] >= len(files)
    found = said["generalDiagnostics"]
    places = [(each["file"], each["range"]["start"]["line"] + 1, each["message"]) for each in found]
    return [f"{file}:{line}: {message}" for file, line, message in places]


@pytest.mark.promise("K7")
@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_type_checker_without_plugins_finds_nothing_in_what_the_pages_and_the_sample_show(
    tmp_path: Path, check: Checker
) -> None:
    shown = [file for file in write_blocks(tmp_path) if file.suffix == ".py"]

    assert check(tmp_path, [*shown, *sorted(SAMPLE.glob("*.py"))]) == []


@pytest.mark.parametrize("check", [mypy, pyright])
def test_a_type_checker_refuses_each_wrong_word_and_argument_and_nothing_else(tmp_path: Path, check: Checker) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)

    problems = check(tmp_path, [tmp_path / "wrong.py"])

    wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(found[1]) for each in problems if (found := re.search(r"wrong\.py:(\d+)", each))} == wrong, problems


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (AnswerName, frozenset[str]().union(*ANSWERS.values())),
        (ModeName, Mode),
        (PriorityName | None, {each.name.lower() for each in Priority}),
        (ReplayName, Replay),
        (Rule, RULES),
    ],
)
def test_the_words_that_a_type_checker_takes_are_those_that_the_code_takes(name: Any, words: Collection[str]) -> None:
    assert {word for part in get_args(name) for word in get_args(part)} == set(words)
