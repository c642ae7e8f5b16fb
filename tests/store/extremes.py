"""The extremes of what the doors let in, and of what a store may hold."""

from __future__ import annotations

from brainhands.shared.model.json import INSIDE_BYTES, MAX_BYTES, MAX_DEPTH, MAX_DIGITS, Json, clean
from brainhands.shared.rules.tokens import MOST_TOKENS

LONGEST_NAME = "\N{GRINNING FACE}" * 500


def nested(depth: int) -> Json:
    """A value of lists and objects in turn that is so deep."""
    value: Json = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def of_bytes(size: int) -> Json:
    """An object whose canonical text has so many bytes."""
    return {"a": "x" * (size - len('{"a":""}'))}


NUMBERS = [10**MAX_DIGITS - 1, 1 - 10**MAX_DIGITS, 2**63, -(2**63), 1.7976931348623157e308, 5e-324, -0.0, MOST_TOKENS]
NAMES: dict[str, Json] = {LONGEST_NAME: 1, "": 2, "\x00\ud800": 3, "__type__": None, "$ref": [], "type": LONGEST_NAME}
VALUES: dict[str, Json] = {
    "depth": clean({"a": nested(MAX_DEPTH - 1)}),
    "bytes": clean(of_bytes(MAX_BYTES)),
    "numbers": clean({"a": [*NUMBERS, float("nan"), float("inf")]}),
    "names": clean(NAMES),
}
"""Each at a limit of the doors, as they let it in."""

BEYOND: dict[str, Json] = {
    "deeper than inside": {"a": nested(200)},
    "larger than inside": of_bytes(INSIDE_BYTES + 1),
}
"""What no door lets in, and a row may hold all the same: of older code, or of a limit that was higher."""
