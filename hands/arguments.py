"""The arguments of a call: how they are validated, and the one form of them that is stored.

The stored form is decided once, before the intent. Whatever comes later reads it: the rule, the key of the effect, a
person, and each attempt. So reading it must give what validating gave, and that is proved for each call:

- An argument is stored as the JSON form of its validated value, if that is read back as an equal value.
- Where it is not (a validator that converts, a field that is not dumped), it is stored as it was sent, since each
  reading of that gives the same again; an argument that was not sent is left to its default.
- Arguments that are read differently each time are refused.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PydanticUserError,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo

from brainhands.hands.context import ToolContext
from brainhands.hands.ordered import with_ordered_sets
from brainhands.shared.errors import BadDefinition, BadInput, NotStorable
from brainhands.shared.model.json import Json, canonical, clean, clean_text

MAX_PROBLEMS = 20
MAX_SHOWN = 200

_SECRETS = (SecretStr, SecretBytes, Secret)
_OURS = "argument."
"""In front of a field whose parameter is named like an attribute of every model; no parameter has a point."""


class BadArguments(BadInput):
    """Arguments do not fit; the message has one line for each problem and is written for a model to read."""


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="constants",
        alias_generator=lambda field: field.removeprefix(_OURS),
    )


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parameters of a function that come from outside."""

    model: type[BaseModel]
    fields: Mapping[str, str]
    """The model's field of each parameter."""
    schema: dict[str, Any]
    """JSON schema of the arguments object."""

    def stored(self, sent: object) -> dict[str, Json]:
        """The arguments in the form that is stored. Raises BadArguments, and what an author's validator raises."""
        raw = self._clean(sent)
        read = self._read(raw)
        dumped = self._dump(read)
        if dumped is not None and len(dumped) == len(self.fields) and self._gives(dumped, read, self.fields.values()):
            return dumped
        stored = raw
        for field in self.fields.values():
            part = self._dump(read, field)
            if part and self._gives({**stored, **part}, read, [field]):
                stored = {**stored, **part}
        if self._text(self._read(stored)) != self._text(read):
            raise BadArguments("what they are read as is different each time")
        return stored

    def named(self, stored: object) -> dict[str, Any]:
        """The Python values by the names of the parameters. Raises BadArguments, and what a validator raises."""
        values = vars(self._read(self._clean(stored)))
        return {name: values[field] for name, field in self.fields.items()}

    def values(self, stored: object) -> SimpleNamespace:
        """The Python values, one attribute each and nothing else. Raises as `named` does."""
        return SimpleNamespace(**self.named(stored))

    def read_as(self, stored: dict[str, Json]) -> dict[str, Json]:
        """The JSON forms of those values that are not stored in theirs, for a person to see beside what is stored."""
        dumped = self._dump(self._read(stored)) or {}
        return {name: form for name, form in dumped.items() if name not in stored or stored[name] != form}

    def _clean(self, arguments: object) -> dict[str, Json]:
        try:
            cleaned = clean(arguments)
        except NotStorable as error:
            raise BadArguments(str(error)) from None
        if not isinstance(cleaned, dict):
            raise BadArguments(f"arguments: give one object (got {_shortened(repr(cleaned))})")
        return cleaned

    def _read(self, arguments: dict[str, Json]) -> BaseModel:
        try:
            return with_ordered_sets(self.model.model_validate_json(canonical(arguments)))  # type: ignore[no-any-return]
        except ValidationError as error:
            raise BadArguments(_problems(error, self.schema)) from None

    def _dump(self, read: BaseModel, field: str | None = None) -> dict[str, Json] | None:
        """The JSON form of all values, or of one; None where it has none that can be stored."""
        only = None if field is None else {field}
        try:
            dumped = read.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False, include=only)
            return dict(clean(dumped))
        except Exception:  # noqa: BLE001 - serializers are the author's code; what cannot be dumped is stored as sent
            return None

    def _gives(self, candidate: dict[str, Json], read: BaseModel, fields: Iterable[str]) -> bool:
        """Whether reading the candidate gives values equal to what was read, in these fields."""
        try:
            again = self._read(candidate)
            return all(
                vars(again)[field] == vars(read)[field] and self._text(again, field) == self._text(read, field)
                for field in fields
            )
        except Exception:  # noqa: BLE001 - validators and comparisons are the author's code; this only proves
            return False

    def _text(self, read: BaseModel, field: str | None = None) -> str:
        return canonical(self._dump(read, field))


