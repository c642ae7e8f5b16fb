"""The adapter to the Responses API in background mode: create, look, cancel, each one short request.

The provider works on after `create` has returned, and who knows the response's id asks for it with `retrieve`. The
request is that of Chat Completions, translated by `request_of`, and what comes of it is the same `Reply`. Response
objects are read as plain dicts, so that an item of a kind that nobody knows here breaks nothing: it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from brainhands.brain.models.calls import LONGEST_ID, Calls, fields_of, items_of, text_or_nothing, word_of
from brainhands.brain.models.dialects import ending_of
from brainhands.brain.models.line import Endpoint, Lost, asking, never
from brainhands.brain.models.provider import (
    MOST_CHARACTERS,
    MOST_LOGPROBS,
    counted_usage,
    estimated_usage,
    logprobs_of,
    provider_error,
    read_json,
    retry_after,
    words_of,
)
from brainhands.brain.models.reply import Interrupted, ProviderError, RawCall, Reply
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.model.event import Usage
from brainhands.shared.model.json import clean_text

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled", "expired"})
"""Statuses in which nothing more comes; in any other one the provider is taken to work on it still."""

TEXT_OPTIONS = {"response_format": "format", "verbosity": "verbosity"}
"""Options of Chat Completions that belong under `text` here, and their names there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """A response as the provider shows it; `retry_after` is in seconds."""

    content: dict[str, Any]
    retry_after: float | None = None
    api_key: str = field(default="", repr=False)
    """What it was asked for with, and what no error of it shows."""

    @property
    def response_id(self) -> str:
        return str(self.content.get("id") or "")

    @property
    def status(self) -> str:
        return word_of(self.content.get("status")) or "unknown"

    @property
    def pending(self) -> bool:
        return self.status not in ENDED


def create(body: dict[str, Any], *, at: Endpoint, timeouts: Timeouts, stop: Callable[[], bool] = never) -> Response:
    """Have the provider begin with a request. Raises Interrupted, if it may have begun, and ProviderError."""
    kept = {**body, "background": True, "store": True}
    answer = _ask("POST", "/responses", kept, at=at, timeouts=timeouts, stop=stop)
    response_id = answer.response_id
    if not response_id.strip(".") or len(response_id) > LONGEST_ID or clean_text(response_id) != response_id:
        raise Interrupted("", "the provider gave the response no id that can be used")
    return answer


def retrieve(response_id: str, *, at: Endpoint, timeouts: Timeouts, stop: Callable[[], bool] = never) -> Response:
    """The response as it is now. Raises Interrupted, if the answer was lost, and ProviderError."""
    path = f"/responses/{quote(response_id, safe='')}"
    return _ask("GET", path, None, at=at, timeouts=timeouts, stop=stop)


def cancel(response_id: str, *, at: Endpoint, timeouts: Timeouts, stop: Callable[[], bool] = never) -> Response:
    """Have the provider stop; a response that has ended stays as it is. Raises Interrupted and ProviderError."""
    path = f"/responses/{quote(response_id, safe='')}/cancel"
    return _ask("POST", path, None, at=at, timeouts=timeouts, stop=stop)


