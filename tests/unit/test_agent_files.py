"""Agents in YAML files: what may stand there, and how a mistake is told, by file, line and column."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from brainhands.brain.agent import Agent, Model
from brainhands.brain.agent_files import agents_at
from brainhands.brain.agent_schema import schema_text
from brainhands.brain.loading import agents_in
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.prices import Prices

ROOT = Path(__file__).parents[2]

DESK = """\
# yaml-language-server: $schema=agent.schema.json
name: desk
version: 2
model: small
instructions: |
  Answer customers.

  Look orders up: always.
tools: [find_order, refund@3]
rules: {refund: ask}
options:
  temperature: 0.2
output: {type: object, properties: {order: {type: integer}}}
request_seconds: 20
session_tokens: 5000
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("agents").mkdir()
    return tmp_path


def write(name: str, text: str | bytes) -> str:
    path = Path("agents", name)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def agent(name: str, version: int = 1, **more: str) -> str:
    return "".join(f"{key}: {value}\n" for key, value in {"name": name, "version": version, **more}.items()) + (
        "instructions: x\n"
    )


def problems(*entries: str) -> list[str]:
    """What is told of entries that must be refused."""
    with pytest.raises(BadDefinition) as refused:
        agents_at(entries)
    assert "brain/agent.schema.json" in refused.value.next_step
    return str(refused.value).splitlines()


def test_the_published_schema_is_that_of_the_model() -> None:
    published = (ROOT / "brain" / "agent.schema.json").read_text()

    assert published == schema_text(), "run: python -m brainhands.brain.agent_schema > brain/agent.schema.json"


@pytest.mark.promise("K4")
def test_a_yaml_file_says_what_the_same_agent_says_in_python() -> None:
    assert agents_at([write("desk.yaml", DESK)]) == [
        Agent(
            name="desk",
            version=2,
            model="small",
            instructions="Answer customers.\n\nLook orders up: always.\n",
            tools=["find_order", "refund@3"],
            rules={"refund": "ask"},
            options={"temperature": 0.2},
            output={"type": "object", "properties": {"order": {"type": "integer"}}},
            request_seconds=20,
            session_tokens=5000,
        )
    ]


@pytest.mark.promise("K4")
def test_models_are_listed_by_name_or_with_their_prices() -> None:
    models = "[large, {name: small, prices: {input: '1', output: '2'}}]"

    (found,) = agents_at([write("spare.yaml", agent("spare", models=models))])

    prices = Prices(input=Decimal(1), output=Decimal(2))
    assert found.models_of("any") == [Model(name="large"), Model(name="small", prices=prices)]


