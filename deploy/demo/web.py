"""Serves one tornado application on loopback: in the foreground of a command, or on a thread of a test."""

import asyncio
import json
import signal
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

Routes = list[tuple[str, type["JsonHandler"], dict[str, Any]]]


class JsonHandler(RequestHandler):
    """Answers in JSON and notices, in `gone`, that the client has closed its connection."""

    def prepare(self) -> None:
        self.gone = asyncio.Event()

    def on_connection_close(self) -> None:
        self.gone.set()

    def body(self) -> dict[str, Any]:
        """Return the request's JSON object, or end the request with 400."""
        try:
            value = json.loads(self.request.body)
        except ValueError as problem:
            raise HTTPError(400, reason="the body is not JSON") from problem
        if not isinstance(value, dict):
            raise HTTPError(400, reason="the body is not a JSON object")
        return value

    async def answer(self, status: int, value: Any) -> bool:
        """Send `value`; false means that the client had gone before all of it was sent."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        with suppress(StreamClosedError):
            await self.finish(json.dumps(value))
            return True
        return False

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"error": {"status": status_code, "message": self._reason}}))


def application(routes: Routes) -> Application:
    return Application(list(routes), log_function=_not_logged)


def _not_logged(_handler: RequestHandler) -> None:
    """Requests are kept where they can be asked for; a line for each would cost more than the answer."""


def serve(app: Application, port: int) -> None:
    """Serve until SIGTERM or SIGINT; the first line on standard output names the address."""

    async def main() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await _listen(app, port, lambda url: print(f"listening on {url}", flush=True), stopped)

    asyncio.run(main())


class ThreadedServer:
    """Serves on a thread of this process from construction to `stop`."""

    def __init__(self, app: Application, port: int = 0) -> None:
        self._started: Future[str] = Future()
        self._thread = Thread(target=self._run, args=(app, port), daemon=True)
        self._thread.start()
        self.url = self._started.result()

    def _run(self, app: Application, port: int) -> None:
        try:
            asyncio.run(self._main(app, port))
        except Exception as problem:
            if self._started.done():
                raise
            self._started.set_exception(problem)

    async def _main(self, app: Application, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        await _listen(app, port, self._started.set_result, self._stopped)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


async def _listen(app: Application, port: int, started: Callable[[str], None], stopped: asyncio.Event) -> None:
    sockets = bind_sockets(port, "127.0.0.1")
    server = HTTPServer(app)
    server.add_sockets(sockets)
    started(f"http://127.0.0.1:{sockets[0].getsockname()[1]}")
    await stopped.wait()
    server.stop()
    await server.close_all_connections()
