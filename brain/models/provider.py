"""What the adapters to a provider share: what its errors, counts and headers mean."""

from __future__ import annotations

import email.utils
import json
import math
import time
from typing import Any

import httpx2

from brainhands.brain.models.dialects import FILTER_CODES, is_final, is_of_key, is_overflow
from brainhands.brain.models.reply import ProviderError
from brainhands.shared.model.event import Usage
from brainhands.shared.model.json import Json, clean_text
from brainhands.shared.rules.tokens import MOST_TOKENS, estimate_json, estimate_text
from brainhands.shared.runtime.settings import settings

LONGEST_RETRY_AFTER = 3600.0
LONGEST_MESSAGE = 2_000
READ_CHARACTERS = 16_000
"""Of a message: what is looked through for the words that tell one refusal from another."""
LONGEST_CODE = 100
MOST_DIGITS = 100
MOST_CHARACTERS = 1_000_000
"""Of one reply, the names and arguments of its calls included."""
MOST_LOGPROBS = 100_000

HEALING_STATUSES = frozenset({408, 409, 425, 429, 499})
OVERFLOW = "context_length_exceeded"
BAD_REQUESTS = frozenset(
    {
        "invalid_request_error",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "authentication_error",
        "permission_error",
        "not_found_error",
    }
)
"""Codes and types which, where no status comes with them, tell a bad request from a failed server."""


def read_json(text: str | bytes) -> Any:
    """A provider's JSON, in which a number of more digits than mean something counts as endless.

    Raises ValueError and RecursionError.
    """
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MOST_DIGITS else math.inf)


def required_key() -> str:
    """The key for the provider. Raises ProviderError where none is set."""
    key = settings().openai_api_key
    if key is None or not key.get_secret_value():
        raise ProviderError("OPENAI_API_KEY is not set for this Brain worker", heals=False, of_key=True)
    return key.get_secret_value()


def estimated_usage(body: dict[str, Any], said: str) -> Usage:
    """The tokens of a request and of what was said to it, judged by their length, where the provider did not count."""
    return Usage(tokens_in=estimate_json(body), tokens_out=estimate_text(said), estimated=True)


def counted_usage(usage: Json) -> Usage | None:
    """The provider's own count, in any of the names that providers give it; None where it gives none."""
    tokens_in = _count(usage, "prompt_tokens", "input_tokens")
    tokens_out = _count(usage, "completion_tokens", "output_tokens")
    if tokens_in is None or tokens_out is None or not isinstance(usage, dict):
        return None
    asked = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    said = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    cached = _count(asked, "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    return Usage(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=cached or 0,
        tokens_reasoning=_count(said, "reasoning_tokens") or 0,
    )


def words_of(content: object) -> str:
    """The text of a message's content: a text, or a list of parts, of which those of thinking are no text.

    Raises TypeError for anything else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} where text belongs")
    return "".join(part if isinstance(part, str) else _words_of_part(part) for part in content)


def _words_of_part(part: object) -> str:
    if not isinstance(part, dict) or part.get("type", "text") not in ("text", "output_text"):
        return ""
    text = part.get("text")
    if not isinstance(text, str | None):
        raise TypeError(f"{type(text).__name__} where text belongs")
    return text or ""


def logprobs_of(tokens: object) -> list[tuple[str, float]]:
    """Tokens with their log-probabilities: a record beside the text, so what cannot be read of them is left out."""
    found = []
    for token in tokens if isinstance(tokens, list) else ():
        text, logprob = (token.get("token"), token.get("logprob")) if isinstance(token, dict) else (None, None)
        if isinstance(text, str) and isinstance(logprob, int | float):
            found.append((clean_text(text), float(logprob)))
    return found


def _count(usage: Json, *names: str) -> int | None:
    """The first of these numbers that can be believed."""
    counts = (_number_of(usage.get(name)) for name in names) if isinstance(usage, dict) else ()
    return next((count for count in counts if count is not None), None)


def _number_of(value: object) -> int | None:
    """A whole number of tokens that can be believed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


def error_of_answer(status: int, headers: httpx2.Headers, text: bytes, api_key: str) -> ProviderError:
    """What an HTTP answer that is a refusal says; `text` is the beginning of its body."""
    try:
        said = read_json(text)
    except (ValueError, RecursionError):
        said = text.decode(errors="replace").strip()
    if isinstance(said, list) and said:  # Gemini's form
        said = said[0]
    error = said.get("error") or said if isinstance(said, dict) else said
    return provider_error(error, status, retry_after(headers), api_key)


def provider_error(error: object, status: int | None, retry_after: float | None, api_key: str) -> ProviderError:
    """What the provider sent as its error, as one of ours; `status` is None where no HTTP status came with it."""
    fields = error if isinstance(error, dict) else {"message": error}
    names = [str(fields[name])[:READ_CHARACTERS] for name in ("code", "type", "status") if fields.get(name)]
    if status is None and names and len(names[0]) == 3 and names[0].isdecimal() and 400 <= int(names[0]) <= 599:
        status = int(names[0])
    message = without_key(_message(fields), api_key)[:READ_CHARACTERS] or f"status {status}"
    overflow, of_key = is_overflow(status, names, message), is_of_key(status, names, message)
    final = overflow or of_key or is_final(names, message) or not FILTER_CODES.isdisjoint(names)
    if status is None:
        final = final or not BAD_REQUESTS.isdisjoint(names)
    return ProviderError(
        clean_text(message[:LONGEST_MESSAGE]),
        status=status,
        code=clean_text(without_key(names[0], api_key)[:LONGEST_CODE]) if names else None,
        retry_after=retry_after,
        heals=not final and (status is None or status in HEALING_STATUSES or status >= 500),
        overflow=overflow,
        filtered=not FILTER_CODES.isdisjoint(names),
        of_key=of_key,
    )


def without_key(text: str, api_key: str) -> str:
    """The provider's words for the log: some servers quote the key that they refuse. Words are cut after this, since
    part of a key is not found."""
    return text.replace(api_key, "***") if api_key else text


def _message(fields: dict[str, Any]) -> str:
    """The provider's words: its message, wherever that stands, else all that it sent."""
    for name in ("message", "detail", "msg", "error"):
        if isinstance(said := fields.get(name), str) and said.strip():
            return said.strip()
    return json.dumps(fields) if any(fields.values()) else ""


def retry_after(headers: httpx2.Headers) -> float | None:
    """The wait that the provider asks for, in seconds from 0 to an hour; None where it names none that can be read."""
    seconds = _number(headers.get("retry-after-ms"), 1000)
    if seconds is None:
        seconds = _number(headers.get("retry-after"), 1)
    if seconds is None:
        seconds = _seconds_until(headers.get("retry-after"))
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def _number(text: str | None, parts: int) -> float | None:
    try:
        value = float(text or "") / parts
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
