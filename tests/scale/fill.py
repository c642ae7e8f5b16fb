"""A store as it is after years, made of copies of what really happened in one session and of a few tasks beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import Table

from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store.tables import attempts, conversations, events, outbox, sessions, submissions, tasks

EVENTS_A_SESSION = 100
TASKS_A_SESSION = 10
BYTES_AN_EVENT = 850
"""Of disk, with all else that belongs to it, measured; the write-ahead log takes as much again for a while."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows a store gets."""

    events: int
    tasks: int
    hints: int
    waiting: int
    """Tasks that sleep or wait for another one, half and half."""
    long_events: int
    """Events of the one long session."""
    long_tasks: int

    @property
    def disk_gigabytes(self) -> float:
        return 2 * self.events * BYTES_AN_EVENT / 1e9


def size(part: float) -> Size:
    """That part of ten million events, a million tasks, and what waits."""
    return Size(
        events=int(10_000_000 * part),
        tasks=int(1_000_000 * part),
        hints=int(200_000 * part),
        waiting=int(100_000 * part),
        long_events=int(200_000 * part),
        long_tasks=int(100_000 * part),
    )


def fill(database_url: str, size: Size, *, ended: UUID, backlog: UUID, long: UUID) -> Iterator[str]:
    """Yields what is done as it goes on.

    `ended` is a session at rest, which is copied with its events, tasks and attempts; `backlog` one with a pending task
    of the kind `play`; `long` one at rest that is made long.
    """
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        filler = _Filler(connection)
        # Each row is a copy of one that met all keys and checks, so what it points to is not looked up again.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        copies = size.events // EVENTS_A_SESSION
        yield f"{copies:,} sessions"
        filler.sessions(ended, copies)
        yield f"{size.events:,} events"
        filler.copy(events, "seq", ended, copies, EVENTS_A_SESSION, seq="number", task_id="NULL")
        yield f"{size.tasks:,} tasks with their attempts"
        filler.copy(
            tasks, "id", ended, size.tasks // TASKS_A_SESSION, TASKS_A_SESSION, id="gen_random_uuid()", owner_id="NULL"
        )
        filler.attempts(ended)
        yield f"{size.hints:,} tasks with hints that wait"
        filler.backlog(backlog, size.hints)
        yield f"{size.waiting:,} tasks that sleep or wait"
        filler.waiting(backlog, size.waiting)
        yield f"{size.long_events:,} events and {size.long_tasks:,} tasks in one session"
        filler.long(long, size)
        yield "statistics"
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")  # what is measured next shall not wait for it


