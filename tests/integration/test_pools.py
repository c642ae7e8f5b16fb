"""Pools keep fleets apart: what one of them cannot do, or does slowly, does not hold up another."""

from __future__ import annotations

import pytest

from brainhands.shared.model.submission import SubmissionStatus
from tests.instruments.fleet import Fleet, wait_until


@pytest.mark.promise("H9")
def test_a_slow_pool_and_one_without_workers_hold_up_no_other(fleet: Fleet) -> None:
    fleet.everything()
    slow_worker = fleet.hands(queue="hands.slow")
    fleet.wait_for_workers(hands=2)

    def call(name: str, **arguments: object) -> dict[str, object]:
        return {"calls": [{"name": name, "arguments": arguments}]}

    slow = [fleet.script(call("apart_slow", seconds=3), {"text": "slow"}, agent="apart") for _ in range(4)]
    wait_until(lambda: any("tool_call_start" in fleet.types(each.session_id) for each in slow), 20, "the pool is busy")
    quick = [fleet.script(call("echo", text="quick"), {"text": "quick"}, agent="apart") for _ in range(4)]

    assert [fleet.wait(each).output for each in quick] == ["quick"] * 4
    states = [fleet.client.submission(each.submission_id).status for each in slow]
    assert SubmissionStatus.DONE not in states[1:]
    slow_worker.kill()
    again = fleet.script(call("echo", text="still"), {"text": "still"}, agent="apart")
    assert fleet.wait(again).output == "still"
