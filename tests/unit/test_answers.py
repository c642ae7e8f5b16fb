"""Structured answers: what may be asked for, and what fits it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, RootModel

from brainhands.brain.agent import Agent
from brainhands.brain.answers import final_tools, judge, requested
from brainhands.brain.decide import Answer, AskAgain, CallTools, GiveUp, PlannedCall, Unfit
from brainhands.brain.fitting import MOST_STEPS, TooCostly, misfit
from brainhands.brain.models.dialects import DIALECTS, dialect_of
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.event import ModelCall
from brainhands.shared.model.json import Json


class Report(BaseModel):
    title: str


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (RootModel[list[int]], "the answer must be an object"),
        ({"type": "array", "items": {}}, "the answer must be an object"),
        ({"properties": {"a": {"pattern": "^a"}}}, "properties.a.pattern is not checked here; use a pydantic model"),
        ({"properties": {"a": {"anyOf": [{"format": "date"}]}}}, "properties.a.anyOf.0.format is not checked here"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "is not in $defs"),
        ({"properties": {"a": {"type": "text"}}}, "'text' is no type"),
        ({"properties": {"a": {"type": [["text"]]}}}, "is no type"),
        ({"properties": {"a": {"type": 5}}}, "5 is no type"),
        ({"properties": {"a": {"required": [5]}}}, "properties.a.required is not checked here"),
        ({"properties": {"a": {"minimum": "1"}}}, "is no number"),
        ({"properties": {"a": 1}}, "properties.a is no schema"),
        ({"properties": {"a": {"enum": {1}}}}, "set is no JSON type"),
        ("an object", "output"),
        (dict, "output"),
    ],
)
def test_a_form_that_cannot_be_asked_for_or_checked_is_refused_where_it_is_defined(output: Any, problem: str) -> None:
    with pytest.raises(BadDefinition) as raised:
        Agent(name="a", version=1, instructions="", output=output)

    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"options": {"response_format": {"type": "text"}}}, "not an option beside `output`: response_format"),
        ({"tools": ["final_answer@2"]}, "beside `output` no tool can be named final_answer"),
    ],
)
def test_what_stands_in_the_way_of_the_answer_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDefinition, match=problem):
        Agent(name="a", version=1, instructions="", output=Report, **fields)


@pytest.mark.parametrize(
    ("base_url", "named", "offers_tools", "by"),
    [
        (None, None, False, "response_format"),
        (None, None, True, "tool"),
        ("http://localhost:8000/v1", None, False, "tool"),
        ("http://localhost:8000/v1", "vllm", False, "response_format"),
        ("https://api.deepseek.com", None, False, "tool"),
    ],
)
def test_the_way_to_ask_follows_the_dialect_and_without_one_is_that_which_all_take(
    base_url: str | None, named: str | None, offers_tools: bool, by: str
) -> None:
    wanted = requested(Report, offers_tools=offers_tools, dialect=dialect_of(base_url, named))

    assert wanted is not None
    assert wanted.by == by


def test_no_address_that_is_unknown_is_taken_to_have_response_format() -> None:
    assert not DIALECTS[-1].json_schema


@pytest.mark.parametrize(
    "text", ['{"title": "a"}', ' {"title":"a"}\n', '```json\n{"title": "a"}\n```', '```\n{"title": "a"}\n```\n']
)
def test_an_answer_in_a_fence_is_read_as_one_without(text: str) -> None:
    assert judge(Answer(text), Report, 0) == Answer('{"title":"a"}')


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    "text", ["```", "``````", "```" + "\n" * 900_000, "```\n" + " \n" * 400_000 + "```", "```json {}```"]
)
def test_a_fence_around_nothing_is_no_answer_whatever_its_length(text: str) -> None:
    assert isinstance(judge(Answer(text), Report, 0), Unfit)


@pytest.mark.parametrize("error", [None, "not run: the arguments of parallel calls arrived mixed up"])
def test_a_final_call_whose_arguments_cannot_be_trusted_is_no_answer(error: str | None) -> None:
    wanted = requested(Report, offers_tools=True, dialect=DIALECTS[0])
    (spec,) = final_tools(wanted)
    call = ModelCall(call_id="a", provider_id="a", name=spec.name, arguments='{"title": "a"}')
    planned = (PlannedCall(call=call, spec=spec, arguments={"title": "a"}, error=error),)

    decision = judge(CallTools(planned), Report, 0)

    assert decision == (Answer('{"title":"a"}', planned) if error is None else Unfit(error, planned))


def test_a_decision_that_is_no_answer_stays_as_it_is() -> None:
    for decision in (AskAgain("empty"), GiveUp("refused")):
        assert judge(decision, Report, 0) is decision


@pytest.mark.parametrize("unfit", [0, 1, 2])
def test_answers_that_do_not_fit_are_counted(unfit: int) -> None:
    decision = judge(Answer('{"title": 1}'), Report, unfit)

    assert isinstance(decision, GiveUp if unfit == 2 else Unfit)


NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}}}


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "integer"}, 1.0, None),
        ({"type": "integer"}, 1.5, "it is not of type integer"),
        ({"type": "integer"}, True, "it is not of type integer"),
        ({"type": ["string", "null"]}, None, None),
        ({"const": 1}, True, "it is none of [1]"),
        ({"enum": ["a", None]}, None, None),
        ({"minimum": 2}, 1, "it is less than 2"),
        ({"exclusiveMaximum": 2}, 2, "it is not less than 2"),
        ({"minimum": 2}, True, None),
        ({"maxLength": 2}, "abc", "it is longer than 2"),
        ({"minItems": 1}, [], "it has fewer items than 1"),
        ({"items": {"type": "string"}}, ["a", 1], "[1]: is not of type string"),
        ({"required": ["a"]}, {}, "a: is required"),
        ({"properties": {"a": True}, "additionalProperties": False}, {"b": 1}, "b: must not be there"),
        ({"additionalProperties": {"type": "null"}}, {"b": 1}, "b: is not of type null"),
        ({"properties": {"a": {"properties": {"b": {"type": "null"}}}}}, {"a": {"b": 1}}, "a.b: is not of type null"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 1, "it fits none of 2 forms"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "it fits 2 forms where it must fit one"),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3, "it is more than 2"),
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, {"next": {"next": 1}}, "next: fits none of 2 forms"),
    ],
)
def test_a_value_is_compared_with_its_schema(schema: dict[str, Any], value: Json, problem: str | None) -> None:
    assert misfit(schema, value) == problem


def test_a_comparison_that_would_take_too_many_steps_ends_and_says_so() -> None:
    value: Json = 1
    for _ in range(60):
        value = {"next": value}

    with pytest.raises(TooCostly, match=f"{MOST_STEPS:,} steps"):
        misfit({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, value)
    assert isinstance(judge(Answer('{"a": 1}'), {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, 0), Unfit)
