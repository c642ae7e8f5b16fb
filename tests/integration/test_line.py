"""A model call can always be left: bounds, cancel and byte limits against servers that drip, hang and flood.

Each server speaks over a bare socket, so that it can stop anywhere, also in the middle of its headers.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from brainhands.brain.models import chat, line, responses
from brainhands.brain.models.line import Endpoint
from brainhands.brain.models.reply import Interrupted, ProviderError
from brainhands.brain.models.timeouts import Timeouts
from tests.instruments.provider import saying

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\n\r\n"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
PATIENT = Timeouts(whole=60.0)


def said(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def drip(text: bytes) -> Iterator[bytes]:
    """One byte after the other, for ever."""
    for byte in itertools.chain(text, itertools.repeat(ord(" "))):
        yield bytes([byte])
        time.sleep(0.01)


PLACES: dict[str, Callable[[], Iterable[bytes | None]]] = {
    "before the headers": lambda: [None],
    "dripping headers": lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n"], drip(b"X-Slow: ")),
    "in the middle of the headers": lambda: [b"HTTP/1.1 200 OK\r\nContent-", None],
    "after the headers": lambda: [HEADERS, None],
    "in the middle of the body": lambda: [HEADERS, said("So"), b"data: {", None],
    "a dripping body": lambda: itertools.chain([HEADERS], drip(b"data: ")),
    "a dripping refusal": lambda: itertools.chain([REFUSAL], drip(b'{"error": "')),
    "in the middle of a refusal": lambda: [REFUSAL, b'{"error": ', None],
}


def by_chat(url: str, **options: Any) -> object:
    return chat.send(BODY, at=Endpoint(api_key="k", base_url=url), on_text=lambda _: None, **options)


def by_create(url: str, **options: Any) -> object:
    return responses.create({"model": "m", "input": []}, at=Endpoint(api_key="k", base_url=url), **options)


def by_retrieve(url: str, **options: Any) -> object:
    return responses.retrieve("resp_1", at=Endpoint(api_key="k", base_url=url), **options)


def by_cancel(url: str, **options: Any) -> object:
    return responses.cancel("resp_1", at=Endpoint(api_key="k", base_url=url), **options)


every_call = pytest.mark.parametrize("ask", [by_chat, by_create, by_retrieve, by_cancel])
everywhere = pytest.mark.parametrize("place", PLACES)


@pytest.mark.promise("E15")
@every_call
@everywhere
def test_the_deadline_ends_a_call_wherever_it_hangs_and_lets_go_of_the_connection(
    ask: Callable[..., object], place: str
) -> None:
    with saying(PLACES[place]) as server:
        with pytest.raises(Interrupted, match="the deadline has passed"):
            ask(server.url, timeouts=Timeouts(whole=0.3))
        assert server.left.wait(20)


@pytest.mark.promise("E15", "C12")
@every_call
@everywhere
def test_a_call_that_is_not_wanted_any_more_ends_wherever_it_hangs(ask: Callable[..., object], place: str) -> None:
    with saying(PLACES[place]) as server:
        with pytest.raises(Interrupted, match="stopped"):
            ask(server.url, timeouts=PATIENT, stop=server.asked.is_set)
        assert server.left.wait(20)


def test_a_connection_that_nobody_takes_ends_with_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()[:2]
        taken = [socket.socket() for _ in range(4)]
        for each in taken:
            each.setblocking(False)
            each.connect_ex((host, port))
        with pytest.raises(Interrupted, match="the deadline has passed"):
            by_chat(f"http://{host}:{port}/v1", timeouts=Timeouts(whole=0.3))
        for each in taken:
            each.close()


@pytest.mark.promise("E15")
@pytest.mark.parametrize("place", ["before the headers", "after the headers", "only comments"])
def test_a_provider_that_does_not_begin_to_speak_is_left_at_the_agents_bound(place: str) -> None:
    def comments() -> Iterator[bytes]:
        yield HEADERS
        while True:
            yield b": working\n\n"
            time.sleep(0.01)

    with saying(PLACES.get(place, comments)) as server:
        with pytest.raises(Interrupted, match="did not begin to speak in 0"):
            by_chat(server.url, timeouts=Timeouts(whole=60, first=0.3))
        assert server.left.wait(20)


@pytest.mark.promise("E15")
def test_a_reply_that_pauses_too_long_is_left_at_the_agents_bound_and_keeps_what_was_said() -> None:
    with saying(PLACES["in the middle of the body"]) as server:
        with pytest.raises(Interrupted, match="silence for 0") as raised:
            by_chat(server.url, timeouts=Timeouts(whole=60, first=60, silence=0.3))
        assert server.left.wait(20)

    assert raised.value.text == "So"


@pytest.mark.parametrize("place", ["before the headers", "after the headers", "in the middle"])
def test_a_slow_provider_is_waited_for_within_the_bounds(place: str) -> None:
    """The bound on silence begins with the reply: a slow start is the first bound's affair."""
    pause = threading.Event()
    parts = {
        "before the headers": [b"", HEADERS + said("Slow.", "stop")],
        "after the headers": [HEADERS, said("Slow.", "stop")],
        "in the middle": [HEADERS + said("Slow"), said(".", "stop")],
    }

    def script() -> Iterator[bytes]:
        first, second = parts[place]
        yield first
        pause.wait(0.6)
        yield second

    silence = 30.0 if place == "in the middle" else 0.2
    with saying(script) as server:
        reply = by_chat(server.url, timeouts=Timeouts(whole=60, first=30, silence=silence))

    assert getattr(reply, "text") == "Slow."  # noqa: B009


