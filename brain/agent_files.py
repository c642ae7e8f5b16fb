"""Agents in YAML files: read without building objects, checked like the published schema, refused by file and line.

A file holds one agent, or several as documents apart by `---`.
`python -m brainhands.brain.agent_files PATH...` only checks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError
from yaml.reader import ReaderError

from brainhands.brain.agent import Agent
from brainhands.brain.agent_schema import WrittenAgent
from brainhands.shared.errors import BadDefinition, NotStorable
from brainhands.shared.model.json import Json, canonical, clean
from brainhands.shared.runtime.modules import YAML_ENDINGS

Node: TypeAlias = Any
"""A node of PyYAML, which has no types."""

Place: TypeAlias = tuple[str | int, ...]
"""Where a value is in a document: keys and indexes from its root."""

YAML = "tag:yaml.org,2002:"
PLAIN = {f"{YAML}{name}" for name in ("null", "bool", "int", "float", "str")}
UNQUOTED = {f"{YAML}{name}" for name in ("timestamp", "value", "merge")}
"""What YAML takes plain text for without being told to."""


def agents_at(entries: Iterable[str]) -> list[Agent]:
    """The agents of YAML files and folders of such. Raises BadDefinition with all problems, a line each, by place."""
    agents: list[Agent] = []
    places: dict[tuple[str, int], str] = {}
    problems: list[str] = []
    for file in _files(entries, problems):
        reading = _read(file)
        for agent, at in reading.agents:
            first = places.setdefault((agent.name, agent.version), f"{file}:{at.line + 1}")
            if first != f"{file}:{at.line + 1}":
                reading.refuse(at, f"{agent.name}@{agent.version} is defined in {first} already; raise its version")
            agents.append(agent)
        problems += [f"{file}:{line}:{column}: {problem}" for line, column, problem in sorted(reading.problems)]
    if problems:
        raise BadDefinition("\n".join(problems), "brain/agent.schema.json says what an agent's file may hold")
    return agents


@dataclass(slots=True)
class _Reading:
    """What came of one file: agents with the marks at which they begin, and problems with line and column."""

    agents: list[tuple[Agent, Any]] = field(default_factory=list)
    problems: list[tuple[int, int, str]] = field(default_factory=list)

    def refuse(self, mark: Any, problem: str) -> None:
        self.problems.append((mark.line + 1, mark.column + 1, problem))


def _files(entries: Iterable[str], problems: list[str]) -> Iterator[Path]:
    """Each file once, in the order named, those of a folder by name; what begins with a dot in a folder is left out."""
    seen: set[Path] = set()
    for path in map(Path, entries):
        if path.is_dir():
            inside = (file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
            files = sorted(file for file in inside if file.suffix in YAML_ENDINGS)
        else:
            files = [path] if path.is_file() and path.suffix in YAML_ENDINGS else []
        if not files:
            problems.append(f"{path}: {_why_nothing(path)}")
        for file in files:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _why_nothing(path: Path) -> str:
    if path.is_dir():
        return "there is no .yaml or .yml file in this folder"
    if path.is_file():
        return "not a .yaml or .yml file; name a module with dots, without .py"
    return "there is no such file or folder"


def _read(file: Path) -> _Reading:
    reading = _Reading()
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reading.problems.append((1, 1, f"it cannot be read: {error.strerror}"))
        return reading
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        reading.problems.append((line, 1, "not UTF-8; save the file in that encoding"))
        return reading
    try:
        _read_documents(text, reading)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reading.problems.append((line, 1, f"the character #x{error.character:04x} cannot stand in YAML"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reading.refuse(mark, f"not YAML: {', '.join(filter(None, (error.context, error.problem)))}")
    except RecursionError:
        reading.problems.append((1, 1, "nested too deeply"))
    if not reading.agents and not reading.problems:
        reading.problems.append((1, 1, "there is no agent in this file"))
    return reading


def _read_documents(text: str, reading: _Reading) -> None:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            document = _Document(loader, reading)
            root = loader.get_node()
            if root.tag != f"{YAML}null":
                document.read(root)
    finally:
        loader.dispose()


class _Document:
    """One document while it is read: its values as JSON, and the mark of each, by place."""

    def __init__(self, loader: Any, reading: _Reading) -> None:
        self._loader = loader
        self._reading = reading
        self._marks: dict[Place, Any] = {}
        self._seen: set[int] = set()

    def read(self, root: Node) -> None:
        known = len(self._reading.problems)
        value = self._value(root, ())
        if len(self._reading.problems) > known:
            return
        if not isinstance(value, dict):
            self._reading.refuse(root.start_mark, "an agent is written as fields, such as `name: desk`")
            return
        try:
            fields = clean(value)
            WrittenAgent.model_validate_json(canonical(fields))
        except NotStorable as problem:
            self._reading.refuse(root.start_mark, str(problem))
        except ValidationError as invalid:
            for error in invalid.errors(include_url=False):
                self._reading.refuse(self._mark(error["loc"]), _told(error))
        else:
            self._reading.agents.append((Agent(**fields), root.start_mark))

    def _value(self, node: Node, place: Place) -> Json:
        self._marks.setdefault(place, node.start_mark)
        if id(node) in self._seen:
            self._reading.refuse(node.start_mark, "an alias repeats this; write it out in each place")
            return None
        self._seen.add(id(node))
        match node:
            case yaml.ScalarNode():
                return self._scalar(node)
            case yaml.SequenceNode() if node.tag == f"{YAML}seq":
                return [self._value(item, (*place, index)) for index, item in enumerate(node.value)]
            case yaml.MappingNode() if node.tag == f"{YAML}map":
                return self._mapping(node, place)
        return self._refuse_tag(node)

    def _mapping(self, node: Node, place: Place) -> dict[str, Json]:
        fields: dict[str, Json] = {}
        for key, item in node.value:
            if key.tag != f"{YAML}str":
                self._reading.refuse(key.start_mark, "the name of a field is text; put it in quotes if it is meant so")
            elif key.value in fields:
                first = self._marks[(*place, key.value)].line + 1
                self._reading.refuse(key.start_mark, f"{key.value!r} is given twice, first in line {first}")
            else:
                self._marks[(*place, key.value)] = key.start_mark
                fields[key.value] = self._value(item, (*place, key.value))
        return fields

    def _scalar(self, node: Node) -> Json:
        if node.tag not in PLAIN:
            return self._refuse_tag(node)
        try:
            return self._loader.construct_object(node)
        except (KeyError, ValueError):
            self._reading.refuse(node.start_mark, f"{node.value!r} is not what its tag says")
            return None

    def _refuse_tag(self, node: Node) -> None:
        name = node.tag.removeprefix(YAML)
        if node.tag in UNQUOTED:
            problem = f"{node.value!r} is read as a {name}; put it in quotes if it is text"
        else:
            problem = f"the tag {name!r} makes something that is no JSON value; leave it out"
        self._reading.refuse(node.start_mark, problem)

    def _mark(self, place: Place) -> Any:
        """The mark of a place, or of the nearest one around it."""
        while place not in self._marks:
            place = place[:-1]
        return self._marks[place]


def _told(error: Any) -> str:
    """What is wrong with a field, and what to do."""
    name = ".".join(map(str, error["loc"]))
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "missing":
            return f"the field {name!r} is missing"
        case "extra_forbidden":
            near = get_close_matches(name, WrittenAgent.model_fields, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(WrittenAgent.model_fields)}"
            return f"unknown field {name!r}; {known}"
        case "string_type" if isinstance(error["input"], bool | int | float):
            return f"{name}: not text but {canonical(error['input'])}; put it in quotes if it is text"
    return f"{name}: {message}" if name else message


if __name__ == "__main__":
    try:
        agents_at(sys.argv[1:])
    except BadDefinition as problems:
        sys.exit("".join(f"error: {line}\n" for line in str(problems).splitlines()) + problems.next_step)
