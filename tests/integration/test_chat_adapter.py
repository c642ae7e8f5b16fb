"""The Chat Completions adapter against real servers: the demo's model, and one that sends any bytes it is given."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from brainhands.brain.models.chat import send
from brainhands.brain.models.line import Endpoint
from brainhands.brain.models.provider import estimated_usage
from brainhands.brain.models.reply import Interrupted, ProviderError, RawCall, Reply
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.model.event import Usage
from deploy.demo.model_server import start
from tests.instruments.certificates import make_certificate

KEY = "key-of-a-test"
HOUR = 3600.0


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """Address of the demo's model server."""
    with start() as server:
        yield server.url


@pytest.fixture(autouse=True)
def _forget_requests(model: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{model}/reset", data=b"")).read()


def requests(model: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{model}/requests") as answer:
        return list(json.load(answer)["requests"])


def body(text: str = "Hello.") -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def scripted(**step: Any) -> dict[str, Any]:
    return body(json.dumps({"script": [step]}))


def ask(
    url: str,
    request: dict[str, Any],
    *,
    seconds: float = 20.0,
    first: float | None = None,
    silence: float | None = None,
    on_text: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Reply:
    timeouts = Timeouts(whole=seconds, first=first, silence=silence)
    return send(request, at=Endpoint(api_key=KEY, base_url=f"{url}/v1"), timeouts=timeouts, on_text=on_text, stop=stop)


class ByteServer:
    """Answers every request with `pieces` as they are; counts requests and connections."""

    def __init__(
        self,
        pieces: Iterable[bytes],
        status: int = 200,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.connections = 0
        self.requests = 0
        self.client_left = threading.Event()
        byte_server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                byte_server.connections += 1
                super().setup()

            def do_POST(self) -> None:
                byte_server.requests += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                for name, value in {"Transfer-Encoding": "chunked", **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for piece in pieces:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    byte_server.client_left.set()
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> ByteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}])


def heard(*pieces: bytes) -> Reply:
    with ByteServer(pieces) as server:
        return ask(server.url, body())


def refused(status: int, error: Any = None, headers: dict[str, str] | None = None) -> ProviderError:
    text = json.dumps({"error": error} if error is not None else {}).encode()
    with ByteServer([text], status, {"Content-Type": "application/json", **(headers or {})}) as server:
        with pytest.raises(ProviderError) as raised:
            ask(server.url, body())
        assert server.requests == 1
    return raised.value


def test_a_reply_is_handed_over_whole_and_its_text_as_it_comes(model: str) -> None:
    pieces: list[str] = []

    reply = ask(model, body("What is new in the world today?"), on_text=pieces.append)

    assert reply.text == "You said: What is new in the world today?"
    assert "".join(pieces) == reply.text
    assert len(pieces) > 1
    assert (reply.finish_reason, reply.calls, reply.refusal, reply.model) == ("stop", (), None, "m")
    assert reply.response_id


@pytest.mark.promise("E13")
def test_the_providers_own_count_of_tokens_is_taken(model: str) -> None:
    counted = {
        "prompt_tokens": 70,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }

    reply = ask(model, scripted(text="Hi.", usage=counted))

    assert reply.usage == Usage(tokens_in=70, tokens_out=30, tokens_cached=64, tokens_reasoning=20)
    assert requests(model)[0]["body"]["stream_options"] == {"include_usage": True}


@pytest.mark.promise("E13")
@pytest.mark.parametrize("usage", [None, {"prompt_tokens": None, "completion_tokens": "many"}, {"total_tokens": 3}])
def test_tokens_are_estimated_and_said_to_be_where_the_provider_does_not_count(model: str, usage: Any) -> None:
    request = scripted(text="A word or two.", usage=usage)

    assert ask(model, request).usage == estimated_usage(request, "A word or two.")
    assert estimated_usage(request, "A word or two.").estimated


def test_tool_calls_split_over_many_chunks_are_put_together(model: str) -> None:
    long = {"to": "customer-1@example.com", "body": "ä" * 300}
    calls = [{"id": "a", "name": "send", "arguments": long}, {"id": "b", "name": "find", "arguments": '{"half": '}]

    reply = ask(model, scripted(text="Now.", calls=calls))

    assert [(call.provider_id, call.name) for call in reply.calls] == [("a", "send"), ("b", "find")]
    assert json.loads(reply.calls[0].arguments) == long
    assert reply.calls[1].arguments == '{"half": '
    assert (reply.text, reply.finish_reason) == ("Now.", "tool_calls")


@pytest.mark.promise("E12")
def test_a_refusal_is_told_apart_from_an_answer(model: str) -> None:
    reply = ask(model, scripted(refusal="I will not help with that."))

    assert (reply.text, reply.refusal) == ("", "I will not help with that.")


@pytest.mark.promise("E6")
@pytest.mark.case("openai/openai-python#3555")
def test_a_rate_limit_comes_back_at_once_with_the_wait_the_provider_asks_for(model: str) -> None:
    request = scripted(text="Hi.", fault="429", retry_after=7, times=1)

    with pytest.raises(ProviderError) as raised:
        ask(model, request)

    assert (raised.value.status, raised.value.provider_code, raised.value.heals) == (429, "rate_limit_exceeded", True)
    assert raised.value.retry_after == 7.0
    assert len(requests(model)) == 1
    assert ask(model, request).text == "Hi."


@pytest.mark.promise("E6")
@pytest.mark.case("earendil-works/pi#3671")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2.5"}, 2.5),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"Retry-After": "86400"}, HOUR),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": formatdate(time.time() + 2 * HOUR, usegmt=True)}, HOUR),
        ({"Retry-After": formatdate(0, usegmt=True)}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_in_each_of_its_forms_and_bounded(headers: dict[str, str], seconds: float | None) -> None:
    error = refused(503, {"message": "Overloaded."}, headers)

    assert (error.retry_after, error.heals) == (seconds, True)


@pytest.mark.promise("E6")
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_is_wrong_with_the_provider_heals(status: int) -> None:
    assert refused(status, {"message": "Not now."}).heals


@pytest.mark.promise("E6")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_is_wrong_with_the_request_does_not_heal(status: int) -> None:
    error = refused(status, {"message": "Not so."})

    assert (error.status, error.heals, str(error)) == (status, False, "Not so.")


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("fault", "heals"), [("500", True), ("503", True), ("insufficient_quota", False)])
def test_a_quota_that_is_used_up_does_not_heal_and_a_failed_server_does(model: str, fault: str, heals: bool) -> None:
    with pytest.raises(ProviderError) as raised:
        ask(model, scripted(fault=fault))

    assert raised.value.heals is heals
    assert not raised.value.overflow


