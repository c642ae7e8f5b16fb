"""Agents as data: what a Brain worker needs to know to think in an agent's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shared.errors import BadDefinition, NotStorable
from shared.model.json import clean
from shared.runtime.modules import import_modules

TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(@[1-9][0-9]{0,8})?")
OWN_KEYS = frozenset(
    {"model", "messages", "tools", "functions", "function_call", "stream", "stream_options", "n", "modalities", "audio"}
)
"""Keys of a request that are not an agent's to set: they are made from the log, or the adapter depends on them."""


class Agent(BaseModel):
    """A named, versioned agent; a session pins the version it began with. Raises BadDefinition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    version: int = Field(ge=1)
    continues: int | None = Field(None, ge=1)
    """The oldest version whose sessions this one goes on with, where that version is gone; None: its own only."""
    model: str | None = Field(None, min_length=1)
    """None takes the model of BRAINHANDS_MODEL."""
    instructions: str
    tools: list[str] = Field(default_factory=list)
    """Tools by name: `send_email` in its newest version, `send_email@2` in that one."""
    rules: dict[str, Literal["allow", "ask", "deny"]] = Field(default_factory=dict)
    """For a tool by name, whether its calls run, are asked about or are refused; a stricter rule of the tool counts."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed on to the provider as they are, such as `temperature` or `max_completion_tokens`."""
    request_seconds: float = Field(600.0, gt=0, allow_inf_nan=False)
    """How long one model call may take in all."""
    retries: int = Field(8, ge=0)
    """How often one request is sent again."""
    rounds: int = Field(50, ge=1)
    """Model calls for one input."""
    session_tokens: int | None = Field(None, ge=1)
    """Tokens, in and out, that all model calls of one session may use; then no further request is made."""

    # Hidden from type checkers, which know the fields and would see only `**fields` here.
    if not TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as invalid:
                raise BadDefinition(f"agent {fields.get('name')!r}: {_one_line(invalid)}") from None

    @field_validator("tools")
    @classmethod
    def _named_once(cls, tools: list[str]) -> list[str]:
        for tool in tools:
            if not TOOL.fullmatch(tool):
                raise ValueError(f"{tool!r} is not a tool's name or name@version")
        names = [tool.partition("@")[0] for tool in tools]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(repeated)}")
        return tools

    @model_validator(mode="after")
    def _continues_older_ones(self) -> Self:
        if self.continues is not None and self.continues > self.version:
            raise ValueError(f"continues={self.continues} is newer than version {self.version}")
        return self

    @property
    def oldest(self) -> int:
        """The oldest version whose sessions this one goes on with."""
        return self.continues or self.version

    @model_validator(mode="after")
    def _rules_for_own_tools(self) -> Self:
        if unknown := sorted(self.rules.keys() - {tool.partition("@")[0] for tool in self.tools}):
            raise ValueError(f"rules for tools that it does not have: {', '.join(unknown)}")
        return self

    @field_validator("options")
    @classmethod
    def _for_the_provider(cls, options: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(OWN_KEYS.intersection(options)):
            raise ValueError(f"not an option: {', '.join(own)}")
        try:
            cleaned: dict[str, Any] = clean(options)
        except NotStorable as problem:
            raise ValueError(str(problem)) from None
        return cleaned


def agents_in(modules: Iterable[str]) -> dict[str, list[Agent]]:
    """The top-level agents of dotted modules by name, oldest version first. Raises BadDefinition."""
    found: dict[tuple[str, int], Agent] = {}
    for module in import_modules(modules):
        for value in vars(module).values():
            if isinstance(value, Agent) and found.setdefault((value.name, value.version), value) != value:
                raise BadDefinition(
                    f"two different agents are {value.name}@{value.version}, one of them in {module.__name__}",
                    "raise the version of the newer one",
                )
    agents: dict[str, list[Agent]] = {}
    for (name, _), agent in sorted(found.items()):
        agents.setdefault(name, []).append(agent)
    return agents


def _one_line(invalid: ValidationError) -> str:
    problems = invalid.errors(include_url=False, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}" for problem in problems
    )
