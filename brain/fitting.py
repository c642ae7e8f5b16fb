"""Whether a JSON value fits a JSON schema, for the part of the language that an agent's `output` may be written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brainhands.shared.model.json import Json, canonical

TYPES: Mapping[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
BOUNDS: Mapping[str, tuple[type | tuple[type, ...], str, Callable[[Json, Any], bool]]] = {
    "minimum": ((int, float), "is less than", lambda value, bound: value >= bound),
    "maximum": ((int, float), "is more than", lambda value, bound: value <= bound),
    "exclusiveMinimum": ((int, float), "is not more than", lambda value, bound: value > bound),
    "exclusiveMaximum": ((int, float), "is not less than", lambda value, bound: value < bound),
    "minLength": (str, "is shorter than", lambda value, bound: len(value) >= bound),
    "maxLength": (str, "is longer than", lambda value, bound: len(value) <= bound),
    "minItems": (list, "has fewer items than", lambda value, bound: len(value) >= bound),
    "maxItems": (list, "has more items than", lambda value, bound: len(value) <= bound),
}
"""Keywords with a number: what they are about, what is wrong, and whether it is right."""
JOINING = ("anyOf", "oneOf", "allOf")
SAID = frozenset({"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"})
"""Keywords that say something and refuse nothing."""
DEFINED = "#/$defs/"
MOST_STEPS = 100_000
"""Schemas that are looked at for one value; one that refers to itself in several forms could need any number."""
SHOWN_CHARACTERS = 80


class TooCostly(Exception):
    """The schema has too many ways to be tried for this value."""

    def __init__(self) -> None:
        super().__init__(f"it cannot be compared with the schema in {MOST_STEPS:,} steps")


def schema_problems(schema: Any, *, root: dict[str, Any] | None = None, path: str = "") -> Iterator[str]:
    """What in a schema is not checked here, and so would be promised in vain."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{path or 'the schema'} is no schema"
        return
    root = schema if root is None else root
    for key, value in schema.items():
        at = f"{path}.{key}" if path else key
        match key:
            case "properties" | "$defs" if isinstance(value, dict):
                for name, inner in value.items():
                    yield from schema_problems(inner, root=root, path=f"{at}.{name}")
            case "items" | "additionalProperties":
                yield from schema_problems(value, root=root, path=at)
            case _ if key in JOINING and isinstance(value, list):
                for place, inner in enumerate(value):
                    yield from schema_problems(inner, root=root, path=f"{at}.{place}")
            case "$ref":
                if not isinstance(value, str) or value.removeprefix(DEFINED) not in root.get("$defs", {}):
                    yield f"{at}: {value!r} is not in $defs"
            case "type":
                if not all(isinstance(each, str) and each in TYPES for each in _list_of(value)):
                    yield f"{at}: {value!r} is no type"
            case "enum" if isinstance(value, list):
                pass
            case "required" if isinstance(value, list) and all(isinstance(each, str) for each in value):
                pass
            case _ if key in BOUNDS:
                if not _is_number(value):
                    yield f"{at}: {value!r} is no number"
            case "const":
                pass
            case _ if key not in SAID:
                yield f"{at} is not checked here; use a pydantic model for it"


def misfit(schema: dict[str, Any], value: Json) -> str | None:
    """The first thing in which a value does not fit, with its place; None where it fits. Raises TooCostly."""
    return next(_Comparison(schema.get("$defs", {})).misfits(schema, value, ""), None)


class _Comparison:
    """One value beside one schema, in a bounded number of steps."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._left = MOST_STEPS

    def misfits(self, schema: dict[str, Any] | bool, value: Json, path: str) -> Iterator[str]:
        self._left -= 1
        if self._left < 0:
            raise TooCostly
        if isinstance(schema, bool):
            if not schema:
                yield f"{_at(path)}must not be there"
            return
        if "$ref" in schema:
            yield from self.misfits(self._definitions[schema["$ref"].removeprefix(DEFINED)], value, path)
        types = _list_of(schema.get("type", []))
        if types and not any(TYPES[each](value) for each in types):
            yield f"{_at(path)}is not of type {' or '.join(types)}"
            return
        allowed = [schema["const"]] if "const" in schema else schema.get("enum")
        if allowed is not None and canonical(value) not in map(canonical, allowed):
            yield f"{_at(path)}is none of {canonical(allowed)[:SHOWN_CHARACTERS]}"
        for key, (about, wrong, right) in BOUNDS.items():
            concerned = key in schema and isinstance(value, about) and not isinstance(value, bool)
            if concerned and not right(value, schema[key]):
                yield f"{_at(path)}{wrong} {schema[key]}"
        if isinstance(value, dict):
            yield from self._of_object(schema, value, path)
        if isinstance(value, list) and "items" in schema:
            for place, item in enumerate(value):
                yield from self.misfits(schema["items"], item, f"{path}[{place}]")
        for key in (each for each in JOINING if each in schema):
            yield from self._joined(key, schema[key], value, path)

    def _of_object(self, schema: dict[str, Any], value: dict[str, Json], path: str) -> Iterator[str]:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{_at(_inner(path, name))}is required"
        for name, item in value.items():
            inner = properties.get(name, schema.get("additionalProperties", True))
            yield from self.misfits(inner, item, _inner(path, name))

    def _joined(self, key: str, forms: list[Any], value: Json, path: str) -> Iterator[str]:
        if key == "allOf":
            for form in forms:
                yield from self.misfits(form, value, path)
            return
        fitting = sum(next(self.misfits(form, value, path), None) is None for form in forms)
        if not fitting:
            yield f"{_at(path)}fits none of {len(forms)} forms"
        elif key == "oneOf" and fitting > 1:
            yield f"{_at(path)}fits {fitting} forms where it must fit one"


def _inner(path: str, name: str) -> str:
    name = name[:SHOWN_CHARACTERS]
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"{path}: " if path else "it "


def _list_of(types: Any) -> list[Any]:
    return types if isinstance(types, list) else [types]


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
