"""The line to a provider: one HTTP call on an event loop of its own, so that whoever waits for it can always leave.

The loop's thread reads and the caller's thread waits. Every bound on time, and a cancel, holds at each moment of a
call, whether it looks a name up, connects, waits for headers or reads a body: the caller lets go, and the loop drops
the connection. Bytes are counted while they are read.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

import httpx2
import openai

from brainhands.brain.models.provider import error_of_answer, required_key
from brainhands.brain.models.reply import Interrupted, ProviderError
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.runtime.logs import logger
from brainhands.shared.runtime.settings import settings

log = logger("brain")

CONNECT_SECONDS = 10.0
KEPT_CONNECTIONS = 100
"""That are open for the next request, over TLS. Without it none is kept: a new one costs little, and small servers of
one's own close them after an answer without a word, so that the next request would be lost."""
LOOK_SECONDS = 0.25
"""How often a caller that hears nothing looks whether it is still wanted."""

MOST_BYTES = 64 * 1024 * 1024
"""Of one answer, a streamed one or a whole."""
MOST_ERROR_BYTES = 64 * 1024
"""Of the text of a refusal; the rest is not read."""

NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
BAD_ADDRESS = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where a provider is, and the key for it."""

    api_key: str
    base_url: str | None

    @property
    def is_secure(self) -> bool:
        return self.base_url is None or self.base_url.lower().startswith("https:")


def endpoint() -> Endpoint:
    """The provider of this worker's settings. Raises ProviderError where no key is set."""
    return Endpoint(api_key=required_key(), base_url=settings().openai_base_url)


class Lost(Exception):
    """The call ended before its answer did; the text says why."""


def never() -> bool:
    """For a call that nobody ends."""
    return False


class Answer:
    """An answer whose headers have come. `pieces` can be walked once."""

    def __init__(self, call: _Call, headers: httpx2.Headers) -> None:
        self._call = call
        self.headers = headers

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises Lost."""
        while (piece := self._call.next()) is not None:
            assert isinstance(piece, bytes)
            yield piece

    def speaks(self) -> None:
        """Say that the reply itself has begun: from here on the bound on silence holds."""
        self._call.spoken = True


@contextmanager
def asking(
    method: Literal["GET", "POST"],
    path: str,
    body: dict[str, Any] | None,
    *,
    at: Endpoint,
    timeouts: Timeouts,
    stop: Callable[[], bool] = never,
) -> Iterator[Answer]:
    """Sends one request and gives its answer. Raises Interrupted and ProviderError; leaving it ends the call.

    `stop` is looked at LOOK_SECONDS apart; once it says yes the call is over, wherever it is.
    """
    pieces: SimpleQueue[Any] = SimpleQueue()
    talk = asyncio.run_coroutine_threadsafe(_talk(method, path, body, at, pieces.put), _loop(os.getpid()))
    under_way = _Call(pieces, timeouts, stop)
    try:
        try:
            headers = under_way.next()
        except Lost as lost:
            raise Interrupted("", str(lost)) from None
        assert isinstance(headers, httpx2.Headers)
        yield Answer(under_way, headers)
    finally:
        talk.cancel()


class _Call:
    """The caller's end of a call."""

    def __init__(self, pieces: SimpleQueue[Any], timeouts: Timeouts, stop: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._timeouts = timeouts
        self._stop = stop
        self._began_at = time.monotonic()
        self._heard = False
        self.spoken = False

    def next(self) -> httpx2.Headers | bytes | None:
        """What comes next: headers, then pieces of the body, then None. Raises Lost, and what the loop has raised."""
        listening_since = time.monotonic()
        while True:
            left = self._left(listening_since)
            try:
                piece = self._pieces.get(timeout=min(left, LOOK_SECONDS))
            except Empty:
                continue
            if isinstance(piece, BaseException):
                raise piece
            self._heard = isinstance(piece, bytes)
            return piece  # type: ignore[no-any-return]

    def _left(self, listening_since: float) -> float:
        """Seconds until the nearest bound. Raises Lost at one."""
        if self._stop():
            raise Lost("stopped")
        bounds = [(self._began_at, self._timeouts.whole, "the deadline has passed")]
        if self._timeouts.first is not None and not self.spoken:
            late = f"the provider did not begin to speak in {self._timeouts.first:g} s"
            bounds.append((self._began_at, self._timeouts.first, late))
        if self._timeouts.silence is not None and self._heard:
            bounds.append((listening_since, self._timeouts.silence, f"silence for {self._timeouts.silence:g} s"))
        now = time.monotonic()
        for since, seconds, problem in bounds:
            if now - since >= seconds:
                raise Lost(problem)
        return min(since + seconds - now for since, seconds, _ in bounds)


async def _talk(
    method: Literal["GET", "POST"], path: str, body: dict[str, Any] | None, at: Endpoint, tell: Callable[[Any], None]
) -> None:
    """The loop's end of a call: tells headers, pieces and the end, or the one error in their place."""
    try:
        try:
            client = _client(os.getpid(), at)
        except (ImportError, ValueError, httpx2.InvalidURL) as problem:
            raise _no_way(problem) from None
        answers = openai.AsyncStream[object]
        # The typed methods walk through all messages to convert them; they are in their final form already.
        if method == "GET":
            stream = await client.get(path, cast_to=object, stream=True, stream_cls=answers)
        else:
            stream = await client.post(path, cast_to=object, body=body, stream=True, stream_cls=answers)
        async with stream:
            tell(stream.response.headers)
            taken = 0
            async for piece in stream.response.aiter_bytes():
                taken += len(piece)
                if taken > MOST_BYTES:
                    raise ProviderError(f"the answer has more than {MOST_BYTES:,} bytes", heals=False)
                tell(piece)
    except openai.APIConnectionError as lost:
        tell(_no_answer(lost.__cause__ or lost))
    except (httpx2.RequestError, ssl.SSLError) as lost:
        tell(Lost(f"the connection was lost ({type(lost).__name__})"))
    except BaseException as problem:
        tell(problem if isinstance(problem, ProviderError) else _no_answer(problem))
        if not isinstance(problem, Exception):
            raise
    else:
        tell(None)


def _no_answer(cause: BaseException) -> Interrupted | ProviderError:
    if isinstance(cause, ProviderError):
        return cause
    what = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, NOT_SENT):
        return ProviderError(f"the provider cannot be reached ({what})", heals=True)
    if isinstance(cause, BAD_ADDRESS):
        return _no_way(cause)
    return Interrupted("", f"no answer ({what})")


