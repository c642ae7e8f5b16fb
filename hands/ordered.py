"""Values that iterate alike each time and in every process.

Python iterates over a set by the hashes of its elements, which differ from process to process. Whatever walks over the
sets of a call (its stored form, the key of its effect, a rule, the tool itself) gets them in the order given here. What
pydantic would validate while somebody iterates, and only once, becomes a list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from brainhands.shared.model.json import canonical, clean


class OrderedSet(set[Any]):
    """A set that iterates over its elements in one order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_in_order(super().__iter__()))


class OrderedFrozenSet(frozenset[Any]):
    """A frozen set that iterates over its elements in one order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(_in_order(super().__iter__()))


def with_ordered_sets(value: Any) -> Any:
    """The value with ordered sets for sets and lists for iterators, also inside of containers and models.

    These are changed. Raises ValidationError for an item of an iterator.
    """
    return _ordered(value, set())


def _ordered(value: Any, seen: set[int]) -> Any:
    if isinstance(value, str | int | float | None) or id(value) in seen:
        return value
    match value:
        case set():
            return OrderedSet(_ordered(each, seen) for each in value)
        case frozenset():
            return OrderedFrozenSet(_ordered(each, seen) for each in value)
        case tuple():
            items = [_ordered(each, seen) for each in value]
            return value._make(items) if hasattr(value, "_make") else tuple(items)
        case Iterator():
            return [_ordered(each, seen) for each in value]
    seen.add(id(value))
    match value:
        case list() | deque():
            for place in range(len(value)):
                value[place] = _ordered(value[place], seen)
        case dict():
            for key in value:
                value[key] = _ordered(value[key], seen)  # item by item: a Counter adds up what it is updated with
        case BaseModel():
            _ordered(vars(value), seen)
            _ordered(value.__pydantic_extra__, seen)
        case _ if is_dataclass(value):
            for field in fields(value):
                if hasattr(value, field.name):
                    object.__setattr__(value, field.name, _ordered(getattr(value, field.name), seen))
    return value


def _in_order(elements: Iterable[Any]) -> list[Any]:
    found = list(elements)
    alike = set(map(type, found))
    return sorted(found) if alike in ({str}, {int}) else sorted(found, key=_text)


def _text(element: Any) -> tuple[str, str]:
    try:
        text = canonical(clean(to_jsonable_python(element, bytes_mode="base64")))
    except Exception:  # noqa: BLE001 - an author's type that has no JSON form
        text = repr(element)
    return type(element).__qualname__, text
