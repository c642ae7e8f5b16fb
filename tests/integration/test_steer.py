"""Input for a busy session: `steer` joins the present work at a safe boundary, `follow_up` runs after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import CancelState, Mode
from brainhands.shared.model.task import Outcome
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and two Hands processes for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("steer"), postgres, redis_server) as fleet:
        fleet.relay()
        fleet.brain()
        fleet.hands(slots=2)
        fleet.wait_for_workers(brain=1, hands=2, relay=1)
        yield fleet


SLOW_ROUND = {"calls": [{"name": "slow", "arguments": {"seconds": 2}, "id": "call_slow"}]}


@pytest.mark.promise("A9", "E11")
@pytest.mark.case("Yanyutin753/LambChat#496")
def test_steering_input_joins_after_the_results_and_is_answered_with_the_work(shared_fleet: Fleet) -> None:
    first = shared_fleet.script(SLOW_ROUND, {"text": "both answered"})
    shared_fleet.wait_for_event(first.session_id, "tool_call_start")
    steer = shared_fleet.submit("also think of this", session=first.session_id, mode=Mode.STEER)
    later = shared_fleet.script({"text": "later"}, session=first.session_id)

    assert shared_fleet.wait(steer).outcome is Outcome.SUCCEEDED
    assert shared_fleet.wait(first).output == shared_fleet.wait(steer).output
    assert shared_fleet.wait(later).output == "later"
    types = shared_fleet.types(first.session_id)
    steered_at = [place for place, type in enumerate(types) if type == "user_message"][1]
    assert types[steered_at - 1 : steered_at + 2] == ["tool_call_success", "user_message", "model_request"]
    requests = [body["messages"] for body in shared_fleet.model_requests()]
    (with_steer,) = [messages for messages in requests if messages[-1]["content"] == "also think of this"]
    assert [message["role"] for message in with_steer[-4:]] == ["assistant", "tool", "assistant", "user"]


@pytest.mark.promise("A9")
@pytest.mark.hazard(18)
def test_steering_input_that_came_too_late_starts_the_next_work(shared_fleet: Fleet) -> None:
    first = shared_fleet.script({"text": "answered without it", "delay": 2})
    shared_fleet.wait_for_event(first.session_id, "model_request")
    steer = shared_fleet.script({"text": "answered on its own"}, session=first.session_id, mode=Mode.STEER)

    assert shared_fleet.wait(first).output == "answered without it"
    assert shared_fleet.wait(steer).output == "answered on its own"


@pytest.mark.promise("A9", "C12")
def test_cancelling_input_that_joined_ends_the_work_it_joined(shared_fleet: Fleet) -> None:
    first = shared_fleet.script(SLOW_ROUND, {"text": "slow", "delay": 20})
    shared_fleet.wait_for_event(first.session_id, "tool_call_start")
    steer = shared_fleet.script({"text": "slow", "delay": 20}, session=first.session_id, mode=Mode.STEER)
    shared_fleet.wait_for_event(first.session_id, "tool_call_success")
    wait_until(lambda: shared_fleet.types(first.session_id).count("user_message") == 2, 20, "it joined")

    assert shared_fleet.client.cancel(submission=steer.submission_id).state is not CancelState.TOO_LATE
    assert shared_fleet.wait(steer).outcome is Outcome.CANCELLED
    assert shared_fleet.wait(first).outcome is Outcome.CANCELLED
