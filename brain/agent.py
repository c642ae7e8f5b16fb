"""Agents as data: what a Brain worker needs to know to think in an agent's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator, model_validator

from brainhands.brain import answers
from brainhands.brain.answers import FINAL_TOOL, Output
from brainhands.brain.models.dialects import NAMES
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.errors import BadDefinition, Incompatible, NotStorable
from brainhands.shared.model.bounds import MAX_COUNT, MAX_SECONDS, MAX_TOKENS, MAX_TRIES
from brainhands.shared.model.json import clean
from brainhands.shared.model.prices import MAX_USD, Prices, Usd

TOOL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(@[1-9][0-9]{0,8})?")
OWN_KEYS = frozenset(
    {"model", "messages", "tools", "functions", "function_call", "stream", "stream_options", "n", "modalities", "audio"}
)
"""Keys of a request that are not an agent's to set: they are made from the log, or the adapter depends on them."""
OWN_BACKGROUND_KEYS = frozenset(
    {"background", "store", "input", "instructions", "previous_response_id", "conversation"}
)
"""The same, where the request goes to the Responses API."""


ModelName: TypeAlias = Annotated[str, Field(min_length=1)]


class Model(BaseModel):
    """One of an agent's models, and what it costs; without prices no cost is recorded for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ModelName
    prices: Prices | None = None


class Agent(BaseModel):
    """A named, versioned agent; a session pins the version it began with. Raises BadDefinition."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    version: int = Field(ge=1, le=MAX_COUNT)
    continues: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """The oldest version whose sessions this one goes on with, where that version is gone; None: its own only."""
    model: str | None = Field(default=None, min_length=1)
    """None takes the model of BRAINHANDS_MODEL."""
    models: list[ModelName | Model] = Field(default_factory=list)
    """In place of `model` and `prices`: models in the order in which they are asked, each after the one before failed
    for good or used up its retries. One is written as its name, or as name and prices."""
    instructions: str
    tools: list[str] = Field(default_factory=list)
    """Tools by name: `send_email` in its newest version, `send_email@2` in that one; other agents likewise."""
    rules: dict[str, Literal["allow", "ask", "deny"]] = Field(default_factory=dict)
    """For a tool by name, whether its calls run, are asked about or are refused; a stricter rule of the tool counts."""
    dialect: str | None = None
    """How the provider speaks, by a name of `brain/models/dialects.py`; None takes that of BRAINHANDS_DIALECT."""
    output: Annotated[
        Output | None,
        WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]}),
    ] = None
    """What its answers are: a pydantic model, or the JSON schema of an object. Each is validated, asked for again where
    it does not fit, and stored as JSON text. None: free text."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed on to the provider as they are, such as `temperature` or `max_completion_tokens`."""
    background: bool = False
    """The provider works while nobody waits for it (the Responses API's background mode), and is asked now and then."""
    request_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """How long one model call may take in all, also in the background."""
    first_token_seconds: float | None = Field(default=None, gt=0, le=MAX_SECONDS)
    """How long the provider may take until it begins its reply; None: as long as the whole call."""
    silence_seconds: float | None = Field(default=180.0, gt=0, le=MAX_SECONDS)
    """How long a reply that has begun may pause; None: as long as the whole call."""
    retries: int = Field(default=8, ge=0, le=MAX_TRIES)
    """How often one request is sent again."""
    description: str | None = Field(default=None, min_length=1)
    """What other agents are told of it. An agent that has one can be named in their `tools`, and called like a tool."""
    fail_fast: bool = False
    """Whether the first call of a reply that fails cancels the others, before the model is asked again."""
    rounds: int = Field(default=50, ge=1, le=MAX_COUNT)
    """Model calls for one input."""
    session_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """Tokens, in and out, that all model calls of one session may use; then no further request is made."""
    submission_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """The same for all work on one input."""
    prices: Prices | None = None
    """What the model costs; without them no cost is recorded."""
    session_cost: Usd | None = Field(default=None, gt=0, le=MAX_USD)
    """USD that all model calls of one session may cost; then no further request is made."""
    submission_cost: Usd | None = Field(default=None, gt=0, le=MAX_USD)
    """The same for all work on one input."""
    context_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    """Tokens that a request may have; a longer context is compacted before the model is asked. State somewhat less than
    the model's window, which must hold the reply too. None leaves it to the provider to refuse what is too long."""

    # Hidden from type checkers, which know the fields and would see only `**fields` here.
    if not TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as invalid:
                raise BadDefinition(f"agent {fields.get('name')!r}: {_one_line(invalid)}") from None

    @field_validator("dialect")
    @classmethod
    def _known_dialect(cls, dialect: str | None) -> str | None:
        if dialect is not None and dialect not in NAMES:
            raise ValueError(f"{dialect!r} is none of {', '.join(NAMES)}")
        return dialect

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

    @field_validator("output")
    @classmethod
    def _can_be_asked_for(cls, output: Output | None) -> Output | None:
        return None if output is None else answers.check(output)

    @model_validator(mode="after")
    def _asks_for_one_output(self) -> Self:
        if self.output is not None and "response_format" in self.options:
            raise ValueError("not an option beside `output`: response_format")
        if self.output is not None and FINAL_TOOL in {tool.partition("@")[0] for tool in self.tools}:
            raise ValueError(f"beside `output` no tool can be named {FINAL_TOOL}")
        return self

    @field_validator("models")
    @classmethod
    def _listed_once(cls, models: list[str | Model]) -> list[str | Model]:
        names = [_model(each).name for each in models]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"listed more than once: {', '.join(repeated)}")
        return models

    @model_validator(mode="after")
    def _one_way_to_name_models(self) -> Self:
        if self.models and not (self.model is None and self.prices is None):
            raise ValueError("`models` takes the place of `model` and `prices`; each of them has its own prices")
        return self

    def models_of(self, default: str) -> Sequence[Model]:
        """Its models in the order in which they are asked, at least one; `default` for an agent that names none."""
        return [_model(each) for each in self.models] or [Model(name=self.model or default, prices=self.prices)]

    @property
    def timeouts(self) -> Timeouts:
        """How long one model call may take."""
        return Timeouts(whole=self.request_seconds, first=self.first_token_seconds, silence=self.silence_seconds)

    @property
    def oldest(self) -> int:
        """The oldest version whose sessions this one goes on with."""
        return self.continues or self.version

    @model_validator(mode="after")
    def _rules_for_own_tools(self) -> Self:
        if unknown := sorted(self.rules.keys() - {tool.partition("@")[0] for tool in self.tools}):
            raise ValueError(f"rules for tools that it does not have: {', '.join(unknown)}")
        return self

    @model_validator(mode="after")
    def _for_the_background(self) -> Self:
        if self.background and (own := sorted(OWN_BACKGROUND_KEYS.intersection(self.options))):
            raise ValueError(f"not an option in the background: {', '.join(own)}")
        return self

    @model_validator(mode="after")
    def _budget_of_money_with_prices(self) -> Self:
        prices = [_model(each).prices for each in self.models] or [self.prices]
        if None in prices and (self.session_cost is not None or self.submission_cost is not None):
            raise ValueError("a budget of money needs prices" + (" of each model" if self.models else ""))
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


Agents: TypeAlias = Mapping[tuple[str, int], Agent]
"""What a Brain worker offers, by name and version."""


def agent_of(agents: Agents, name: str, version: int | None) -> Agent:
    """The agent in a version, or the oldest that goes on with that one; the newest where none is pinned yet.

    Raises Incompatible where there is none.
    """
    versions = sorted((each for each in agents.values() if each.name == name), key=lambda each: each.version)
    fitting = [each for each in versions if version is None or each.oldest <= version <= each.version]
    if not fitting:
        raise Incompatible(
            f"agent {name} is not here" + ("" if version is None else f" in a form of version {version}")
        )
    if version is None:
        return fitting[-1]
    return agents.get((name, version)) or fitting[0]


def _model(written: str | Model) -> Model:
    return written if isinstance(written, Model) else Model(name=written)


def _one_line(invalid: ValidationError) -> str:
    problems = invalid.errors(include_url=False, include_input=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}" for problem in problems
    )
