"""What the adapters to a provider share: what its errors, counts and headers mean."""

from __future__ import annotations

import email.utils
import json
import math
import time
from typing import Any

import httpx2

from brain.models.reply import ProviderError
from shared.kernel.tokens import estimate_json, estimate_text
from shared.model.event import Usage
from shared.model.json import Json, clean_text
from shared.runtime.settings import settings

LONGEST_RETRY_AFTER = 3600.0
LONGEST_MESSAGE = 2_000
MOST_TOKENS = 2**31 - 1
"""Of one call, as far as they are believed."""

HEALING_STATUSES = frozenset({408, 409, 429})
OVERFLOW = "context_length_exceeded"
FINAL_CODES = frozenset({"insufficient_quota", OVERFLOW})
FINAL_CODES_WITHOUT_STATUS = FINAL_CODES | {
    "invalid_request_error",
    "invalid_prompt",
    "data_residency_mismatch",
    "bio_policy",
    "misalignment_policy_violation",
}
"""In a stream and in a failed response there is no status that tells a bad request from a failed server."""


def required_key() -> str:
    """The key for the provider. Raises ProviderError where none is set."""
    key = settings().openai_api_key
    if key is None or not key.get_secret_value():
        raise ProviderError("OPENAI_API_KEY is not set for this Brain worker", heals=False)
    return key.get_secret_value()


def estimated_usage(body: dict[str, Any], said: str) -> Usage:
    """The tokens of a request and of what was said to it, judged by their length, where the provider did not count."""
    return Usage(tokens_in=estimate_json(body), tokens_out=estimate_text(said), estimated=True)


def counted_usage(usage: Json, asked: str, said: str) -> Usage | None:
    """The provider's own count, whose names begin with `asked` and `said`; None where it gives none."""
    tokens_in = _count(usage, f"{asked}_tokens")
    tokens_out = _count(usage, f"{said}_tokens")
    if tokens_in is None or tokens_out is None:
        return None
    return Usage(
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_cached=_count(usage.get(f"{asked}_tokens_details"), "cached_tokens") or 0,
        tokens_reasoning=_count(usage.get(f"{said}_tokens_details"), "reasoning_tokens") or 0,
    )


def text_of(value: object) -> str:
    """A text that may be missing. Raises TypeError for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise TypeError(f"{type(value).__name__} where text belongs")


def _count(usage: Json, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value <= MOST_TOKENS else None


def error_of_answer(status: int, headers: httpx2.Headers, text: bytes, api_key: str) -> ProviderError:
    """What an HTTP answer that is a refusal says; `text` is the beginning of its body."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = text.decode(errors="replace").strip()
    error = said.get("error") or said if isinstance(said, dict) else said
    return provider_error(error, status, retry_after(headers), api_key)


def provider_error(error: object, status: int | None, retry_after: float | None, api_key: str) -> ProviderError:
    """What the provider sent as its error, as one of ours; `status` is None where no HTTP status came with it."""
    fields = error if isinstance(error, dict) else {"message": error}
    names = [str(fields[name]) for name in ("code", "type") if fields.get(name)]
    if status is None and names and names[0].isdecimal():
        status = int(names[0])
    final = (FINAL_CODES_WITHOUT_STATUS if status is None else FINAL_CODES).intersection(names)
    message = str(fields.get("message") or error or f"status {status}")
    if api_key:
        message = message.replace(api_key, "***")  # some servers quote the key they refuse
    return ProviderError(
        clean_text(message[:LONGEST_MESSAGE]),
        status=status,
        code=clean_text(names[0]) if names else None,
        retry_after=retry_after,
        heals=not final and (status is None or status in HEALING_STATUSES or status >= 500),
        overflow=OVERFLOW in names,
    )


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
