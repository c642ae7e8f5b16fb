"""Structured answers through Brain: asked for in each way, validated, asked for again, and stored as JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brainhands.brain.answers import ALONE
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.task import Outcome
from tests.instruments import invariants
from tests.instruments.fleet import Fleet
from tests.instruments.sessions import fleet_for_many
from tests.sample.answering_agents import Delivery

ANSWER = {"to": {"number": 7, "street": "Mill Lane"}, "order": 42}
STORED = '{"order":42,"to":{"number":7,"street":"Mill Lane"}}'
UNFIT = {"order": 42, "to": {"street": "Mill Lane", "number": 0}}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    with fleet_for_many(tmp_path_factory.mktemp("answers"), postgres, redis_server) as fleet:
        fleet.environment |= {"BRAINHANDS_AGENTS": "tests.sample.answering_agents"}
        fleet.relay(), fleet.brain(), fleet.hands()
        fleet.wait_for_workers(relay=1, brain=1, hands=1)
        yield fleet
        invariants.check(fleet.database_url, at_rest=True)


def final(answer: Any) -> dict[str, Any]:
    return {"calls": [{"name": "final_answer", "arguments": answer}]}


def said(answer: Any) -> dict[str, Any]:
    return {"text": answer if isinstance(answer, str) else json.dumps(answer)}


def goes_on(fleet: Fleet, session: Any, agent: str) -> bool:
    return bool(fleet.wait(fleet.script(said(ANSWER), agent=agent, session=session)).output == STORED)


WAYS = [("by_tool", final), ("by_schema", final), ("by_tool", said), ("by_format", said), ("clerk", final)]


@pytest.mark.promise("E2", "E12")
@pytest.mark.parametrize(("agent", "given"), WAYS)
def test_an_answer_of_the_form_that_was_asked_for_is_stored_as_its_json(fleet: Fleet, agent: str, given: Any) -> None:
    receipt = fleet.script(given(ANSWER), agent=agent)

    done = fleet.wait(receipt)

    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, STORED)
    assert Delivery.model_validate_json(done.output).order == 42
    (request,) = fleet.payloads(receipt.session_id, "model_request")
    sent = fleet.model_requests()[-1]
    if agent == "by_format":
        assert request["output"]["by"] == "response_format"
        assert sent["response_format"]["json_schema"]["schema"] == request["output"]["parameters"]
        assert "tools" not in sent
    else:
        assert request["output"]["by"] == "tool"
        assert sent["tools"][-1]["function"]["name"] == "final_answer"
        assert sent["tools"][-1]["function"]["parameters"] == request["output"]["parameters"]
        assert "response_format" not in sent
    assert goes_on(fleet, receipt.session_id, agent)


@pytest.mark.promise("E2")
def test_in_the_background_the_form_of_the_answer_is_asked_for_as_well(fleet: Fleet) -> None:
    assert fleet.wait(fleet.script(said(ANSWER), agent="behind")).output == STORED

    assert fleet.model_requests()[-1]["text"]["format"]["type"] == "json_schema"


@pytest.mark.promise("E12")
@pytest.mark.parametrize(("agent", "given"), WAYS)
@pytest.mark.parametrize(
    "unfit",
    [
        UNFIT,
        {"order": 42},
        {"order": "many", "to": ANSWER["to"]},
        {**ANSWER, "via": "nowhere"},
        {**ANSWER, "via": "crash"},
        "It is on its way.",
        '{"order": 42,',
        "[1, 2]",
    ],
)
def test_an_answer_that_does_not_fit_is_asked_for_again_with_what_is_wrong(
    fleet: Fleet, agent: str, given: Any, unfit: Any
) -> None:
    receipt = fleet.script(given(unfit), given(ANSWER), agent=agent)

    done = fleet.wait(receipt)

    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, STORED)
    told = fleet.model_requests()[-1]["messages"][-1]
    assert told["role"] == ("tool" if given is final else "user")
    assert goes_on(fleet, receipt.session_id, agent)


@pytest.mark.promise("E12")
@pytest.mark.parametrize(("agent", "given"), WAYS)
def test_the_third_answer_that_does_not_fit_ends_the_input_with_the_reason(
    fleet: Fleet, agent: str, given: Any
) -> None:
    receipt = fleet.script(given(UNFIT), given({"order": 1}), given(UNFIT), given(ANSWER), agent=agent)

    done = fleet.wait(receipt)

    assert done.outcome is Outcome.FAILED
    assert (done.error or "").startswith("the answer was not what was asked for 3 times: to.number: ")
    assert len(fleet.payloads(receipt.session_id, "model_output")) == 3
    assert goes_on(fleet, receipt.session_id, agent)


@pytest.mark.promise("E11", "E12")
def test_an_answer_beside_other_calls_is_not_taken_and_the_calls_run(fleet: Fleet) -> None:
    echo = {"name": "echo", "arguments": {"text": "on its way"}}
    receipt = fleet.script({"calls": [*final(UNFIT)["calls"], echo]}, final(ANSWER), agent="by_tool")

    assert fleet.wait(receipt).output == STORED

    told = [each["content"] for each in fleet.model_requests()[-1]["messages"] if each["role"] == "tool"]
    assert told == [f"error: {ALONE}", "on its way"]


@pytest.mark.promise("A10", "E12")
def test_the_answer_of_an_agent_that_another_one_called_is_the_json_too(fleet: Fleet) -> None:
    task = json.dumps({"script": [final(UNFIT), final(ANSWER)]})
    receipt = fleet.script({"calls": [{"name": "clerk", "arguments": {"task": task}}]}, {"text": "ok"}, agent="asking")

    assert fleet.wait(receipt).output == "ok"

    ends = fleet.payloads(receipt.session_id, "tool_call_success")
    assert [each["result"] for each in ends if each["tool"] == "clerk"] == [STORED]
