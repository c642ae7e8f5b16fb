"""The door for JSON: any value is stored and reads back as it was stored, or is refused with its path."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brainhands.shared.errors import NotStorable
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.json import (
    INSIDE_BYTES,
    INSIDE_DEPTH,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    SHORTENED_CHARACTERS,
    canonical,
    clean,
    clean_inside,
    clean_text,
    digest,
    parse,
    storable,
    storable_text,
)
from brainhands.shared.runtime.settings import libpq_url

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.just(10**2000) | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture(scope="module")
def postgres_connection(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    postgres.start()
    with psycopg.connect(libpq_url(postgres.url), autocommit=True) as connection:
        yield connection


def stored(connection: psycopg.Connection[Any], text: str) -> tuple[Any, str]:
    """What Postgres gives back for a text in a `json` column: the value, and the text."""
    row = connection.execute("SELECT %s::text::json, %s::text::json::text", [text, text]).fetchone()
    assert row is not None
    return row[0], row[1]


@pytest.mark.promise("B12")
@pytest.mark.case("a NUL, a lone surrogate or 1e5000 in a history makes every later request fail")
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=ANY_VALUE)
def test_any_value_is_stored_and_reads_back_or_is_refused(
    postgres_connection: psycopg.Connection[Any], value: object
) -> None:
    try:
        cleaned = clean(value)
    except NotStorable:
        return

    text = canonical(cleaned)
    read, read_text = stored(postgres_connection, text)

    assert read_text == text
    assert canonical(read) == text
    assert clean(cleaned) == cleaned
    assert digest(read) == digest(cleaned)


@pytest.mark.promise("B12")
@settings(deadline=None, max_examples=200)
@given(text=st.text() | ANY_VALUE.map(lambda value: json.dumps(value, default=str, skipkeys=True)))
def test_any_text_is_parsed_into_what_can_be_stored_or_refused(text: str) -> None:
    try:
        value = parse(text)
    except NotStorable:
        return

    assert clean(value) == value
    assert parse(canonical(value)) == value


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\ud83c", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (-0.0, -0.0),
        (1e16, 1e16),
        (10**MAX_DIGITS - 1, 10**MAX_DIGITS - 1),
        (10**MAX_DIGITS, hex(10**MAX_DIGITS)),
        ({"a\x00": [True, None, 1]}, {"a\ufffd": [True, None, 1]}),
        ((1, 2), [1, 2]),
        ({}, {}),
    ],
    ids=lambda value: ascii(value)[:30],
)
@pytest.mark.case("langchain-ai/langgraph#1878")
def test_what_postgres_or_a_reader_would_choke_on_is_replaced(
    postgres_connection: psycopg.Connection[Any], given: object, kept: object
) -> None:
    cleaned = clean(given)

    assert cleaned == kept
    assert stored(postgres_connection, canonical(cleaned))[0] == kept


@pytest.mark.promise("B12")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1e5000", "out of range"),
        ("[NaN]", "NaN is no JSON number"),
        ("-Infinity", "no JSON number"),
        ("9" * (MAX_DIGITS + 1), "more than 1000 digits"),
        ("[" * 100_000, "nested deeper"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "nested deeper"),
        ('{"a": 1,}', "not JSON"),
        ("", "not JSON"),
        ('"' + "x" * MAX_BYTES + '"', "more than the limit"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.case("JSONB 1e5000")
def test_text_that_cannot_be_stored_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(NotStorable, match=problem):
        parse(text)


@pytest.mark.promise("B12")
def test_what_is_too_large_or_too_deep_or_no_json_is_refused_with_its_path() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    refused: list[tuple[object, str]] = [
        ("x" * 50_000_000, "more than the limit"),
        (["x" * 1000] * 50_000, "more than the limit"),
        (deep, "nested deeper"),
        ({"a": [{"b": object()}]}, r"\.a\[0\]\.b: object is no JSON type"),
        ({1: "one"}, "key 1 is no string"),
        ([1, {2, 3}], r"\[1\]: set is no JSON type"),
        (b"bytes", "bytes is no JSON type"),
    ]

    for value, problem in refused:
        with pytest.raises(NotStorable, match=problem):
            clean(value)


@pytest.mark.promise("B12")
def test_nesting_up_to_the_limit_and_a_value_just_within_the_size_are_stored(
    postgres_connection: psycopg.Connection[Any],
) -> None:
    nested: list[Any] = []
    for _ in range(MAX_DEPTH):
        nested = [nested]
    for value in (nested, "x" * (MAX_BYTES - 2)):
        assert stored(postgres_connection, canonical(clean(value)))[0] == value


@given(text=ANY_TEXT)
def test_cleaning_a_text_changes_nothing_the_second_time_and_nothing_that_was_clean(text: str) -> None:
    once = clean_text(text)

    assert clean_text(once) == once
    assert "\x00" not in once
    once.encode()


@pytest.mark.promise("H12")
def test_what_was_let_in_at_the_limit_of_depth_and_bytes_has_room_inside_for_what_is_put_around_it() -> None:
    deep = _nested(MAX_DEPTH)
    large = {"text": "x" * (MAX_BYTES - 20)}
    for value in (deep, large):
        assert clean(value) == value
        around = {"call": {"arguments": value, "signal": [{"payload": value}]}}
        assert clean_inside(around) == around
        assert storable(around) == around
    with pytest.raises(NotStorable, match=f"nested deeper than {INSIDE_DEPTH}"):
        clean_inside(_nested(INSIDE_DEPTH + 1))


@pytest.mark.promise("H12")
@pytest.mark.parametrize(
    "value",
    [
        _nested(INSIDE_DEPTH + 1),
        _nested(100_000),
        ["x" * INSIDE_BYTES],
        {"a": object()},
        {1: 2},
        {"a": float("nan"), "b": {3}},
        b"\xff",
    ],
    ids=["deeper", "far deeper", "larger", "no JSON", "a key that is no text", "a set", "bytes"],
)
def test_what_must_be_stored_is_stored_shortened_whatever_it_is(value: object) -> None:
    kept = storable(value)

    assert kept["truncated"] is True
    assert 0 < len(kept["text"]) <= SHORTENED_CHARACTERS
    assert len(kept["sha256"]) == 64
    assert clean(kept) == kept


@pytest.mark.promise("H12")
def test_a_text_that_must_be_stored_stays_a_text_and_says_how_long_it_was() -> None:
    assert storable_text("as it is") == storable("as it is") == "as it is"
    assert storable_text("a\x00\ud800") == "a\ufffd\ufffd"

    cut = storable("y" * (INSIDE_BYTES + 1))

    assert cut.startswith("y" * SHORTENED_CHARACTERS + "... [cut: 12,582,913 characters, SHA-256 ")
