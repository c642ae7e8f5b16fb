"""Finds the agents that a process offers, in the modules and YAML files it is told of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from brainhands.brain.agent import Agent
from brainhands.brain.agent_files import agents_at
from brainhands.shared.errors import BadDefinition
from brainhands.shared.runtime.modules import import_modules, is_a, is_path


def agents_in(entries: Iterable[str]) -> dict[str, list[Agent]]:
    """The agents of YAML files, folders of these, and dotted modules (their top-level ones), by name, oldest first.

    Raises BadDefinition.
    """
    entries = list(entries)
    found: dict[tuple[str, int], Agent] = {}
    for agent, place in _all(entries):
        if found.setdefault((agent.name, agent.version), agent) != agent:
            raise BadDefinition(
                f"two different agents are {agent.name}@{agent.version}, one of them in {place}",
                "raise the version of the newer one",
            )
    agents: dict[str, list[Agent]] = {}
    for (name, _), agent in sorted(found.items()):
        agents.setdefault(name, []).append(agent)
    return agents


def _all(entries: list[str]) -> Iterator[tuple[Agent, str]]:
    """Each agent with where it was found."""
    for agent in agents_at([entry for entry in entries if is_path(entry)]):
        yield agent, "a YAML file"
    for module in import_modules([entry for entry in entries if not is_path(entry)]):
        for value in vars(module).values():
            if is_a(value, Agent):
                yield value, module.__name__