def test_a_context_that_is_too_long_is_told_apart(model: str) -> None:
    with pytest.raises(ProviderError) as raised:
        ask(model, scripted(fault="context_length"))

    assert (raised.value.overflow, raised.value.heals) == (True, False)


def test_the_key_is_taken_out_of_what_a_server_says() -> None:
    error = refused(401, {"message": f"Bad key {KEY}."})

    assert str(error) == "Bad key ***."


def test_an_error_that_is_no_json_is_told_as_it_is() -> None:
    with ByteServer([b"<h1>Bad gateway</h1>"], 502) as server, pytest.raises(ProviderError) as raised:
        ask(server.url, body())

    assert (str(raised.value), raised.value.provider_code, raised.value.heals) == ("<h1>Bad gateway</h1>", None, True)


@pytest.mark.promise("E6")
@pytest.mark.parametrize(
    ("error", "heals", "status", "overflow"),
    [
        ({"message": "Overloaded.", "type": "server_error"}, True, None, False),
        ({"message": "Slow down.", "code": 429}, True, 429, False),
        ({"message": "Bad.", "type": "invalid_request_error"}, False, None, False),
        ({"message": "Too long.", "code": "context_length_exceeded"}, False, None, True),
        ({"message": "Pay.", "code": "insufficient_quota"}, False, None, False),
        ("Something failed.", True, None, False),
    ],
)
def test_an_error_inside_the_stream_counts_like_one_before_it(
    error: Any, heals: bool, status: int | None, overflow: bool
) -> None:
    with ByteServer([event(error=error)]) as server, pytest.raises(ProviderError) as raised:
        ask(server.url, body())
    assert (raised.value.heals, raised.value.status, raised.value.overflow) == (heals, status, overflow)

    with ByteServer([delta(content="Half"), event(error=error)]) as server, pytest.raises(Interrupted) as cut:
        ask(server.url, body())
    assert (cut.value.text, cut.value.heals, cut.value.overflow) == ("Half", heals, overflow)
    assert cut.value.usage == estimated_usage(body(), "Half")


