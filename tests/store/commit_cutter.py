"""A proxy before Postgres that cuts the connection at a COMMIT: before it arrives, or when it has been carried out."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

When = Literal["before", "after"]


class CommitCutter:
    """Forwards everything until it is armed; then the next COMMIT loses its way there, or its reply the way back."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._when: When | None = None
        self._waits_for_reply = False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._in_the_background(self._accept)

    def arm(self, when: When) -> None:
        self._when = when

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone does not wake who accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._in_the_background(self._forward, client, server)
                self._in_the_background(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._is_lost(data):
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            _reset(end)

    def _is_lost(self, data: bytes) -> bool:
        """The first COMMIT seen is the client's; the next is the server's word that it has been carried out."""
        if self._when is None or b"COMMIT" not in data:
            return False
        if self._when == "after" and not self._waits_for_reply:
            self._waits_for_reply = True
            return False
        self._when, self._waits_for_reply = None, False
        return True

    def _in_the_background(self, work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
        # A linger time of zero makes the close a reset.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
