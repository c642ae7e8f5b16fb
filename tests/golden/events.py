"""One stored event of each type and version, with a digest of its schema; none is ever changed or removed."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from brainhands.shared.model.event import PAYLOADS, Payload
from brainhands.shared.model.json import digest

FOLDER = Path(__file__).parent / "stored_events"
PLAIN: dict[Any, Any] = {
    str: "text",
    int: 7,
    float: 0.25,
    Decimal: Decimal("0.25"),
    bool: True,
    datetime: datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    Any: {"any": [1, "two", None]},
}


def write_missing() -> Iterator[Path]:
    """Write a file for each type and version that has none, and give it."""
    FOLDER.mkdir(exist_ok=True)
    for (type, version), model in PAYLOADS.items():
        file = file_of(type, version)
        if not file.exists():
            file.write_text(json.dumps(stored(model), indent=1, sort_keys=True) + "\n")
            yield file


def file_of(type: str, version: int) -> Path:
    return FOLDER / f"{type}@{version}.json"


def stored(model: type[Payload]) -> dict[str, Any]:
    """What is kept of a type: an event with every field filled, the format it came with, and what its schema was."""
    return {
        "type": model.event_type,
        "version": model.event_version,
        "log_format": model.log_format,
        "schema": schema_digest(model),
        "payload": _sample(model).model_dump(mode="json"),
    }


def schema_digest(model: type[Payload]) -> str:
    """SHA-256 of the payload's JSON schema without the words that are for readers only."""
    return digest(_bare(model.model_json_schema()))


def _bare(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: _bare(value)
            for name, value in schema.items()
            if name not in ("title", "description") or not isinstance(value, str)
        }
    return [_bare(each) for each in schema] if isinstance(schema, list) else schema


def _sample(annotation: Any) -> Any:
    """A value of a field's type, none of them empty."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation(**{name: _sample(field.annotation) for name, field in annotation.model_fields.items()})
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _sample(next(each for each in arguments if each is not types.NoneType))
    if origin is Annotated:
        return _sample(arguments[0])
    if origin is list:
        return [_sample(arguments[0])]
    if origin is tuple:
        return tuple(_sample(each) for each in arguments if each is not ...)
    if origin is dict:
        return {"key": _sample(arguments[1])}
    raise TypeError(f"no sample for {annotation}: add one to PLAIN")