@pytest.mark.promise("E6")
def test_a_provider_that_cannot_be_reached_heals() -> None:
    with ByteServer([]) as server:
        gone = server.url

    with pytest.raises(ProviderError) as raised:
        ask(gone, body())

    assert (raised.value.status, raised.value.heals) == (None, True)


def test_an_address_that_is_none_does_not_heal() -> None:
    with pytest.raises(ProviderError) as raised:
        ask("nowhere", body())

    assert not raised.value.heals


@pytest.mark.promise("E4")
@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_a_stream_without_its_end_is_interrupted_and_keeps_what_was_said(model: str, fault: str) -> None:
    with pytest.raises(Interrupted) as raised:
        ask(model, scripted(text="Twelve and some more.", fault=fault, chunks=2), seconds=0.5)

    assert raised.value.text == "Twelve and s"


@pytest.mark.promise("E4")
def test_a_stream_that_ends_in_order_but_without_finish_reason_is_interrupted(model: str) -> None:
    calls = [{"id": "a", "name": "send", "arguments": {}}]

    with pytest.raises(Interrupted, match="without a finish reason"):
        ask(model, scripted(calls=calls, fault="truncated"))


@pytest.mark.promise("E4")
@pytest.mark.parametrize("fault", ["cut", "hang"])
def test_a_request_that_was_sent_and_not_answered_is_interrupted(model: str, fault: str) -> None:
    with ByteServer([]) as server, pytest.raises(Interrupted):
        ask(server.url, body())
    with pytest.raises(Interrupted) as raised:
        ask(model, scripted(fault=fault), seconds=0.5)

    assert raised.value.text == ""


def _pings() -> Iterator[bytes]:
    yield delta(content="Wait")
    while True:
        yield b": still working\n\n"
        time.sleep(0.01)


@pytest.mark.promise("E4")
def test_the_deadline_holds_against_a_provider_that_only_keeps_the_connection_alive() -> None:
    with ByteServer(_pings()) as server:
        with pytest.raises(Interrupted, match="deadline") as raised:
            ask(server.url, body(), seconds=0.3)
        assert server.client_left.wait(20)

    assert raised.value.text == "Wait"


@pytest.mark.promise("E4")
def test_a_call_that_is_told_to_stop_ends_and_lets_go_of_its_connection() -> None:
    heard = threading.Event()
    with ByteServer(_pings()) as server:
        with pytest.raises(Interrupted) as raised:
            ask(server.url, body(), on_text=lambda _: heard.set(), stop=heard.is_set)
        assert server.client_left.wait(20)

    assert (raised.value.text, raised.value.reason) == ("Wait", "stopped")


def test_what_the_listener_raises_ends_the_call_and_comes_through() -> None:
    class LeaseLost(BaseException):
        pass

    def raise_it(_: str) -> None:
        raise LeaseLost

    with ByteServer(_pings()) as server:
        with pytest.raises(LeaseLost):
            ask(server.url, body(), on_text=raise_it)
        assert server.client_left.wait(20)


def test_a_reply_with_its_finish_reason_counts_even_if_the_connection_is_lost_after_it() -> None:
    def pieces() -> Iterator[bytes]:
        yield delta("stop", content="Done.")
        raise OSError

    with ByteServer(pieces()) as server:
        reply = ask(server.url, body())

    assert (reply.text, reply.usage.estimated) == ("Done.", True)


@pytest.mark.promise("E4")
def test_without_tls_each_request_has_a_connection_of_its_own_since_small_servers_close_kept_ones() -> None:
    with ByteServer([delta("stop", content="Hi."), b"data: [DONE]\n\n"]) as server:
        ask(server.url, body())
        ask(server.url, body())

        assert (server.requests, server.connections) == (2, 2)


def test_over_tls_the_next_request_uses_the_same_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
    with ByteServer([delta("stop", content="Hi."), b"data: [DONE]\n\n"], tls=made.of_server()) as server:
        ask(server.url, body())
        ask(server.url, body())

        assert (server.requests, server.connections) == (2, 1)


