"""A release beside the one before it: this code is the old build, and a copy of it with what a release changes the new.

The next release has a migration of its own, an event of a new log format in each request that it prepares, and other
versions of agents, tools and flows.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.store import migrate
from tests.instruments import invariants
from tests.instruments.builds import NEXT_FORMAT, RELEASE, ROOT, Edit, build
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.runs import count, doubled, finish, missing, start_runs, wait_for_results
from tests.instruments.sessions import open_gate, query, wait_for_task


@pytest.fixture(scope="module")
def next_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the next release."""
    return build(tmp_path_factory.mktemp("next"), RELEASE)


@pytest.fixture
def old(fleet: Fleet) -> Fleet:
    """A fleet whose parts are of this release until told otherwise."""
    fleet.environment |= {
        "BRAINHANDS_AGENTS": "tests.sample.agents,tests.sample.odd_agents",
        "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.odd_tools",
    }
    return fleet


def brainhands(fleet: Fleet, folder: Path, *arguments: str, status: int = 0) -> str:
    """What a command of a build prints."""
    done = subprocess.run(
        [sys.executable, "-m", "brainhands.shared.cli.main", *arguments],
        env={**fleet.environment, "COLUMNS": "120"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def ids_of(fleet: Fleet, *parts: Child) -> set[UUID]:
    """The workers in these processes and their children."""
    pids = [part.pid for part in parts]
    found = query(fleet, "SELECT id FROM brainhands.workers WHERE pid = ANY (%s) OR parent_pid = ANY (%s)", pids, pids)
    return {row["id"] for row in found}


def writers(fleet: Fleet, receipt: Receipt, type: str) -> list[UUID | None]:
    """Who wrote the session's events of a type, in their order."""
    return [event.worker_id for event in fleet.client.events(receipt.session_id) if event.type == type]


def newest(fleet: Fleet, receipt: Receipt, kind: str) -> Task:
    return [task for task in fleet.client.session(receipt.session_id).tasks if task.kind == kind][-1]


def wait_until_blocked(fleet: Fleet, receipt: Receipt, kind: str, reason: str) -> None:
    def blocked() -> bool:
        tasks = fleet.client.session(receipt.session_id).tasks
        return any((task.kind, task.blocked) == (kind, reason) for task in tasks)

    wait_until(blocked, 40, reason)
    found = json.loads(brainhands(fleet, ROOT, "doctor", "--json", status=1))["findings"]
    assert (str(receipt.session_id), reason) in [(each["subject"][-36:], each["problem"]) for each in found]
    assert f"blocked: {reason}\n" in brainhands(fleet, ROOT, "show", str(receipt.session_id))


@pytest.mark.slow
@pytest.mark.promise("K5", "H7", "C14")
@pytest.mark.hazard(16, 24)
@pytest.mark.case("celery/celery#6485: work that an old worker does not know is dropped during a deploy")
def test_old_and_new_workers_run_side_by_side_over_a_migration_and_do_everything_once(
    old: Fleet, next_build: Path
) -> None:
    fleet = old
    first = [fleet.relay(), fleet.brain(), fleet.hands(slots=2)]
    fleet.wait_for_workers(relay=1, brain=1, hands=2)
    runs = start_runs(fleet, 4, seconds=0.2, name="before")
    wait_for_results(fleet, 2)

    assert brainhands(fleet, next_build, "migrate") == f"schema r9000: migrated from {migrate.newest()}\n"
    assert "newer than this code, which works with it" in brainhands(fleet, ROOT, "migrate")
    fleet.folder = next_build
    new = [fleet.relay(), fleet.brain(), fleet.hands(slots=2)]
    fleet.folder = ROOT
    first[1].stop()
    first[1] = fleet.brain()
    fleet.wait_for_workers(relay=2, brain=2, hands=4)
    old_ids, new_ids = ids_of(fleet, *first), ids_of(fleet, *new)
    runs |= start_runs(fleet, 8, seconds=0.2, name="mixed")
    wait_for_results(fleet, 20)
    for part in first:
        part.stop()
    finish(fleet, runs)

    assert doubled(fleet.effects()) == []
    assert missing(fleet.effects(), runs, "note", "reconcile", "safe") == []
    mixed = [receipt for run, receipt in runs.items() if run.startswith("mixed")]
    for type in ("model_output", "tool_call_success"):
        wrote = {writer for receipt in mixed for writer in writers(fleet, receipt, type)}
        assert wrote & old_ids, type
        assert wrote & new_ids, type
    unwanted = "('task_recovered', 'task_blocked', 'task_failed')"
    assert count(fleet, f"SELECT count(*) FROM brainhands.events WHERE type IN {unwanted}") == 0
    # As long as one old worker was there, nothing was written that it could not read.
    (last_old,) = query(fleet, "SELECT max(at) AS at FROM brainhands.events WHERE worker_id = ANY (%s)", list(old_ids))
    remarked = "SELECT count(*) AS early FROM brainhands.events WHERE type = 'remark' AND at < %s"
    assert query(fleet, remarked, last_old["at"]) == [{"early": 0}]
    after = fleet.script({"text": "after"})
    assert fleet.wait(after).output == "after"
    assert "remark" in fleet.types(after.session_id)
    assert fleet.client.session(after.session_id).session.log_format == NEXT_FORMAT


@pytest.mark.slow
@pytest.mark.promise("K5", "H7", "C14")
@pytest.mark.hazard(24)
def test_a_session_is_handed_over_at_each_phase_from_old_to_new_and_back_without_waiting_for_a_lease(
    old: Fleet, next_build: Path
) -> None:
    fleet = old
    fleet.environment |= {"BRAINHANDS_LEASE_SECONDS": "60"}
    brainhands(fleet, next_build, "migrate")

    def start(folder: Path, brains: int, hands: int) -> tuple[Child, Child, set[UUID]]:
        fleet.folder = folder
        parts = fleet.brain(), fleet.hands()
        fleet.wait_for_workers(brain=brains, hands=hands)
        return *parts, ids_of(fleet, *parts)

    fleet.relay()
    brain, hands, first_ids = start(ROOT, 1, 1)
    receipt = fleet.script(
        {"calls": [{"name": "gated", "arguments": {"name": "there"}}]},
        {"calls": [{"name": "gated", "arguments": {"name": "back"}}]},
        {"text": "through"},
        agent="odd",
    )
    handed_on = [first_ids]
    for gate, folder in (("there", next_build), ("back", ROOT)):
        fleet.wait_for_effect(f"gated {gate}")
        next_brain, next_hands, ids = start(folder, 2, 2)
        handed_on.append(ids)
        brain.stop()
        hands.send(signal.SIGTERM)
        open_gate(fleet, gate)
        assert hands.wait() == 0
        brain, hands = next_brain, next_hands

    assert fleet.wait(receipt).output == "through"
    wrote = {
        type: writers(fleet, receipt, type)
        for type in ("model_output", "tool_call_success", "task_recovered", "remark")
    }
    first, there, back = handed_on
    assert [writer in ids for writer, ids in zip(wrote["model_output"], (first, there, back), strict=True)] == [
        True
    ] * 3
    assert [writer in ids for writer, ids in zip(wrote["tool_call_success"], (first, there), strict=True)] == [True] * 2
    assert wrote["task_recovered"] == wrote["remark"] == []
    assert fleet.effects() == ["gated there", "gated back"]
    invariants.check(fleet.database_url, at_rest=True)


@pytest.mark.slow
@pytest.mark.promise("K5", "H7", "H8")
@pytest.mark.hazard(24)
def test_after_a_rollback_what_was_written_in_the_new_format_waits_with_its_reason_and_the_rest_goes_on(
    old: Fleet, next_build: Path
) -> None:
    fleet = old
    brainhands(fleet, next_build, "migrate")
    fleet.folder = next_build
    relay, brain, _hands = fleet.relay(), fleet.brain(), fleet.hands()
    fleet.wait_for_workers(relay=1, brain=1, hands=1)
    receipt = fleet.script({"text": "new"})
    assert fleet.wait(receipt).output == "new"
    assert "remark" in fleet.types(receipt.session_id)

    fleet.folder = ROOT
    brain.stop(), relay.stop()
    fleet.relay(), fleet.brain()
    fleet.wait_for_workers(relay=1, brain=1)
    again = fleet.script({"text": "again"}, session=receipt.session_id)
    fresh = fleet.script({"text": "fresh"})
    assert fleet.wait(fresh).output == "fresh"
    assert "remark" not in fleet.types(fresh.session_id)
    wait_until_blocked(fleet, again, "generation", f"no live worker reads log format {NEXT_FORMAT}")
    shown = brainhands(fleet, ROOT, "show", str(receipt.session_id))
    assert "remark                   (version 1, not known here)" in shown
    assert brainhands(fleet, ROOT, "verify", str(receipt.session_id))

    fleet.folder = next_build
    fleet.brain()
    assert fleet.wait(again).output == "again"
    claims = query(fleet, "SELECT 1 FROM brainhands.attempts WHERE task_id = %s", newest(fleet, again, "generation").id)
    assert len(claims) == 1
    invariants.check(fleet.database_url, at_rest=True)


TOOLS, AGENTS = "tests/sample/tools.py", "tests/sample/agents.py"
SEND = '@tool(replay="safe", timeout=30{})\ndef send_safe'
PAYMENT = 'class Payment(Flow, name="payment", version={}):'
WORKER = 'name="worker",\n    version={},\n    instructions="{}",'
KEPT = WORKER.format(1, "Do as you are told.")
RETOLD = (
    Edit(TOOLS, "seconds=seconds, key=order)", "seconds=seconds, key=order, checkpoint={'for': order})"),
    Edit(TOOLS, "return Done(self.signal)", "return Done({**self.checkpoint, **self.signal})"),
)
TOLD_WHAT_FOR = """
def told_what_for(state):
    return FlowState(phase=state.phase, arguments=state.arguments, checkpoint={'for': state.arguments['order']})


"""
WITHOUT_OLD = (
    *RETOLD,
    Edit(TOOLS, SEND.format(""), SEND.format(", version=2")),
    Edit(TOOLS, PAYMENT.format(1), PAYMENT.format(2)),
    Edit(AGENTS, KEPT, WORKER.format(2, "You are new.")),
)
WITH_OLD = (
    *RETOLD,
    Edit(TOOLS, SEND.format(""), SEND.format(", version=3, accepts=1")),
    Edit(TOOLS, "    Flow,\n", "    Flow,\n    FlowState,\n"),
    Edit(
        TOOLS,
        PAYMENT.format(1),
        TOLD_WHAT_FOR + PAYMENT.format("3, migrations={1: told_what_for, 2: lambda state: state}"),
    ),
    Edit(AGENTS, KEPT, WORKER.format("3,\n    continues=1", "You go on.")),
)


@pytest.mark.slow
@pytest.mark.promise("H7", "H8", "K5")
@pytest.mark.hazard(25)
@pytest.mark.case("czpython/druks#619: what was begun before a deploy never goes on after it")
def test_what_a_deploy_leaves_behind_is_blocked_with_its_reason_until_a_version_comes_that_takes_it_up(
    old: Fleet, tmp_path: Path
) -> None:
    fleet = old
    without, with_old = build(tmp_path / "without", WITHOUT_OLD), build(tmp_path / "with", WITH_OLD)
    fleet.relay()
    brain, hands = fleet.brain(), fleet.hands()
    fleet.wait_for_workers(relay=1, brain=1, hands=1)
    paying = fleet.script(
        {"calls": [{"name": "payment", "arguments": {"order": "7", "seconds": 300}}]}, {"text": "paid"}
    )
    talking = fleet.script({"text": "hello"})
    fleet.wait(talking)
    wait_for_task(fleet, paying.session_id, "flow:payment", Status.WAITING)
    hands.stop()
    sending = fleet.script({"calls": [{"name": "send_safe", "arguments": {"to": "a"}}]}, {"text": "sent"})
    fleet.wait_for_event(sending.session_id, "model_output")
    brain.stop()

    fleet.folder = without
    parts = [fleet.brain(), fleet.hands()]
    fleet.wait_for_workers(brain=1, hands=1)
    fleet.client.signal(paying.session_id, "paid", {"cents": 5}, key="7")
    more = fleet.script({"text": "once more"}, session=talking.session_id)
    wait_until_blocked(fleet, sending, "tool:send_safe", "no live worker offers tool:send_safe@1")
    wait_until_blocked(fleet, paying, "flow:payment", "no live worker offers flow:payment@1")
    wait_until_blocked(fleet, more, "generation", "no live worker offers agent:worker@1")
    assert fleet.effects() == []
    for part in parts:
        part.stop()

    fleet.folder = with_old
    fleet.brain(), fleet.hands()
    assert [fleet.wait(each).output for each in (sending, paying, more)] == ["sent", "paid", "once more"]
    assert [line.split()[:2] for line in fleet.effects()] == [["safe", "a"]]
    assert (newest(fleet, sending, "tool:send_safe").version, newest(fleet, paying, "flow:payment").version) == (3, 3)
    (told,) = fleet.payloads(paying.session_id, "tool_call_success")
    assert told["result"] == {"for": "7", "name": "paid", "key": "7", "payload": {"cents": 5}}
    prompts = fleet.payloads(talking.session_id, "system_prompt_set")
    assert [(each["agent_version"], each["instructions"]) for each in prompts] == [
        (1, "Do as you are told."),
        (3, "You go on."),
    ]
    assert fleet.client.session(talking.session_id).conversations[0].agent_version == 3
    assert [each["agent_version"] for each in fleet.payloads(talking.session_id, "model_request")] == [1, 3]
    assert fleet.wait(more).outcome is Outcome.SUCCEEDED
    invariants.check(fleet.database_url, at_rest=True)
