"""The edge around code of others: tools, look-ups, validators, policies, serializers, flows, document changes,
migrations.

Such code may raise anything, also what is no `Exception`, and each caller here must store what came of it at once. So
whatever it raises comes out of `call` as a ForeignError, but for the words that the caller expects. Its time is bounded
from outside, by the lease of its phase.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from brainhands.shared.model.json import clean_text

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

MAX_TEXT = 2_000
"""Characters of an exception's text that are kept."""
MAX_READ = 20_000
"""Characters of it that are looked at."""
MAX_NAMED = 5
"""Exceptions of a group that are named."""


class ForeignError(Exception):
    """What code of others raised; the message is what a model or a person may read of it, `__cause__` the exception."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(told(cause))


class _Passing(BaseException):
    """An error of the engine on its way out through code of others, which neither catches it nor is blamed for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def call(function: Callable[..., Returned], /, *arguments: Any, words: tuple[type[Exception], ...] = ()) -> Returned:
    """What the function returns. Raises `words` as they are, and ForeignError for anything else that comes out."""
    try:
        return function(*arguments)
    except _Passing as passing:
        raise passing.error from None
    except words:
        raise
    except BaseException as error:
        raise ForeignError(error) from error


def ours(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """A function of the engine in the form in which code of others gets it: what it raises comes out of `call` as it
    is."""

    def passed_on(*arguments: Parameters.args, **named: Parameters.kwargs) -> Returned:
        try:
            return function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - raised again where the code of others has been left
            raise _Passing(error) from None

    return passed_on


def told(error: BaseException) -> str:
    """Type and text of an exception, without what opens doors.

    Nobody wrote this text for a model, and libraries quote addresses in it. So of an address only scheme and host are
    left, and of a value that is named as a key, token, secret or password nothing.
    """
    if isinstance(error, ForeignError):
        return str(error)
    return f"{type(error).__name__}: {_without_secrets(_read(error))}"[:MAX_TEXT]


def text(error: BaseException) -> str:
    """The text of an exception that was written to be read, shortened."""
    return _read(error)[:MAX_TEXT]


def _read(error: BaseException) -> str:
    said = _said(error)
    if isinstance(error, BaseExceptionGroup):
        parts = [f"{type(each).__name__}: {_said(each)}" for each in error.exceptions[:MAX_NAMED]]
        return f"{said[:MAX_TEXT]}: {'; '.join(parts)}"[:MAX_READ]
    return said


def _said(error: BaseException) -> str:
    try:
        return clean_text(str(error)[:MAX_READ])
    except BaseException as unreadable:  # noqa: BLE001 - the text of an exception is code of others too
        return f"(its text cannot be read: {type(unreadable).__name__})"


_ADDRESS = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)([^\s'\"<>]+)")
_QUERY = re.compile(r"\?[^\s'\"<>=]*=[^\s'\"<>]*")
_NAMED_SECRET = re.compile(
    r"((?:(?:api|access|account|auth|client|private|refresh|secret|session|signing)[-_ ]?(?:key|token|secret)"
    r"|authorization|password|passwd|secret|token)['\"]?\s*[:=]\s*)(?:(?:bearer|basic)\s+)?\S+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer\s+)\S+", re.IGNORECASE)


def _without_secrets(said: str) -> str:
    for pattern, shown in ((_ADDRESS, _host), (_QUERY, "?..."), (_NAMED_SECRET, r"\1..."), (_BEARER, r"\1...")):
        said = pattern.sub(shown, said)
    return said


def _host(address: re.Match[str]) -> str:
    scheme, rest = address.groups()
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(authority) :]:
        return f"{scheme}..."  # where the host is cannot be told: a password may have any character
    host = authority.rpartition("@")[2]
    return f"{scheme}{host}" if rest == host else f"{scheme}{host}/..."
