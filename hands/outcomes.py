"""What a tool or a look-up can say about its effect, and how a result is stored.

Only these words are taken as knowledge. Any other exception leaves it open whether the effect happened.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter

from brainhands.shared.model import edge
from brainhands.shared.model.json import Json, canonical, clean, clean_text

MAX_RETRY_AFTER_SECONDS = 86_400.0
MAX_REPR_CHARACTERS = 2_000
MAX_RESULT_BYTES = 2 * 1024 * 1024
"""Of the JSON of a result: with the arguments it must fit into one event."""

# Infinities are left to the door for JSON, which names them; pydantic alone would store null.
_NAMED_INFINITIES = ConfigDict(ser_json_inf_nan="constants")


class ToolError(Exception):
    """The call failed for sure: nothing happened, or what happened is final. The message is the model's result."""


class Retry(Exception):
    """The call failed for sure and may be made again, no sooner than `after` seconds from now (at most a day)."""

    def __init__(self, message: str = "", after: float | None = None) -> None:
        super().__init__(message)
        self.after = _delay(after)


def _delay(after: object) -> float | None:
    """Seconds within bounds, None for what is no number: a wrong delay must not turn a failure into an exception."""
    if not isinstance(after, int | float) or after != after or abs(after) == math.inf:
        return None
    return float(min(max(after, 0), MAX_RETRY_AFTER_SECONDS))


class NotFound:
    """A look-up's answer: the service knows no effect of this operation."""


class Unknown:
    """A look-up's answer: it cannot be told yet whether the effect happened."""


def result_adapter(annotation: Any) -> TypeAdapter[Any]:
    """Turns results of an annotated type into JSON; a type pydantic does not know is taken as any value."""
    for options in (_NAMED_INFINITIES, None):
        try:
            return TypeAdapter(annotation, config=options)
        except PydanticUserError:  # a model brings a configuration of its own and refuses another
            continue
    return TypeAdapter(Any, config=_NAMED_INFINITIES)


def stored_result(value: object, adapter: TypeAdapter[Any], limit: int) -> Json:
    """The result as it is stored and shown; never raises, since the effect has happened.

    More than `limit` bytes become {"truncated": true, "text": the first `limit` bytes}: of a string itself, of another
    value its JSON text. A value that has no JSON form becomes the text of its repr.
    """
    result = _json_form(value, adapter)
    text = result if isinstance(result, str) else canonical(result)
    if len(text.encode()) > limit:
        result = _cut(text, limit)
    # Quotes and control characters take up to six bytes in JSON.
    if len(canonical(result).encode()) > MAX_RESULT_BYTES:
        result = _cut(text, MAX_RESULT_BYTES // 8)
    return result


def shortest_result(stored: Json) -> Json:
    """The least that is kept of a result that the store did not take."""
    return _cut(canonical(stored), MAX_REPR_CHARACTERS)


def _cut(text: str, limit: int) -> Json:
    return {"truncated": True, "text": text.encode()[:limit].decode(errors="ignore")}


def _json_form(value: object, adapter: TypeAdapter[Any]) -> Json:
    """Serializers are code of others, and nothing that they raise undoes the effect."""
    try:
        return edge.call(_dumped, value, adapter)
    except edge.ForeignError:
        pass
    try:
        return edge.call(_cleaned, value)  # pydantic refuses lone surrogates, the door mends them
    except edge.ForeignError:
        return _repr(value)


def _dumped(value: object, adapter: TypeAdapter[Any]) -> Json:
    return _cleaned(adapter.dump_python(value, mode="json", warnings=False, fallback=_repr))


def _cleaned(value: object) -> Json:
    return clean(value, limit=sys.maxsize)


def _repr(value: object) -> str:
    try:
        text = edge.call(repr, value)
    except edge.ForeignError:
        text = object.__repr__(value)
    return clean_text(text[:MAX_REPR_CHARACTERS])
