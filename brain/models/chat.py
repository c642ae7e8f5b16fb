"""The adapter to Chat Completions: one streamed request by the `openai` package, one whole reply or the reason why not.

A reply counts only once its finish reason was seen. Retries are not made here: count and delay are task state. The
stream is read as bytes, so that the deadline and `stop` also hold against a provider that sends nothing but
keep-alive comments, and as plain dicts, since a model object for each chunk costs more than the chunk says.
"""

from __future__ import annotations

import email.utils
import functools
import json
import math
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from brain.models.reply import Interrupted, ProviderError, RawCall, Reply
from shared.kernel.tokens import estimate_json, estimate_text
from shared.model.event import Usage
from shared.model.json import Json, clean_text

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
"""How long a provider may send nothing at all."""
LONGEST_RETRY_AFTER = 3600.0
LONGEST_MESSAGE = 2_000
MOST_TOKENS = 2**31 - 1
"""Of one call, as far as they are believed."""

HEALING_STATUSES = frozenset({408, 409, 429})
OVERFLOW = "context_length_exceeded"
FINAL_CODES = frozenset({"insufficient_quota", OVERFLOW})
FINAL_CODES_IN_STREAM = FINAL_CODES | {"invalid_request_error"}
"""Inside a stream there is no status that tells a bad request from a failed server."""
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
BAD_ADDRESS = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)


def send(
    body: dict[str, Any],
    *,
    api_key: str,
    base_url: str | None,
    seconds: float,
    on_text: Callable[[str], None],
    stop: Callable[[], bool],
) -> Reply:
    """Sends a Chat Completions body and returns the whole reply. Raises Interrupted and ProviderError.

    `seconds` bounds the whole call; it and `stop` are looked at whenever bytes arrive, so that silence can add
    SILENCE_SECONDS to them. `on_text` gets each new piece of text; what it raises ends the call and comes through.
    """
    deadline = time.monotonic() + seconds
    heard = _Heard()
    with _open(body, api_key, base_url, seconds) as stream:
        end = _listen(stream.response, heard, deadline, on_text, stop)
    if not heard.finish_reason:
        raise Interrupted(heard.text(), end)
    return heard.reply(body)


def estimated_usage(body: dict[str, Any], said: str) -> Usage:
    """The tokens of a request and of what was said to it, judged by their length, where the provider did not count."""
    return Usage(tokens_in=estimate_json(body), tokens_out=estimate_text(said), estimated=True)


def _open(body: dict[str, Any], api_key: str, base_url: str | None, seconds: float) -> openai.Stream[object]:
    silence = min(SILENCE_SECONDS, seconds)
    connect = min(CONNECT_SECONDS, seconds)
    try:
        # The typed method walks through all messages to convert them; they are in their final form already.
        return _client(os.getpid(), api_key, base_url).post(
            "/chat/completions",
            cast_to=object,
            body={**body, "stream": True, "stream_options": {"include_usage": True}},
            options={"timeout": httpx2.Timeout(connect=connect, read=silence, write=silence, pool=connect)},
            stream=True,
            stream_cls=openai.Stream[object],
        )
    except openai.APIStatusError as refused:
        error = _provider_error(refused.body, refused.status_code, _retry_after(refused.response.headers), api_key)
        raise error from None
    except openai.APIConnectionError as lost:
        raise _no_answer(lost.__cause__ or lost) from None
    except httpx2.RequestError as lost:  # while the text of an error was read
        raise _no_answer(lost) from None


@functools.lru_cache(maxsize=16)
def _client(_process: int, api_key: str, base_url: str | None) -> openai.OpenAI:
    """One client, and so one pool of connections, for each process: a forked child must not use its parent's."""
    return openai.OpenAI(api_key=api_key, base_url=base_url, max_retries=0)


def _no_answer(cause: BaseException) -> Interrupted | ProviderError:
    what = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, NOT_SENT):
        return ProviderError(f"the provider cannot be reached ({what})", heals=True)
    if isinstance(cause, BAD_ADDRESS):
        return ProviderError(f"the provider's address or key cannot be used ({type(cause).__name__})", heals=False)
    return Interrupted("", f"no answer ({what})")


def _listen(
    response: httpx2.Response,
    heard: _Heard,
    deadline: float,
    on_text: Callable[[str], None],
    stop: Callable[[], bool],
) -> str:
    """Takes the stream in and says why it ended.

    It is read to its very end, not only to its `[DONE]`: a connection that is left in the middle of an answer is lost
    for the next request.
    """
    try:
        for lines in _lines(response.iter_bytes()):
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                try:
                    text = heard.take(line[5:].strip())
                except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
                    return "a piece of the stream makes no sense"
                if text:
                    on_text(clean_text(text))
            if stop():
                return "stopped"
            if time.monotonic() >= deadline:
                return "the deadline has passed"
    except httpx2.TimeoutException:
        return "the provider fell silent"
    except (httpx2.RequestError, ssl.SSLError) as lost:
        return f"the connection was lost ({type(lost).__name__})"
    return "the stream ended without a finish reason"


