"""The sweep is right whatever it meets: what cannot be settled holds up nothing else, and no error ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from brainhands.outbox.sweep import Sweep
from brainhands.shared.bus.bell import Bell
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import StaleWrite
from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.task import Sleep
from brainhands.shared.store import due
from brainhands.shared.store.database import Row
from brainhands.shared.store.due import Due
from tests.store.stage import AGENT, NO_REDIS, PLAY, Stage, answer

PAGE = 6
TEN_PAGES = 10 * PAGE
PAST = "clock_timestamp() - interval '1 hour'"

AS_FOUND = {
    Due.WAKE: f"status = 'sleeping', wake_at = {PAST}",
    Due.EXPIRE: f"status = 'running', fence = 1, worker_id = id, lease_until = {PAST}, deadline = {PAST}",
    Due.READY: "status = 'waiting'",
    Due.MISS: f"status = 'waiting', signal_name = 'word', signal_key = '', wake_at = {PAST}",
    Due.COMPLETE: "status = 'completing', outcome = 'succeeded'",
    Due.BLOCK: "status = 'pending', requires_name = 'play:unknown'",
    Due.UNBLOCK: f"status = 'pending', blocked = '{due.NO_WORKER} {PLAY}'",
}
"""How a pending task becomes a candidate of each sort."""


class Stumbling(Sweep):
    """A sweep that fails at what is in trouble."""

    def __init__(self, stage: Stage, stopping: threading.Event | None = None) -> None:
        writer = Writer(stage.database, Bell(NO_REDIS))
        super().__init__(
            writer, NOBODY, restart_limit=3, blocked_after_seconds=0, stopping=stopping or threading.Event()
        )
        self.trouble: set[UUID] = set()
        self.error: Exception = KeyError("unexpected")
        self.tries = 0

    def _judge(self, draft: Draft, sort: Due, row: Row) -> None:
        if {draft.session.id, row["subject"]} & self.trouble:
            self.tries += 1
            raise self.error
        super()._judge(draft, sort, row)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "PAGE", PAGE)


def candidates(stage: Stage, sort: Due, count: int = 1) -> set[SessionId]:
    """Sessions with a candidate of this sort each."""
    if sort is Due.INPUT:
        return {unanswered_input(stage) for _ in range(count)}
    first, _ = stage.session()
    stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'succeeded' WHERE session_id = %s", first)
    stage.sql("DELETE FROM brainhands.outbox WHERE session_id = %s", first)
    task_id = stage.add(first)
    copies = stage.sql(
        "INSERT INTO brainhands.sessions SELECT"
        " (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid()))).*"
        " FROM brainhands.sessions s, generate_series(2, %s) WHERE s.id = %s RETURNING id",
        count,
        first,
    )
    others = [row["id"] for row in copies]
    stage.sql(
        "INSERT INTO brainhands.tasks SELECT (jsonb_populate_record(t,"
        " jsonb_build_object('id', gen_random_uuid(), 'session_id', session))).*"
        " FROM brainhands.tasks t, unnest(%s::uuid[]) AS session WHERE t.id = %s",
        others,
        task_id,
    )
    sessions = [first, *others]
    stage.sql(f"UPDATE brainhands.tasks SET {AS_FOUND[sort]} WHERE session_id = ANY(%s) AND kind = '{PLAY}'", sessions)
    stage.sql("DELETE FROM brainhands.outbox WHERE session_id = ANY(%s)", sessions)
    if sort is Due.BLOCK:
        stage.sql(
            "INSERT INTO brainhands.outbox (task_id, session_id, tenant, priority, requires_name, log_format,"
            f" not_before, created_at) SELECT id, session_id, 'default', 0, requires_name, 1, {PAST}, {PAST}"
            " FROM brainhands.tasks WHERE session_id = ANY(%s) AND status = 'pending'",
            sessions,
        )
    return set(sessions)


def unanswered_input(stage: Stage) -> SessionId:
    """A session with an input that nothing takes."""
    session_id, generation = stage.session()
    stage.client.submit(agent=AGENT, input="more", session=session_id)
    stage.sql("UPDATE brainhands.tasks SET status = 'done', outcome = 'succeeded' WHERE id = %s", generation)
    stage.sql(f"UPDATE brainhands.inbox SET created_at = {PAST} WHERE session_id = %s", session_id)
    return session_id


def still_due(stage: Stage) -> set[SessionId]:
    """The sessions of all candidates that the sweep would find now."""
    known = due.circumstances(stage.database, due.unoffered(stage.database))
    found = set()
    for sort in Due:
        place: UUID | None = due.FIRST_PAGE
        while place is not None:
            page, place = due.find(stage.database, sort, known, place)
            found |= {row["session_id"] for row in page}
    return found


@pytest.mark.promise("H11", "D5")
@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("sort", list(Due))
def test_ten_pages_of_candidates_that_cannot_be_settled_hold_up_none_of_any_sort(stage: Stage, sort: Due) -> None:
    sweep = Stumbling(stage)
    before = candidates(stage, sort)
    sweep.trouble = set(candidates(stage, sort, TEN_PAGES))
    others = before.union(*(candidates(stage, each) for each in Due))

    for _ in range(5):
        sweep.sweep_once()
        if not still_due(stage) & others:
            break

    assert still_due(stage) == sweep.trouble
    sweep.trouble = set()
    deadline = time.monotonic() + 30
    while still_due(stage) and time.monotonic() < deadline:
        sweep.sweep_once()
    assert not still_due(stage)


@pytest.mark.promise("H11", "H8")
@pytest.mark.usefixtures("small_pages")
def test_ended_leases_in_sessions_that_only_newer_code_reads_hold_up_no_other(stage: Stage) -> None:
    newer = candidates(stage, Due.EXPIRE, TEN_PAGES)
    stage.sql("UPDATE brainhands.sessions SET log_format = %s WHERE id = ANY(%s)", LOG_FORMAT + 1, list(newer))
    (mine,) = candidates(stage, Due.EXPIRE)

    stage.sweep.sweep_once()

    running = stage.sql("SELECT session_id FROM brainhands.tasks WHERE status = 'running'")
    assert {row["session_id"] for row in running} == newer
    assert mine not in newer


@pytest.mark.promise("H11")
@pytest.mark.parametrize("error", [KeyError("unexpected"), ValueError("badly formed"), StaleWrite("moved")], ids=repr)
def test_of_the_candidates_of_one_session_each_is_settled_but_the_one_that_fails(
    stage: Stage, error: Exception
) -> None:
    session_id, generation = stage.session()
    sleepers = [stage.add(session_id) for _ in range(4)]
    for each in sleepers:
        stage.advance(each, answer(Sleep(0.0, "second")))
    sweep = Stumbling(stage)
    sweep.trouble, sweep.error = {sleepers[1]}, error

    sweep.sweep_once()

    assert [stage.status(each) for each in sleepers] == ["pending", "sleeping", "pending", "pending"]
    assert stage.status(generation) == "pending"


@pytest.mark.promise("H11")
def test_a_candidate_that_fails_again_and_again_is_tried_less_and_less_often(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Stumbling(stage)
    sweep.trouble = set(candidates(stage, Due.WAKE))
    clock = {"now": 1000.0}
    monkeypatch.setattr("brainhands.outbox.sweep.time.monotonic", lambda: clock["now"])

    for _ in range(600):
        sweep.sweep_once()
        clock["now"] += 1.0

    assert 10 <= sweep.tries <= 20


@contextmanager
def sweeping(stage: Stage) -> Iterator[Stumbling]:
    """A sweep in a thread of its own, as in a relay."""
    stopping = threading.Event()
    sweep = Stumbling(stage, stopping)
    thread = threading.Thread(target=sweep.run)
    thread.start()
    yield sweep
    stopping.set()
    thread.join()


def wait_for_record(caplog: pytest.LogCaptureFixture, event: str) -> None:
    deadline = time.monotonic() + 20
    while event not in [record.getMessage() for record in caplog.records]:
        assert time.monotonic() < deadline, event
        time.sleep(0.02)


def asleep(stage: Stage) -> TaskId:
    """A task whose wake time has come."""
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    stage.advance(task_id, answer(Sleep(0.0, "second")))
    return task_id


RENAMED = ["tasks", "workers", "offers", "outbox", "sessions", "waits", "inbox", "slots"]


@pytest.mark.promise("H13", "D5")
@pytest.mark.parametrize("table", RENAMED)
def test_a_sweep_outlives_a_table_that_is_gone_for_a_while(
    stage: Stage, caplog: pytest.LogCaptureFixture, table: str
) -> None:
    task_id = asleep(stage)
    candidates(stage, Due.READY)
    stage.sql(f"ALTER TABLE brainhands.{table} RENAME TO elsewhere")
    with sweeping(stage):
        wait_for_record(caplog, "sweep_failed")
        stage.sql(f"ALTER TABLE brainhands.elsewhere RENAME TO {table}")
        deadline = time.monotonic() + 20
        while stage.status(task_id) != "pending":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert any(record.exc_info for record in caplog.records)
