"""A pooler before Postgres that does to connections what PgBouncer does, in its transaction mode or its session mode.

It greets each client by a server connection made for it, with a process number of its own, and refuses `options` at the
start. In transaction mode each transaction then gets the server connection that was given back last.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

Mode = Literal["transaction", "session"]

ASKS_FOR_ENCRYPTION = (80877103, 80877104)
REFUSAL = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"


class Pooler:
    """Listens on `port` of loopback until it is closed."""

    def __init__(self, host: str, port: int, mode: Mode) -> None:
        self._target = (host, port)
        self._mode = mode
        self._idle: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone does not wake who accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for server in self._idle:
            server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            if (server := self._greet(client)) is None:
                return
            if self._mode == "transaction":
                self._idle.append(server)
                self._take_turns(client)
            else:
                with server:
                    self._turn(client, server, until_idle=False)

    def _greet(self, client: socket.socket) -> socket.socket | None:
        """Let the client authenticate itself on a server connection."""
        start = _read(client, 4)
        body = _read(client, struct.unpack("!i", start)[0] - 4)
        while struct.unpack("!i", body[:4])[0] in ASKS_FOR_ENCRYPTION:
            client.sendall(b"N")
            start = _read(client, 4)
            body = _read(client, struct.unpack("!i", start)[0] - 4)
        if b"\0options\0" in body:
            client.sendall(b"E" + struct.pack("!i", len(REFUSAL) + 4) + REFUSAL)
            return None
        server = socket.create_connection(self._target)
        server.sendall(start + body)
        while True:
            message = _message(server)
            if message[:1] == b"K":
                message = message[:5] + os.urandom(8)
            client.sendall(message)
            if message[:1] == b"Z":
                return server
            if message[:1] == b"R" and struct.unpack("!i", message[5:9])[0] in (3, 5, 10, 11):
                server.sendall(_message(client))

    def _take_turns(self, client: socket.socket) -> None:
        while True:
            select.select([client], [], [])
            if client.recv(1, socket.MSG_PEEK) in (b"", b"X"):
                return
            server = self._idle.pop()
            self._turn(client, server, until_idle=True)
            self._idle.append(server)

    def _turn(self, client: socket.socket, server: socket.socket, *, until_idle: bool) -> None:
        """Pass messages on, until the transaction is over."""
        asked = 0
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if client in ready:
                message = _message(client)
                asked += message[:1] in (b"Q", b"S")
                server.sendall(message)
            if server in ready:
                message = _message(server)
                client.sendall(message)
                asked -= message[:1] == b"Z"
                if until_idle and asked == 0 and message[:1] == b"Z" and message[5:] == b"I":
                    return


def _message(source: socket.socket) -> bytes:
    head = _read(source, 5)
    return head + _read(source, struct.unpack("!i", head[1:])[0] - 4)


def _read(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (more := source.recv(size - len(found))):
            raise EOFError
        found += more
    return found
