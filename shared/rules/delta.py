"""Changes of JSON values: what leads from one value to the next, exactly.

A delta is a list of edits, applied one after the other. Each names its place by a path of keys and positions:

    [path, value]                   put the value there, in place of what was there or as a new key
    [path]                          remove that key
    [path, start, count, values]    in the list there, put the values in place of `count` items from `start` on

The empty path is the whole value. Values that Python takes for equal and JSON does not (1, 1.0 and true) are different.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.json import Json, canonical, duplicate

MOST_DELTAS = 20
"""How many changes may follow a version that is stored whole, so how many rows a read takes more at the most."""


def difference(before: Json, after: Json) -> Json:
    """The delta from one cleaned value to another."""
    return list(_edits(before, after, []))


def replay(value: Json, delta: Json) -> Json:
    """The value that a delta leads to. Both are used up: the result is made of their parts.

    Raises LookupError, TypeError or ValueError if the delta does not belong to the value.
    """
    holder = [value]
    for path, *edit in delta:
        place, key = holder, 0
        for step in path:
            place, key = place[key], step
        match edit:
            case [new]:
                place[key] = new
            case [start, count, values]:
                place[key][start : start + count] = values
            case []:
                del place[key]
            case _:
                raise ValueError(f"{len(edit)} values are no edit")
    return holder[0]


def next_version(before: StoredDocument | None, after: StoredDocument) -> StoredDocument:
    """How a version is to be stored, given the one before: by its delta, or whole.

    It is whole if it is the first, if many deltas have gone before, or if deltas like this one would soon be as long as
    the value: so a read takes a bounded number of rows and a few times the value's own size.
    """
    whole = replace(after, delta=None, deltas=0)
    if before is None or before.deltas >= MOST_DELTAS:
        return whole
    delta, text = difference(before.value, after.value), canonical(after.value)
    if len(canonical(delta)) * (before.deltas + 1) >= len(text):
        return whole
    if canonical(replay(duplicate(before.value), duplicate(delta))) != text:
        return whole
    return replace(after, delta=delta, deltas=before.deltas + 1)


def _edits(before: Json, after: Json, path: list[str | int]) -> Iterator[Json]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from ([[*path, key]] for key in sorted(before.keys() - after.keys()))
        for key, value in sorted(after.items()):
            if key in before:
                yield from _edits(before[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_edits(before, after, path)
    elif not _same(before, after):
        yield [path, after]


def _list_edits(before: list[Json], after: list[Json], path: list[str | int]) -> Iterator[Json]:
    """What is equal at both ends stays; between, items change one by one where none came or went."""
    start, shorter = 0, min(len(before), len(after))
    while start < shorter and _same(before[start], after[start]):
        start += 1
    left = 0
    while left < shorter - start and _same(before[-1 - left], after[-1 - left]):
        left += 1
    count, values = len(before) - left - start, after[start : len(after) - left]
    if count == len(values):
        for position in range(start, start + count):
            yield from _edits(before[position], after[position], [*path, position])
    else:
        yield [path, start, count, values]


def _same(one: Json, other: Json) -> bool:
    """Whether two values have the same text."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list):
        return bool(one == other) and canonical(one) == canonical(other)
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)
