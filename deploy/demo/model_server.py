"""The demo's model provider: OpenAI-compatible chat completions and responses that say what a script says.

    POST /v1/chat/completions       needs any bearer token, as all of /v1 does; `stream` true or false
    POST /v1/responses              not streamed; `background` true or false
    GET  /v1/responses/ID
    POST /v1/responses/ID/cancel
    GET  /v1/models
    GET  /healthz
    GET  /requests                  {"requests": [{at, headers, body, finished}, ...]}: `finished` when all was sent
    GET  /responses                 {"responses": [{id, body, looks, cancels}, ...]}: how often each was asked about
    POST /reset                     forgets all of these and how often each fault was played

The request's `model` names the script; a name without one gets `converse`. Like the providers it stands for, the server
refuses a transcript with an unanswered call or an answer without its call.
"""

import argparse
import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import Application

from deploy.demo import model_responses
from deploy.demo.model_responses import Stored, as_chat
from deploy.demo.model_scripts import Call, Fault, Message, Reply, Request, Script, converse
from deploy.demo.model_strict import strict_problem
from deploy.demo.web import JsonHandler, ThreadedServer, application, serve

DEFAULT_MODEL = "demo"
PIECE = 12
"""Characters of text or arguments in a chunk; longer values come in at most MOST_PIECES pieces."""
MOST_PIECES = 64

REFUSALS: dict[Fault, tuple[int, str, str]] = {
    Fault.UNAUTHORIZED: (401, "invalid_api_key", "The key is not valid."),
    Fault.RATE_LIMIT: (429, "rate_limit_exceeded", "Too many requests."),
    Fault.INSUFFICIENT_QUOTA: (429, "insufficient_quota", "The quota is used up."),
    Fault.SERVER_ERROR: (500, "server_error", "The server failed."),
    Fault.UNAVAILABLE: (503, "overloaded", "The server is overloaded."),
    Fault.NOT_FOUND: (404, "not_found", "There is no such response."),
    Fault.BAD_REQUEST: (400, "invalid_request_error", "The request is not valid."),
    Fault.CONTEXT_LENGTH: (400, "context_length_exceeded", "The messages exceed the model's context length."),
}


@dataclass(kw_only=True)
class Received:
    at: float
    headers: dict[str, str]
    body: bytes
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class Provider:
    scripts: Mapping[str, Script]
    received: list[Received] = field(default_factory=list)
    responses: dict[str, Stored] = field(default_factory=dict)
    faults_played: Counter[bytes] = field(default_factory=Counter)

    def reply(self, request: Request) -> Reply:
        """Return what to play now: the scripted reply, without its fault once that was played often enough."""
        reply = self.scripts.get(request.get("model", ""), converse)(request)
        if reply.fault is None or reply.times is None:
            return reply
        key = hashlib.sha256(json.dumps(request["messages"]).encode()).digest()
        self.faults_played[key] += 1
        return reply if self.faults_played[key] <= reply.times else replace(reply, fault=None)


class _Handler(JsonHandler):
    def initialize(self, provider: Provider) -> None:
        self.provider = provider


