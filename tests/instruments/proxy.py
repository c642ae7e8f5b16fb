"""A TCP proxy on loopback that can hold, strand, cut and refuse connections."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Coroutine
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self

LOOPBACK = "127.0.0.1"


class Proxy:
    """Forwards `port` to a target from construction to `close`, on a thread of its own; with `tls` it speaks that.

    Every method returns when its effect has begun; none waits for bytes that are already on their way.
    """

    def __init__(self, target_host: str, target_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._target = (target_host, target_port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._reserved: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flowing = asyncio.Event()
        self.port = 0
        self.thaw()
        self.accept()

    def freeze(self) -> None:
        """Move no byte in either direction; connections stay open, and new ones are accepted and not forwarded."""
        self._do(self._set_flowing(False))

    def thaw(self) -> None:
        self._do(self._set_flowing(True))

    def strand(self) -> None:
        """Move no byte of the present connections any more, which stay open; new ones work."""
        self._do(self._strand())

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections; the port stays ours and the open connections stay open."""
        self._do(self._refuse())

    def accept(self) -> None:
        self._do(self._accept())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, change: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(change, self._loop).result()

    async def _set_flowing(self, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _strand(self) -> None:
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _cut(self) -> None:
        connections = list(self._connections)
        for writer in self._writers:
            _reset(writer)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            # Bound and not listening: connecting is refused and nobody else can take the port.
            self._reserved = _bound(self.port)

    async def _accept(self) -> None:
        if self._listener is None:
            listening = self._reserved or _bound(self.port)
            self._reserved = None
            self._listener = await asyncio.start_server(self._serve, sock=listening, ssl=self._tls)
            self.port = listening.getsockname()[1]

    async def _close(self) -> None:
        await self._refuse()
        if self._reserved is not None:
            self._reserved.close()
        await self._cut()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        self._writers.add(client)
        flowing = self._flowing
        try:
            await flowing.wait()
            target_reader, target = await asyncio.open_connection(*self._target)
            self._writers.add(target)
            try:
                await self._both_ways((client_reader, client), (target_reader, target), flowing)
            finally:
                self._leave(target)
        except asyncio.CancelledError:
            pass  # by a cut; the streams would log a task that ends as cancelled
        except OSError:
            _reset(client)  # the target refused or was reset: so is the client
        finally:
            self._leave(client)
            self._connections.discard(connection)

    async def _both_ways(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        flowing: asyncio.Event,
    ) -> None:
        async with asyncio.TaskGroup() as directions:
            directions.create_task(self._pump(client[0], target[1], flowing))
            directions.create_task(self._pump(target[0], client[1], flowing))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        with suppress(OSError):  # one end is gone: reset, or not connected any more
            while data := await reader.read(65536):
                await flowing.wait()
                writer.write(data)
                await writer.drain()
            await flowing.wait()
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()  # TLS has no half

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    # A linger time of zero makes the close a reset.
    connection = None
    with suppress(AttributeError):  # CPython's own, of a transport whose TLS has ended
        connection = writer.get_extra_info("socket")
    with suppress(OSError):  # it may be closed already
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((LOOPBACK, port))
    return bound
