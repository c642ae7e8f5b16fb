"""Workers killed, stopped, drained and cut off: what may act, who goes on, and what is never done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from brainhands.outbox.publisher import Publisher
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from brainhands.shared.store import health
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.instruments.runs import doubled, finish, missing, start_runs, through

pytestmark = pytest.mark.crash


@pytest.fixture
def fleet(fleet: Fleet) -> Fleet:
    """A fleet that also has the rough agent and tools."""
    fleet.environment["BRAINHANDS_AGENTS"] += ",tests.sample.rough_agents"
    fleet.environment["BRAINHANDS_TOOLS"] += ",tests.sample.rough_tools"
    return fleet


def rows(fleet: Fleet, statement: str) -> list[dict[str, Any]]:
    with psycopg.connect(fleet.database_url, row_factory=dict_row) as connection:
        return connection.execute(statement).fetchall()


def wait_for_row(fleet: Fleet, statement: str) -> dict[str, Any]:
    wait_until(lambda: bool(rows(fleet, statement)), 30, statement)
    return rows(fleet, statement)[0]


def wait_for_calls(fleet: Fleet, number: int) -> None:
    """Until so many tool calls have ended, however they did."""
    wait_until(
        lambda: sum(each["status"] == "done" for each in tasks(fleet, "tool:%")) >= number, 90, f"{number} calls"
    )


def tasks(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    return rows(fleet, f"SELECT * FROM brainhands.tasks WHERE kind LIKE '{kind}' ORDER BY id")


def call(fleet: Fleet, tool: str, *, then: str = "done", **arguments: Any) -> Receipt:
    """Let the rough agent call one tool and then answer."""
    return fleet.script({"calls": [{"name": tool, "arguments": arguments}]}, {"text": then}, agent="rough")


def acting_process(fleet: Fleet, start: str) -> int:
    """The process that a tool wrote behind its first effect of this beginning."""
    fleet.wait_for_effect(start)
    return int(next(line for line in fleet.effects() if line.startswith(start)).split()[-1])


def gone(pid: int) -> bool:
    """True for a process that has ended, waited for by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_gone(pid: int, timeout: float = 30) -> None:
    wait_until(lambda: gone(pid), timeout, f"the end of process {pid}")


