"""A provider that says whatever it is told to, byte for byte, over a bare socket: also half of something, and nothing.

`RECORDED` is a whole reply as a stream, and `ODD` has the kinds of answers that public servers, gateways and broken
lines give in its place. A script is asked for each request's answer anew and yields it piece by piece.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from deploy.demo.model_responses import as_chat
from deploy.demo.model_server import transcript_problem
from deploy.demo.model_strict import strict_problem

Pieces: TypeAlias = Iterable[bytes | None]
"""What is sent, piece by piece; None waits until the client has left."""

LONGEST_REQUEST = 64 * 1024 * 1024
MOST_SENT = 256 * 1024 * 1024
"""Bytes of one answer: a client that takes more has no bound, and the answer ends here."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: its first line's words, and its body's JSON."""

    method: str
    path: str
    body: dict[str, Any] | None

    def problem(self) -> str | None:
        """What some public server refuses of it."""
        if self.body is None:
            return None
        chat = as_chat(self.body) if self.path.endswith("/responses") else self.body
        return transcript_problem(chat["messages"]) or strict_problem(chat)


class HostileProvider:
    """Answers each request with what `script` makes of it; several at once, each on a connection of its own."""

    def __init__(self, script: Callable[[Asked], Pieces]) -> None:
        self.asked = threading.Event()
        self.left = threading.Event()
        self.requests: list[Asked] = []
        self.sent = 0
        self.script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> HostileProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def problems(self) -> list[str]:
        """What a strict server would have refused of all that was asked."""
        return [problem for asked in list(self.requests) if (problem := asked.problem())]

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            try:
                asked = _request(client)
                if asked is None:
                    return
                self.requests.append(asked)
                self.asked.set()
                for piece in self.script(asked):
                    if piece is None or self.sent > MOST_SENT:
                        while piece is None and client.recv(65536):
                            pass
                        break
                    client.sendall(piece)
                    self.sent += len(piece)
                else:
                    return
            except OSError:
                pass
            self.left.set()


def saying(script: Callable[[], Pieces]) -> HostileProvider:
    """A provider that says the same whatever it is asked."""
    return HostileProvider(lambda _asked: script())


def _request(client: socket.socket) -> Asked | None:
    """The whole request, so that no answer is lost to a reset; None where the client leaves before its end."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        if not (piece := client.recv(65536)):
            return None
        seen += piece
    head, _, body = seen.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0]) if lengths else 0
    assert length <= LONGEST_REQUEST
    while len(body) < length:
        if not (piece := client.recv(65536)):
            return None
        body += piece
    return Asked(method, path, json.loads(body) if body else None)


def http(status: int = 200, kind: str = "text/event-stream", *headers: str) -> bytes:
    """The head of an answer whose end is that of its connection."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def document(content: Any, status: int = 200, *headers: str) -> list[bytes]:
    """A whole answer of JSON."""
    return [http(status, "application/json", *headers), json.dumps(content).encode()]


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])


