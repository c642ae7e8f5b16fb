"""No thread dies alone: what runs beside the work goes on after an error, which is logged, or its process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from kombu.asynchronous import Hub

from brainhands.outbox.publisher import Publisher
from brainhands.outbox.relay import Relay
from brainhands.outbox.sweep import Sweep
from brainhands.shared.bus.bell import Bell, RelayBell
from brainhands.shared.client import Client
from brainhands.shared.engine import fleet
from brainhands.shared.engine.draft import NOBODY
from brainhands.shared.engine.keeper import Keeper
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.writer import Writer
from brainhands.shared.model.ids import new_session_id, new_task_id
from brainhands.shared.store import attempts
from tests.instruments.fleet import wait_until
from tests.instruments.processes import Child, child_environment
from tests.store.stage import AGENT, NO_REDIS, Stage

UNEXPECTED = [
    KeyError("low"),
    ValueError("badly formed"),
    RecursionError(),
    psycopg.errors.UndefinedTable(),
    OSError(5),
]
BEYOND = ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()", "BaseException()"]


class Unexpected:
    """Raises an error the first few times that something is done, and then says that it was done again."""

    def __init__(self, error: BaseException, times: int = 2) -> None:
        self._error = error
        self._times = times
        self.went_on = threading.Event()

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        if self._times > 0:
            self._times -= 1
            raise self._error
        self.went_on.set()
        return None


@contextmanager
def in_a_thread(run: Callable[[], None], stop: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop()
    thread.join(20)
    assert not thread.is_alive()


def traces(caplog: pytest.LogCaptureFixture) -> set[str]:
    """The events that were logged with an exception."""
    return {record.getMessage() for record in caplog.records if record.exc_info}


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
@pytest.mark.parametrize("work", ["sweep_once", "_forget", "_mend", "_settle_sort"])
def test_the_sweep_goes_on(
    shared_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, work: str, error: Exception
) -> None:
    monkeypatch.setattr("brainhands.outbox.sweep.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("brainhands.outbox.sweep.FORGET_EVERY", 1)
    unexpected = Unexpected(error)
    monkeypatch.setattr(Sweep, work, unexpected)
    stopping = threading.Event()
    sweep = Sweep(
        Writer(shared_stage.database, Bell(NO_REDIS)),
        NOBODY,
        restart_limit=3,
        blocked_after_seconds=60,
        stopping=stopping,
    )

    with in_a_thread(sweep.run, stopping.set):
        assert unexpected.went_on.wait(20)
    assert traces(caplog) >= {"sweep_failed"}


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_the_relay_goes_on(
    shared_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("brainhands.outbox.relay.PAUSE_SECONDS", 0.01)
    unexpected = Unexpected(error)
    monkeypatch.setattr(Relay, "pass_once", unexpected)
    stopping = threading.Event()
    relay = Relay(shared_stage.database, Publisher(NO_REDIS), RelayBell(NO_REDIS), stopping)

    with in_a_thread(relay.run, stopping.set):
        assert unexpected.went_on.wait(20)
    assert traces(caplog) >= ({"pass_failed"} if not isinstance(error, OSError) else set())


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
@pytest.mark.parametrize("work", ["_say_alive", "_renew"])
def test_the_keeper_goes_on(
    shared_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, work: str, error: Exception
) -> None:
    unexpected = Unexpected(error)
    monkeypatch.setattr(Keeper, work, unexpected)
    info = shared_stage.first.info
    keeper = Keeper(shared_stage.database_url, info, lease_seconds=0.1, ends_process=False)

    keeper.start()
    assert unexpected.went_on.wait(20)
    keeper.stop()
    assert traces(caplog) == {"keeper_failed"}


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_progress_that_cannot_be_written_costs_neither_its_phase_nor_its_timer(
    shared_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("brainhands.shared.engine.run.PROGRESS_SECONDS", 0.05)
    session_id, _ = shared_stage.session()
    unexpected = Unexpected(error)
    monkeypatch.setattr(attempts, "write_progress", unexpected)
    task = shared_stage.task(shared_stage.add(session_id))
    run = Run(task, shared_stage.database, shared_stage.database, lambda: False, lambda: False, lambda: False)

    while not unexpected.went_on.is_set():
        run.progress("more")
    run.end()
    assert traces(caplog) >= {"progress_lost"}


@pytest.mark.promise("H13", "A1")
@pytest.mark.parametrize("error", [*UNEXPECTED, redis.ReadOnlyError(), redis.ResponseError("MISCONF")], ids=repr)
def test_a_bell_that_fails_in_any_way_is_silent(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    bell, relay = Bell(NO_REDIS), RelayBell(NO_REDIS)
    monkeypatch.setattr(bell._redis, "pipeline", fail)
    monkeypatch.setattr(relay._redis, "blpop", fail)

    bell.ring(new_session_id(), hints=True, ended=True)
    assert not relay.wait(0.01, threading.Event())


@pytest.mark.promise("H13", "I5")
@pytest.mark.parametrize("broken", ["shared.doors.watch.PubSub.connect", "shared.store.reads.observed"])
@pytest.mark.parametrize("error", [*UNEXPECTED, redis.ResponseError("MISCONF")], ids=repr)
def test_observers_go_on_after_an_error_of_what_they_listen_to(
    shared_stage: Stage, redis_url: str, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    """With one of its two ways gone a hub has the other; both come back."""
    unexpected = Unexpected(error)
    monkeypatch.setattr(f"brainhands.{broken}", unexpected)
    monkeypatch.setattr("brainhands.shared.doors.watch.POLL_SECONDS", 0.01)
    with Client(shared_stage.database_url, redis_url) as client, ThreadPoolExecutor() as beside:
        receipt = client.submit(agent=AGENT, input="hello")
        begun = len(client.events(receipt.session_id))
        waiting = beside.submit(next, client.watch(receipt.session_id, after=begun))
        assert unexpected.went_on.wait(20)

        client.cancel(session=receipt.session_id)

        assert waiting.result(20).seq == begun + 1


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_a_drain_that_cannot_be_recorded_says_so(
    shared_stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv("DATABASE_URL", shared_stage.database_url)
    monkeypatch.setenv("REDIS_URL", NO_REDIS)
    monkeypatch.setattr("brainhands.shared.engine.fleet.workers.drain", Unexpected(error))

    fleet._tell_children("here")

    assert traces(caplog) == {"drain_not_recorded"}


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
def test_what_a_worker_repeats_in_celerys_loop_is_repeated_after_an_error(error: Exception) -> None:
    unexpected = Unexpected(error)
    hub = Hub()
    hub.call_repeatedly(0.01, unexpected)

    end = time.monotonic() + 20
    while not unexpected.went_on.is_set():
        assert time.monotonic() < end
        hub.fire_timers()
    hub.close()


DIES = """
import threading, time
from brainhands.shared.runtime.logs import configure_logs
from brainhands.shared.runtime.threads import indispensable