def guard_of(pid: int) -> int:
    """The guard that watches over a Hands process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if "guard.py" in Path(f"/proc/{child}/cmdline").read_text())


def answered(fleet: Fleet, receipt: Receipt, output: str = "done") -> None:
    done = fleet.wait(receipt, 60)
    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, output)
    invariants.check(fleet.database_url)


@pytest.mark.promise("A6")
def test_input_accepted_a_moment_before_every_process_dies_is_worked_on_when_processes_return(fleet: Fleet) -> None:
    parts = [fleet.relay(), fleet.brain(), fleet.hands()]
    fleet.wait_for_workers(brain=1, hands=1, relay=1)

    receipts = [fleet.submit("echo back again", agent="echo") for _ in range(3)]
    for part in parts:
        part.kill()
    assert all(fleet.client.submission(each.submission_id).output is None for each in receipts)
    fleet.relay(), fleet.brain(), fleet.hands()

    for receipt in receipts:
        answered(fleet, receipt, "back again")


@pytest.mark.promise("C4", "H6")
@pytest.mark.case("celery/kombu#1836", "procrastinate-org/procrastinate#307", "procrastinate-org/procrastinate#1518")
def test_a_call_whose_worker_was_killed_runs_again_on_another_worker(fleet: Fleet) -> None:
    fleet.relay(), fleet.brain()
    first = fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = call(fleet, "hold", text="x", seconds=60)
    fleet.wait_for_effect("hold x began")

    fleet.hands()
    first.kill()

    answered(fleet, receipt)
    assert [line.split()[2] for line in fleet.effects()] == ["began", "began", "acted"]
    (recovered,) = fleet.payloads(receipt.session_id, "task_recovered")
    assert recovered["phase"] == "execute"


@pytest.mark.promise("C5")
@pytest.mark.case("celery/celery#1810", "vercel/workflow#679")
def test_a_sleeping_task_holds_nothing_keeps_its_time_over_restarts_and_runs_at_once_when_that_has_passed(
    fleet: Fleet,
) -> None:
    parts = [fleet.relay(), fleet.brain(), fleet.hands()]
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = call(fleet, "later", seconds=3)
    wait_until(lambda: [each["status"] for each in tasks(fleet, "tool:%")] == ["sleeping"], 30, "a sleeping task")
    (asleep,) = tasks(fleet, "tool:%")
    assert (asleep["worker_id"], asleep["lease_until"]) == (None, None)

    for part in parts:
        part.kill()
    due = "SELECT clock_timestamp() > wake_at AS due, wake_at FROM brainhands.tasks WHERE status = 'sleeping'"
    wait_until(lambda: rows(fleet, due)[0]["due"], 30, "the time to wake")
    assert rows(fleet, due)[0]["wake_at"] == asleep["wake_at"]
    fleet.relay(), fleet.brain(), fleet.hands()

    answered(fleet, receipt)
    assert fleet.effects() == ["later acted"]


@pytest.mark.promise("C6", "H1")
def test_a_result_that_comes_while_every_brain_and_relay_is_gone_waits_for_a_brain(fleet: Fleet) -> None:
    relay, brain, hands = fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)
    two = [{"name": "hold_unsafe", "arguments": {"text": text, "seconds": 2}} for text in "xy"]
    receipt = fleet.script({"calls": two}, {"text": "done"}, agent="rough")
    for text in "xy":
        fleet.wait_for_effect(f"hold {text} began")

    relay.kill()
    brain.kill()
    assert [each["status"] for each in tasks(fleet, "generation")] == ["waiting"]
    wait_until(lambda: fleet.types(receipt.session_id).count("tool_call_success") == 2, 30, "both results")
    hands.kill()
    assert [each["status"] for each in tasks(fleet, "generation")] == ["pending"]
    assert fleet.client.submission(receipt.submission_id).output is None

    fleet.relay(), fleet.brain()
    answered(fleet, receipt)


@pytest.mark.slow
@pytest.mark.promise("C10")
@pytest.mark.hazard(12)
@pytest.mark.case("celery/celery#9082")
def test_a_tool_that_kills_its_process_each_time_ends_at_the_limit_and_its_neighbours_live_on(fleet: Fleet) -> None:
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "2"
    fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=1)

    poisoned = call(fleet, "poison", text="x", then="went on without it")
    neighbours = [call(fleet, "hold", text=f"neighbour-{number}", seconds=1) for number in range(4)]

    for neighbour in neighbours:
        answered(fleet, neighbour)
    answered(fleet, poisoned, "went on without it")
    assert sum(line.startswith("poison") for line in fleet.effects()) == 3
    assert sum("acted" in line for line in fleet.effects()) == len(neighbours)
    assert doubled(line.rpartition(" ")[0] for line in fleet.effects() if line.startswith("hold")) == []
    (interrupted,) = fleet.payloads(poisoned.session_id, "tool_call_interrupted")
    assert interrupted["error"].startswith("stopped after 3 attempts in phase execute: ")


def plain_celery(fleet: Fleet, _role: str) -> Child:
    return fleet.hands()


def command_line(fleet: Fleet, role: str) -> Child:
    return fleet._start(role, "-m", "brainhands.shared.cli.main", role, environment={})


@pytest.mark.slow
@pytest.mark.promise("C14")
@pytest.mark.parametrize("start", [plain_celery, command_line])
@pytest.mark.case("temporalio/sdk-python#368", "celery/celery#9505")
def test_a_hands_worker_told_to_stop_finishes_its_call_and_another_takes_what_follows(
    fleet: Fleet, start: Callable[[Fleet, str], Child]
) -> None:
    # A lease that nobody would wait for.
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "100"
    fleet.relay(), fleet.brain()
    first = start(fleet, "hands")
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = call(fleet, "hold_unsafe", text="x", seconds=2)
    fleet.wait_for_effect("hold x began")

    first.send(signal.SIGTERM)
    wait_until(lambda: any(row["draining"] for row in rows(fleet, "SELECT * FROM brainhands.workers")), 30, "a drain")
    after = call(fleet, "hold", text="y", seconds=0)
    fleet.hands()

    answered(fleet, receipt)
    answered(fleet, after)
    assert first.wait() == 0
    assert [line.split()[1:3] for line in fleet.effects() if " x " in line] == [["x", "began"], ["x", "acted"]]
    left = rows(fleet, f"SELECT * FROM brainhands.workers WHERE {first.pid} IN (pid, parent_pid)")
    assert left == []


@pytest.mark.slow
@pytest.mark.promise("C14")
def test_a_brain_told_to_stop_in_mid_request_finishes_it_and_another_brain_goes_on(fleet: Fleet) -> None:
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "100"
    fleet.relay(), fleet.hands()
    first = command_line(fleet, "brain")
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = fleet.script(
        {"calls": [{"name": "note", "arguments": {"text": "x"}}], "delay": 2.0}, {"text": "done"}, agent="rough"
    )
    wait_until(lambda: len(fleet.model_requests()) == 1, 30, "a request to the model")

    first.send(signal.SIGTERM)
    assert first.wait() == 0
    fleet.brain()

    answered(fleet, receipt)
    assert len(fleet.model_requests()) == 2
    assert "model_interrupted" not in fleet.types(receipt.session_id)


@pytest.mark.slow
@pytest.mark.promise("C14")
@pytest.mark.parametrize("shown", [0, 3])
def test_a_brain_that_somebody_stops_by_ctrl_c_leaves_its_model_call_and_the_next_brain_makes_it_again(
    fleet: Fleet, shown: int
) -> None:
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "100"
    fleet.relay(), fleet.hands()
    first = command_line(fleet, "brain")
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    hangs = {"fault": "hang", "times": 1, "chunks": shown, "text": "a text of some pieces"}
    receipt = fleet.script(hangs, agent="rough")
    wait_until(lambda: len(fleet.model_requests()) == 1, 30, "a request to the model")

    first.send(signal.SIGINT)
    first.wait(15)
    (task,) = tasks(fleet, "generation")
    fleet.brain()

    answered(fleet, receipt, "a text of some pieces")
    assert (task["outcome"], task["phase"], task["checkpoint"]["retries"]) == (None, "retry", 0)
    assert fleet.types(receipt.session_id).count("model_interrupted") == 1
    assert not {"model_error", "task_recovered"} & set(fleet.types(receipt.session_id))


@pytest.mark.promise("C14")
@pytest.mark.case("dbos-inc/dbos-transact-py#804")
def test_a_flow_whose_worker_is_told_to_stop_between_two_steps_goes_on_elsewhere_at_once(fleet: Fleet) -> None:
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "100"
    fleet.relay(), fleet.brain()
    first = fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    texts = {"texts": ["a", "b", "c"]}
    receipt = fleet.script({"calls": [{"name": "batch", "arguments": texts}]}, {"text": "done"})
    fleet.wait_for_effect("note a")

    first.send(signal.SIGTERM)
    fleet.hands()

    answered(fleet, receipt)
    assert sorted(fleet.effects()) == ["note a", "note b", "note c"]


@pytest.mark.promise("D1", "H3")
@pytest.mark.case("celery/celery#5935", "dbos-inc/dbos-transact-py#742")
def test_of_many_workers_with_the_same_hint_one_runs_the_task(fleet: Fleet) -> None:
    fleet.brain(), fleet.hands(slots=2), fleet.hands(slots=2)
    relay = fleet.relay()
    fleet.wait_for_workers(brain=1, hands=4, relay=1)
    warm = call(fleet, "note", text="warm")
    answered(fleet, warm)
    # The relay must not race with the test for the hint.
    relay.send(signal.SIGSTOP)
    receipt = call(fleet, "hold_unsafe", text="x", seconds=1)
    publisher = Publisher(fleet.redis_url)
    for queue in ("brain.default", "hands.default"):
        hint = wait_for_row(fleet, "SELECT task_id, session_id, requires_name FROM brainhands.outbox")
        for _ in range(20):
            publisher.publish(queue, [hint])
        wait_for_row(fleet, f"SELECT * FROM brainhands.attempts WHERE task_id = '{hint['task_id']}'")
    publisher.close()
    relay.send(signal.SIGCONT)

    answered(fleet, receipt)
    assert [line.split()[2] for line in fleet.effects() if line.startswith("hold x")] == ["began", "acted"]
    (task,) = tasks(fleet, "tool:hold_unsafe")
    attempts = rows(fleet, f"SELECT * FROM brainhands.attempts WHERE task_id = '{task['id']}'")
    assert [attempt["worker_id"] for attempt in attempts] == [attempts[0]["worker_id"]]


@pytest.mark.promise("D2", "E4")
def test_a_brain_that_was_stopped_beyond_its_lease_can_store_nothing_when_it_goes_on(fleet: Fleet) -> None:
    fleet.relay(), fleet.hands()
    first = fleet.brain()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = fleet.script({"text": "done", "delay": 1.5}, agent="echo")
    wait_until(lambda: len(fleet.model_requests()) == 1, 30, "a request to the model")

    first.send(signal.SIGSTOP)
    fleet.brain()
    answered(fleet, receipt)
    first.send(signal.SIGCONT)
    first.wait_for_line("write_refused")

    assert fleet.types(receipt.session_id).count("model_output") == 1
    assert fleet.types(receipt.session_id)[-1] == "submission_done"


@pytest.mark.slow
@pytest.mark.promise("D3")
@pytest.mark.hazard(8)
@pytest.mark.parametrize("guarded", [True, False], ids=["with its guard", "with its guard stopped too"])
@pytest.mark.case("janbjorge/pgqueuer#430")
def test_a_hands_process_stopped_beyond_its_lease_never_acts_again(fleet: Fleet, guarded: bool) -> None:
    fleet.relay(), fleet.brain(), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = call(fleet, "hold", text="x", seconds=1)
    process = acting_process(fleet, "hold x began")
    guard = guard_of(process)

    if not guarded:
        os.kill(guard, signal.SIGSTOP)
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: bool(fleet.payloads(receipt.session_id, "task_recovered")), 30, "the end of the lease")
    if guarded:
        wait_gone(process)
    else:
        assert not gone(process)
        os.kill(process, signal.SIGCONT)
        wait_gone(process)
        os.kill(guard, signal.SIGCONT)

    answered(fleet, receipt)
    acted = [line for line in fleet.effects() if line.startswith("hold x acted")]
    assert len(acted) == 1
    assert int(acted[0].split()[-1]) != process


HELD_TOO_LATE = """
import time, uuid
from brainhands.shared.engine.keeper import Keeper
from brainhands.shared.model.worker import WorkerInfo