def call(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """One part of a call, without what is None."""
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    part = {key: value for key, value in {"index": index, "id": id}.items() if value is not None}
    return {**part, "type": "function", "function": function}


COUNTED = {"prompt_tokens": 70, "completion_tokens": 30}
RECORDED = b"".join(
    [
        delta(content="So "),
        delta(content="be it."),
        delta(tool_calls=[call(0, "abcdefgh1", "echo", '{"te')]),
        delta(tool_calls=[call(0, None, None, 'xt": "a"}')]),
        delta("tool_calls"),
        event(choices=[], usage=COUNTED),
        b"data: [DONE]\n\n",
    ]
)
"""A stream of a text and a call, without its head."""


def stream(*events: bytes) -> list[bytes]:
    return [http(), *events, b"data: [DONE]\n\n"]


def split(text: bytes, size: int) -> list[bytes]:
    """A text in pieces of so many bytes."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def in_chunks(text: bytes, size: int) -> Iterator[bytes]:
    """A text by chunked transfer, each chunk of so many bytes."""
    for piece in split(text, size):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def endless(piece: bytes) -> Iterator[bytes]:
    return itertools.repeat(piece)


LONG = "x" * 300_000
DEEP = b"[" * 5_000 + b"]" * 5_000
STOP = delta("stop")
HALF = delta(content="Half")

FRAMINGS: dict[str, Callable[[bytes], Pieces]] = {
    "as recorded": lambda text: [http(), text],
    "in chunks of a byte": lambda text: [
        http(200, "text/event-stream", "Transfer-Encoding: chunked"),
        *in_chunks(text, 1),
    ],
    "lines that end with CR and LF": lambda text: [http(), text.replace(b"\n", b"\r\n")],
    "lines that end with CR alone": lambda text: [http(), text.replace(b"\n", b"\r")],
    "a byte-order mark": lambda text: [http(), b"\xef\xbb\xbf" + text],
    "comments and empty data between": lambda text: [http(), text.replace(b"\n\n", b"\n\n: alive\n\ndata:\n\n")],
    "fields that nobody knows": lambda text: [http(), text.replace(b"data: ", b"event: x\nid: 7\nretry: 9\ndata: ")],
    "data without a blank": lambda text: [http(), text.replace(b"data: ", b"data:")],
    "JSON over several lines": lambda text: [http(), text.replace(b', "', b',\ndata: "')],
    "no end of its last line": lambda text: [http(), text.rstrip(b"\n")],
    "no last word": lambda text: [http(), text.replace(b"data: [DONE]\n\n", b"")],
    "another type": lambda text: [http(200, "text/plain"), text],
}
"""A whole stream as servers frame it: each must be read as the same reply."""

ODD: dict[str, Callable[[], Pieces]] = {
    # Errors
    "a refusal for good": lambda: document({"error": {"message": "No.", "code": "invalid_prompt"}}, 400),
    "a refusal in a list": lambda: document([{"error": {"message": "No.", "code": 400}}], 400),
    "a refusal without a word": lambda: [http(400)],
    "a page of HTML": lambda: [http(502, "text/html"), b"<html><h1>Bad Gateway</h1>"],
    "a page of HTML as success": lambda: [http(200, "text/html"), b"<html><h1>Login</h1>"],
    "a wait of nothing": lambda: document({"error": {"message": "Slow down."}}, 429, "Retry-After: 0"),
    "a wait that is no number": lambda: document({"error": {"message": "Slow down."}}, 429, "Retry-After: soon"),
    "a quota that is used up": lambda: document({"error": {"message": "Pay.", "code": "insufficient_quota"}}, 429),
    "too long, in words": lambda: document({"error": {"message": "prompt is too long: 9 tokens"}}, 400),
    "too large": lambda: [http(413, "text/html"), b"<html>"],
    "an error as success": lambda: document({"error": {"message": "Down.", "code": 503}}),
    "an error in the stream": lambda: stream(HALF, event(error={"message": "Down.", "code": "server_error"})),
    "no room in the middle": lambda: stream(HALF, event(error={"message": "context size has been exceeded"})),
    "an error deep in itself": lambda: [http(400, "application/json"), b'{"error": ' + DEEP + b"}"],
    "an error of megabytes": lambda: stream(event(error={"message": LONG * 20, "code": LONG, "type": {"a": LONG}})),
    "a redirection to nowhere": lambda: [http(302, "text/html", "Location: http://127.0.0.1:9/")],
    # Shapes
    "nothing": list,
    "no body": lambda: [http()],
    "no HTTP": lambda: [b"\x00\xff\x15\x03garbage\r\n\r\n"],
    "no JSON": lambda: stream(HALF, b"data: {oops\n\n"),
    "another JSON": lambda: stream(event(choices=[7]), event(choices={"a": 1}), event(choices="no")),
    "a chunk deep in itself": lambda: stream(HALF, b"data: " + DEEP + b"\n\n", STOP),
    "a number without end": lambda: stream(b'data: {"created": ' + b"9" * 5_000 + b"}\n\n", HALF, STOP),
    "a whole completion": lambda: document(
        {
            "choices": [
                {
                    "message": {"role": "assistant", "content": [{"type": "text", "text": "Whole."}]},
                    "finish_reason": "eos",
                }
            ]
        }
    ),
    "no reason why it ended": lambda: stream(HALF),
    "a reason that nobody knows": lambda: stream(HALF, delta("because")),
    "a reason of megabytes": lambda: stream(HALF, delta(LONG * 10)),
    "names of megabytes": lambda: stream(event(model=LONG * 10, id=LONG * 10, choices=[]), HALF, STOP),
    "what Postgres cannot store": lambda: stream(
        event(model="m\0", id="\ud800", choices=[]), delta(content="\0\ud83d"), STOP
    ),
    "logarithms of nothing": lambda: stream(
        event(choices=[{"delta": {"content": "Ja"}, "logprobs": {"content": [{"token": None, "logprob": None}, 3]}}]),
        STOP,
    ),
    "an impossible count": lambda: stream(
        HALF, STOP, event(choices=[], usage={"prompt_tokens": -1, "completion_tokens": 1e400})
    ),
    "an empty reply": lambda: stream(STOP),
    "a reply of blanks": lambda: stream(delta(content=" \n"), STOP),
    "filtered": lambda: stream(HALF, delta("content_filter")),
    "healing failure": lambda: stream(HALF, delta("insufficient_system_resource")),
    # Calls
    "calls that share an index": lambda: stream(
        delta(tool_calls=[call(0, None, "echo", '{"text": "a"}'), call(0, None, "echo", '{"text": "b"}')]),
        delta("tool_calls"),
    ),
    "calls that share an id": lambda: stream(
        delta(tool_calls=[call(0, "same", "echo", '{"text": "a"}'), call(1, "same", "echo", '{"text": "b"}')]),
        delta("stop"),
    ),
    "calls that are mixed up": lambda: stream(
        delta(tool_calls=[call(0, "a", "echo", '{"text'), call(1, "b", "echo", '{"text')]),
        delta(tool_calls=[call(1, "a", None, '": "a"}'), call(0, "b", None, '": "b"}')]),
        delta("tool_calls"),
    ),
    "a thousand calls": lambda: stream(
        delta(tool_calls=[call(n, f"c{n}", "none", "{}") for n in range(1_000)]), delta("tool_calls")
    ),
    "calls of odd names": lambda: stream(
        delta(tool_calls=[call(0, "\0" * 400, "do it, now!\0", "{}"), call(1, "b", LONG, "[]"), call(2, "", "", None)]),
        delta("tool_calls"),
    ),
    "arguments of odd shapes": lambda: stream(
        delta(
            tool_calls=[
                call(n, f"c{n}", "echo", value)
                for n, value in enumerate(["", "{", "[]", {"text": "a"}, 7, '{"text": 1e5000}'])
            ]
        ),
        delta("tool_calls"),
    ),
    # Floods, silences and cuts
    "a flood of comments": lambda: itertools.chain([http()], endless(b": x\n\n" * 20_000)),
    "a flood of text": lambda: itertools.chain([http()], endless(delta(content=LONG))),
    "a flood of calls": lambda: itertools.chain([http()], endless(delta(tool_calls=[call(None, None, "echo", LONG)]))),
    "a line without end": lambda: itertools.chain([http(), b"data: "], endless(b"x" * 1_000_000)),
    "headers without end": lambda: itertools.chain(
        [b"HTTP/1.1 200 OK\r\n"], endless(b"X-More: " + b"x" * 60_000 + b"\r\n")
    ),
    "an error without end": lambda: itertools.chain([http(500)], endless(b"x" * 1_000_000)),
    "silence": lambda: [None],
    "silence after the head": lambda: [http(), None],
    "silence in the middle": lambda: [http(), HALF, None],
    "silence in an error": lambda: [http(503), b'{"error": ', None],
    "a promise of more": lambda: [http(200, "text/event-stream", "Content-Length: 100000"), HALF, STOP],
}
"""What may come in place of a reply, by what it is."""


def response(**fields: Any) -> dict[str, Any]:
    """A response of the Responses API that has ended well, but for these fields."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So be it."}]}
    usage = {"input_tokens": 70, "output_tokens": 30}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": [said], "usage": usage, **fields}