@pytest.mark.parametrize(
    "piece",
    [
        b"data: {broken\n\n",
        b"data: [1]\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        event(choices=[7]),
        delta(content=7),
    ],
)
def test_a_piece_that_makes_no_sense_interrupts_the_reply(piece: bytes) -> None:
    with pytest.raises(Interrupted, match="makes no sense") as raised:
        heard(delta(content="So"), piece, delta("stop"))

    assert raised.value.text == "So"


def test_lines_may_be_split_anywhere_and_end_either_way() -> None:
    stream = (delta(content="Ein Ärger") + b": ping\n\n" + delta("stop", content=".")).replace(b"\n", b"\r\n")

    assert heard(*(stream[place : place + 1] for place in range(len(stream)))).text == "Ein Ärger."


def test_line_separators_inside_of_text_do_not_split_a_line() -> None:
    said = "one\u2028two\x85three"
    chunk = json.dumps({"choices": [{"delta": {"content": said}, "finish_reason": "stop"}]}, ensure_ascii=False)

    assert heard(f"data:{chunk}\n\n".encode()).text == said


@pytest.mark.case("NousResearch/hermes-agent#68254")
def test_text_is_storable_and_halves_of_a_character_from_two_chunks_are_joined() -> None:
    pieces: list[str] = []
    with ByteServer([delta(content="\ud83c"), delta(content="\udf89\x00"), delta("stop", content="\ud83c")]) as server:
        reply = ask(server.url, body(), on_text=pieces.append)

    assert reply.text == "\U0001f389\ufffd\ufffd"
    "".join(pieces).encode()


def _call_deltas(*deltas: Any) -> tuple[RawCall, ...]:
    return heard(*(delta(tool_calls=[one]) for one in deltas), delta("tool_calls")).calls


def raw(id: str, arguments: str, name: str = "send") -> RawCall:
    return RawCall(provider_id=id, name=name, arguments=arguments)


def part(arguments: Any = None, name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {"name": name, "arguments": arguments}}


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(
            [
                part("", "send", index=1, id="b"),
                part("", "send", index=0, id="a"),
                part("1", index=0),
                part("2", index=1),
            ],
            [raw("b", "2"), raw("a", "1")],
            id="woven into each other",
        ),
        pytest.param(
            [part("{", "send", id="a"), part("}"), part("{}", "send", id="b")],
            [raw("a", "{}"), raw("b", "{}")],
            id="no index, the id in the first part only",
        ),
        pytest.param(
            [part("{", "send", id="a"), part("1", "send", id="b"), part("}", "send", id="a")],
            [raw("a", "{}"), raw("b", "1")],
            id="no index, the id in every part",
        ),
        pytest.param([part("1", "send"), part("2", "send")], [raw("", "1"), raw("", "2")], id="no index and no id"),
        pytest.param(
            [part("1", "send", index=0, id="a"), part("2", "send", index=0, id="b")],
            [raw("a", "1"), raw("b", "2")],
            id="the same index for all",
        ),
        pytest.param(
            [part("{", "send", index=0, id="a"), part("}", "send", index=0, id="a")],
            [raw("a", "{}")],
            id="id and name in every part",
        ),
        pytest.param([part("1", "se", index=0), part("2", "nd", index=0, id="a")], [raw("a", "12")], id="a split name"),
        pytest.param([part({"to": "x"}, "send", index=0, id="a")], [raw("a", '{"to": "x"}')], id="an object"),
        pytest.param([{"index": 0}], [raw("", "", "")], id="nothing at all"),
    ],
)
def test_parts_of_calls_are_put_together_however_a_provider_sends_them(deltas: list[Any], calls: list[RawCall]) -> None:
    assert list(_call_deltas(*deltas)) == calls


def test_several_calls_in_one_chunk_are_several_calls() -> None:
    both = [part("1", "send", index=0, id="a"), part("2", "find", index=1, id="b")]

    assert heard(delta("stop", tool_calls=both)).calls == (raw("a", "1"), raw("b", "2", "find"))