def run():
    raise {error}

configure_logs("part")
indispensable(run, name="beside").start()
threading.Event().wait(60)
print("lived on")
"""


@pytest.mark.promise("H13")
@pytest.mark.parametrize("error", [*BEYOND, "KeyError('low')"])
def test_a_thread_that_cannot_go_on_ends_its_process_with_its_trace(error: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DIES.format(error=error)], capture_output=True, text=True, check=False, timeout=50
    )

    assert (ended.returncode, ended.stdout) == (70, "")
    assert "thread_ended_its_process thread=beside" in ended.stderr
    assert "run" in ended.stderr.partition("trace=")[2]


GUARDED = """
import time, uuid
from brainhands.shared.engine.keeper import Keeper
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.runtime.logs import configure_logs

configure_logs("hands")
info = WorkerInfo(id=uuid.uuid4(), role="hands", pool="hands.default", host="here", pid=1, parent_pid=1, slots=1,
                  environment="", offers=())
keeper = Keeper("postgresql://127.0.0.1:9/nowhere", info, lease_seconds=600, ends_process=True)
keeper.start()
while True:
    print("guard", keeper._guard._process.pid, flush=True)
    keeper.hold(uuid.uuid4(), 1, until=time.monotonic() + 600)
    time.sleep(0.05)
"""


@pytest.mark.crash
@pytest.mark.promise("H13", "D3")
def test_a_guard_that_died_is_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GUARDED]
    child = Child(command, log=tmp_path / "log", environment=child_environment(), folder=Path.cwd())
    try:
        first = child.wait_for_line("guard ")
        os.kill(int(first.split()[1]), signal.SIGKILL)
        child.wait_for_line("guard_ended")
        wait_until(lambda: child.output.splitlines()[-1] not in ("", first), 20, "another guard")
        assert child.returncode is None
    finally:
        child.kill()


@pytest.mark.promise("C12")
def test_a_claim_is_looked_at_within_a_second_also_in_a_process_that_held_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    renew = Keeper._renew

    def look(keeper: Keeper) -> bool:
        if keeper._held:
            looked.set()
        return renew(keeper)

    keeper = Keeper(stage.database_url, stage.first.info, lease_seconds=60, ends_process=False)
    rested = threading.Event()
    wait = keeper._wake.wait

    def rest(seconds: float) -> bool:
        rested.set()
        return wait(seconds)

    monkeypatch.setattr(keeper._wake, "wait", rest)
    monkeypatch.setattr(Keeper, "_renew", look)
    keeper.start()
    assert rested.wait(20)

    keeper.hold(new_task_id(), 1, until=time.monotonic() + 60)

    assert looked.wait(1.5)
    keeper.stop()