class _Player(_Handler):
    """Plays what a script says to a request."""

    async def post(self) -> None:
        headers = {name: value for name, value in self.request.headers.get_all() if name != "Authorization"}
        received = Received(at=time.time(), headers=headers, body=self.request.body)
        self.provider.received.append(received)
        with suppress(StreamClosedError):  # the client has gone: the request stays unfinished
            received.finished = await self._play()

    async def _play(self) -> bool:
        raise NotImplementedError

    async def _reply(self, request: Request) -> Reply | None:
        """Return what to play now; None where the request was refused, and is answered."""
        if not await self._known():
            return None
        if problem := transcript_problem(request.get("messages")) or strict_problem(request):
            await self._refuse(400, "invalid_messages", problem)
            return None
        try:
            reply = self.provider.reply(request)
        except ValueError as problem:
            await self._refuse(400, "invalid_script", str(problem))
            return None
        await self._pause(reply.delay)
        if reply.fault in REFUSALS:
            await self._fail(reply.fault, reply.retry_after)
            return None
        return reply

    async def _known(self) -> bool:
        if self.request.headers.get("Authorization", "").removeprefix("Bearer ").strip():
            return True
        await self._refuse(401, "invalid_api_key", "No bearer token.")
        return False

    async def _fail(self, fault: Fault, retry_after: float | None) -> bool:
        if retry_after is not None:
            self.set_header("Retry-After", str(retry_after))
        return await self._refuse(*REFUSALS[fault])

    async def _pause(self, seconds: float) -> None:
        """Wait, and raise StreamClosedError if the client leaves meanwhile."""
        if seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), seconds)
                raise StreamClosedError

    async def _break_off(self, fault: Fault) -> bool:
        if fault is Fault.HANG:
            await self.gone.wait()
            raise StreamClosedError
        self.detach().close()
        return False

    async def _refuse(self, status: int, code: str, message: str) -> bool:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return await self.answer(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


class _Completions(_Player):
    async def _play(self) -> bool:
        request = self.body()
        reply = await self._reply(request)
        if reply is None:
            return True
        if request.get("stream"):
            return await self._stream(request, reply)
        if reply.fault in (Fault.CUT, Fault.HANG):
            return await self._break_off(reply.fault)
        return await self.answer(200, completion(request, shaped(reply), len(self.request.body)))

    async def _stream(self, request: Request, reply: Reply) -> bool:
        self.set_header("Content-Type", "text/event-stream")
        events = [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in self._chunks(request, reply)]
        if reply.fault not in (Fault.CUT, Fault.HANG):
            if reply.fault is not Fault.TRUNCATED:
                events.append(b"data: [DONE]\n\n")
            await self._send(events, reply.chunk_delay)
            await self.finish()
            return True
        await self._send(events[: reply.chunks], reply.chunk_delay)
        if reply.chunks:
            await self.flush()
        return await self._break_off(reply.fault)

    def _chunks(self, request: Request, reply: Reply) -> Iterator[dict[str, Any]]:
        return chunks(request, shaped(reply), len(self.request.body))

    async def _send(self, events: list[bytes], chunk_delay: float) -> None:
        if not chunk_delay:
            self.write(b"".join(events))
            return
        cast(HTTP1Connection, self.request.connection).stream.set_nodelay(True)
        for event in events:
            await self._pause(chunk_delay)
            self.write(event)
            await self.flush()


class _Responses(_Player):
    async def _play(self) -> bool:
        request = self.body()
        try:
            chat = as_chat(request)
        except ValueError as problem:
            return await self._refuse(400, "invalid_request", str(problem))
        reply = await self._reply(chat)
        if reply is None:
            return True
        usage = _usage(reply, len(self.request.body))
        stored = Stored(body=request, reply=shaped(reply), usage=usage, left=list(reply.looks))
        self.provider.responses[stored.id] = stored
        if reply.fault in (Fault.CUT, Fault.HANG):
            return await self._break_off(reply.fault)
        return await self.answer(200, stored.created())


class _Response(_Player):
    """One response: a look at it, and with /cancel the end of it."""

    async def get(self, id: str, _action: str) -> None:
        stored = await self._stored(id)
        if stored is None:
            return
        stored.looks += 1
        sight = stored.left.pop(0) if stored.left else None
        if sight in (None, *model_responses.PENDING):
            await self.answer(200, stored.shown(sight))
        elif sight == Fault.CUT:
            await self._break_off(Fault.CUT)
        else:
            await self._fail(Fault(sight), stored.reply.retry_after)

    async def post(self, id: str, _action: str) -> None:  # type: ignore[override]
        stored = await self._stored(id)
        if stored is None:
            return
        if not stored.body.get("background"):
            await self._refuse(400, "invalid_request", "Only a response in the background can be cancelled.")
            return
        stored.cancels += 1
        await self.answer(200, stored.cancel())

    async def _stored(self, id: str) -> Stored | None:
        """Return the response, or answer that there is none."""
        if not await self._known():
            return None
        stored = self.provider.responses.get(id)
        if stored is None or stored.reply.fault is Fault.FORGOTTEN:
            await self._fail(Fault.NOT_FOUND, None)
            return None
        return stored


class _Models(_Handler):
    async def get(self) -> None:
        names = [DEFAULT_MODEL, *self.provider.scripts]
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "demo"} for name in names]
        await self.answer(200, {"object": "list", "data": models})


class _Health(_Handler):
    async def get(self) -> None:
        await self.answer(200, {"ok": True})


class _Requests(_Handler):
    async def get(self) -> None:
        requests = [{**vars(received), "body": _body(received.body)} for received in self.provider.received]
        await self.answer(200, {"requests": requests})


class _StoredResponses(_Handler):
    async def get(self) -> None:
        await self.answer(200, {"responses": [stored.counts() for stored in self.provider.responses.values()]})


class _Reset(_Handler):
    async def post(self) -> None:
        self.provider.received.clear()
        self.provider.responses.clear()
        self.provider.faults_played.clear()
        await self.answer(200, {"ok": True})