def test_requests_on_many_threads_share_one_client_and_keep_their_replies_apart(model: str) -> None:
    texts = {f"number {number}" for number in range(16)}
    said: list[str] = []
    threads = [threading.Thread(target=lambda text=text: said.append(ask(model, body(text)).text)) for text in texts]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(said) == sorted(f"You said: {text}" for text in texts)


# What is not needed is never a reason to lose a reply that was paid for.


def completion(**choice: Any) -> bytes:
    return json.dumps({"id": "c", "model": "m", "choices": [{"index": 0, **choice}]}).encode()


@pytest.mark.promise("E12")
def test_a_whole_completion_in_answer_to_a_streamed_request_is_a_reply() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "send", "arguments": "{}"}},
        {"id": "a", "type": "function", "function": {"name": "find", "arguments": {"x": 1}}},
    ]
    said: list[str] = []
    with ByteServer(
        [b"\n ", completion(message={"content": "Hi.", "tool_calls": calls}, finish_reason="tool_calls")]
    ) as server:
        reply = ask(server.url, body(), on_text=said.append)

    assert (reply.text, reply.finish_reason, said) == ("Hi.", "tool_calls", ["Hi."])
    assert reply.calls == (raw("a", "{}"), raw("a", '{"x": 1}', "find"))


@pytest.mark.promise("E6")
@pytest.mark.parametrize(
    "pieces",
    [
        [b'{"error": {"code": 402, "message": "Insufficient credits"}}'],
        [event(error={"code": 402, "message": "Insufficient credits"})],
    ],
)
def test_an_error_under_status_200_keeps_its_code_and_words_and_is_final_where_it_is(pieces: list[bytes]) -> None:
    with ByteServer(pieces) as server, pytest.raises(ProviderError, match="Insufficient credits") as raised:
        ask(server.url, body())

    assert (raised.value.status, raised.value.provider_code, raised.value.heals) == (402, "402", False)


def test_a_page_in_place_of_a_reply_is_told_in_its_own_words() -> None:
    with pytest.raises(Interrupted, match="no completion: <html><title>Sign in</title>") as raised:
        heard(b"<html><title>Sign in</title>" + b" " * 100_000 + b"</html>")

    assert len(raised.value.reason) < 300


@pytest.mark.promise("E14")
@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": [None, {"token": "x", "logprob": None}, {"logprob": -1}, 7]},
        {"content": 7},
        7,
    ],
)
def test_log_probabilities_that_cannot_be_read_are_left_out(logprobs: Any) -> None:
    choice = {"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop", "logprobs": logprobs}

    assert (heard(event(choices=[choice])).text, heard(event(choices=[choice])).logprobs) == ("Hi.", ())


@pytest.mark.parametrize(
    "chunk",
    [
        {"id": 7, "model": {}, "usage": [1], "choices": None},
        {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        {"object": "ping"},
    ],
)
def test_odd_fields_that_are_not_needed_lose_no_reply(chunk: dict[str, Any]) -> None:
    assert heard(event(**chunk), delta("stop", content="Hi.")).text == "Hi."


@pytest.mark.parametrize(
    "stream",
    [
        b"data:\n\n" + delta("stop", content="Hi."),
        b"\xef\xbb\xbf" + delta("stop", content="Hi."),
        delta("stop", content="Hi.").replace(b"\n", b"\r"),
        delta("stop", content="Hi.").replace(b"\n", b"\r\n"),
        delta("stop", content="Hi.").rstrip(b"\n"),
        b"event: message\nid: 7\nretry: 10\n: hello\n" + delta("stop", content="Hi."),
        b'data: {"choices": [{"delta": {"content": "Hi."},\ndata: "finish_reason": "stop"}]}\n\n',
        delta("stop", content="Hi.") + b"data: [DONE]",
    ],
)
def test_a_stream_is_read_by_the_whole_grammar_of_its_form(stream: bytes) -> None:
    assert heard(stream).text == "Hi."
    assert heard(*(stream[place : place + 1] for place in range(len(stream)))).text == "Hi."


@pytest.mark.promise("E6")
@pytest.mark.parametrize("reason", ["error", "network_error", "MALFORMED_FUNCTION_CALL"])
def test_a_reply_that_the_provider_broke_off_is_tried_again_and_keeps_its_count(reason: str) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}

    with pytest.raises(Interrupted, match=reason) as raised:
        heard(delta(content="Half"), delta(reason), event(choices=[], usage=usage))

    assert (raised.value.text, raised.value.heals) == ("Half", True)
    assert raised.value.usage == Usage(tokens_in=7, tokens_out=3)


