"""Counts what is said to Postgres, where it is said: a TCP proxy that reads along on both sides.

    message             type (1 byte, none in the first one of the client) | length with itself (4 bytes) | body
    client  P B E       Parse names a statement, Bind makes a portal of it, Execute runs the portal
            Q           simple query: a text, run at once
            S           Sync ends what is answered together
    server  C           CommandComplete: a statement is through; its tag is `INSERT 0 1`, `SELECT 1`, `COMMIT`
            E           ErrorResponse: what follows up to the Sync is skipped
            Z           ReadyForQuery answers a Sync or a simple query: one round trip; I if no transaction is open

Connections must not be encrypted. A statement writes if its text says so, since a WITH query that writes is tagged
SELECT, and if its tag does not say that it touched no row.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url

WRITING = re.compile(rb"\b(INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|UPDATE\s+[\w.\"]+\s+(AS\s+\w+\s+)?SET)\b", re.I)
TOUCHED_NOTHING = re.compile(rb"(INSERT 0|UPDATE|DELETE|MERGE) 0\0")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What went over a wire; a commit is the end of a transaction that wrote."""

    round_trips: int = 0
    statements: int = 0
    commits: int = 0

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            round_trips=self.round_trips - earlier.round_trips,
            statements=self.statements - earlier.statements,
            commits=self.commits - earlier.commits,
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            round_trips=self.round_trips + other.round_trips,
            statements=self.statements + other.statements,
            commits=self.commits + other.commits,
        )


class Tap:
    """A way to the database that counts; `url` is the address to use."""

    def __init__(self) -> None:
        self.url = ""
        self.counts = Counts()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A statement that the client sent; a simple query may be several, which one answer ends."""

    writes: bool
    simple: bool


SYNC = None


class Dialogue:
    """One connection: feed `asked` with the client's bytes before they are forwarded, `answered` with the server's."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._asked: deque[Asked | None] = deque()
        self._statements: dict[bytes, bool] = {}
        self._portals: dict[bytes, bool] = {}
        self._wrote = False
        self.asked = _messages(self._ask, greeted=False)
        self.answered = _messages(self._answer, greeted=True)

    def _ask(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"P":
                name, text, *_ = body.split(b"\0")
                self._statements[name] = WRITING.search(text) is not None
            case b"B":
                portal, name, *_ = body.split(b"\0")
                self._portals[portal] = self._statements[name]
            case b"E":
                self._asked.append(Asked(writes=self._portals[body.split(b"\0")[0]], simple=False))
            case b"S":
                self._asked.append(SYNC)
            case b"Q":
                self._asked += [Asked(writes=WRITING.search(body) is not None, simple=True), SYNC]

    def _answer(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"C":
                self._tap.counts += Counts(statements=1)
                self._complete(body)
            case b"E":
                self._wrote = False
            case b"Z":
                self._tap.counts += Counts(round_trips=1)
                while self._asked and self._asked.popleft() is not SYNC:
                    pass  # after an error the rest was skipped
                if body == b"I":
                    self._end_transaction()

    def _complete(self, tag: bytes) -> None:
        asked = self._asked[0]
        assert asked is not SYNC, "the server completed what nobody asked for"
        if not asked.simple:
            self._asked.popleft()
        if tag.startswith(b"COMMIT"):
            self._end_transaction()
        elif tag == b"ROLLBACK\0":
            self._wrote = False
        elif asked.writes and not TOUCHED_NOTHING.fullmatch(tag):
            self._wrote = True

    def _end_transaction(self) -> None:
        self._tap.counts += Counts(commits=int(self._wrote))
        self._wrote = False


def _messages(read: Callable[[bytes, bytes], None], *, greeted: bool) -> Callable[[bytes], None]:
    """Something to feed with bytes, that hands on each whole message; the client's greeting has no type."""
    unread = bytearray()

    def feed(data: bytes) -> None:
        nonlocal greeted
        unread.extend(data)
        while True:
            typed = 1 if greeted else 0
            length = int.from_bytes(unread[typed : typed + 4])
            if len(unread) < typed + 4 or len(unread) < typed + length:
                return
            message = bytes(unread[: typed + length])
            del unread[: typed + length]
            if greeted:
                read(message[:1], message[5:])
            greeted = True

    return feed


@contextmanager
def taps(database_url: str, *names: str) -> Iterator[dict[str, Tap]]:
    """A tap for each name, on loopback, with one thread for all of them."""
    target = conninfo_to_dict(database_url)
    host, port = str(target["host"]), int(str(target["port"]))
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="taps", daemon=True)
    thread.start()

    async def listen(tap: Tap) -> int:
        server = await asyncio.start_server(lambda *client: _serve(tap, host, port, *client), "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def end() -> None:
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    tapped = {name: Tap() for name in names}
    try:
        for tap in tapped.values():
            taken = asyncio.run_coroutine_threadsafe(listen(tap), loop).result()
            address = make_url(database_url).set(host="127.0.0.1", port=taken)
            plain = address.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
            tap.url = plain.render_as_string(hide_password=False)
        yield tapped
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(tap: Tap, host: str, port: int, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
    server, to_server = await asyncio.open_connection(host, port)
    dialogue = Dialogue(tap)
    asking = asyncio.create_task(_forward(client, to_server, dialogue.asked))
    try:
        await _forward(server, to_client, dialogue.answered)
    finally:
        asking.cancel()
        to_server.close()


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, read: Callable[[bytes], None]) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65536):
            read(data)
            target.write(data)
            await target.drain()
    target.close()
