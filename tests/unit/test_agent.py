"""Agents as their authors write them, and how a worker finds them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from brainhands.brain.agent import Agent, Model, agent_of
from brainhands.brain.loading import agents_in
from brainhands.shared.errors import BadDefinition, Incompatible
from brainhands.shared.model.prices import Prices

WriteModule = Callable[[str], str]
numbers = itertools.count()
PRICES = Prices(input=Decimal(1), output=Decimal(2))


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteModule]:
    """Write a module with these lines into the working folder; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    written: list[str] = []

    def write(lines: str) -> str:
        name = f"agents_of_test_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(f"from brainhands.brain.agent import Agent\n{lines}\n")
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_an_agent_needs_a_name_a_version_and_instructions() -> None:
    agent = Agent(name="notices", version=3, instructions="Send notices.")

    assert (agent.model, agent.tools, agent.options) == (None, [], {})
    assert (agent.request_seconds, agent.retries, agent.rounds) == (600, 8, 50)
    assert agent.background is False


def test_an_agent_takes_tools_and_options() -> None:
    agent = Agent(
        name="a", version=1, instructions="", tools=["send_email", "find@2"], options={"temperature": 0.2}, model="m"
    )

    assert agent.tools == ["send_email", "find@2"]
    assert agent.options == {"temperature": 0.2}


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("name", "Notices", "name: "),
        ("version", 0, "version: "),
        ("instructions", None, "instructions: "),
        ("model", "", "model: "),
        ("tools", ["send mail"], "'send mail' is not a tool's name"),
        ("tools", ["send@0"], "'send@0' is not a tool's name"),
        ("tools", ["send@1", "send@2"], "named more than once: send"),
        ("tools", [print], "tools.0: "),
        ("options", {"messages": []}, "not an option: messages"),
        ("options", {"stream": True, "tools": []}, "not an option: stream, tools"),
        ("options", {"stop": {1, 2}}, "set is no JSON type"),
        ("request_seconds", 0, "request_seconds: "),
        ("request_seconds", float("inf"), "request_seconds: "),
        ("retries", -1, "retries: "),
        ("rounds", 0, "rounds: "),
        ("temperature", 1, "temperature: "),
        ("models", ["a", Model(name="a")], "listed more than once: a"),
        ("models", ["a", ""], "models.1"),
    ],
)
def test_a_bad_definition_is_refused_in_one_line(field: str, value: Any, problem: str) -> None:
    fields: dict[str, Any] = {"name": "a", "version": 1, "instructions": "", field: value}

    with pytest.raises(BadDefinition) as raised:
        Agent(**fields)

    assert problem in str(raised.value)
    assert str(raised.value).startswith(f"agent {fields['name']!r}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "a"}, "`models` takes the place of `model` and `prices`"),
        ({"prices": PRICES}, "`models` takes the place of `model` and `prices`"),
        ({"session_cost": 1}, "a budget of money needs prices of each model"),
    ],
)
def test_models_that_are_listed_have_their_own_prices(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDefinition, match=problem):
        Agent(name="a", version=1, instructions="", models=[Model(name="large", prices=PRICES), "small"], **fields)


def test_an_agent_that_lists_no_models_has_the_one_that_it_names_or_that_of_its_worker() -> None:
    named = Agent(name="a", version=1, instructions="", model="own", prices=PRICES)
    silent = Agent(name="a", version=1, instructions="")
    listing = Agent(name="a", version=1, instructions="", models=["large", Model(name="small", prices=PRICES)])

    assert named.models_of("any") == [Model(name="own", prices=PRICES)]
    assert silent.models_of("any") == [Model(name="any")]
    assert listing.models_of("any") == [Model(name="large"), Model(name="small", prices=PRICES)]


def test_agents_are_found_by_name_with_their_versions_in_order(write_module: WriteModule) -> None:
    newer = write_module(
        "b = Agent(name='b', version=1, instructions='')\nn = Agent(name='a', version=10, instructions='')"
    )
    older = write_module(f"from {newer} import b\no = Agent(name='a', version=9, instructions='')\nlist_of_none = [o]")

    found = agents_in([newer, older])

    assert {name: [agent.version for agent in agents] for name, agents in found.items()} == {"a": [9, 10], "b": [1]}


def test_two_different_agents_of_one_name_and_version_are_refused(write_module: WriteModule) -> None:
    one = write_module("a = Agent(name='a', version=1, instructions='x')")
    same = write_module("a = Agent(name='a', version=1, instructions='x')")
    other = write_module("a = Agent(name='a', version=1, instructions='y')")

    assert len(agents_in([one, same])["a"]) == 1
    with pytest.raises(BadDefinition, match=f"a@1, one of them in {other}"):
        agents_in([one, other])


def test_a_missing_module_is_named() -> None:
    with pytest.raises(BadDefinition, match="no_such_module_of_agents"):
        agents_in(["no_such_module_of_agents"])


@pytest.mark.promise("H8")
@pytest.mark.parametrize(("name", "version"), [("writer", 1), ("writer", 4), ("reader", 2), ("reader", None)])
def test_an_agent_that_is_not_here_in_a_fitting_version_blocks_what_asks_for_it(name: str, version: int | None) -> None:
    writer = Agent(name="writer", instructions="Write.", version=3, continues=2)

    with pytest.raises(Incompatible, match=name):
        agent_of({("writer", 3): writer}, name, version)
    assert agent_of({("writer", 3): writer}, "writer", 2) is writer