@pytest.mark.promise("E13")
def test_a_count_that_came_before_the_cut_is_kept() -> None:
    with pytest.raises(Interrupted) as raised:
        heard(event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3}), delta(content="Half"))

    assert raised.value.usage == Usage(tokens_in=7, tokens_out=3)


@pytest.mark.promise("E15")
@pytest.mark.parametrize(
    "part",
    [
        {"content": "x" * 1000},
        {"refusal": "x" * 1000},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "send", "arguments": "x" * 1000}}]},
    ],
)
def test_a_reply_beyond_its_bound_is_left_while_it_is_read(part: dict[str, Any]) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield delta(**part)

    with ByteServer(endless()) as server:
        with pytest.raises(Interrupted, match="more than 1,000,000 characters") as raised:
            ask(server.url, body())
        assert server.client_left.wait(20)

    assert (raised.value.heals, raised.value.usage is not None) == (False, True)


@pytest.mark.promise("E15")
def test_calls_names_and_ids_beyond_their_bounds_are_cut_and_counted() -> None:
    many = [
        {"index": place, "id": f"{place}-" + "i" * 1000, "function": {"name": "n" * 1000, "arguments": "{}"}}
        for place in range(300)
    ]

    reply = heard(*(delta(tool_calls=many[first : first + 50]) for first in range(0, 300, 50)), delta("tool_calls"))

    assert (len(reply.calls), reply.calls_left_out) == (64, 236)
    assert {(len(call.provider_id), len(call.name)) for call in reply.calls} == {(200, 200)}


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(
            [part("{", "send", index=0, id="a"), part("{", "find", index=1, id="b"), part("}", index=1, id="a")],
            [("send", True), ("find", True)],
            id="id and index of two calls",
        ),
        pytest.param(
            [
                part("{", "send", index=0, id="a"),
                part("{", "find", index=0, id="b"),
                part("}", index=0, id="a"),
                part("}", index=0, id="b"),
            ],
            [("send", False), ("find", False)],
            id="an index that all share says nothing",
        ),
    ],
)
def test_calls_whose_parts_contradict_each_other_are_marked_as_mixed_up(parts: list[Any], expected: Any) -> None:
    assert [(call.name, call.mixed_up) for call in _call_deltas(*parts)] == expected


@pytest.mark.promise("E12")
@pytest.mark.parametrize("indexes", [(0, 0), (None, None)])
@pytest.mark.parametrize("names", [("send", "send"), ("send", "find")])
def test_parallel_calls_of_one_index_without_ids_are_calls_of_their_own(indexes: Any, names: Any) -> None:
    parts = [part('{"n": 1}', names[0], index=indexes[0]), part('{"n": 2}', names[1], index=indexes[1])]

    assert [(call.name, call.arguments) for call in _call_deltas(*parts)] == [
        (names[0], '{"n": 1}'),
        (names[1], '{"n": 2}'),
    ]


def test_a_call_id_that_is_given_twice_makes_two_calls() -> None:
    parts = [part("{}", "send", index=0, id="a"), part('{"x": 1}', "find", index=1, id="a")]

    assert list(_call_deltas(*parts)) == [raw("a", "{}"), raw("a", '{"x": 1}', "find")]


@pytest.mark.promise("E11")
def test_what_the_provider_wants_back_is_kept_with_the_reply_and_nothing_else_of_its_own() -> None:
    signed = {**part("{}", "send", index=0, id="a"), "extra_content": {"google": {"thought_signature": "s"}}}
    reply = heard(
        delta(reasoning_content="Let me ", other="x"),
        delta(reasoning_content="see.", reasoning_details=[{"text": "a"}]),
        delta(reasoning_details=[{"text": "b"}], tool_calls=[signed]),
        delta("tool_calls"),
    )

    assert reply.extra == {"reasoning_content": "Let me see.", "reasoning_details": [{"text": "a"}, {"text": "b"}]}
    assert reply.calls[0].extra == {"extra_content": {"google": {"thought_signature": "s"}}}
