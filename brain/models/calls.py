"""Puts the tool calls of a streamed reply together, however a provider sends their parts.

| a part has | it belongs to |
|---|---|
| an id that is known | that call, or a new one if it has a name and a new index |
| a new id and a name | a new call |
| an index alone | the newest call of that index |
| neither | the newest call, or a new one if it has a name |
| no id, and a name after a whole call | a new call |

Where a known id and an index of its own contradict each other, nobody can say whose the arguments are: neither call is
to run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from brainhands.brain.models.dialects import CALL_EXTRAS
from brainhands.brain.models.reply import RawCall
from brainhands.shared.errors import NotStorable
from brainhands.shared.model.json import clean, clean_text, parse

MOST_CALLS = 64
"""Of one reply; further ones are counted and not kept."""
LONGEST_NAME = 200
LONGEST_ID = 200
"""Characters; what is longer names nothing that exists."""


@dataclass(slots=True, eq=False)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    index: object = None
    extra: dict[str, Any] = field(default_factory=dict)
    mixed_up: bool = False

    def is_whole(self) -> bool:
        try:
            return isinstance(parse("".join(self.arguments)), dict)
        except NotStorable:
            return False


@dataclass(slots=True)
class Calls:
    """The calls of a reply so far; `offered` are the names of the tools that the request had."""

    offered: Collection[str] = ()
    left_out: int = 0
    _calls: list[_Call] = field(default_factory=list)
    _by_id: dict[str, _Call] = field(default_factory=dict)
    _by_index: dict[object, _Call] = field(default_factory=dict)
    _shared: set[object] = field(default_factory=set)

    def take(self, part: dict[str, Any]) -> int:
        """Takes one part of one call and gives its number of characters; one of another shape raises what it raises."""
        id, name, arguments = _fields(part)
        index = part.get("index")
        return self._add(self._call_of(index if isinstance(index, int) else None, id, name), name, arguments, part)

    def take_whole(self, part: dict[str, Any]) -> int:
        """Takes a call that comes in one part."""
        id, name, arguments = _fields(part)
        call = self._new(None)
        if call is not None:
            call.id = id
        return self._add(call, name, arguments, part)

    def _add(self, call: _Call | None, name: str, arguments: str, part: dict[str, Any]) -> int:
        if call is None:
            self.left_out += bool(name)
            return 0
        if name != call.name and len(call.name) <= LONGEST_NAME:  # some providers repeat the name in every part
            call.name += name
        call.arguments.append(arguments)
        return len(name) + len(arguments) + keep_extra(call.extra, part, CALL_EXTRAS)

    def _call_of(self, index: object, id: str, name: str) -> _Call | None:
        call = self._by_id.get(id) if id else None
        if call is not None and name and index is not None and index not in self._by_index:
            call = None  # the provider gives one id to several calls
        elif call is not None:
            self._contradict(call, index)
        elif index is not None:
            call = self._by_index.get(index)
            if call is not None and self._begins_another(call, id, name):
                self._shared.add(index)
                call = None
        elif not id and self._calls and not (name and self._calls[-1].name):
            call = self._calls[-1]
        if call is None:
            call = self._new(index)
        if call is not None and id and not call.id:
            call.id = id
            self._by_id.setdefault(id, call)
        return call

    def _begins_another(self, call: _Call, id: str, name: str) -> bool:
        if id and call.id and id != call.id:
            return bool(name)
        if not name or (id and not call.id):
            return False
        return call.is_whole() or (call.name in self.offered and name in self.offered and name != call.name)

    def _contradict(self, call: _Call, index: object) -> None:
        """Where both index and id are some call's own, and not the same call's, the parts are mixed up."""
        if index is None or index in self._shared or call.index in self._shared or index == call.index:
            return
        other = self._by_index.get(index)
        if other is not None:
            call.mixed_up = other.mixed_up = True

    def _new(self, index: object) -> _Call | None:
        if len(self._calls) >= MOST_CALLS:
            return None
        call = _Call(index=index)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def raw(self) -> tuple[RawCall, ...]:
        """The calls as they are handed on."""
        return tuple(
            RawCall(
                provider_id=clean_text(call.id),
                name=clean_text(call.name[:LONGEST_NAME]),
                arguments=clean_text("".join(call.arguments)),
                extra=call.extra or None,
                mixed_up=call.mixed_up,
            )
            for call in self._calls
        )


def keep_extra(kept: dict[str, Any], part: dict[str, Any], names: Iterable[str]) -> int:
    """Adds those fields of a part to what is kept, and gives their number of characters.

    Texts and lists come in pieces and are joined; anything else comes whole.
    """
    characters = 0
    for name in names:
        value = part.get(name)
        if value is None:
            continue
        try:
            value = clean(value)
        except NotStorable:
            continue
        characters += len(json.dumps(value))
        known = kept.get(name)
        joins = isinstance(value, str | list) and type(known) is type(value)
        kept[name] = known + value if joins else value
    return characters


def _fields(part: dict[str, Any]) -> tuple[str, str, str]:
    function = fields_of(part.get("function"))
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    return text_or_nothing(part.get("id"))[:LONGEST_ID], text_or_nothing(function.get("name")), arguments


def fields_of(value: object) -> dict[str, Any]:
    """An object that is not needed: what is none counts as one without fields."""
    return value if isinstance(value, dict) else {}


def items_of(values: object) -> list[dict[str, Any]]:
    """The objects among some values. Raises TypeError where there are values and none of them is an object."""
    if not isinstance(values, list):
        raise TypeError(f"{type(values).__name__} where a list belongs")
    found = [value for value in values if isinstance(value, dict)]
    if values and not found:
        raise TypeError("no object where objects belong")
    return found


def text_or_nothing(value: object) -> str:
    """A text that is not needed: what is none counts as empty."""
    return value if isinstance(value, str) else ""


def word_of(value: object) -> str:
    """The same for what names something, such as a model or a status: storable, and its beginning where it is long."""
    return clean_text(text_or_nothing(value)[:LONGEST_NAME])
