"""Deltas lead from any JSON value to any other, to the last character of its text."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.json import canonical, clean, duplicate
from brainhands.shared.rules import delta
from brainhands.shared.rules.delta import MOST_DELTAS, difference, next_version, replay

KEYS = st.sampled_from(["a", "b", "0", "ä", ""]) | st.text(max_size=3)
"""Few, so that two values often have the same."""

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([0, 1, 1.0])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
).map(clean)


@st.composite
def next_values(draw: st.DrawFn, value: Any) -> Any:
    """The value with something changed somewhere in it."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: draw(next_values(value[key]))}
    if isinstance(value, list) and draw(st.booleans()):
        start = draw(st.integers(0, len(value)))
        end = draw(st.integers(start, len(value)))
        return [*value[:start], *draw(st.lists(VALUES, max_size=2)), *value[end:]]
    return draw(VALUES)


PAIRS = st.tuples(VALUES, VALUES) | VALUES.flatmap(lambda value: st.tuples(st.just(value), next_values(value)))


def again(value: Any, edits: Any) -> Any:
    """What a delta gives after both were stored and read."""
    return replay(duplicate(value), duplicate(edits))


@pytest.mark.promise("B9", "B12")
@settings(deadline=None, max_examples=500)
@given(pair=PAIRS)
def test_a_delta_leads_exactly_to_the_next_value(pair: tuple[Any, Any]) -> None:
    before, after = pair
    text = canonical(before)

    found = difference(before, after)

    assert canonical(again(before, found)) == canonical(after)
    assert canonical(before) == text
    assert (found == []) is (canonical(after) == text)


@pytest.mark.promise("B9")
@settings(deadline=None, max_examples=100)
@given(values=st.lists(VALUES, min_size=2, max_size=2 * MOST_DELTAS + 5))
def test_a_chain_of_versions_replays_to_each_of_its_values(values: list[Any]) -> None:
    stored: StoredDocument | None = None
    replayed: Any = None
    for number, value in enumerate(values, 1):
        stored = next_version(stored, version(number, value))
        replayed = duplicate(value) if stored.delta is None else again(replayed, stored.delta)

        assert canonical(replayed) == canonical(value)
        assert stored.deltas <= MOST_DELTAS
        assert (stored.delta is None) is (stored.deltas == 0)


@pytest.mark.parametrize(
    ("before", "after", "edits"),
    [
        ({"a": 1}, {"a": 1.0}, [[["a"], 1.0]]),
        ({"a": 1}, {"a": True}, [[["a"], True]]),
        ({"a": [0.0]}, {"a": [-0.0]}, [[["a", 0], -0.0]]),
        ({"a": 1, "b": 2}, {"b": 2, "c": None}, [[["a"]], [["c"], None]]),
        (["x", "y", "z"], ["x", "z"], [[[], 1, 1, []]]),
        (["x", "y"], ["x", "y", "z"], [[[], 2, 0, ["z"]]]),
        ({"mails": [{"to": "a", "state": 0}, {"to": "b"}]}, {"mails": [{"to": "a", "state": 1}, {"to": "b"}]},
         [[["mails", 0, "state"], 1]]),
        ({"a": 1}, [1], [[[], [1]]]),
        (["1"], {"0": "1"}, [[[], {"0": "1"}]]),
    ],
)  # fmt: skip
def test_a_delta_says_what_changed_and_nothing_else(before: Any, after: Any, edits: Any) -> None:
    assert canonical(difference(before, after)) == canonical(edits)
    assert canonical(again(before, edits)) == canonical(after)


@pytest.mark.parametrize(
    "edits", [[[["no", "such", "place"], 1]], [[["a"], 0, 1, []]], [[["a"], 1, 2]], [[["b"]]], [7]]
)
def test_a_delta_that_does_not_belong_to_a_value_is_refused(edits: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        replay({"a": 1}, edits)


@pytest.mark.promise("B9", "I10")
def test_small_changes_of_a_large_value_are_stored_as_deltas_with_a_whole_value_now_and_then() -> None:
    value: dict[str, Any] = {"text": "word " * 1000, "done": []}
    stored = next_version(None, version(1, value))
    kinds = []
    for number in range(2, 3 * MOST_DELTAS):
        value = {**value, "done": [*value["done"], number]}
        stored = next_version(stored, version(number, value))
        kinds.append("whole" if stored.delta is None else "delta")

    assert kinds[:MOST_DELTAS] == ["delta"] * MOST_DELTAS
    assert kinds[MOST_DELTAS] == "whole"
    assert kinds[MOST_DELTAS + 1 : 2 * MOST_DELTAS + 1] == ["delta"] * MOST_DELTAS


@pytest.mark.promise("B9")
def test_a_value_that_mostly_changes_is_stored_whole() -> None:
    stored = next_version(None, version(1, {"text": "a" * 100}))

    assert next_version(stored, version(2, {"text": "b" * 100})).delta is None


@pytest.mark.promise("B9", "I7")
def test_a_version_without_one_before_it_is_stored_whole_wherever_it_comes_from() -> None:
    first = next_version(None, version(1, {"text": "a" * 100, "n": 1}))
    second = next_version(first, version(2, {"text": "a" * 100, "n": 2}))
    assert second.delta is not None

    copied = next_version(None, second)

    assert (copied.delta, copied.deltas, copied.version, copied.value) == (None, 0, 2, second.value)


def test_a_delta_that_does_not_give_back_the_value_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next_version(None, version(1, {"text": "a" * 100, "n": 1}))
    monkeypatch.setattr(delta, "difference", lambda _before, _after: [[["n"], 3]])

    assert next_version(first, version(2, {"text": "a" * 100, "n": 2})).delta is None


def version(number: int, value: Any) -> StoredDocument:
    return StoredDocument(
        session_id=SessionId(UUID(int=1)), name="a", version=number, kind="a", schema_version=1, value=value, seq=number
    )
