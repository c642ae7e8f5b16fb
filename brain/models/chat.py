"""The adapter to Chat Completions: one streamed request by the `openai` package, one whole reply or the reason why not.

A reply counts only once its finish reason was seen. Retries are not made here: count and delay are task state. The
stream is read as plain dicts, since a model object for each chunk costs more than the chunk says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from brain.models.line import Answer, Endpoint, Lost, asking, never
from brain.models.provider import counted_usage, estimated_usage, provider_error, text_of
from brain.models.reply import Interrupted, RawCall, Reply
from brain.models.timeouts import Timeouts
from shared.model.json import Json, clean_text


def send(
    body: dict[str, Any],
    *,
    at: Endpoint,
    timeouts: Timeouts,
    on_text: Callable[[str], None],
    stop: Callable[[], bool] = never,
) -> Reply:
    """Sends a Chat Completions body and returns the whole reply. Raises Interrupted and ProviderError.

    `on_text` gets each new piece of text; what it raises ends the call and comes through.
    """
    heard = _Heard()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with asking("POST", "/chat/completions", streamed, at=at, timeouts=timeouts, stop=stop) as answer:
        end = _listen(answer, heard, on_text)
    if not heard.finish_reason:
        raise Interrupted(heard.text(), end)
    return heard.reply(body)


def _listen(answer: Answer, heard: _Heard, on_text: Callable[[str], None]) -> str:
    """Takes the stream in and says why it ended.

    It is read to its very end, not only to its `[DONE]`: a connection that is left in the middle of an answer is lost
    for the next request.
    """
    try:
        for lines in _lines(answer.pieces()):
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                answer.speaks()
                try:
                    text = heard.take(line[5:].strip())
                except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
                    return "a piece of the stream makes no sense"
                if text:
                    on_text(clean_text(text))
    except Lost as lost:
        return str(lost)
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
            raise provider_error(error, None, None, "")
        self.model = text_of(chunk.get("model")) or self.model
        self.response_id = text_of(chunk.get("id")) or self.response_id
        self.usage = chunk.get("usage") or self.usage
        said = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            said += text_of(delta.get("content"))
            self.refusal += text_of(delta.get("refusal"))
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            for token in (choice.get("logprobs") or {}).get("content") or ():
                self.logprobs.append((clean_text(text_of(token.get("token"))), float(token["logprob"])))
            self.finish_reason = text_of(choice.get("finish_reason")) or self.finish_reason
        self.texts.append(said)
        return said

    def _take_call(self, delta: dict[str, Any]) -> None:
        function = delta.get("function") or {}
        name = text_of(function.get("name"))
        arguments = function.get("arguments") or ""
        call = self._call(delta.get("index"), text_of(delta.get("id")), name)
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
            usage=counted_usage(self.usage, "prompt", "completion") or estimated_usage(body, said),
            model=clean_text(self.model),
            response_id=clean_text(self.response_id) or None,
            logprobs=tuple(self.logprobs),
        )