@pytest.mark.promise("E15")
@pytest.mark.parametrize("flood", [said("x" * 1000), b"x" * 10_000, b"data: " + b"x" * 10_000, b"\n" * 10_000])
def test_a_flood_is_left_when_its_bound_is_reached(flood: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MOST_BYTES", 1_000_000)

    with saying(lambda: itertools.chain([HEADERS], itertools.repeat(flood))) as server:
        with pytest.raises((ProviderError, Interrupted), match="more than 1,000,000 bytes") as raised:
            by_chat(server.url, timeouts=PATIENT)
        assert server.left.wait(20)

    assert isinstance(raised.value, ProviderError | Interrupted)
    assert not raised.value.heals


@pytest.mark.promise("E15", "E6")
def test_of_an_endless_refusal_only_the_beginning_is_read() -> None:
    flood = itertools.chain([REFUSAL, b'{"error": {"message": "'], itertools.repeat(b"x" * 10_000))

    with saying(lambda: flood) as server:
        with pytest.raises(ProviderError) as raised:
            by_chat(server.url, timeouts=PATIENT)
        assert server.left.wait(20)

    assert (raised.value.status, raised.value.heals) == (503, True)
    assert len(str(raised.value)) <= 2_000


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "socks4://127.0.0.1:1", "http://127.0.0.1:notaport"])
def test_a_proxy_that_cannot_be_used_is_a_failure_of_the_request_and_says_so(
    variable: str, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, proxy)

    with pytest.raises(ProviderError, match="proxy") as raised:
        by_chat(f"https://provider.invalid/{variable}/{proxy.partition(':')[0]}{len(proxy)}", timeouts=PATIENT)

    assert not raised.value.heals


def test_an_error_in_the_loop_does_not_end_the_line() -> None:
    def fail() -> None:
        raise SystemExit(3)

    loop = line._loop(os.getpid())
    loop.call_soon_threadsafe(fail)

    with saying(lambda: [HEADERS, said("Still here.", "stop")]) as server:
        reply = by_chat(server.url, timeouts=PATIENT)

    assert getattr(reply, "text") == "Still here."  # noqa: B009