def _ask(
    method: Literal["GET", "POST"],
    path: str,
    body: dict[str, Any] | None,
    *,
    at: Endpoint,
    timeouts: Timeouts,
    stop: Callable[[], bool],
) -> Response:
    try:
        with asking(method, path, body, at=at, timeouts=timeouts, stop=stop) as answer:
            text = b"".join(answer.pieces())
            asked_for = retry_after(answer.headers)
    except Lost as lost:
        raise Interrupted("", str(lost)) from None
    try:
        content = read_json(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Interrupted("", "the provider's answer makes no sense")
    if content.get("error") and not content.get("id"):
        raise provider_error(content["error"], None, asked_for, at.api_key)
    return Response(content=content, retry_after=asked_for, api_key=at.api_key)


def request_of(chat: dict[str, Any]) -> dict[str, Any]:
    """A Chat Completions body as one of the Responses API: pure, and options that both have get their names here.

    An option that only one of them has is passed on as it is.
    """
    instructions, messages = _without_instructions(chat["messages"])
    body: dict[str, Any] = {"input": [item for message in messages for item in _items(message)]}
    if instructions:
        body["instructions"] = instructions
    if "tools" in chat:
        # Left out, `strict` would be true here and false there.
        body["tools"] = [{"strict": False, **_flat(tool)} for tool in chat["tools"]]
    for name, value in chat.items():
        if name not in ("messages", "tools"):
            _set_option(body, name, value)
    return body


def _without_instructions(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    if messages and messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return "", messages


def _items(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    if message["content"] is not None:
        yield {"type": "message", "role": message["role"], "content": message["content"]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _set_option(body: dict[str, Any], name: str, value: Any) -> None:
    match name:
        case "max_completion_tokens" | "max_tokens":
            body["max_output_tokens"] = value
        case "reasoning_effort":
            body["reasoning"] = {**body.get("reasoning", {}), "effort": value}
        case "response_format" | "verbosity":
            body["text"] = {**body.get("text", {}), TEXT_OPTIONS[name]: _flat(value)}
        case "reasoning" | "text" if isinstance(value, dict):
            body[name] = {**body.get(name, {}), **value}
        case "logprobs":
            if value:
                body["include"] = [*body.get("include", ()), "message.output_text.logprobs"]
        case "include":
            body["include"] = [*body.get("include", ()), *value]
        case "tool_choice":
            body["tool_choice"] = _flat(value)
        case _:
            body[name] = value


def _flat(value: Any) -> Any:
    """What Chat Completions nests under the name of its type, such as `{"type": "function", "function": {...}}`."""
    if not isinstance(value, dict) or not isinstance(value.get(value.get("type")), dict):
        return value
    inner = value[value["type"]]
    if isinstance(inner.get("tools"), list):
        inner = {**inner, "tools": [_flat(tool) for tool in inner["tools"]]}
    return {"type": value["type"], **inner}


def reply_of(answer: Response, body: dict[str, Any]) -> Reply:
    """What a response came to that has ended; `body` is its request.

    Raises Interrupted where the model may have worked on it and there is no whole reply, and ProviderError where it
    failed without a trace of work.
    """
    content = answer.content
    usage = counted_usage(content.get("usage"))
    try:
        said = _said(items_of(content.get("output") or []))
        reason = _finish_reason(answer, said)
        model, response_id = word_of(content.get("model")), word_of(answer.response_id)
    except (ValueError, TypeError, AttributeError, LookupError):
        raise Interrupted("", "the response makes no sense", usage=usage) from None
    if reason is None:
        raise _unfinished(answer, said.text, usage)
    everything = "".join((said.text, said.refusal, *(call.name + call.arguments for call in said.calls)))
    usage = usage or estimated_usage(body, everything)
    if len(everything) > MOST_CHARACTERS:
        raise Interrupted("", f"the reply has more than {MOST_CHARACTERS:,} characters", usage=usage, heals=False)
    return Reply(
        text=said.text,
        calls=said.calls,
        finish_reason=reason,
        refusal=said.refusal or None,
        usage=usage,
        model=model,
        response_id=response_id or None,
        logprobs=said.logprobs,
        calls_left_out=said.calls_left_out,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """The output items of a response, as far as they are known here."""

    text: str
    refusal: str
    calls: tuple[RawCall, ...]
    calls_left_out: int
    logprobs: tuple[tuple[str, float], ...]


def _said(output: Iterable[dict[str, Any]]) -> _Said:
    messages: list[str] = []
    refusals: list[str] = []
    calls = Calls()
    logprobs: list[tuple[str, float]] = []
    for item in output:
        match item.get("type"):
            case "message":
                messages.append(words_of(item.get("content")))
                parts = [part for part in item.get("content") or () if isinstance(part, dict)]
                refusals += [text_or_nothing(part.get("refusal")) for part in parts if part.get("type") == "refusal"]
                logprobs += [token for part in parts for token in logprobs_of(part.get("logprobs"))]
            case "function_call":
                calls.take_whole({"id": item.get("call_id"), "function": item})
            case _:
                pass  # Reasoning and what the provider's own tools did: no part of the dialogue.
    # A model may say something beside its calls and something else in the end; these are messages of their own.
    text = "\n\n".join(filter(None, messages))
    return _Said(
        text=clean_text(text),
        refusal=clean_text("".join(refusals)),
        calls=calls.raw(),
        calls_left_out=calls.left_out,
        logprobs=tuple(logprobs[:MOST_LOGPROBS]),
    )


def _finish_reason(answer: Response, said: _Said) -> str | None:
    """Why a reply ended, in the words of Chat Completions; None for a response that came to no reply."""
    if answer.status == "completed":
        return "tool_calls" if said.calls else "stop"
    if answer.status == "incomplete":
        return ending_of(word_of(fields_of(answer.content.get("incomplete_details")).get("reason"))) or "incomplete"
    return None


def _unfinished(answer: Response, text: str, usage: Usage | None) -> Interrupted | ProviderError:
    if answer.status != "failed":
        # Whoever cancelled it at the provider does not want it to be asked for again.
        heals = answer.status != "cancelled"
        return Interrupted(text, f"the response is {answer.status} at the provider", usage=usage, heals=heals)
    error = provider_error(answer.content.get("error") or "the response failed", None, None, answer.api_key)
    if not (text or usage):
        return error
    reason = f"the response failed: {error}"
    return Interrupted(text, reason, usage=usage, heals=error.heals, overflow=error.overflow)
