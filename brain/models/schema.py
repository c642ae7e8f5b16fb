"""JSON schema in the part of the language that providers accept: pure, and it never admits less than the original.

What a provider does not hear a tool's worker still checks: arguments are validated against the whole schema there.

| in the schema | in what is sent |
|---|---|
| a reference that is not to itself | what it refers to |
| `prefixItems` | `items` with each of the forms, and as many of them |
| `const` | `enum` with one value |
| `oneOf` | `anyOf`, without its discriminator |
| `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `pattern` and other checks of values | left out |
| `true`, `false` or nothing as a schema | an empty schema |
"""

from __future__ import annotations

from typing import Any

LEFT_OUT = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "title",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "pattern",
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "if",
        "then",
        "else",
        "not",
    }
)
MOST_SCHEMAS = 2_000
"""Schemas inside of one that is written out; where it would have more, references stay references."""


def accepted(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object in the form that is sent."""
    definitions = schema.get("$defs") or {}
    whole = {name: value for name, value in schema.items() if name != "$defs"}
    try:
        writer = _Writer(definitions, written_out=True)
        sent = writer.schema(whole)
    except OverflowError:
        writer = _Writer(definitions, written_out=False)
        sent = writer.schema(whole)
    sent.setdefault("type", "object")
    sent.setdefault("properties", {})
    known: dict[str, Any] = {}
    while missing := sorted(writer.referred - known.keys()):
        for name in missing:
            known[name] = writer.definition(name)
    return {**sent, "$defs": known} if known else sent


class _Writer:
    """Writes one schema; with `written_out` a reference becomes what it refers to, unless that is around it."""

    def __init__(self, definitions: dict[str, Any], *, written_out: bool) -> None:
        self.referred: set[str] = set()
        self._definitions = definitions
        self._left = MOST_SCHEMAS if written_out else 0
        self._written_out = written_out

    def definition(self, name: str) -> dict[str, Any]:
        self._written_out = False
        return self.schema(self._definitions[name])

    def schema(self, schema: Any, inside: tuple[str, ...] = ()) -> dict[str, Any]:
        """One schema, inside of these definitions. Raises OverflowError where it would become too large."""
        if not isinstance(schema, dict):
            return {}
        if self._written_out:
            self._left -= 1
            if self._left < 0:
                raise OverflowError
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._reference(reference.removeprefix("#/$defs/"), schema, inside)
        sent: dict[str, Any] = {}
        for key, value in schema.items():
            match key:
                case _ if key in LEFT_OUT or key == "prefixItems":
                    pass
                case "const":
                    sent["enum"] = [value]
                case "properties" if isinstance(value, dict):
                    sent[key] = {each: self.schema(inner, inside) for each, inner in value.items()}
                case "anyOf" | "oneOf" if isinstance(value, list):
                    sent["anyOf"] = [self.schema(each, inside) for each in value]
                case "allOf" if isinstance(value, list) and len(value) == 1:
                    sent.update(self.schema(value[0], inside))
                case "allOf" if isinstance(value, list):
                    sent[key] = [self.schema(each, inside) for each in value]
                case "items":
                    sent[key] = self.schema(value, inside)
                case "additionalProperties" if isinstance(value, dict):
                    sent[key] = self.schema(value, inside)
                case _:
                    sent[key] = value
        if "prefixItems" in schema:
            sent["items"] = self._any_of(schema, inside)
        elif sent.get("type") == "array":
            sent.setdefault("items", {})
        return sent

    def _reference(self, name: str, schema: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        if name not in self._definitions:
            return {}
        if name in inside or not self._written_out:
            self.referred.add(name)
            return {"$ref": f"#/$defs/{name}"}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return self.schema({**self._definitions[name], **beside}, (*inside, name))

    def _any_of(self, schema: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        """What each item of a tuple may be."""
        forms: list[dict[str, Any]] = []
        rest = schema.get("items")
        for each in [*schema["prefixItems"], *([rest] if isinstance(rest, dict) else [])]:
            if (form := self.schema(each, inside)) not in forms:
                forms.append(form)
        return forms[0] if len(forms) == 1 else {"anyOf": forms} if forms else {}
