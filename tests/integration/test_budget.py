"""A session that has used its tokens up makes no further request, and says so."""

from __future__ import annotations

import pytest

from shared.model.task import Outcome
from tests.instruments.fleet import Fleet


@pytest.mark.promise("E13")
def test_a_budget_stops_a_session_before_its_next_request(fleet: Fleet) -> None:
    fleet.everything()
    step = {
        "calls": [{"name": "echo", "arguments": {"text": "a"}}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 20},
    }

    stopped = fleet.wait(fleet.script(step, {"text": "never"}, agent="thrifty"))

    assert stopped.outcome is Outcome.FAILED
    assert "budget of 100 tokens is used up: 110" in (stopped.error or "")
    assert len(fleet.model_requests()) == 1
    again = fleet.wait(fleet.submit("and now?", agent="thrifty", session=stopped.session_id))
    assert again.outcome is Outcome.FAILED
    assert len(fleet.model_requests()) == 1
    cheap = {"text": "cheap", "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    assert fleet.wait(fleet.script(cheap, agent="thrifty")).output == "cheap"
