"""What a model call uses and says of itself: a budget of tokens, and log-probabilities where they are asked for."""

from __future__ import annotations

import pytest

from brainhands.shared.model.task import Outcome
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


@pytest.mark.promise("E14")
def test_log_probabilities_are_recorded_where_the_agent_asks_for_them(fleet: Fleet) -> None:
    fleet.relay()
    fleet.brain()
    fleet.wait_for_workers(brain=1, relay=1)

    asked = fleet.script({"text": "quite sure"}, agent="curious")
    plain = fleet.script({"text": "quite sure"}, agent="thrifty")

    assert fleet.wait(asked).output == "quite sure"
    (output,) = fleet.payloads(asked.session_id, "model_output")
    assert "".join(token for token, _ in output["logprobs"]) == "quite sure"
    assert all(logprob == -0.693 for _, logprob in output["logprobs"])
    fleet.hands()
    fleet.wait(plain)
    (output,) = fleet.payloads(plain.session_id, "model_output")
    assert output["logprobs"] is None
