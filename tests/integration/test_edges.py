"""What code of others shares with the engine's processes: their globals, event loop, timer, signals and children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many, task_of


@pytest.fixture(scope="module")
def rude(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process, in whose modules every shared global is changed."""
    with fleet_for_many(tmp_path_factory.mktemp("rude"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.rude_agents",
            "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.rude_tools",
            "BRAINHANDS_LEASE_SECONDS": "3",
            "SAMPLE_RUDE": "1",
        }
        fleet.everything()
        yield fleet
        invariants.check(fleet.database_url, at_rest=True)


def call(fleet: Fleet, tool: str, **arguments: Any) -> Receipt:
    """Let the model call one tool, and then answer."""
    return fleet.script({"calls": [{"name": tool, "arguments": arguments}]}, {"text": "done"}, agent="rude")


def result_of(fleet: Fleet, receipt: Receipt, tool: str) -> Any:
    done = fleet.wait(receipt)
    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "done")
    task = task_of(fleet, receipt.session_id, f"tool:{tool}")
    return task.result if task.outcome is Outcome.SUCCEEDED else task.error


@pytest.mark.promise("B1")
def test_globals_that_a_module_changes_change_nothing_of_what_is_stored(rude: Fleet) -> None:
    text = "1.50, \u00e9, 1e400"
    receipt = call(rude, "echo", text=text)

    assert result_of(rude, receipt, "echo") == text
    session = rude.client.session(receipt.session_id)
    exact = (session.tokens_in * Decimal("0.123457") + session.tokens_out * Decimal("7.654321")) / 1_000_000
    assert session.cost == exact
    assert rude.client.verify(receipt.session_id) is None


def test_what_a_module_keeps_of_the_event_loop_works_in_every_call_of_a_process(rude: Fleet) -> None:
    results = [result_of(rude, call(rude, "take_turns", name=name), "take_turns") for name in ("ann", "bob", "cy")]

    assert [result.partition(" in ")[0] for result in results] == [
        f"{name} had its turn" for name in ("ann", "bob", "cy")
    ]
    assert len({result.partition(" in ")[2] for result in results}) == 1


def test_a_tool_may_let_other_processes_work(rude: Fleet) -> None:
    assert result_of(rude, call(rude, "share_work", numbers=[1, 2, 3]), "share_work") == [1, 4, 9]


@pytest.mark.promise("D3")
@pytest.mark.crash
@pytest.mark.slow
def test_an_alarm_of_a_tools_own_comes_and_takes_no_lease_away(rude: Fleet) -> None:
    assert result_of(rude, call(rude, "own_alarm"), "own_alarm") == "its own alarm"

    receipt = call(rude, "deaf")
    assert "ended without a result" in result_of(rude, receipt, "deaf")
    (line,) = [line for line in rude.effects() if line.startswith("deaf ")]
    with pytest.raises(ProcessLookupError):
        os.kill(int(line.split()[1]), 0)


@pytest.mark.promise("F7")
@pytest.mark.crash
def test_a_call_whose_process_is_told_to_end_is_stored_at_once_with_that_cause_and_the_process_ends(
    rude: Fleet,
) -> None:
    receipt = call(rude, "told_to_end")
    wait_until(lambda: any(line.startswith("told_to_end") for line in rude.effects()), 20, "the call")
    (line,) = [line for line in rude.effects() if line.startswith("told_to_end")]
    child = int(line.split()[1])

    os.kill(child, signal.SIGTERM)

    assert result_of(rude, receipt, "told_to_end").startswith("SystemExit: ")
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), 20, "the end of the process")
