"""Tokens judged by length, for what no provider has counted: no tokenizer, so right only to within a third or so."""

from __future__ import annotations

from brainhands.shared.model.json import Json, canonical

CHARACTERS_A_TOKEN = 4

MOST_TOKENS = 2**31 - 1
"""Of one model call: a provider that counts more is not believed, and an estimate ends here."""


def estimate_text(text: str) -> int:
    return len(text) // CHARACTERS_A_TOKEN


def estimate_json(value: Json) -> int:
    """The tokens of a value in the form in which it is sent."""
    return estimate_text(canonical(value))