class _Filler:
    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def sessions(self, session: UUID, count: int) -> None:
        self._run(
            "CREATE TEMPORARY TABLE copies AS SELECT row_number() OVER () AS copy, gen_random_uuid() AS session,"
            " gen_random_uuid() AS conversation FROM generate_series(1, %s)",
            count,
        )
        self._run("ANALYZE copies")
        earlier = "t.created_at - copy * interval '1 minute'"
        self._run(_insert(sessions, "copies", "id = %s", id="session", created_at=earlier), session)
        owned = _insert(conversations, "copies", "session_id = %s", id="conversation", session_id="session")
        self._run(owned, session)
        self._run(
            _insert(
                submissions,
                "copies",
                "session_id = %s",
                id="gen_random_uuid()",
                session_id="session",
                conversation_id="conversation",
                request_digest="uuid_send(session)",
            ),
            session,
        )

    def copy(self, table: Table, by: str, session: UUID, copies: int, each: int, **values: str) -> None:
        """So many rows for each of so many copied sessions, from the session's rows one after the other."""
        names = {"session_id": "session", "conversation_id": "conversation"} | values
        of_session = f"FROM brainhands.{table.name} WHERE session_id = %s"
        there = self._run(f"SELECT count(*) {of_session}", session).fetchall()[0][0]
        source = f"(SELECT *, row_number() OVER (ORDER BY {by}) - 1 AS place {of_session})"
        pairs = f"(SELECT * FROM copies WHERE copy <= {copies}) c, generate_series(1, {each}) AS number"
        self._run(_insert(table, pairs, f"(number - 1) %% {there} = t.place", source=source, **names), session)

    def attempts(self, session: UUID) -> None:
        """One of each copied task."""
        done = (
            "(SELECT id AS task FROM brainhands.tasks WHERE status = 'done'"
            " AND NOT EXISTS (SELECT FROM brainhands.attempts WHERE task_id = id)) d"
        )
        first = (
            "(SELECT a.* FROM brainhands.attempts a JOIN brainhands.tasks t ON t.id = a.task_id"
            " WHERE t.session_id = %s LIMIT 1)"
        )
        self._run(_insert(attempts, done, "true", source=first, task_id="task"), session)

    def backlog(self, session: UUID, count: int) -> None:
        """Pending tasks with hints that are due, ten a session."""
        self._pending(session, count, "waiting_tasks")
        source = "(SELECT * FROM brainhands.outbox WHERE session_id = %s LIMIT 1)"
        long_ago = "now() - interval '1 hour'"
        self._run(
            _insert(
                outbox,
                "waiting_tasks w",
                "true",
                source=source,
                task_id="w.id",
                session_id="w.session",
                not_before=long_ago,
                created_at=long_ago,
            ),
            session,
        )

    def waiting(self, session: UUID, count: int) -> None:
        """Half of them sleep, and half wait for such a one."""
        self._pending(session, count, "resting_tasks")
        self._run(
            "UPDATE brainhands.tasks t SET status = CASE WHEN r.number %% 2 = 0 THEN 'sleeping' ELSE 'waiting' END,"
            " wake_at = CASE WHEN r.number %% 2 = 0 THEN now() + interval '1 day' END"
            " FROM resting_tasks r WHERE r.id = t.id"
        )
        self._run(
            "INSERT INTO brainhands.waits (waiter_id, dependency_id, fail_fast) SELECT a.id, b.id, false"
            " FROM resting_tasks a JOIN resting_tasks b ON b.number = a.number + 1 WHERE a.number %% 2 = 1"
        )

    def long(self, session: UUID, size: Size) -> None:
        """Behind what the session has, in its main conversation."""
        number = "(SELECT last_seq FROM brainhands.sessions WHERE id = %s) + n"
        source = "(SELECT * FROM brainhands.events WHERE session_id = %s ORDER BY seq DESC LIMIT 1)"
        self._run(
            _insert(events, f"generate_series(1, {size.long_events}) AS n", "true", source=source, seq=number),
            session,
            session,
        )
        done = "(SELECT * FROM brainhands.tasks WHERE session_id = %s AND status = 'done' LIMIT 1)"
        self._run(
            _insert(tasks, f"generate_series(1, {size.long_tasks})", "true", source=done, id="gen_random_uuid()"),
            session,
        )
        self._run("UPDATE brainhands.sessions SET last_seq = last_seq + %s WHERE id = %s", size.long_events, session)

    def _pending(self, session: UUID, count: int, name: str) -> None:
        self._run(
            f"CREATE TEMPORARY TABLE {name} AS SELECT gen_random_uuid() AS id, session, number FROM"
            " (SELECT session, copy FROM copies) c JOIN generate_series(1, %s) AS number"
            " ON copy = 1 + number %% (SELECT count(*) FROM copies)",
            count,
        )
        self._run(f"ANALYZE {name}")
        source = (
            "(SELECT * FROM brainhands.tasks WHERE session_id = %s AND kind = 'play' AND status = 'pending' LIMIT 1)"
        )
        self._run(_insert(tasks, f"{name} p", "true", source=source, id="p.id", session_id="p.session"), session)

    def _run(self, statement: str, *parameters: object) -> psycopg.Cursor[Any]:
        return self._connection.execute(statement.encode(), parameters)


def _insert(table: Table, beside: str, condition: str, *, source: str | None = None, **values: str) -> str:
    """Copies of rows of a table, each paired with rows of another relation, with these values in place of theirs."""
    columns = [column.name for column in table.columns]
    chosen = ", ".join(values.get(name, f"t.{name}") for name in columns)
    rows = source or f"(SELECT * FROM brainhands.{table.name} WHERE {condition})"
    where = "true" if source is None else condition
    return (
        f"INSERT INTO brainhands.{table.name} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
        f" SELECT {chosen} FROM {rows} t, {beside} WHERE {where}"
    )
