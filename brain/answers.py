"""Structured answers: how one is asked for, and whether what the model gave is one.

Where the provider's dialect has `response_format` with a JSON schema, and the request offers no tools, that is used;
elsewhere the answer is the call of a tool, `final_answer`, which every provider takes. Either way the whole answer is
validated here. What is kept of it is its JSON in canonical text, as the model gave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from brainhands.brain import fitting
from brainhands.brain.decide import Answer, CallTools, Decision, GiveUp, PlannedCall, Unfit
from brainhands.brain.models.dialects import Dialect
from brainhands.brain.models.schema import accepted
from brainhands.shared.errors import NotStorable
from brainhands.shared.model import edge
from brainhands.shared.model.event import RequestedOutput
from brainhands.shared.model.json import Json, canonical, clean, parse
from brainhands.shared.model.tool import ToolSpec

Output: TypeAlias = type[BaseModel] | dict[str, Any]
"""A pydantic model, or a JSON schema in the part of the language that `brain/fitting.py` checks."""

FINAL_TOOL = "final_answer"
FINAL_DESCRIPTION = "Gives your final answer. Call it alone, once, when you have all that you need, in place of a text."
MAX_UNFIT = 3
"""Answers to one input that do not fit; then the input fails."""
ALONE = "not taken: give the final answer by one call and nothing beside it, after the results of all other calls"
MOST_PROBLEMS = 10
LONGEST_PROBLEM = 2_000
FENCE = "```"


class _Misfit(Exception):
    """What the model gave is not the answer that was asked for; the text is for the model."""


def check(output: Output) -> Output:
    """An agent's `output` as it may be used. Raises ValueError."""
    try:
        output = output if isinstance(output, type) else clean(output)
        schema = edge.call(_schema_of, output)
    except NotStorable as unstorable:
        raise ValueError(str(unstorable)) from None
    except edge.ForeignError as error:
        raise ValueError(f"it has no JSON schema: {error}") from None
    if isinstance(output, dict) and (problem := next(fitting.schema_problems(schema), None)):
        raise ValueError(problem)
    if accepted(schema)["type"] != "object":
        raise ValueError("the answer must be an object")
    return output


def requested(output: Output | None, *, offers_tools: bool, dialect: Dialect) -> RequestedOutput | None:
    """What a request asks for, to be pinned."""
    if output is None:
        return None
    by_format = dialect.json_schema and not offers_tools
    return RequestedOutput(by="response_format" if by_format else "tool", parameters=accepted(_schema_of(output)))


def final_tools(request: RequestedOutput | None) -> Sequence[ToolSpec]:
    """The tool by which the answer is given, where it is given by one."""
    if request is None or request.by != "tool":
        return []
    return [
        ToolSpec(
            kind=FINAL_TOOL,
            name=FINAL_TOOL,
            version=1,
            description=FINAL_DESCRIPTION,
            parameters=request.parameters,
            pool="",
        )
    ]


def judge(decision: Decision, output: Output, unfit: int) -> Decision:
    """The same decision where it gives no answer; else what follows from the answer, the ones before that did not fit
    counted by `unfit`."""
    match decision:
        case Answer(text):
            planned: tuple[PlannedCall, ...] = ()
            given = text
        case CallTools(planned) if any(_is_final(each) for each in planned):
            if len(planned) > 1:
                return CallTools(tuple(replace(each, error=ALONE) if _is_final(each) else each for each in planned))
            given = planned[0].call.arguments
        case _:
            return decision
    try:
        if planned and planned[0].error is not None:
            raise _Misfit(planned[0].error)
        return Answer(_fitted(output, given), planned)
    except _Misfit as misfit:
        problem = str(misfit)[:LONGEST_PROBLEM]
    if unfit + 1 >= MAX_UNFIT:
        return GiveUp(f"the answer was not what was asked for {MAX_UNFIT} times: {problem}", given)
    return Unfit(problem, tuple(replace(each, error=problem) for each in planned))


def _is_final(planned: PlannedCall) -> bool:
    return planned.spec is not None and planned.spec.kind == FINAL_TOOL


def _fitted(output: Output, text: str) -> str:
    """The canonical text of an answer. Raises _Misfit."""
    try:
        value = parse(_without_fence(text.strip()))
    except NotStorable as problem:
        raise _Misfit(f"it is not the JSON that was asked for: {problem}") from None
    try:
        problem_found = edge.call(_problem, output, value)
    except edge.ForeignError as error:
        problem_found = str(error)
    if problem_found is not None:
        raise _Misfit(problem_found)
    return canonical(value)


def _without_fence(text: str) -> str:
    """The text inside of a fence of Markdown, which models like to put around JSON."""
    if not (text.startswith(FENCE) and text.endswith(FENCE)):
        return text
    return text.removesuffix(FENCE).partition("\n")[2]


def _problem(output: Output, value: Json) -> str | None:
    if isinstance(output, dict):
        return fitting.misfit(output, value)
    try:
        output.model_validate_json(canonical(value))
    except ValidationError as invalid:
        found = invalid.errors(include_url=False, include_input=False, include_context=False)[:MOST_PROBLEMS]
        return "\n".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found)
    return None


def _schema_of(output: Output) -> dict[str, Any]:
    return _schema_of_model(output) if isinstance(output, type) else output


@cache
def _schema_of_model(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema, made once, where the agent is defined: making it is code of others."""
    schema: dict[str, Any] = clean(model.model_json_schema())
    return schema
