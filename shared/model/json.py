"""The one door for JSON: what a model, a tool or a user sends is cleaned or refused here before any transaction.

Postgres refuses NUL and lone surrogates, and stores numbers that Python cannot read back; so:
- NUL and lone surrogates become U+FFFD (surrogate pairs are joined first);
- NaN and infinities become the strings "NaN", "Infinity", "-Infinity";
- integers of more than 1,000 digits become strings, float literals out of range are refused;
- nesting deeper than 100, keys that are no strings, and texts over the limit are refused with their path.

What is inside has room for what the engine puts around a value that was let in (`clean_inside`), and what tells of an
end is stored in any case: shortened, with the digest of all of it (`storable`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, TypeAlias

from brainhands.shared.errors import NotJson, NotStorable, TooLarge

Json: TypeAlias = Any
"""A JSON value as Python holds it: None, bool, int, float, str, list, dict with str keys."""

MAX_DEPTH = 100
MAX_DIGITS = 1_000
MAX_BYTES = 4 * 1024 * 1024
"""The limits of the doors, where values come in."""

INSIDE_DEPTH = MAX_DEPTH + 20
INSIDE_BYTES = 3 * MAX_BYTES
"""The limits inside: any values that were let in, with all that events, checkpoints and results have around them."""

SHORTENED_CHARACTERS = 2_000

# Of our own: a module of the same process may put others in the place of json.dumps and json.loads.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_DECODER = json.JSONDecoder()

_BAD_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
_BIGGEST_INTEGER = 10**MAX_DIGITS


def clean(value: object, *, limit: int = MAX_BYTES, depth: int = MAX_DEPTH) -> Json:
    """The value as it can be stored; `limit` is bytes of canonical text. Raises NotStorable naming the path."""
    cleaned = _clean(value, "", depth, depth)
    size = len(canonical(cleaned).encode())
    if size > limit:
        raise TooLarge("", f"{size:,} bytes are more than the limit of {limit:,}")
    return cleaned


def clean_inside(value: object) -> Json:
    """As `clean`, for what the engine makes of values that were let in. Raises NotStorable."""
    return clean(value, limit=INSIDE_BYTES, depth=INSIDE_DEPTH)


def storable(value: object) -> Json:
    """What is stored of a value that must be stored: itself, else the beginning of its text with the digest of all.

    In place of a text comes a text, of another value `{"truncated": true, "text": ..., "sha256": ...}`. Never raises.
    """
    try:
        return clean_inside(value)
    except (NotStorable, RecursionError):
        pass
    if isinstance(value, str):
        return storable_text(value)
    text = _text_of(value)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"truncated": True, "text": text[:SHORTENED_CHARACTERS], "sha256": digest}


def storable_text(text: str, *, limit: int = MAX_BYTES) -> str:
    """A text that must be stored: clean, and where it has more than `limit` bytes, its beginning with the digest."""
    text = clean_text(text)
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    digest = hashlib.sha256(encoded).hexdigest()
    return f"{text[:SHORTENED_CHARACTERS]}... [cut: {len(text):,} characters, SHA-256 {digest}]"


def clean_text(text: str) -> str:
    """The text with surrogate pairs joined and NUL and lone surrogates replaced by U+FFFD."""
    if not _BAD_CHARACTERS.search(text):
        return text
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _BAD_CHARACTERS.sub("\ufffd", joined)


def canonical(value: Json) -> str:
    """The one text of a cleaned value: sorted keys, no spaces, no escapes beyond what JSON needs."""
    return _ENCODER.encode(value)


def duplicate(value: Json) -> Json:
    """A cleaned value again, sharing nothing with the one given: what code does to it leaves that one as it is."""
    return _DECODER.decode(canonical(value))


def digest(value: Json) -> str:
    """SHA-256 of the canonical text, in hex."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def parse(text: str) -> Json:
    """Parse strict JSON text within the limits. Raises NotStorable, and NotJson where it is none."""
    if len(text) > MAX_BYTES:
        raise TooLarge("", f"{len(text):,} characters are more than the limit of {MAX_BYTES:,}")
    try:
        value = _STRICT_DECODER.decode(text)
    except RecursionError:
        raise NotStorable("", f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise NotJson(str(error)) from None
    return clean(value)


def _clean(value: object, path: str, left: int, depth: int) -> Json:
    if left < 0:
        raise NotStorable(path[:80] + "...", f"nested deeper than {depth}")
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(str(value))
        case int():
            return int(value) if -_BIGGEST_INTEGER < value < _BIGGEST_INTEGER else hex(value)
        case float():
            return float(value) if math.isfinite(value) else _name(value)
        case dict():
            return {_key(key, path): _clean(item, f"{path}.{key}", left - 1, depth) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item, f"{path}[{index}]", left - 1, depth) for index, item in enumerate(value)]
        case _:
            raise NotStorable(path, f"{type(value).__name__} is no JSON type")


def _text_of(value: object) -> str:
    """Some text of any value."""
    for text_of in (canonical, repr):
        try:
            return clean_text(text_of(value))
        except Exception:  # noqa: BLE001, S112 - it may be of any type, and of any depth
            continue
    return object.__repr__(value)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise NotStorable(path, f"key {key!r} is no string")
    return clean_text(key)


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError("number out of range")
    return value


def _bounded(literal: str) -> int:
    if len(literal) > MAX_DIGITS:
        raise ValueError(f"number of more than {MAX_DIGITS} digits")
    return int(literal)


_STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded)
