"""Ends its own process at a chosen point of a run; put into a worker from outside by `launch`.

A point is a moment after which others may see what was done: a COMMIT of changed rows, a publish to the broker, the
reply to a POST of a tool (just before it, the request has gone out). Its name says what it does (the events a commit
stores, the queue of a publish), so that it is found again in another run, where it has a number among its namesakes.
All processes of a run share one folder:

    points     a line for each point that was reached: role, name
    plan.json  where to strike, as `Plan`; taken away by the process that strikes
    struck     the process id of that process, written before it strikes

Not counted is what the keeper's thread writes, presence and leases: that goes by the clock and not by the run.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import psycopg

from brainhands.shared.model.event import PAYLOADS
from brainhands.shared.store.database import Call, Database, Result

When = Literal["before", "after"]
How = Literal["process", "worker", "stop"]

EVENT_TYPES = frozenset(type for type, _ in PAYLOADS)
WRITES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM) brainhands\.(\w+)")


@dataclass(frozen=True, kw_only=True)
class Point:
    """The `number`-th point of this name that the processes of a role reach in a run."""

    role: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}: {self.name} #{self.number}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Strike just before or just after a point: the process itself, its whole Celery worker, or stop the process."""

    point: Point
    when: When
    how: How = "process"

    def __str__(self) -> str:
        return f"{self.how} {self.when} {self.point}"


class Folder:
    """What the processes of a run and its test share."""

    def __init__(self, path: Path) -> None:
        self._points = path / "points"
        self._plan = path / "plan.json"
        self._struck = path / "struck"

    def begin(self, plan: Plan | None) -> None:
        """Forget the last run and plan the next."""
        for file in (self._plan, self._struck, self._points):
            file.unlink(missing_ok=True)
        self._points.touch()
        if plan is not None:
            draft = self._plan.with_suffix(".draft")
            draft.write_text(json.dumps(asdict(plan)))
            draft.rename(self._plan)

    def points(self) -> list[Point]:
        """All points that were reached, in order."""
        lines = [tuple(line.split("\t")) for line in self._points.read_text().splitlines()]
        return [
            Point(role=role, name=name, number=lines[: place + 1].count((role, name)))
            for place, (role, name) in enumerate(lines)
        ]

    def struck(self) -> int | None:
        """The process that was struck; None as long as none was."""
        return int(self._struck.read_text()) if self._struck.exists() else None

    def count(self, role: str, name: str) -> Point:
        """Note a point that is being reached, and give it with its number."""
        line = f"{role}\t{name}"
        with self._points.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = file.read().splitlines().count(line) + 1
            file.write(line + "\n")
        return Point(role=role, name=name, number=number)

    def strike(self, point: Point, when: When) -> None:
        """Strike this process if it is planned; at most one process of a run is struck."""
        try:
            plan = json.loads(self._plan.read_text())
        except FileNotFoundError:
            return
        if (plan["point"], plan["when"]) != (asdict(point), when):
            return
        try:
            self._plan.rename(self._struck.with_suffix(".draft"))
        except FileNotFoundError:
            return
        self._struck.with_suffix(".draft").write_text(str(os.getpid()))
        self._struck.with_suffix(".draft").rename(self._struck)
        if plan["how"] == "worker":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGSTOP if plan["how"] == "stop" else signal.SIGKILL)


def install(role: str, folder: Folder) -> None:
    """Put the points into this process, and so into all that it forks."""
    crash = _Points(role, folder)
    _replace(Database, "run", crash.run)
    _replace(psycopg.Cursor, "execute", crash.execute)
    _replace(psycopg.Connection, "pipeline", crash.pipeline)
    _replace(http.client.HTTPConnection, "request", crash.request)
    _replace(http.client.HTTPConnection, "getresponse", crash.getresponse)
    if role == "relay":
        from brainhands.outbox.publisher import Publisher

        _replace(Publisher, "publish", crash.publish)