def _no_way(cause: BaseException) -> ProviderError:
    """The cause's text is left out: it may have a proxy's password."""
    what = "the provider's address or key, or a proxy that the environment names, cannot be used"
    return ProviderError(f"{what} ({type(cause).__name__}); see OPENAI_BASE_URL and HTTPS_PROXY", heals=False)


async def _refuse(response: httpx2.Response, api_key: str) -> None:
    """Raises ProviderError for an answer that is a refusal, of whose text only a part is read."""
    if response.status_code < 400:
        return
    text = bytearray()
    try:
        async for piece in response.aiter_bytes():
            text += piece
            if len(text) >= MOST_ERROR_BYTES:
                break
    except (httpx2.RequestError, ssl.SSLError):
        pass  # the status says enough
    finally:
        await response.aclose()
    raise error_of_answer(response.status_code, response.headers, bytes(text[:MOST_ERROR_BYTES]), api_key)


@functools.lru_cache(maxsize=1)
def _loop(_process: int) -> asyncio.AbstractEventLoop:
    """The event loop of this process; a forked child makes its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run, args=(loop,), name="line", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Keeps the loop going: a call that raised what ends a loop has told its caller, and the others go on."""
    while True:
        try:
            loop.run_forever()
        except BaseException:
            log.exception("line_error")


@functools.lru_cache(maxsize=16)
def _client(_process: int, at: Endpoint) -> openai.AsyncOpenAI:
    """One client, and so one pool of connections, for each process and provider. Only its loop calls this."""

    async def refuse(response: httpx2.Response) -> None:
        await _refuse(response, at.api_key)

    bounds = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
    # Packed answers are not asked for: a small one can become a very large one at once.
    http = openai.DefaultAsyncHttpxClient(
        event_hooks={"response": [refuse]},
        headers={"Accept-Encoding": "identity"},
        timeout=bounds,
        limits=httpx2.Limits(max_keepalive_connections=KEPT_CONNECTIONS if at.is_secure else 0),
    )
    return openai.AsyncOpenAI(api_key=at.api_key, base_url=at.base_url, max_retries=0, timeout=bounds, http_client=http)