def _called(**fields: Any) -> dict[str, Any]:
    return response(
        output=[
            {"type": "function_call", "call_id": "abcdefgh1", "name": "echo", "arguments": '{"text": "a"}', **fields}
        ]
    )


ODD_RESPONSES: dict[str, Callable[[], Pieces]] = {
    **{name: ODD[name] for name in ODD if not name.startswith(("a flood", "silence in the middle"))},
    "an end at once": lambda: document(response()),
    "a call": lambda: document(_called()),
    "a call of odd parts": lambda: document(_called(call_id="\0" * 500, name=LONG, arguments=7)),
    "items of odd shapes": lambda: document(
        response(output=[7, None, "x", {"type": "message", "content": "Text."}, {"type": None}])
    ),
    "parts of odd shapes": lambda: document(
        response(output=[{"type": "message", "content": ["Text.", None, {"type": "refusal"}]}])
    ),
    "no items": lambda: document(response(output={"a": 1})),
    "no id": lambda: document(response(id=None)),
    "an id of megabytes": lambda: document(response(id=LONG, status="queued")),
    "an id that cannot be stored": lambda: document(response(id="r\0\ud800", status="queued")),
    "a status of megabytes": lambda: document(response(status=LONG)),
    "a status of another shape": lambda: document(response(status={"a": "b\0"})),
    "a failure": lambda: document(response(status="failed", error={"code": "server_error", "message": "Down."})),
    "a failure deep in itself": lambda: [
        http(200, "application/json"),
        b'{"id": "resp_1", "status": "failed", "error": {"a": ' + DEEP + b"}}",
    ],
    "a failure of megabytes": lambda: document(response(status="failed", error={"message": LONG * 20})),
    "no room at the end": lambda: document(
        response(status="failed", error={"code": "context_length_exceeded", "message": "No."})
    ),
    "somebody cancelled it": lambda: document(response(status="cancelled")),
    "cut short": lambda: document(response(status="incomplete", incomplete_details=None)),
    "a whole flood": lambda: itertools.chain([http(200, "application/json"), b'{"id": "'], endless(b"x" * 1_000_000)),
}
"""The same for a background response, when it is made and when it is looked at."""
