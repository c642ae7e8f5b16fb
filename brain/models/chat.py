"""The adapter to Chat Completions: one streamed request by the `openai` package, one whole reply or the reason why not.

A reply counts only once its finish reason was seen. Retries are not made here: count and delay are task state. What is
read is plain dicts, since a model object for each chunk costs more than the chunk says, and it is read kindly: what is
not needed is never a reason to lose a reply that was paid for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from brainhands.brain.models.calls import Calls, fields_of, keep_extra, word_of
from brainhands.brain.models.dialects import MESSAGE_EXTRAS, ending_of
from brainhands.brain.models.line import Answer, Endpoint, Lost, asking, never
from brainhands.brain.models.provider import (
    MOST_CHARACTERS,
    MOST_LOGPROBS,
    counted_usage,
    estimated_usage,
    logprobs_of,
    provider_error,
    read_json,
    without_key,
    words_of,
)
from brainhands.brain.models.reply import Interrupted, ProviderError, Reply
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.errors import NotStorable
from brainhands.shared.model.event import Usage
from brainhands.shared.model.json import Json, clean_text

LONGEST_EVENT = 8 * 1024 * 1024
"""Bytes of one event of a stream."""
SHOWN_CHARACTERS = 200

NOT_UNDERSTOOD = (ValueError, TypeError, AttributeError, LookupError, RecursionError, NotStorable)
"""What a chunk of another shape raises where it is read."""


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
    heard = _Heard(body, at.api_key)
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with asking("POST", "/chat/completions", streamed, at=at, timeouts=timeouts, stop=stop) as answer:
        end = _listen(answer, heard, on_text)
    return heard.reply(end)


def _listen(answer: Answer, heard: _Heard, on_text: Callable[[str], None]) -> str:
    """Takes the answer in and says why it ended.

    A stream is read to its very end, not only to its `[DONE]`: a connection that is left in the middle of an answer is
    lost for the next request.
    """
    try:
        beginning, pieces = _beginning(answer.pieces())
        if beginning.startswith((b"{", b"[", b"<")):
            return _take_whole(b"".join(pieces), heard, on_text)
        for data in _events(pieces):
            answer.speaks()
            try:
                text = heard.take(data)
            except NOT_UNDERSTOOD:
                return "a piece of the stream makes no sense"
            if text:
                on_text(clean_text(text))
            if heard.characters > MOST_CHARACTERS:
                heard.heals = False
                return f"the reply has more than {MOST_CHARACTERS:,} characters"
    except Lost as lost:
        return str(lost)
    except ProviderError as error:  # an answer beyond its bound
        heard.error = error
        return str(error)
    except httpx2.TransportError:
        return f"a piece of the stream has more than {LONGEST_EVENT:,} bytes"
    return "the stream ended without a finish reason"


def _beginning(pieces: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """What an answer begins with, white space and a byte-order mark apart, and all of its pieces."""
    for piece in pieces:
        if beginning := piece.lstrip(b"\xef\xbb\xbf \t\r\n"):
            return beginning, itertools.chain([beginning], pieces)
    return b"", iter(())


def _events(pieces: Iterator[bytes]) -> Iterator[str]:
    """The data of each event of a stream; the last one counts also without the empty line that should follow it."""
    ended = itertools.chain(pieces, [b"\n\n"])
    asked = httpx2.Request("POST", "http://provider.invalid")
    response = httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=ended, request=asked)
    for event in httpx2.EventSource(response, max_event_size=LONGEST_EVENT):
        yield event.data


def _take_whole(text: bytes, heard: _Heard, on_text: Callable[[str], None]) -> str:
    """Takes an answer that is no stream: a whole completion, an error, or a page of somebody in between."""
    try:
        said = heard.take(text.decode(errors="replace"))
    except NOT_UNDERSTOOD:
        said = ""
    if not (said or heard.finish_reason or heard.error):
        shown = " ".join(without_key(text.decode(errors="replace"), heard.api_key).split())[:SHOWN_CHARACTERS]
        return f"the answer is no completion: {clean_text(shown)}"
    if said:
        on_text(clean_text(said))
    return "the completion has no finish reason"


@dataclass(slots=True)
class _Heard:
    """What a provider has said so far, in answer to `body`."""

    body: dict[str, Any]
    api_key: str
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    characters: int = 0
    finish_reason: str = ""
    heals: bool = True
    error: ProviderError | None = None
    model: str = ""
    response_id: str = ""
    usage: Usage | None = None
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        self.calls = Calls(offered={tool["function"]["name"] for tool in self.body.get("tools", ())})

    def take(self, data: str) -> str:
        """Takes in one event and returns the text it added; a chunk of another shape raises NOT_UNDERSTOOD."""
        if not (data := data.strip()) or data == "[DONE]":
            return ""
        chunk = read_json(data)
        if error := chunk.get("error"):
            self.error = provider_error(error, None, None, self.api_key)
        self.model = word_of(chunk.get("model")) or self.model
        self.response_id = word_of(chunk.get("id")) or self.response_id
        self.usage = counted_usage(chunk.get("usage")) or counted_usage(_groq(chunk)) or self.usage
        said = ""
        for choice in chunk.get("choices") or ():
            said += self._take_choice(choice)
        self.texts.append(said)
        self.characters += len(said)
        return said

    def _take_choice(self, choice: dict[str, Any]) -> str:
        if error := choice.get("error"):
            self.error = provider_error(error, None, None, self.api_key)
        delta = choice.get("delta") or choice.get("message") or {}
        said = words_of(delta.get("content"))
        self.characters += keep_extra(self.extra, delta, MESSAGE_EXTRAS)
        refusal = words_of(delta.get("refusal"))
        self.refusals.append(refusal)
        self.characters += len(refusal)
        take = self.calls.take if "delta" in choice else self.calls.take_whole
        for part in delta.get("tool_calls") or ():
            self.characters += take(part)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and len(self.logprobs) < MOST_LOGPROBS:
            self.logprobs += logprobs_of(logprobs.get("content"))
        self.usage = counted_usage(choice.get("usage")) or self.usage
        self.finish_reason = word_of(choice.get("finish_reason")) or self.finish_reason
        return said

    def text(self) -> str:
        # Cleaned as a whole, since a provider may send the two halves of a surrogate pair in two chunks.
        return clean_text("".join(self.texts))

    def reply(self, end: str) -> Reply:
        """The whole reply. Raises Interrupted and ProviderError where there is none, for the reason `end`."""
        text, refusal, calls = self.text(), clean_text("".join(self.refusals)), self.calls.raw()
        ending = ending_of(self.finish_reason)
        said = "".join((text, refusal, *(call.name + call.arguments for call in calls)))
        if self.error is not None:
            if not (said or self.usage):
                raise self.error
            reason = f"the provider broke off: {self.error}"
            raise self._interrupted(reason, said, heals=self.error.heals, overflow=self.error.overflow)
        if ending == "broken":
            raise self._interrupted(f"the provider ended it with {self.finish_reason}", said)
        if not ending or not self.heals:
            raise self._interrupted(end, said, heals=self.heals)
        return Reply(
            text=text,
            calls=calls,
            finish_reason=ending,
            refusal=refusal or None,
            usage=self.usage or estimated_usage(self.body, said),
            model=self.model,
            response_id=self.response_id or None,
            logprobs=tuple(self.logprobs[:MOST_LOGPROBS]),
            extra=self.extra or None,
            calls_left_out=self.calls.left_out,
        )

    def _interrupted(self, reason: str, said: str, *, heals: bool = True, overflow: bool = False) -> Interrupted:
        usage = self.usage or estimated_usage(self.body, said)
        return Interrupted(self.text()[:MOST_CHARACTERS], reason, usage=usage, heals=heals, overflow=overflow)


def _groq(chunk: dict[str, Any]) -> Json:
    """Groq's own place for the count of a stream."""
    usage: Json = fields_of(chunk.get("x_groq")).get("usage")
    return usage
