"""Limits with real workers: calls write down when they begin and end, and what was under way at a time is counted."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from brainhands.shared.client import Client
from tests.instruments import invariants
from tests.instruments.fleet import Fleet
from tests.instruments.sessions import query, served_before


def most_at_a_time(lines: list[str], dead: int = 0) -> int:
    """How many calls were under way at most, as they wrote it down; what the process `dead` began never ended."""
    under_way = most = 0
    for line in lines:
        what, _, rest = line.partition(" ")
        if what in ("begin", "end") and not rest.endswith(f" {dead}"):
            under_way += 1 if what == "begin" else -1
            most = max(most, under_way)
    assert under_way == 0
    return most


def timed(tool: str, *texts: str, seconds: float = 0.3) -> dict[str, Any]:
    return {"calls": [{"name": tool, "arguments": {"text": text, "seconds": seconds}} for text in texts]}


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.promise("F11", "H6")
@pytest.mark.hazard(16)
@pytest.mark.case("janbjorge/pgqueuer#475")
def test_no_more_calls_run_at_a_time_than_their_tool_allows_even_if_one_dies(fleet: Fleet) -> None:
    fleet.brain(), fleet.hands(slots=4), fleet.relay(), fleet.relay()
    fleet.wait_for_workers(brain=1, hands=4, relay=2)
    receipts = [fleet.script(timed("narrow", "long", seconds=2.0), {"text": "done"}, agent="narrow")]
    fleet.wait_for_effect("begin long")
    receipts += [
        fleet.script(timed("narrow", *(f"{letter}{each}" for each in range(4))), {"text": "done"}, agent="narrow")
        for letter in "abc"
    ]
    dead = int(fleet.effects()[0].split()[-1])
    os.kill(dead, signal.SIGKILL)

    for receipt in receipts:
        assert fleet.wait(receipt, timeout=60).output == "done"

    ended = sorted(line.split()[1] for line in fleet.effects() if line.startswith("end"))
    assert ended == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0", "c1", "c2", "c3", "long"]
    assert most_at_a_time(fleet.effects(), dead) <= 2
    assert query(fleet, "SELECT count(*) AS slots, count(task_id) AS held FROM brainhands.slots") == [
        {"slots": 2, "held": 0}
    ]
    invariants.check(fleet.database_url, at_rest=True)


@pytest.mark.slow
@pytest.mark.promise("H10", "H9")
@pytest.mark.hazard(16)
def test_a_tenant_runs_no_more_at_a_time_than_it_may_and_keeps_no_other_one_waiting(fleet: Fleet) -> None:
    fleet.environment["BRAINHANDS_TENANT_CONCURRENCY"] = "2"
    fleet.brain(), fleet.hands(slots=4), fleet.relay()
    fleet.wait_for_workers(brain=1, hands=4, relay=1)
    other = Client(fleet.database_url, fleet.redis_url, tenant="other")
    receipts = [
        fleet.script(timed("timed", *(f"{letter}{each}" for each in range(4))), {"text": "done"}, agent="narrow")
        for letter in "abc"
    ]
    fleet.wait_for_effect("begin")

    single = other.submit(agent="worker", input="only this")
    assert other.wait(single.submission_id, timeout=40).output == "You said: only this"
    for receipt in receipts:
        assert fleet.wait(receipt, timeout=60).output == "done"
    other.close()

    assert most_at_a_time(fleet.effects()) <= 2
    assert served_before(fleet, "generation", single.session_id) <= 3
    invariants.check(fleet.database_url, at_rest=True)