def _lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """The lines that each piece completes. Chat Completions puts an event's data on one line."""
    rest = b""
    for piece in pieces:
        # By hand, since splitting text at its line ends would also split at U+2028 inside of JSON.
        *lines, rest = (rest + piece).split(b"\n")
        yield lines


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Heard:
    """What a stream has said so far."""

    texts: list[str] = field(default_factory=list)
    refusal: str = ""
    finish_reason: str = ""
    model: str = ""
    response_id: str = ""
    usage: Json = None
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    by_index: dict[object, _Call] = field(default_factory=dict)

    def take(self, data: bytes) -> str:
        """Takes in one event and returns the text it added; a chunk of another shape raises what it raises."""
        if data == b"[DONE]":
            return ""
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise _provider_error(error, None, None, "")
        self.model = _text(chunk.get("model")) or self.model
        self.response_id = _text(chunk.get("id")) or self.response_id
        self.usage = chunk.get("usage") or self.usage
        said = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            said += _text(delta.get("content"))
            self.refusal += _text(delta.get("refusal"))
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            for token in (choice.get("logprobs") or {}).get("content") or ():
                self.logprobs.append((clean_text(_text(token.get("token"))), float(token["logprob"])))
            self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        self.texts.append(said)
        return said

    def _take_call(self, delta: dict[str, Any]) -> None:
        function = delta.get("function") or {}
        name = _text(function.get("name"))
        arguments = function.get("arguments") or ""
        call = self._call(delta.get("index"), _text(delta.get("id")), name)
        if name != call.name:  # some providers repeat the name in every chunk
            call.name += name
        call.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _call(self, index: object, id: str, name: str) -> _Call:
        """The call that a delta goes on with, or a new one.

        Some providers leave the index out, and some give every call the index 0: a new id together with a name
        begins a new call.
        """
        if index is not None:
            call = self.by_index.get(index)
            if call and id and name and call.id not in ("", id):
                call = None
        elif id:
            call = next((call for call in self.calls if call.id == id), None)
        else:
            call = self.calls[-1] if self.calls and not name else None
        if call is None:
            call = _Call()
            self.calls.append(call)
        if index is not None:
            self.by_index[index] = call
        call.id = call.id or id
        return call

    def text(self) -> str:
        # Cleaned as a whole, since a provider may send the two halves of a surrogate pair in two chunks.
        return clean_text("".join(self.texts))

    def reply(self, body: dict[str, Any]) -> Reply:
        text, refusal = self.text(), clean_text(self.refusal)
        calls = tuple(
            RawCall(
                provider_id=clean_text(call.id),
                name=clean_text(call.name),
                arguments=clean_text("".join(call.arguments)),
            )
            for call in self.calls
        )
        said = "".join((text, refusal, *(call.name + call.arguments for call in calls)))
        return Reply(
            text=text,
            calls=calls,
            finish_reason=clean_text(self.finish_reason),
            refusal=refusal or None,
            usage=self._counted() or estimated_usage(body, said),
            model=clean_text(self.model),
            response_id=clean_text(self.response_id) or None,
            logprobs=tuple(self.logprobs),
        )

    def _counted(self) -> Usage | None:
        tokens_in = _count(self.usage, "prompt_tokens")
        tokens_out = _count(self.usage, "completion_tokens")
        if tokens_in is None or tokens_out is None:
            return None
        return Usage(
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            tokens_cached=_count(self.usage.get("prompt_tokens_details"), "cached_tokens") or 0,
            tokens_reasoning=_count(self.usage.get("completion_tokens_details"), "reasoning_tokens") or 0,
        )


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise TypeError(f"{type(value).__name__} where text belongs")


def _count(usage: Json, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value <= MOST_TOKENS else None


def _provider_error(error: object, status: int | None, retry_after: float | None, api_key: str) -> ProviderError:
    """What the provider sent as its error, as one of ours; `status` is None for an error inside a stream."""
    fields = error if isinstance(error, dict) else {"message": error}
    names = [str(fields[name]) for name in ("code", "type") if fields.get(name)]
    if status is None and names and names[0].isdecimal():
        status = int(names[0])
    final = (FINAL_CODES_IN_STREAM if status is None else FINAL_CODES).intersection(names)
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


def _retry_after(headers: httpx2.Headers) -> float | None:
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
