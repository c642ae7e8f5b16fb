"""What is sent passes a server that refuses all that any public server refuses, whatever the conversation was."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NamedTuple, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, create_model

from brainhands.brain.models.dialects import dialect_of, host_of
from brainhands.brain.models.responses import request_of
from brainhands.brain.models.schema import accepted
from brainhands.brain.models.strict import short_id, strict
from brainhands.brain.prompt import Extras, render
from brainhands.shared.model.event import (
    ModelOutput,
    ModelRequest,
    Payload,
    RedactedPayload,
    SystemPromptSet,
    ToolCallSettled,
    UserMessage,
)
from deploy.demo.model_server import transcript_problem
from deploy.demo.model_strict import schema_problems, strict_problem
from tests.unit.test_prompt import SEND, call, compacted, error, interrupted, log, output, success

REQUEST = ModelRequest(agent="a", agent_version=1, model="m", options={}, tools=[], cutoff=10_000)


def sent(*payloads: Payload) -> dict[str, Any]:
    return strict(render(log(*payloads), REQUEST, [SEND]))


def user(text: str = "Hello.") -> UserMessage:
    return UserMessage(text=text, submission="s")


def said(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(message["role"], message["content"]) for message in body["messages"]]


def settled(id: str) -> ToolCallSettled:
    return ToolCallSettled(
        call_id=id,
        tool="send",
        version=2,
        arguments={},
        operation_id="o",
        replay="unsafe",
        approval="q",
        answer="happened",
        result="",
    )


HISTORIES: dict[str, list[Payload]] = {
    "two inputs in a row after one that failed": [user("one"), user("two")],
    "an input that joined behind results": [user(), output(call("a")), success("a"), user("and quickly")],
    "an empty result": [user(), output(call("a")), success("a", "")],
    "an input of white space": [user(" \n")],
    "a reply of white space beside its call": [user(), output(call("a"), text=" \n"), success("a")],
    "a reply cut at its length": [user(), output(text="So", finish_reason="length"), user("go on")],
    "a reply that a filter stopped": [user(), output(text="Bad", finish_reason="content_filter"), user("again")],
    "a refusal": [user(), output(refusal="No."), user("please")],
    "a name that no tool can have": [user(), output(call("a", name="9 lives!")), error("a")],
    "arguments that are no object": [user(), output(call("a", "[1]")), error("a")],
    "a summary before a call": [user(), output(call("a")), success("a"), output(call("b")), success("b"), compacted(3)],
    "a summary, an input and a late word": [
        user(),
        output(call("a")),
        interrupted("a"),
        user("x"),
        compacted(3),
        settled("a"),
    ],
    "nothing but instructions": [SystemPromptSet(agent="a", agent_version=1, instructions="Be kind.")],
    "empty instructions": [SystemPromptSet(agent="a", agent_version=1, instructions=" "), user()],
    "redacted words": [RedactedPayload(), user()],
}


@pytest.mark.promise("E11", "E12")
@pytest.mark.parametrize("history", HISTORIES)
def test_no_history_makes_a_request_that_a_server_refuses(history: str) -> None:
    body = sent(*HISTORIES[history])

    assert transcript_problem(body["messages"]) is None
    assert strict_problem(body) is None


IDS = st.sampled_from(["call_1", "toolu_01", "functions.send:0", "ab", "abcdefghi"])
ARGUMENTS = st.sampled_from(["{}", "", "[", '{"a": 1}'])
NAMES = st.sampled_from(["send", "9 x", ""])
TEXTS = st.sampled_from(["", " ", "So.", "{}"])
ENDINGS = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "odd"])


@st.composite
def _turns(draw: st.DrawFn) -> list[Payload]:
    payloads: list[Payload] = []
    for turn in range(draw(st.integers(1, 5))):
        payloads += [user(draw(TEXTS)) for _ in range(draw(st.integers(0, 2)))]
        ids = [f"{id[:8]}{turn}" for id in draw(st.lists(IDS, max_size=3, unique=True))]
        calls = [call(id, draw(ARGUMENTS), draw(NAMES)) for id in ids]
        refusal = draw(st.sampled_from([None, None, "No."]))
        payloads.append(output(*calls, text=draw(TEXTS), finish_reason=draw(ENDINGS), refusal=refusal))
        for id in ids:
            payloads.append(draw(st.sampled_from([success(id, draw(TEXTS)), error(id, draw(TEXTS)), interrupted(id)])))
        if draw(st.booleans()):
            payloads.append(compacted(draw(st.integers(1, len(payloads)))))
    return [*payloads, user("last")] if draw(st.booleans()) else payloads


@pytest.mark.promise("E11", "E12", "B8")
@given(_turns())
def test_no_mixture_of_turns_makes_a_request_that_a_server_refuses(payloads: list[Payload]) -> None:
    body = sent(*payloads)

    assert transcript_problem(body["messages"]) is None
    assert strict_problem(body) is None
    assert strict(body) == body
    request_of(body)


def test_what_was_said_stays_word_for_word() -> None:
    assert said(sent(user("one"), user("two"), output(text="So."), user("three"))) == [
        ("user", "one\n\ntwo"),
        ("assistant", "So."),
        ("user", "three"),
    ]


@pytest.mark.promise("E12")
def test_text_that_a_filter_or_the_model_itself_refused_is_not_sent_again() -> None:
    history = [
        user("one"),
        output(text="Bad", finish_reason="content_filter"),
        user("two"),
        output(text="Worse", refusal="No."),
    ]

    assert "Bad" not in json.dumps(sent(*history, user("three")))
    assert "Worse" not in json.dumps(sent(*history, user("three")))


def test_a_calls_id_is_the_same_each_time_and_has_the_form_that_all_take() -> None:
    ids = ["call_abc", "toolu_01", "functions.send:0", "x" * 200, ""]

    assert [short_id(id) for id in ids] == [short_id(id) for id in ids]
    assert len({short_id(id) for id in ids}) == len(ids)
    assert all(len(short_id(id)) == 9 and short_id(id).isalnum() and short_id(id).isascii() for id in ids)
    assert short_id("Abcdefgh1") == "Abcdefgh1"


class Place(BaseModel):
    """Somewhere."""

    street: str = Field(pattern="^[A-Z]")
    at: tuple[float, float]


class Tree(BaseModel):
    value: int = Field(gt=0, lt=10, multiple_of=2)
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Pair(NamedTuple):
    left: int
    right: str


FORMS: list[Any] = [
    tuple[float, float],
    tuple[int, str],
    tuple[int, ...],
    tuple[()],
    Pair,
    list[Any],
    list,
    set[str],
    dict[str, Place],
    dict[Annotated[str, Field(pattern="^a")], int],
    Place,
    Tree,
    Literal["a", "b"],
    Literal["a"],
    Annotated[Union[Cat, Dog], Field(discriminator="kind")],  # noqa: UP007
    int | None,
    Any,
    bytes,
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_of_an_argument_has_a_schema_that_providers_hear(form: Any) -> None:
    schema = create_model("Arguments", it=(form, ...)).model_json_schema()

    assert list(schema_problems(accepted(schema))) == []
    assert json.loads(json.dumps(accepted(schema)))["properties"].keys() == {"it"}


def test_references_are_written_out_but_for_those_to_themselves() -> None:
    place = accepted(TypeAdapter(dict[str, Place]).json_schema())
    tree = accepted(Tree.model_json_schema())

    assert "$ref" not in json.dumps(place)
    assert place["additionalProperties"]["properties"]["at"]["items"] == {"type": "number"}
    assert tree["$defs"].keys() == {"Tree"}


def test_a_schema_that_would_grow_too_large_keeps_its_references() -> None:
    steps = {
        f"S{step}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/S{step + 1}"} for side in "ab"}}
        for step in range(30)
    }
    schema = {
        "type": "object",
        "properties": {"it": {"$ref": "#/$defs/S0"}},
        "$defs": {**steps, "S30": {"type": "string"}},
    }

    assert len(json.dumps(accepted(schema))) < 2 * len(json.dumps(schema))
    assert list(schema_problems(accepted(schema))) == []


def test_a_tool_is_described_within_the_shortest_bound() -> None:
    body = strict(render(log(user()), REQUEST, [SEND.model_copy(update={"description": "d" * 5_000})]))

    assert strict_problem(body) is None


def test_a_model_call_keeps_the_providers_own_id_beside_the_one_on_the_wire() -> None:
    body = sent(user(), output(call("call_1")), success("call_1"))

    wire = body["messages"][1]["tool_calls"][0]["id"]
    assert (wire, body["messages"][2]["tool_call_id"]) == (short_id("call_1"), wire)


THOUGHT = {"reasoning_content": "Hm.", "own": 1}
SIGNATURE = {"extra_content": {"google": {"thought_signature": "s"}}}


def thoughtful(id: str, provider: str = "here") -> ModelOutput:
    signed = call(id).model_copy(update={"extra": SIGNATURE})
    return output(signed).model_copy(update={"provider": provider, "extra": THOUGHT})


def given_back(*payloads: Payload, plain: bool = False) -> list[dict[str, Any]]:
    extras = Extras(provider="here", fields=("reasoning_content",))
    body = render(log(*payloads), REQUEST.model_copy(update={"plain": plain}), [SEND], extras)
    return [message for message in strict(body)["messages"] if message["role"] == "assistant"]


@pytest.mark.promise("E11")
def test_a_provider_gets_back_what_is_its_own_with_the_calls_of_the_turn_under_way() -> None:
    (said,) = given_back(user(), thoughtful("a"), success("a"))

    assert (said["reasoning_content"], "own" in said) == ("Hm.", False)
    assert said["tool_calls"][0]["extra_content"] == SIGNATURE["extra_content"]


@pytest.mark.promise("E11")
def test_signatures_of_calls_stay_and_thoughts_of_earlier_turns_go() -> None:
    before, now = given_back(user(), thoughtful("a"), success("a"), user(), thoughtful("b"), success("b"))[::2]

    assert ("reasoning_content" in before, "reasoning_content" in now) == (False, True)
    assert before["tool_calls"][0]["extra_content"] == SIGNATURE["extra_content"]


@pytest.mark.promise("E11")
@pytest.mark.parametrize("plain", [False, True])
def test_nobody_else_gets_what_is_one_providers_own(plain: bool) -> None:
    said = given_back(user(), thoughtful("a", provider="here" if plain else "there"), success("a"), user(), plain=plain)

    assert "Hm." not in json.dumps(said)
    assert "thought_signature" not in json.dumps(said)


def test_plain_words_tell_of_earlier_calls_as_text_and_leave_those_of_the_present_turn() -> None:
    history = [user("one"), output(call("a")), success("a"), user("two"), output(call("b")), success("b")]
    body = strict(render(log(*history), REQUEST.model_copy(update={"plain": True}), [SEND]))

    assert said(body)[1] == ("assistant", "(called send with {})\n\n(result: sent)")
    assert [message["role"] for message in body["messages"]][2:] == ["user", "assistant", "tool"]
    assert strict_problem(body) is None


@pytest.mark.parametrize(
    ("address", "named", "name"),
    [
        (None, None, "openai"),
        ("https://api.deepseek.com/v1", None, "deepseek"),
        ("https://eu.api.openai.com/v1", None, "openai"),
        ("https://x.openai.azure.com/openai", None, "azure"),
        ("http://user:pass@openrouter.ai:443/api/v1", None, "openrouter"),
        ("http://127.0.0.1:8000/v1", None, "any"),
        ("https://not-api.deepseek.com.example.org", None, "any"),
        ("http://127.0.0.1:8000/v1", "mistral", "mistral"),
    ],
)
def test_a_dialect_is_told_from_the_address_unless_it_is_named(
    address: str | None, named: str | None, name: str
) -> None:
    assert dialect_of(address, named).name == name
    assert "pass" not in host_of(address)
