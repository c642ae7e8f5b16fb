"""What `doctor` finds in a store: nothing in a healthy one however busy, and every task that nothing will move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, create_engine, insert
from sqlalchemy.engine import make_url

from brainhands.shared.cli import doctor, main
from brainhands.shared.model.ids import new_uuid
from brainhands.shared.store import health
from brainhands.shared.store.database import Database
from brainhands.shared.store.tables import attempts, conversations, offers, outbox, sessions, tasks, waits, workers

LONG = timedelta(seconds=health.LATE_SECONDS + 30)
BRIEF = timedelta(seconds=health.LATE_SECONDS - 20)
REQUIRED = "tool:echo"


class Store:
    """A store whose rows a test writes itself, in any state that the engine would not leave it in."""

    def __init__(self, connection: Connection, database: Database) -> None:
        self._connection = connection
        self.database = database
        self.session = new_uuid()
        now = self.now()
        self._insert(
            sessions,
            id=self.session,
            tenant="default",
            log_format=1,
            last_seq=0,
            last_hash=bytes(32),
            last_at=now,
            created_at=now,
        )
        self.conversation = new_uuid()
        self._insert(conversations, id=self.conversation, session_id=self.session, agent="echo")

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)

    def task(self, status: str, **fields: Any) -> UUID:
        task_id = new_uuid()
        required = {
            "id": task_id,
            "session_id": self.session,
            "conversation_id": self.conversation,
            "kind": REQUIRED,
            "version": 1,
            "requires_name": REQUIRED,
            "input": {},
            "cause": 0,
            "priority": 0,
            "status": status,
            "phase": "call",
            "checkpoint": {},
            "result": None,
            "fence": 1,
            "step": 0,
            "phase_attempts": 0,
            "cancel_wanted": False,
            "created_at": self.now(),
        }
        self._insert(tasks, **{**required, **fields})
        return task_id

    def running(self, *, lease_until: datetime, worker: UUID | None = None) -> UUID:
        return self.task("running", worker_id=worker or new_uuid(), lease_until=lease_until, deadline=lease_until)

    def pending(self, *, due_for: timedelta, parked: str | None = None, **fields: Any) -> UUID:
        task_id = self.task("pending", **fields)
        self._insert(
            outbox,
            task_id=task_id,
            session_id=self.session,
            tenant="default",
            priority=0,
            requires_name=REQUIRED,
            not_before=self.now() - due_for,
            created_at=self.now() - due_for,
            parked=parked,
        )
        return task_id

    def wait(self, waiter: UUID, dependency: UUID) -> None:
        self._insert(waits, waiter_id=waiter, dependency_id=dependency, fail_fast=False)

    def worker(
        self, role: str = "hands", *, offering: str = REQUIRED, alive_for: timedelta = LONG, slots: int = 1
    ) -> UUID:
        worker_id = new_uuid()
        self._insert(
            workers,
            id=worker_id,
            role=role,
            pool=f"{role}.default",
            host="here",
            pid=1,
            parent_pid=1,
            slots=slots,
            environment="",
            log_format=1,
            started_at=self.now() - alive_for,
        )
        self._insert(offers, worker_id=worker_id, name=offering, low=1, high=1)
        return worker_id

    def claimed(self, worker: UUID, *, ago: timedelta) -> None:
        at = self.now() - ago
        self._insert(
            attempts, task_id=new_uuid(), fence=1, worker_id=worker, phase="call", started_at=at, deadline=at + LONG
        )

    def stuck(self) -> list[str]:
        """The problems of all tasks without a mover."""
        return [finding.problem for finding in health.without_mover(self.database)]

    def _insert(self, table: Any, **row: Any) -> None:
        self._connection.execute(insert(table), row)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    database = Database(database_url)
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield Store(connection, database)
    engine.dispose()
    database.close()


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_a_lease_and_a_wake_time_move_a_task_until_they_are_overdue(store: Store) -> None:
    store.running(lease_until=store.now() + LONG)
    store.running(lease_until=store.now() - BRIEF)
    store.task("sleeping", wake_at=store.now() + LONG)
    store.task("sleeping", wake_at=store.now() - BRIEF)
    assert store.stuck() == []

    store.running(lease_until=store.now() - LONG)
    store.task("sleeping", wake_at=store.now() - LONG)
    lease, wake = store.stuck()
    assert lease.startswith("its lease ended at ")
    assert wake.startswith("it should have woken at ")


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_a_pending_task_needs_a_hint_that_is_not_set_aside_or_a_reason(store: Store) -> None:
    store.pending(due_for=timedelta(0))
    store.task("pending", blocked="no live worker offers tool:echo")
    assert store.stuck() == []

    store.task("pending")
    store.pending(due_for=timedelta(0), parked="it cannot be published")
    assert store.stuck() == ["it is pending without a hint", "its hint is set aside: it cannot be published"]


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_a_long_backlog_of_busy_workers_is_healthy(store: Store) -> None:
    for _ in range(20):
        store.pending(due_for=timedelta(hours=3))
    full = store.worker()
    store.running(lease_until=store.now() + LONG, worker=full)
    quick = store.worker(slots=4)
    store.claimed(quick, ago=BRIEF)
    store.worker(alive_for=BRIEF)
    assert store.stuck() == []


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_a_hint_that_a_fitting_worker_leaves_lying_is_overdue(store: Store) -> None:
    store.pending(due_for=LONG)
    idle = store.worker()
    store.claimed(idle, ago=LONG)
    (problem,) = store.stuck()
    assert problem.endswith("and a worker that offers tool:echo stands idle")


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_hints_that_no_live_worker_fits_are_told_as_blocked_whether_or_not_their_tasks_say_so(store: Store) -> None:
    store.worker(offering="tool:another")
    store.pending(due_for=LONG)
    store.task("pending", blocked="no live worker offers tool:echo")
    assert store.stuck() == []
    (finding,) = health.blocked(store.database)
    assert (finding.subject[:7], finding.problem) == ("2 tasks", "no live worker offers tool:echo")


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_a_waiting_task_is_moved_by_a_chain_that_leads_to_a_task_that_moves(store: Store) -> None:
    worker = store.running(lease_until=store.now() + LONG)
    near, far = store.task("waiting"), store.task("waiting")
    store.wait(near, worker)
    store.wait(far, near)
    completing = store.task("completing", outcome="succeeded")
    store.task("sleeping", wake_at=store.now() + LONG, owner_id=completing)
    assert store.stuck() == []


@pytest.mark.promise("D5")
@pytest.mark.hazard(10)
def test_tasks_that_wait_for_each_other_or_for_nothing_open_have_no_mover(store: Store) -> None:
    one, other = store.task("waiting"), store.task("waiting")
    store.wait(one, other)
    store.wait(other, one)
    for_what_ended = store.task("waiting")
    store.wait(for_what_ended, store.task("done", outcome="succeeded"))
    completing = store.task("completing", outcome="failed")
    store.task("done", outcome="failed", owner_id=completing)
    assert (
        sorted(store.stuck())
        == ["it is completing for no task that can move"] + ["it is waiting for no task that can move"] * 3
    )


def test_a_blocked_task_is_a_finding_with_its_reason(store: Store) -> None:
    store.worker()
    task = store.task("pending", blocked="no live worker offers tool:echo@2", requires_version=2)
    (finding,) = health.blocked(store.database)
    assert str(task) in finding.subject
    assert finding.problem == "no live worker offers tool:echo@2"
    assert finding.next_step == "start a worker that offers tool:echo@2"


def test_blocked_tasks_are_told_by_cause_with_their_number(store: Store) -> None:
    store.worker(offering="tool:ecco")
    for _ in range(12):
        store.task("pending", blocked="no live worker offers tool:echo")
    store.task("pending", blocked="no live worker offers tool:other", requires_name="tool:far-away")
    many, one = health.blocked(store.database)
    assert many.subject.startswith("12 tasks, one of them tool:echo ")
    assert "nobody has offered tool:echo lately; did you mean tool:ecco?" in many.next_step
    assert "nobody has offered tool:far-away lately; see that the name is right" in one.next_step


def part(role: str = "relay", *, started: int, unseen: int, draining: bool = False) -> health.Part:
    """A process that started and was last seen so many seconds ago."""
    now = Store.now()
    return health.Part(
        role=role,
        pool=f"{role}.default",
        host="here",
        pid=started,
        started_at=now - timedelta(seconds=started),
        seen_at=now - timedelta(seconds=unseen),
        unseen_seconds=unseen,
        draining=draining,
    )


@pytest.mark.promise("D5")
@pytest.mark.parametrize(
    ("parts", "lost"),
    [
        ([part(started=300, unseen=20), part(started=301, unseen=1)], [300]),
        ([part(started=301, unseen=20), part(started=300, unseen=1)], [301]),
        ([part(started=300, unseen=40), part(started=300, unseen=20), part(started=99, unseen=1)], [300]),
        ([part(started=300, unseen=20), part(started=18, unseen=1)], []),
        ([part(started=300, unseen=20, draining=True), part(started=300, unseen=1)], []),
        ([part(started=300, unseen=14), part(started=300, unseen=1)], []),
        ([part(started=300, unseen=20), part("brain", started=300, unseen=1)], []),
        ([part(started=300, unseen=20)], []),
    ],
    ids=["the older", "the younger", "two", "replaced", "ended", "alive", "another role", "the last of its role"],
)
def test_one_of_several_that_vanished_is_missed_until_another_takes_its_place(
    parts: list[health.Part], lost: list[int]
) -> None:
    found = health.lost(parts)
    assert len(found) == len(lost)
    assert all(f"process {pid}" in finding.subject for pid, finding in zip(lost, found, strict=True))


def test_a_role_without_a_live_worker_is_a_finding(store: Store) -> None:
    store.worker("relay")
    store.worker("brain")
    assert [finding.subject for finding in health.missing_roles(store.database)] == ["hands"]


@pytest.mark.hazard(52)
def test_a_clock_that_differs_from_the_database_is_a_finding(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    at = store.now() - timedelta(minutes=1)
    monkeypatch.setattr(health, "server", lambda _: health.Server(version=150000, clock=at))
    (finding,) = doctor.server_findings(store.database)
    assert finding.check == "clock"
    assert "+60 seconds" in finding.problem


def test_a_schema_that_is_not_current_names_the_command_that_makes_it_so(
    empty_database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(monkeypatch, empty_database_url, redis_url) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["next_step"] == "run `brainhands migrate`"


def test_servers_that_do_not_answer_are_findings_without_their_passwords(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = "127.0.0.1:9"
    assert examine(monkeypatch, f"postgresql://someone:secret@{dead}/none", f"redis://:secret@{dead}/0") == 3
    told = capsys.readouterr().out
    assert [finding["check"] for finding in json.loads(told)["findings"]] == ["postgres", "redis"]
    assert "secret" not in told


def examine(monkeypatch: pytest.MonkeyPatch, database_url: str, redis_url: str) -> object:
    """The exit status of `doctor --json` on these servers."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setattr("sys.argv", ["brainhands", "doctor", "--json"])
    with pytest.raises(SystemExit) as exit:
        main.app()
    return exit.value.code