@pytest.mark.promise("K4")
def test_files_folders_and_modules_can_be_mixed_and_a_file_named_twice_counts_once(working_folder: Path) -> None:
    one = write("one.yml", f"{agent('a', 10)}---\n{agent('a', 9)}---\n")
    write("two.yaml", f"\ufeff{agent('b')}")
    write(".hidden.yaml", "no: agent")
    write("notes.txt", "no agent")
    (working_folder / "written_in_python.py").write_text(
        "from brainhands import Agent\nc = Agent(name='c', version=1, instructions='')\n"
    )

    found = agents_in([one, "written_in_python", "agents/"])

    assert {name: [each.version for each in versions] for name, versions in found.items()} == {
        "a": [9, 10],
        "b": [1],
        "c": [1],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: [a\nversion: 1\n", ["2:8: not YAML: "]),
        ("\tname: a\n", ["1:1: not YAML: "]),
        ("name: a\x07\n", ["1:1: the character #x0007 cannot stand in YAML"]),
        (b"name: a\nversion: 1\ninstructions: gr\xfc\xdfe\n", ["3:1: not UTF-8"]),
        ("# nothing\n", ["1:1: there is no agent in this file"]),
        ("---\n---\n", ["1:1: there is no agent in this file"]),
        ("- a\n", ["1:1: an agent is written as fields"]),
        (agent("a", modle="m"), ["3:1: unknown field 'modle'; did you mean 'model'?"]),
        (agent("a", zzzzz="1"), ["3:1: unknown field 'zzzzz'; known are name, version, "]),
        ("instructions: x\nversion: 1\n", ["1:1: the field 'name' is missing"]),
        (agent("Desk"), ["1:1: name: String should match pattern"]),
        (agent("no"), ["1:1: name: not text but false; put it in quotes"]),
        ("name: a\nversion: '1'\ninstructions: x\n", ["2:1: version: Input should be a valid integer"]),
        ("name: a\nversion: true\ninstructions: x\n", ["2:1: version: Input should be a valid integer"]),
        ("name: a\nversion: 0\ninstructions: x\n", ["2:1: version: Input should be greater than or equal to 1"]),
        ("name: a\nversion: 1\ninstructions: 2024-05-01\n", ["3:15: '2024-05-01' is read as a timestamp; put it in "]),
        (agent("a", request_seconds=".inf"), ["3:1: request_seconds: "]),
        (agent("a", tools="send"), ["3:1: tools: Input should be a valid array"]),
        (agent("a", tools="\n  - send\n  - 7"), ["5:5: tools.1: not text but 7; put it in quotes"]),
        (agent("a", tools="[send@1, send@2]"), ["3:1: tools: named more than once: send"]),
        (agent("a", rules="{send: ask}"), ["1:1: rules for tools that it does not have: send"]),
        (agent("a", tools="[send]", rules="{send: on}"), ["4:9: rules.send: Input should be 'allow', 'ask' or 'deny'"]),
        (agent("a", options="{messages: []}"), ["3:1: options: not an option: messages"]),
        ("name: a\nversion: 1\nname: b\ninstructions: x\n", ["3:1: 'name' is given twice, first in line 1"]),
        (agent("a", options="{seed: 1, seed: 2}"), ["3:20: 'seed' is given twice, first in line 3"]),
        (agent("a", options="{1: 2}"), ["3:11: the name of a field is text"]),
        (agent("a", options="&o {top_p: 1}\nrules: *o"), ["3:10: an alias repeats this"]),
        (agent("a", options="&o {inner: *o}"), ["3:10: an alias repeats this"]),
        ("name: a\nversion: 1\n<<: {instructions: x}\n", ["3:1: the name of a field is text"]),
        (agent("a", model="!!python/name:os.system x"), ["3:8: the tag 'python/name:os.system' makes something"]),
        (agent("a", options="!!python/object/apply:os.system [true]"), ["3:10: the tag 'python/object/apply:os.syst"]),
        (agent("a", model="!secret x"), ["3:8: the tag '!secret' makes something"]),
        (agent("a", model="!!int x"), ["3:8: 'x' is not what its tag says"]),
        (agent("a", output="{type: array}"), ["3:1: output: the answer must be an object"]),
        (agent("a", output="{properties: {a: {pattern: x}}}"), ["3:1: output: properties.a.pattern is not checked"]),
        (agent("a", models="[large, large]"), ["3:1: models: listed more than once: large"]),
        (agent("a", options=f"{'[' * 3000}{']' * 3000}"), ["1:1: nested too deeply"]),
        (agent("a", options=f"{{x: {'[' * 150}{']' * 150}}}"), ["1:1: "]),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_to_do(text: str | bytes, told: list[str]) -> None:
    file = write("desk.yaml", text)

    found = problems(file)

    assert len(found) == len(told)
    for line, start in zip(found, told, strict=True):
        assert line.startswith(f"{file}:{start}")


def test_all_mistakes_of_all_files_are_told_at_once() -> None:
    write("a.yaml", f"{agent('a', retries='-1', rounds='0')}---\nname: B\nversion: 1\ninstructions: x\n---\nname: [\n")
    write("b.yaml", "name: b\n")

    assert [line.partition(" ")[0] for line in problems("agents")] == [
        "agents/a.yaml:3:1:",
        "agents/a.yaml:4:1:",
        "agents/a.yaml:7:1:",
        "agents/a.yaml:12:1:",
        "agents/b.yaml:1:1:",
        "agents/b.yaml:1:1:",
    ]


def test_an_agent_that_two_files_define_is_refused_even_if_both_say_the_same() -> None:
    write("a.yaml", agent("a"))
    write("b.yaml", f"{agent('b')}---\n{agent('a')}")

    assert problems("agents") == [
        "agents/b.yaml:5:1: a@1 is defined in agents/a.yaml:1 already; raise its version",
    ]


def test_a_file_and_a_module_that_differ_about_an_agent_are_refused(working_folder: Path) -> None:
    write("a.yaml", agent("a"))
    (working_folder / "other_agents_of_python.py").write_text(
        "from brainhands import Agent\na = Agent(name='a', version=1, instructions='y')\n"
    )

    with pytest.raises(BadDefinition, match="a@1, one of them in other_agents_of_python"):
        agents_in(["agents", "other_agents_of_python"])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("agents", "agents: there is no .yaml or .yml file in this folder"),
        ("missing/", "missing: there is no such file or folder"),
        ("desk.yaml", "desk.yaml: there is no such file or folder"),
        ("agents/desk.py", "agents/desk.py: not a .yaml or .yml file"),
    ],
)
def test_a_path_that_leads_to_no_agent_is_named(entry: str, told: str) -> None:
    if entry.endswith(".py"):
        write("desk.py", "")

    (line,) = problems(entry)

    assert line.startswith(told)


def test_a_folder_that_is_a_package_is_still_a_module() -> None:
    Path("shop_of_agents").mkdir()
    Path("shop_of_agents", "__init__.py").write_text(
        "from brainhands import Agent\na = Agent(name='a', version=1, instructions='')\n"
    )

    assert list(agents_in(["shop_of_agents"])) == ["a"]


@pytest.mark.parametrize("command", ["up", "brain"])
def test_a_mistake_is_told_before_anything_starts(command: str, tmp_path: Path) -> None:
    write("desk.yaml", agent("desk", modle="m"))
    tools = ("--tools", "json") if command == "up" else ()

    refused = subprocess.run(
        [sys.executable, "-m", "brainhands.shared.cli.main", command, "--agents", "agents", *tools],
        env={"PYTHONPATH": str(ROOT), "BRAINHANDS_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (refused.returncode, refused.stdout) == (2, "")
    problem, next_step = refused.stderr.splitlines()
    assert problem == "error: agents/desk.yaml:3:1: unknown field 'modle'; did you mean 'model'?"
    assert "brain/agent.schema.json" in next_step
    assert not (tmp_path / "home").exists()