def _body(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def transcript_problem(messages: Any) -> str | None:
    """Say what a provider would refuse in these messages."""
    if not isinstance(messages, list) or not messages:
        return "No messages."
    unanswered: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant" and not isinstance(message.get("content"), str | list):
            return f"messages[{place}] has no content."
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return f"messages[{place}] answers no call of the message before it."
            unanswered.remove(message["tool_call_id"])
            continue
        if unanswered:
            break
        if message["role"] == "assistant":
            unanswered = [call["id"] for call in message.get("tool_calls") or []]
            if not unanswered and message.get("content") is None:
                return f"messages[{place}] has neither content nor calls."
            if len(set(unanswered)) < len(unanswered):
                return f"messages[{place}] repeats the id of a call."
    return f"No answer to these calls: {', '.join(unanswered)}." if unanswered else None


def shaped(reply: Reply) -> Reply:
    """Apply the faults that are only a matter of what is said."""
    match reply.fault:
        case Fault.EMPTY:
            return replace(reply, text="", calls=(), refusal=None, finish_reason="stop")
        case Fault.CONTENT_FILTER | Fault.LENGTH:
            return replace(reply, finish_reason=reply.fault.value)
        case _:
            return reply


def completion(request: Request, reply: Reply, request_bytes: int) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    message: Message = {"role": "assistant", "content": reply.text or None, "refusal": reply.refusal}
    if reply.calls:
        message["tool_calls"] = [_whole_call(call) for call in reply.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
    body = {**_head(request, "chat.completion"), "choices": [choice]}
    return body | ({"usage": usage} if (usage := _usage(reply, request_bytes)) else {})


def chunks(request: Request, reply: Reply, request_bytes: int) -> Iterator[dict[str, Any]]:
    """Return the chunks of a stream; usage comes in a last one of its own, if it was asked for."""
    head = _head(request, "chat.completion.chunk")
    for delta in _deltas(reply):
        logprobs = _logprobs(delta) if request.get("logprobs") else None
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None}]}
    if (finish_reason := _finish_reason(reply)) is not None:
        yield {**head, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish_reason}]}
    if (request.get("stream_options") or {}).get("include_usage") and (usage := _usage(reply, request_bytes)):
        yield {**head, "choices": [], "usage": usage}


def _logprobs(delta: dict[str, Any]) -> dict[str, Any] | None:
    """Say of each piece of text that it was half likely."""
    if not delta.get("content"):
        return None
    return {"content": [{"token": delta["content"], "logprob": -0.693, "bytes": None, "top_logprobs": []}]}


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if reply.calls and not reply.text else ""}
    for piece in _pieces(reply.text):
        yield {"content": piece}
    for piece in _pieces(reply.refusal or ""):
        yield {"refusal": piece}
    for index, call in enumerate(reply.calls):
        opened = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [opened]}
        for piece in _pieces(call.arguments_text):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> list[str]:
    size = max(PIECE, -(-len(text) // MOST_PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _whole_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}


def _head(request: Request, kind: str) -> dict[str, Any]:
    now = time.time()
    return {
        "id": f"chatcmpl-{int(now * 1e6):x}",
        "object": kind,
        "created": int(now),
        "model": request.get("model", DEFAULT_MODEL),
    }


def _finish_reason(reply: Reply) -> str | None:
    if reply.fault is Fault.TRUNCATED:
        return None
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply, request_bytes: int) -> dict[str, Any] | None:
    if not isinstance(reply.usage, str):
        return reply.usage
    said = len(reply.text) + sum(len(call.arguments_text) for call in reply.calls)
    prompt, answer = max(1, request_bytes // 4), max(1, said // 4)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def model_application(scripts: Mapping[str, Script]) -> Application:
    provider = {"provider": Provider(scripts=scripts)}
    return application(
        [
            ("/v1/chat/completions", _Completions, provider),
            ("/v1/responses", _Responses, provider),
            ("/v1/responses/([^/]+)(/cancel)?", _Response, provider),
            ("/v1/models", _Models, provider),
            ("/healthz", _Health, provider),
            ("/requests", _Requests, provider),
            ("/responses", _StoredResponses, provider),
            ("/reset", _Reset, provider),
        ]
    )


def start(scripts: Mapping[str, Script] | None = None, port: int = 0) -> ThreadedServer:
    """Serve on a thread of this process; a script is chosen by the request's model name."""
    return ThreadedServer(model_application(scripts or {}), port)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.model_server", description="Serve the demo's model.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    serve(model_application({}), parser.parse_args().port)


if __name__ == "__main__":
    main()