def arguments_of(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], owner: str) -> Arguments:
    """The arguments that some parameters of `owner` ask for.

    Raises BadDefinition for what a model could not send, and for secrets, which cannot be stored.
    """
    fields = {name: f"{_OURS}{name}" if hasattr(_Model, name) else name for name in parameters}
    types = {fields[name]: _field(parameter, hints, owner) for name, parameter in parameters.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that pydantic keeps for itself do no harm to fields
            model = create_model(f"{owner}_arguments", __base__=_Model, **types)
            return Arguments(model, fields, model.model_json_schema())
    except (PydanticUserError, NameError, TypeError, ValueError) as error:
        raise BadDefinition(f"the parameters of {owner} have no JSON schema: {str(error).splitlines()[0]}") from None


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any], owner: str) -> Any:
    name = parameter.name
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise BadDefinition(f"{owner}: parameter {parameter} cannot be sent by name", "use plain named parameters")
    if name not in hints:
        raise BadDefinition(f"{owner}: parameter {name!r} has no annotation", "annotate it with its type")
    if hints[name] is ToolContext:
        raise BadDefinition(f"{owner}: {name!r} is a ToolContext and not the first parameter", "put it first")
    if name.startswith("_"):
        raise BadDefinition(f"{owner}: parameter {name!r} starts with an underscore", "rename it")
    if _holds_secret(hints[name], set()):
        raise BadDefinition(
            f"{owner}: parameter {name!r} holds a secret, and arguments are stored and shown",
            "let the tool read its secrets itself, and take what names them",
        )
    if parameter.default is parameter.empty:
        return hints[name]
    _check_default(hints[name], parameter.default, f"{owner}: the default of {name!r}")
    return (hints[name], parameter.default)


def _holds_secret(annotation: Any, seen: set[int]) -> bool:
    """Whether a value of this type can have a secret in it, however deep."""
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    if inspect.isclass(annotation) and issubclass(annotation, _SECRETS):
        return True
    parts = [get_origin(annotation), *get_args(annotation), getattr(annotation, "__value__", None)]
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        parts += [field.annotation for field in annotation.model_fields.values()]
    elif inspect.isclass(annotation):
        parts += _hints(annotation).values()
    return any(_holds_secret(part, seen) for part in parts if part is not None)


def _hints(annotation: type) -> dict[str, Any]:
    try:
        return get_type_hints(annotation, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs whatever is written there
        return {}


def _check_default(annotation: Any, default: object, subject: str) -> None:
    """Refuses a default that would be stored and could not be read back, such as `text: str = None`."""
    if isinstance(default, FieldInfo):
        return
    try:
        TypeAdapter(annotation).validate_python(default)
    except ValidationError:
        raise BadDefinition(f"{subject} does not fit its annotation", "change one of them") from None
    except PydanticUserError:
        return  # a type without a schema is refused with the other parameters


def _problems(error: ValidationError, schema: Mapping[str, Any]) -> str:
    details = error.errors(include_url=False, include_context=False)
    lines = [_problem(dict(detail), schema) for detail in details[:MAX_PROBLEMS]]
    if len(details) > MAX_PROBLEMS:
        lines.append(f"and {len(details) - MAX_PROBLEMS} more problems")
    return "\n".join(lines)


def _problem(detail: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"]) or "arguments"
    match detail["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden" if len(detail["loc"]) == 1:
            text = f"is no argument; there are: {', '.join(schema.get('properties', {})) or 'none'}"
        case _:
            text = f"{_shortened(detail['msg'])} (got {_shortened(repr(detail['input']))})"
    return f"{_shortened(path)}: {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(clean_text(text).split())


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
