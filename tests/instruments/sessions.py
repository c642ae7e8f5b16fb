"""What tests ask of a session's rows, and what they do to the processes and the clock behind them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import redis
from psycopg.rows import dict_row

from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.event import Event
from brainhands.shared.model.submission import Receipt, Submission, SubmissionStatus
from brainhands.shared.model.task import Task
from brainhands.shared.runtime.settings import libpq_url
from tests.conftest import migrated, new_database
from tests.instruments.fleet import Fleet, fleet_of, wait_until


@contextmanager
def fleet_for_many(folder: Path, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """A fleet for the tests of a whole module, with a database of its own and an empty Redis."""
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with (
        new_database(postgres, template=migrated(postgres)) as url,
        fleet_of(folder, database_url=url, redis_url=redis_server.url) as fleet,
    ):
        yield fleet


def query(fleet: Fleet, statement: str, *values: object) -> list[dict[str, Any]]:
    """The rows of one statement, committed at once."""
    with psycopg.connect(libpq_url(fleet.database_url), autocommit=True, row_factory=dict_row) as connection:
        cursor = connection.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


def served_before(fleet: Fleet, kind: str, session: UUID) -> int:
    """How many claims of tasks like it came between the making of a session's last task of a kind and its own claim."""
    (row,) = query(
        fleet,
        "WITH mine AS (SELECT t.created_at, min(a.started_at) AS claimed_at FROM brainhands.tasks t"
        "                JOIN brainhands.attempts a ON a.task_id = t.id"
        "               WHERE t.kind = %s AND t.session_id = %s GROUP BY t.id ORDER BY t.created_at DESC LIMIT 1)"
        " SELECT count(*) AS claims FROM brainhands.attempts a JOIN brainhands.tasks t ON t.id = a.task_id, mine"
        "  WHERE t.kind LIKE %s AND a.started_at > mine.created_at AND a.started_at < mine.claimed_at",
        kind,
        session,
        f"{kind.partition(':')[0]}%",
    )
    return int(row["claims"])


def task_of(fleet: Fleet, session: UUID, kind: str) -> Task:
    """The one task of this kind in the session."""
    (task,) = (each for each in fleet.client.session(session).tasks if each.kind == kind)
    return task


def wait_for_task(fleet: Fleet, session: UUID, kind: str, status: str, timeout: float = 30.0) -> Task:
    """The newest task of this kind, once it has this status."""

    def newest() -> Task | None:
        tasks = [each for each in fleet.client.session(session).tasks if each.kind == kind]
        return tasks[-1] if tasks else None

    wait_until(lambda: (task := newest()) is not None and task.status == status, timeout, f"{kind} {status}")
    task = newest()
    assert task is not None
    return task


def kill_worker_of(fleet: Fleet, session: UUID, kind: str) -> int:
    """SIGKILL the process that runs the task of this kind; gives its pid."""
    (row,) = query(
        fleet,
        "SELECT w.pid FROM brainhands.tasks t JOIN brainhands.workers w ON w.id = t.worker_id"
        " WHERE t.session_id = %s AND t.kind = %s AND t.status = 'running'",
        session,
        kind,
    )
    os.kill(row["pid"], signal.SIGKILL)
    return int(row["pid"])


def make_due(fleet: Fleet, session: UUID) -> None:
    """Let the time come for which the session's sleepers wait."""
    query(
        fleet,
        "UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE session_id = %s AND status = 'sleeping'",
        session,
    )


def wait_hurrying(fleet: Fleet, receipt: Receipt, timeout: float = 60.0) -> Submission:
    """The submission once it is done; whatever of its session sleeps meanwhile is woken before its time."""

    def done() -> bool:
        make_due(fleet, receipt.session_id)
        return fleet.client.submission(receipt.submission_id).status is SubmissionStatus.DONE

    wait_until(done, timeout, "the end of the submission")
    return fleet.wait(receipt)


def events_of(fleet: Fleet, session: UUID, *types: str) -> list[Event]:
    """The session's events of these types, in order."""
    return [event for event in fleet.client.events(session) if event.type in types]


def open_gate(fleet: Fleet, name: str) -> None:
    """Let the sample tools go on that wait for the gate of this name."""
    Path(f"{fleet.effects_file}.{name}").touch()


def tool_messages(fleet: Fleet, text: str) -> list[str]:
    """What the model was told as results of tools, in the newest request in which this text occurs."""
    bodies = [body for body in fleet.model_requests() if text in str(body["messages"])]
    return [message["content"] for message in bodies[-1]["messages"] if message["role"] == "tool"]
