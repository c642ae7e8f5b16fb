"""Policy: whether a call runs, is refused, or is asked about; the strictest rule of tool and agent counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from shared.errors import BadDefinition

RULES = ("allow", "ask", "deny")
"""From the mildest to the strictest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Ask a person: how long for an answer, how long an approval can be used, and what holds without an answer."""

    answer_seconds: float = 86_400.0
    use_seconds: float = 3_600.0
    default: str = "deny"

    def __post_init__(self) -> None:
        if self.answer_seconds <= 0 or self.use_seconds <= 0 or self.default not in ("deny", "approve"):
            raise BadDefinition(f"{self} cannot be asked", 'give positive seconds and default="deny" or "approve"')


Rule: TypeAlias = "str | Ask"
Policy: TypeAlias = "Rule | Callable[[Any], Rule]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What the rules say of one call, and which of them."""

    rule: str
    ask: Ask
    by: str


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