worker = WorkerInfo(id=uuid.uuid4(), role="hands", pool="hands.default", host="here", pid=1, parent_pid=1, slots=1,
                    environment="", offers=())
keeper = Keeper("postgresql://127.0.0.1:9/nowhere", worker, lease_seconds=3, ends_process=True)
keeper.hold(uuid.uuid4(), 1, until=time.monotonic() - 0.001)
print("acted")
"""


@pytest.mark.promise("D3")
def test_a_process_that_learns_of_its_claim_after_the_lease_has_ended_does_not_act() -> None:
    ended = subprocess.run([sys.executable, "-c", HELD_TOO_LATE], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (-signal.SIGALRM, "")


@pytest.mark.slow
@pytest.mark.promise("D3")
@pytest.mark.hazard(8)
@pytest.mark.case("celery/celery#1958")
def test_a_tool_that_holds_the_interpreter_in_c_code_is_ended_with_its_lease(fleet: Fleet) -> None:
    fleet.relay(), fleet.brain(), fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = call(fleet, "spin", text="x")
    process = acting_process(fleet, "spin x began")
    guard = guard_of(process)
    os.kill(guard, signal.SIGSTOP)  # the kernel's timer alone must do

    wait_gone(process)
    os.kill(guard, signal.SIGCONT)

    answered(fleet, receipt)
    acted = [line for line in fleet.effects() if line.startswith("spin x acted")]
    assert len(acted) == 1
    assert int(acted[0].split()[-1]) != process


@pytest.mark.slow
@pytest.mark.promise("D3")
@pytest.mark.hazard(8)
@pytest.mark.parametrize("fault", ["killed", "stopped", "cut off"])
@pytest.mark.case("temporalio/sdk-python#1048")
def test_what_a_tool_started_stops_acting_with_its_worker(fleet: Fleet, fault: str) -> None:
    port = urlsplit(fleet.database_url).port
    assert port is not None
    with Proxy(LOOPBACK, port) as proxy:
        fleet.relay(), fleet.brain()
        first = fleet.hands(DATABASE_URL=through(proxy, fleet.database_url))
        fleet.wait_for_workers(brain=1, hands=1, relay=1)
        receipt = call(fleet, "start_program", text="x", seconds=5)
        process = acting_process(fleet, "program x began")
        match fault:
            case "killed":
                first.send(signal.SIGKILL)
            case "stopped":
                os.kill(process, signal.SIGSTOP)
            case "cut off":
                proxy.freeze()
        fleet.hands()

        answered(fleet, receipt)
        wait_until(lambda: members(process) == [], 30, "the end of all that the tool started")
    assert not any("acts" in line for line in fleet.effects())


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not gone(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


@pytest.mark.slow
@pytest.mark.promise("D3")
@pytest.mark.parametrize("way", ["frozen", "refused"])
@pytest.mark.case("celery/celery#1715")
def test_a_hands_process_cut_off_from_postgres_dies_before_it_acts_beyond_its_lease(fleet: Fleet, way: str) -> None:
    port = urlsplit(fleet.database_url).port
    assert port is not None
    with Proxy(LOOPBACK, port) as proxy:
        fleet.relay(), fleet.brain()
        fleet.hands(DATABASE_URL=through(proxy, fleet.database_url))
        fleet.wait_for_workers(brain=1, hands=1, relay=1)
        receipt = call(fleet, "hold", text="x", seconds=6)
        process = acting_process(fleet, "hold x began")

        if way == "frozen":
            proxy.freeze()
        else:
            proxy.refuse()
            proxy.cut()
        wait_gone(process)
        fleet.hands()

        answered(fleet, receipt)
    acted = [line for line in fleet.effects() if line.startswith("hold x acted")]
    assert len(acted) == 1
    assert int(acted[0].split()[-1]) != process


@pytest.mark.slow
@pytest.mark.promise("F4", "D3")
@pytest.mark.hazard(36)
def test_an_unsafe_call_outlives_an_outage_of_postgres_that_is_longer_than_a_lease(fleet: Fleet) -> None:
    port = urlsplit(fleet.database_url).port
    assert port is not None
    fleet.environment["BRAINHANDS_LEASE_SECONDS"] = "1.5"
    with Proxy(LOOPBACK, port) as proxy:
        fleet.relay(), fleet.brain()
        fleet.hands(DATABASE_URL=through(proxy, fleet.database_url))
        fleet.wait_for_workers(brain=1, hands=1, relay=1)
        receipt = fleet.script(
            {"calls": [{"name": "send_unsafe", "arguments": {"to": "ann", "seconds": 1}}]}, {"text": "done"}
        )
        fleet.wait_for_effect("unsafe ann")
        (began,) = rows(fleet, "SELECT clock_timestamp() AS at")
        proxy.freeze()
        passed = "SELECT 1 FROM generate_series(1, 1) WHERE clock_timestamp() > '{}'::timestamptz + interval '5 s'"
        wait_for_row(fleet, passed.format(began["at"].isoformat()))
        proxy.thaw()

        answered(fleet, receipt)
    assert [each["result"] for each in fleet.payloads(receipt.session_id, "tool_call_success")] == ["sent to ann"]
    assert sum(line.startswith("unsafe ann") for line in fleet.effects()) == 1


@pytest.mark.slow
@pytest.mark.promise("D5", "H6")
def test_a_busy_healthy_system_has_no_finding(fleet: Fleet) -> None:
    fleet.relay(), fleet.relay(), fleet.brain(), fleet.hands(slots=2)
    fleet.wait_for_workers(brain=1, hands=2, relay=2)
    runs = start_runs(fleet, 16)

    looks = 0
    while any(fleet.client.submission(each.submission_id).output is None for each in runs.values()):
        assert health.without_mover(fleet.database) == []
        assert health.blocked(fleet.database) == []
        looks += 1
    assert looks > 10
    told = subprocess.run(
        [sys.executable, "-m", "brainhands.shared.cli.main", "doctor", "--json"],
        env=fleet.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (json.loads(told.stdout), told.returncode) == ({"ok": True, "findings": []}, 0)
    finish(fleet, runs)


@pytest.mark.slow
@pytest.mark.promise("H6", "G4")
def test_workers_and_relays_killed_at_random_moments_lose_and_double_nothing(fleet: Fleet) -> None:
    chance = random.Random(11)
    starts: list[Callable[[], Child]] = [fleet.relay, fleet.brain, fleet.hands]
    parts = [(start, start()) for start in (*starts, *starts)]
    fleet.wait_for_workers(brain=2, hands=2, relay=2)
    runs = start_runs(fleet, 12, seconds=0.2)

    for moment in sorted(chance.sample(range(1, 34), 6)):
        wait_for_calls(fleet, moment)
        start, victim = parts.pop(chance.randrange(len(parts)))
        victim.kill()
        parts.append((start, start()))

    finish(fleet, runs, 90)
    # A safe tool may act again, the others must not; an unsafe one that was killed before it acted is interrupted.
    assert doubled(line for line in fleet.effects() if not line.startswith("safe ")) == []
    interrupted = {run for run, each in runs.items() if fleet.payloads(each.session_id, "tool_call_interrupted")}
    uninterrupted = {run: each for run, each in runs.items() if run not in interrupted}
    assert missing(fleet.effects(), runs, "reconcile", "safe") == missing(fleet.effects(), uninterrupted, "note") == []
    assert len(interrupted) < len(runs) // 2
