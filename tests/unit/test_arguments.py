"""The one form of a call's arguments: what is stored is what is judged, shown, compared and run, for every type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    Base64Bytes,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    EmailStr,
    Field,
    HttpUrl,
    Json,
    JsonValue,
    PlainSerializer,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    computed_field,
)
from typing_extensions import TypedDict

from brainhands.hands.arguments import BadArguments
from brainhands.hands.flow import Flow, phase
from brainhands.hands.tool import AnyTool, tool
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.json import canonical, clean
from brainhands.shared.model.task import Done


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Options(TypedDict, total=False):
    depth: int
    tags: set[str]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: frozenset[str] = frozenset()


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    source: str = Field(alias="from")
    target: str = Field("t", validation_alias="to", serialization_alias="toward")


class Hidden(BaseModel):
    shown: int
    kept: int = Field(7, exclude=True)


class Counted(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    known: int


class Node(BaseModel):
    name: str
    below: list[Node] = []
    marks: set[str] = set()


class Words(RootModel[set[str]]):
    pass


class Loud(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes = b"\xff\x00"
    size: float = 1.0


@dataclass
class Address:
    street: str
    floors: set[int] = field(default_factory=set)


def cents(euros: int) -> int:
    return euros * 100


Cents = Annotated[int, AfterValidator(cents)]
Percent = Annotated[float, BeforeValidator(lambda said: float(str(said)) / 100)]
Flipped = Annotated[bool, AfterValidator(lambda said: not said)]
Commas = Annotated[list[str], BeforeValidator(lambda said: said.split(",") if isinstance(said, str) else said)]
Joined = Annotated[set[str], PlainSerializer(",".join)]
Masked = Annotated[str, PlainSerializer(lambda _: "...")]
Broken = Annotated[int, PlainSerializer(lambda number: number // 0)]
Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Shape = Annotated[
    Union[Annotated[int, Field(gt=0)], Annotated[str, Field(min_length=1)]],  # noqa: UP007
    Field(description="either"),
]


class Priced(BaseModel):
    amounts: list[Cents]
    by_name: dict[str, Cents] = {}
    note: str = ""


JSON_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
SMALL = st.integers(-1000, 1000)
JSONS = st.recursive(
    st.none() | st.booleans() | SMALL | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JSON_TEXT, inner, max_size=3),
    max_leaves=6,
)
FLOATS = st.floats(allow_nan=False) | st.just("Infinity")
WORDS = st.lists(JSON_TEXT, max_size=5)
NODES: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries({"name": JSON_TEXT}, optional={"marks": WORDS}),
    lambda inner: st.fixed_dictionaries({"name": JSON_TEXT, "below": st.lists(inner, max_size=2)}),
    max_leaves=4,
)
PETS = st.fixed_dictionaries({"kind": st.just("cat")}, optional={"lives": SMALL}) | st.fixed_dictionaries(
    {"kind": st.just("dog")}, optional={"tricks": WORDS}
)
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "bool": (bool, st.booleans() | st.sampled_from(["yes", "off", 1])),
    "int": (int, SMALL | st.just("7")),
    "float": (float, FLOATS | SMALL),
    "text": (str, JSON_TEXT),
    "bytes": (bytes, JSON_TEXT),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str) | SMALL),
    "fraction": (Fraction, st.fractions(max_denominator=50).map(str)),
    "datetime": (datetime, st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat) | st.integers(0, 10**9)),
    "date": (date, st.dates().map(date.isoformat)),
    "time": (time, st.times().map(time.isoformat)),
    "timedelta": (timedelta, st.integers(0, 10**6) | st.just("P1DT2H")),
    "uuid": (UUID, st.uuids().map(str)),
    "path": (Path, JSON_TEXT),
    "address": (IPv4Address, st.ip_addresses(v=4).map(str)),
    "mail": (EmailStr, st.sampled_from(["Ann@Example.COM", "b@example.com"])),
    "url": (HttpUrl, st.sampled_from(["http://EXAMPLE.com", "https://example.com/a?b=c"])),
    "size": (ByteSize, st.sampled_from(["1KiB", "3 MB", 17])),
    "base64": (Base64Bytes, st.sampled_from(["aGk=", "YQ=="])),
    "enum": (Color, st.sampled_from(["red", "blue"])),
    "int enum": (Level, st.sampled_from([1, 2])),
    "literal": (Literal["a", 1], st.sampled_from(["a", 1])),
    "any": (Any, JSONS),
    "json value": (JsonValue, JSONS),
    "json text": (Json, JSONS.map(json.dumps)),
    "json of a set": (Json[set[int]], st.lists(SMALL).map(json.dumps)),
    "optional": (int | None, st.none() | SMALL),
    "union": (int | float | str | bool, SMALL | JSON_TEXT | st.booleans() | st.floats(-10, 10)),
    "described union": (Shape, st.integers(1, 5) | st.just("x")),
    "list": (list[int], st.lists(SMALL)),
    "tuple": (tuple[int, str], st.tuples(SMALL, JSON_TEXT).map(list)),
    "named tuple": (Point, st.tuples(SMALL, st.floats(-1, 1)).map(list) | st.just([3])),
    "deque": (deque[int], st.lists(SMALL)),
    "deque of sets": (deque[set[str]], st.lists(WORDS, max_size=3)),
    "counter": (Counter[str], st.dictionaries(JSON_TEXT, SMALL, max_size=3)),
    "iterable": (Iterable[int], st.lists(SMALL)),
    "set": (set[str], WORDS),
    "set of numbers": (set[int | str], st.lists(SMALL | JSON_TEXT)),
    "set of sets": (frozenset[frozenset[str]], st.lists(WORDS, max_size=4)),
    "set of tuples": (set[tuple[str, int]], st.lists(st.tuples(JSON_TEXT, SMALL).map(list), max_size=4)),
    "set of enums": (set[Color], st.lists(st.sampled_from(["red", "blue"]))),
    "dict": (dict[int, Decimal], st.dictionaries(SMALL.map(str), st.just("1.50"), max_size=3)),
    "ordered dict": (OrderedDict, st.dictionaries(JSON_TEXT, SMALL, max_size=3)),
    "dict of sets": (dict[str, set[str]], st.dictionaries(JSON_TEXT, WORDS, max_size=3)),
    "typed dict": (Options, st.fixed_dictionaries({}, optional={"depth": SMALL, "tags": WORDS})),
    "dataclass": (Address, st.fixed_dictionaries({"street": JSON_TEXT}, optional={"floors": st.lists(SMALL)})),
    "model": (Node, NODES),
    "root model": (Words, WORDS),
    "discriminated": (Pet, PETS),
    "renamed fields": (Renamed, st.fixed_dictionaries({"from": JSON_TEXT}, optional={"to": JSON_TEXT})),
    "excluded field": (Hidden, st.fixed_dictionaries({"shown": SMALL}, optional={"kept": SMALL})),
    "computed field": (Counted, st.fixed_dictionaries({"width": SMALL})),
    "extra fields": (Extra, st.fixed_dictionaries({"known": SMALL}, optional={"more": JSONS})),
    "bytes in a model": (Loud, st.sampled_from([{}, {"data": "_w=="}, {"size": "Infinity"}])),
    "stripped": (Annotated[str, AfterValidator(str.strip)], JSON_TEXT),
    "converted": (Cents, SMALL),
    "converted in a list": (list[Cents], st.lists(SMALL)),
    "converted in a set": (set[Cents], st.lists(SMALL)),
    "converted in a model": (Priced, st.fixed_dictionaries({"amounts": st.lists(SMALL)})),
    "percent": (Percent, SMALL),
    "flipped": (Flipped, st.booleans()),
    "split": (Commas, st.sampled_from(["a,b", "", "x"])),
    "joined": (Joined, WORDS),
    "masked": (Masked, JSON_TEXT),
    "not to be dumped": (Broken, SMALL),
}


def taking(annotation: Any, default: Any = ...) -> AnyTool:
    """A tool with one parameter of this type, beside one that is always there."""

    def take(value, other="x"): ...  # type: ignore[no-untyped-def]

    take.__annotations__ = {"value": annotation, "other": str}
    if default is not ...:
        take.__defaults__ = (default, "x")
    return tool(take)


@pytest.mark.promise("F2", "F13")
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_stored_is_read_as_what_was_validated_at_each_attempt(name: str, data: st.DataObject) -> None:
    annotation, sent = TYPES[name]
    taker = taking(annotation)
    arguments = clean({"value": data.draw(sent)})
    validated = TypeAdapter(annotation).validate_json(canonical(arguments["value"]))
    if isinstance(validated, Iterator):
        validated = list(validated)

    stored = taker.validate(arguments)

    assert json.loads(canonical(stored)) == stored
    assert canonical(taker.validate(stored)) == canonical(stored)
    for _ in range(3):
        read = taker.arguments.named(stored)["value"]
        assert read == validated
        assert isinstance(read, type(validated))
    assert taker.arguments.values(stored).other == "x"


@pytest.mark.promise("F2", "F13")
@pytest.mark.parametrize(
    ("annotation", "sent", "read"),
    [
        (Cents, 5, 500),
        (Cents, 0, 0),
        (Flipped, True, False),
        (Percent, 50, 0.5),
        (Masked, "word", "word"),
        (Broken, 3, 3),
        (Hidden, {"shown": 1, "kept": 2}, Hidden(shown=1, kept=2)),
        (Priced, {"amounts": [1, 2], "by_name": {"a": 3}}, None),
    ],
)
def test_a_validator_that_converts_converts_once_for_rule_key_and_tool(annotation: Any, sent: Any, read: Any) -> None:
    judged: list[Any] = []
    keyed: list[Any] = []

    def rule(call: Any) -> Literal["ask"]:
        judged.append(call.value)
        return "ask"

    def key(call: Any) -> str:
        keyed.append(call.value)
        return "key"

    def take(value):  # type: ignore[no-untyped-def]
        return value

    take.__annotations__ = {"value": annotation}
    taker = tool(policy=rule, operation=key)(take)
    expected = TypeAdapter(annotation).validate_python(sent) if read is None else read

    stored = taker.validate({"value": sent})
    taker.judge(stored, None)
    taker.operation_id("task", stored)

    assert judged == keyed == [expected]
    assert taker.call(None, taker.arguments.named(stored)) == expected  # type: ignore[arg-type]
    assert taker.validate(taker.validate(stored)) == stored


def test_one_converted_argument_leaves_the_others_in_their_own_form() -> None:
    @tool
    def pay(
        euros: Cents, when: datetime, key: Annotated[UUID, Field(default_factory=uuid4)], note: str = "none"
    ) -> None: ...

    stored = pay.validate({"euros": 5, "when": 0})

    assert {**stored, "key": ""} == {"euros": 5, "when": "1970-01-01T00:00:00Z", "note": "none", "key": ""}
    assert pay.arguments.named(stored) == pay.arguments.named(stored)
    assert pay.arguments.named(stored)["euros"] == 500
    assert pay.arguments.read_as(stored) == {"euros": 500}


def test_a_default_is_what_the_signature_says_and_is_not_converted() -> None:
    pay = taking(Cents, default=500)

    stored = pay.validate({})

    assert stored == {"other": "x"}
    assert pay.arguments.named(stored) == {"value": 500, "other": "x"}
    assert pay.arguments.read_as(stored) == {"value": 500}


@pytest.mark.parametrize(
    ("annotation", "sent"),
    [
        (Annotated[str, Field(alias="from")], {"from": "a"}),
        (Annotated[str, Field(validation_alias="from")], {"from": "a"}),
        (Annotated[str, Field(validation_alias="from", serialization_alias="origin")], {"from": "a"}),
        (Annotated[str, Field(validation_alias=AliasChoices("from", "origin"))], {"origin": "a"}),
        (Annotated[str, Field(validation_alias=AliasPath("from", 1))], {"from": ["b", "a"]}),
        (Annotated[str, Field(exclude=True)], {"value": "a"}),
    ],
)
def test_a_parameter_may_be_sent_under_any_alias(annotation: Any, sent: dict[str, Any]) -> None:
    taker = taking(annotation)

    stored = taker.validate(sent)

    assert taker.arguments.named(stored) == {"value": "a", "other": "x"}
    assert taker.validate(stored) == stored


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, AfterValidator(lambda said: f"{said} {uuid4()}")],
        Annotated[UUID, BeforeValidator(lambda _: uuid4())],
    ],
)
def test_arguments_that_are_read_differently_each_time_are_refused(annotation: Any) -> None:
    with pytest.raises(BadArguments, match="different each time"):
        taking(annotation).validate({"value": "a"})


def test_an_iterable_with_a_wrong_item_is_refused_before_the_tool_runs() -> None:
    with pytest.raises(BadArguments, match="valid integer"):
        taking(Iterable[int]).validate({"value": [1, "many"]})


# Secrets


class Login(BaseModel):
    user: str
    password: SecretStr


class Nested(BaseModel):
    login: Login | None = None
    below: list[Nested] = []


class Keys(TypedDict):
    key: SecretBytes


@dataclass
class Pin:
    pin: Secret[int]


class Sealed(Secret[str]):
    pass


@pytest.mark.promise("F2")
@pytest.mark.parametrize(
    "annotation",
    [
        SecretStr,
        SecretBytes,
        Secret[date],
        Sealed,
        SecretStr | None,
        list[SecretStr],
        dict[str, tuple[int, SecretStr]],
        Annotated[SecretStr, Field(min_length=3)],
        Login,
        Nested,
        Keys,
        Pin,
        Annotated[Cat | Login, Discriminator(lambda _: "x")],
    ],
)
def test_a_secret_is_refused_at_definition_by_tool_and_parameter(annotation: Any) -> None:
    with pytest.raises(BadDefinition, match=r"take: parameter 'value' holds a secret") as refused:
        taking(annotation)
    assert refused.value.next_step


def test_a_flow_that_takes_a_secret_is_refused_too() -> None:
    with pytest.raises(BadDefinition, match="enter: parameter 'token' holds a secret"):

        class Enter(Flow, name="enter"):
            @phase
            def start(self, token: SecretStr) -> Done:
                return Done(token)


# Sets

STORE = """
import json, sys
from tests.unit.test_arguments import TYPES, taking
from brainhands.hands.tool import tool
taker = taking(TYPES[sys.argv[1]][0])
stored = taker.validate(json.loads(sys.argv[2]))
value = taker.arguments.values(stored).value
print(json.dumps([stored, list(map(str, value)) if isinstance(value, (set, frozenset)) else None]))
"""


@pytest.mark.promise("F16", "F13")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("set", ["b", "a", "d", "c", "e"]),
        ("set of numbers", ["b", 3, "a", 20, 100]),
        ("set of sets", [["b", "a"], ["d", "c"], ["x"], []]),
        ("set of tuples", [["b", 1], ["a", 2], ["c", 0]]),
        ("set of enums", ["blue", "red"]),
        ("json of a set", "[30, 1, 20, 17]"),
        ("dict of sets", {"k": ["b", "a", "d", "c"]}),
        ("deque of sets", [["b", "a", "d", "c"]]),
        ("typed dict", {"tags": ["b", "a", "d", "c"]}),
        ("dataclass", {"street": "s", "floors": [30, 1, 20]}),
        ("model", {"name": "n", "below": [{"name": "m", "marks": ["b", "a", "d", "c"]}]}),
        ("root model", ["b", "a", "d", "c"]),
        ("discriminated", {"kind": "dog", "tricks": ["sit", "roll", "bark", "play"]}),
        ("joined", ["b", "a", "d", "c"]),
    ],
)
def test_equal_sets_are_stored_and_iterated_alike_in_every_process(name: str, value: Any) -> None:
    turned = value[::-1] if isinstance(value, list) else value
    found = {
        subprocess.run(
            [sys.executable, "-c", STORE, name, json.dumps({"value": sent})],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed, sent in (("1", value), ("2", turned), ("3", value))
    }

    stored_as_sent = name == "joined"
    assert len(found) == (2 if stored_as_sent else 1)


@pytest.mark.promise("F16")
@pytest.mark.parametrize("container", [set, frozenset])
@given(one=st.lists(JSON_TEXT | SMALL, unique=True, max_size=8), data=st.data())
def test_the_key_of_an_effect_may_be_made_of_a_set(container: type, one: list[Any], data: st.DataObject) -> None:
    def tag(tags): ...  # type: ignore[no-untyped-def]

    tag.__annotations__ = {"tags": container[int | str]}  # type: ignore[index]
    tagger = tool(operation=lambda call: f"{call.tags} {'+'.join(map(str, call.tags))}")(tag)
    other = data.draw(st.permutations(one))

    first, second = tagger.validate({"tags": one}), tagger.validate({"tags": other})

    assert first == second
    assert tagger.operation_id("task", first) == tagger.operation_id("task", second)
    read = tagger.arguments.named(first)["tags"]
    assert isinstance(read, container)
    assert read == container(one)


# Names


NAMES = sorted(
    {name for name in dir(BaseModel) if not name.startswith("_")} | {"self", "cls", "context", "mro", "args"}
)


@pytest.mark.promise("F1", "F2")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [True, False])
def test_a_parameter_may_have_any_name_that_a_model_uses_for_itself(name: str, given: bool) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def take({name}: int{'' if given else ' = 5'}, other: str = 'x') -> int:\n    return {name}", namespace)
    taker = tool(policy=lambda call: "allow" if getattr(call, name) == 5 else "deny")(namespace["take"])

    stored = taker.validate({name: 5} if given else {})

    assert stored == {name: 5, "other": "x"}
    assert list(taker.parameters["properties"]) == [name, "other"]
    assert taker.parameters.get("required", []) == ([name] if given else [])
    assert taker.call(None, taker.arguments.named(stored)) == 5  # type: ignore[arg-type]
    assert taker(**{name: 6}) == 6
    assert taker.judge(stored, None).rule == "allow"
    with pytest.raises(BadArguments, match=f"^{name}: "):
        taker.validate({name: "many"})
    with pytest.raises(BadArguments, match="is no argument"):
        taker.validate({name: 5, f"argument.{name}": 5})


@pytest.mark.parametrize("name", ["_value", "__init__", "__class__", "_"])
def test_a_parameter_with_a_leading_underscore_is_refused_by_name(name: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def take({name}: int) -> int:\n    return {name}", namespace)

    with pytest.raises(BadDefinition, match=f"take: parameter '{name}' starts with an underscore"):
        tool(namespace["take"])