def _replace(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    """Let the replacement run in place of a method, which it gets as its first argument."""
    original = getattr(owner, name)

    @wraps(original)
    def method(*arguments: Any, **named: Any) -> Any:
        return replacement(original, *arguments, **named)

    setattr(owner, name, method)


class _Points:
    """The replacements; each takes the method it replaces and that method's own arguments."""

    def __init__(self, role: str, folder: Folder) -> None:
        self._role = role
        self._folder = folder
        self._written: WeakKeyDictionary[Any, list[_Write]] = WeakKeyDictionary()
        self._committed: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def run(self, original: Callable[..., list[Result]], database: Database, *calls: Call) -> list[Result]:
        """Outside a transaction each statement commits by itself; here its COMMIT is one that can be seen."""
        if threading.current_thread().name == "keeper":
            return original(database, *calls)
        with database.transaction() as transaction:
            return transaction.run(*calls)

    def execute(self, original: Callable[..., Any], cursor: Any, query: Any, *arguments: Any, **named: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        execute = partial(original, cursor, query, *arguments, **named)
        if text == "COMMIT":
            return self._commit(cursor.connection, execute)
        if text == "BEGIN":
            self._written[cursor.connection] = []
            self._committed.pop(cursor.connection, None)
        result = execute()
        if tables := WRITES.findall(text):
            write = _Write(cursor, tables, _events(arguments[0] or ()))
            self._written.setdefault(cursor.connection, []).append(write)
        return result

    def _commit(self, connection: Any, execute: Callable[[], Any]) -> Any:
        changed = [write for write in self._written.pop(connection, []) if write.cursor.rowcount != 0]
        if not changed or threading.current_thread().name == "keeper":
            return execute()
        point = self._folder.count(self._role, f"commit {_what(changed)}")
        self._folder.strike(point, "before")
        result = execute()
        passed = partial(self._folder.strike, point, "after")
        if connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF:
            passed()
        else:
            self._committed[connection] = passed
        return result

    @contextmanager
    def pipeline(self, original: Callable[..., Any], connection: Any) -> Iterator[Any]:
        """In a pipeline the COMMIT has passed when the pipeline is through."""
        with original(connection) as opened:
            yield opened
        if passed := self._committed.pop(connection, None):
            passed()

    def publish(self, original: Callable[..., None], publisher: Any, queue: str, *arguments: Any) -> None:
        with self._point(f"publish {queue}"):
            original(publisher, queue, *arguments)

    def request(
        self, original: Callable[..., None], connection: Any, method: str, *arguments: Any, **named: Any
    ) -> None:
        self._asked[connection] = method
        original(connection, method, *arguments, **named)

    def getresponse(self, original: Callable[..., Any], connection: Any) -> Any:
        if self._asked[connection] != "POST":
            return original(connection)
        with self._point("reply to a POST"):
            return original(connection)

    @contextmanager
    def _point(self, name: str) -> Iterator[None]:
        point = self._folder.count(self._role, name)
        self._folder.strike(point, "before")
        yield
        self._folder.strike(point, "after")


@dataclass(frozen=True)
class _Write:
    """A statement of an open transaction; its cursor knows how many rows it changed, -1 while that is on its way."""

    cursor: Any
    tables: list[str]
    events: list[str]


def _what(writes: list[_Write]) -> str:
    """The events that are stored, else the tables that are changed."""
    events = [event for write in writes for event in write.events]
    return "+".join(dict.fromkeys(events or [table for write in writes for table in write.tables]))


def _events(parameters: Any) -> list[str]:
    """The events that a statement with these parameters stores: type, and the tool or task kind it is about.

    The payload of an event is the next object after its type.
    """
    values = list(parameters.values() if isinstance(parameters, dict) else parameters)
    events = []
    for place, type in enumerate(values):
        if isinstance(type, str) and type in EVENT_TYPES:
            payload = json.loads(
                next(value for value in values[place:] if isinstance(value, str) and value.startswith("{"))
            )
            events.append(" ".join(filter(None, (type, payload.get("tool") or payload.get("kind")))))
    return events
