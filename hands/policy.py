"""Policy: whether a call runs, is refused, or is asked about; the strictest rule of tool and agent counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.approval import Ask
from brainhands.shared.model.json import Json

RULES = ("allow", "ask", "deny")
"""From the mildest to the strictest."""


Rule: TypeAlias = Literal["allow", "ask", "deny"] | Ask
Policy: TypeAlias = Rule | Callable[[Any], Rule]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What the rules say of one call, and which of them."""

    rule: str
    ask: Ask
    by: str
    read_as: Mapping[str, Json] = field(default_factory=dict)
    """For whom is asked: what those arguments are read as whose stored form does not show it."""


def judge(policy: Policy, arguments: Any, agent_rule: str | None) -> Decision:
    """The strictest of the tool's policy, for these validated arguments, and its agent's rule. Raises BadDefinition."""
    said = policy(arguments) if callable(policy) else policy
    rule = check_rule(said)
    ask = said if isinstance(said, Ask) else Ask()
    if agent_rule is not None and RULES.index(agent_rule) > RULES.index(rule):
        return Decision(rule=agent_rule, ask=ask, by="agent")
    return Decision(rule=rule, ask=ask, by="tool")


def check_rule(rule: object) -> str:
    """The rule by name. Raises BadDefinition for anything else."""
    if isinstance(rule, Ask):
        return "ask"
    if rule not in RULES:
        raise BadDefinition(f"{rule!r} is no rule", f"use one of {', '.join(RULES)}, or Ask(...)")
    return str(rule)
