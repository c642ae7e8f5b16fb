"""Agents as tools of agents: own conversations, owned work, waits, cancels and limits, on real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brainhands.brain.decide import MAX_CALLS
from brainhands.brain.subagent import MAX_AGENT_CALLS, MAX_DEPTH
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import CancelState, Receipt
from brainhands.shared.model.task import Outcome, Status
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many, kill_worker_of, task_of, wait_for_task


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and two Hands processes for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("subagents"), postgres, redis_server) as fleet:
        fleet.relay()
        fleet.brain()
        fleet.hands(slots=2)
        fleet.wait_for_workers(brain=1, hands=2, relay=1)
        yield fleet
        invariants.check(fleet.database_url, at_rest=True)


def ask(agent: str, *steps: dict[str, Any], id: str | None = None) -> dict[str, Any]:
    """A call that lets an agent play these steps."""
    call = {"name": agent, "arguments": {"task": json.dumps({"script": list(steps)})}}
    return call if id is None else {**call, "id": id}


def results(fleet: Fleet, receipt: Receipt) -> dict[str, dict[str, Any]]:
    """The ends of the session's calls, by the model's call id."""
    ends = ("tool_call_success", "tool_call_error", "tool_call_interrupted")
    return {each["call_id"]: each for each in fleet.payloads(receipt.session_id, *ends)}


@pytest.mark.promise("A10", "E5")
def test_an_agent_answers_in_a_conversation_of_its_own_and_its_answer_is_the_result_of_the_call(crew: Fleet) -> None:
    noted = {"calls": [{"name": "note", "arguments": {"text": "by the scout"}}]}
    receipt = crew.script(
        {"calls": [ask("scout", noted, {"text": "all quiet"}, id="call_1")]}, {"text": "fine"}, agent="lead"
    )

    assert crew.wait(receipt).output == "fine"
    assert results(crew, receipt)["call_1"]["result"] == "all quiet"
    view = crew.client.session(receipt.session_id)
    call = task_of(crew, receipt.session_id, "agent:scout")
    main, own = view.conversations
    assert (main.owner_id, main.agent, own.owner_id, own.agent) == (None, "lead", call.id, "scout")
    below = [task for task in view.tasks if task.conversation_id == own.id]
    assert [(task.kind, task.owner_id == call.id) for task in below if task.kind == "generation"] == [
        ("generation", True)
    ] * 2
    requests = [body["messages"] for body in crew.model_requests() if "by the scout" in str(body["messages"])]
    inner = [messages for messages in requests if messages[0]["content"] == "Look into what you are asked."]
    assert len(inner) == 2
    assert all("Let others do it." not in str(messages) for messages in inner)


@pytest.mark.promise("A10", "C7")
def test_agents_called_together_work_at_the_same_time_and_one_failing_costs_the_others_nothing(crew: Fleet) -> None:
    slow = {"calls": [{"name": "slow", "arguments": {"seconds": 1}}]}
    calls = [
        ask("scout", slow, {"text": "north is quiet"}, id="call_north"),
        ask("scout", {"refusal": "I do not go there"}, id="call_east"),
        ask("scout", slow, {"text": "south is quiet"}, id="call_south"),
    ]
    receipt = crew.script({"calls": calls}, {"text": "two of three"}, agent="lead")

    assert crew.wait(receipt).output == "two of three"
    ends = results(crew, receipt)
    assert (ends["call_north"]["result"], ends["call_south"]["result"]) == ("north is quiet", "south is quiet")
    assert "refused: I do not go there" in ends["call_east"]["error"]


@pytest.mark.promise("A10", "C7", "C12")
def test_a_fail_fast_agent_cancels_the_others_with_all_they_own_and_goes_on(crew: Fleet) -> None:
    long = {"calls": [{"name": "slow", "arguments": {"seconds": 60}}]}
    calls = [ask("scout", long, id="call_long"), ask("scout", {"refusal": "no", "delay": 1.5}, id="call_no")]
    receipt = crew.script({"calls": calls}, {"text": "stopped"}, agent="brisk")

    assert crew.wait(receipt).output == "stopped"
    tasks = crew.client.session(receipt.session_id).tasks
    outcomes = {task.checkpoint["call"]["call_id"]: task.outcome for task in tasks if task.kind == "agent:scout"}
    assert outcomes == {"call_long": Outcome.CANCELLED, "call_no": Outcome.FAILED}
    assert all(task.status is Status.DONE for task in tasks)


@pytest.mark.promise("A10", "C12", "E11")
def test_cancelling_a_submission_ends_the_agents_below_it_before_those_above(crew: Fleet) -> None:
    inner = ask("nester", {"calls": [ask("nester", {"text": "late", "delay": 60})]})
    receipt = crew.script({"calls": [inner]}, agent="lead")
    wait_until(
        lambda: sum(each.kind == "generation" for each in crew.client.session(receipt.session_id).tasks) == 3,
        30,
        "three agents at work",
    )
    crew.client.cancel(submission=receipt.submission_id)

    assert crew.wait(receipt).outcome is Outcome.CANCELLED
    wait_until(
        lambda: all(task.status is Status.DONE for task in crew.client.session(receipt.session_id).tasks), 30, "the end"
    )
    follow_up = crew.script({"text": "as if nothing had been"}, agent="lead", session=receipt.session_id)
    assert crew.wait(follow_up).output == "as if nothing had been"


@pytest.mark.promise("A10", "C13")
def test_cancelling_one_call_of_an_agent_tells_the_caller_and_the_rest_goes_on(crew: Fleet) -> None:
    receipt = crew.script(
        {"calls": [ask("scout", {"text": "late", "delay": 60}, id="call_1")]}, {"text": "without it"}, agent="lead"
    )
    call = wait_for_task(crew, receipt.session_id, "agent:scout", "waiting")

    assert crew.client.cancel(task=call.id).state is not CancelState.TOO_LATE
    assert crew.wait(receipt).output == "without it"
    assert results(crew, receipt)["call_1"]["error"] == "cancelled while it was at work"


@pytest.mark.promise("A10")
def test_agents_call_each_other_only_so_deep_and_only_so_many_at_once(crew: Fleet) -> None:
    task: dict[str, Any] = {"text": "too deep"}
    for _ in range(MAX_DEPTH):
        task = {"calls": [ask("nester", task, {"text": "given on"})]}
    deep = crew.script({"calls": [ask("nester", task, {"text": "given on"})]}, {"text": "done"}, agent="lead")
    many = [ask("scout", {"text": str(place)}, id=f"call_{place}") for place in range(MAX_AGENT_CALLS + 1)]
    assert len(many) < MAX_CALLS
    wide = crew.script({"calls": many}, {"text": "done"}, agent="lead")

    assert crew.wait(deep).output == "done"
    assert [each["error"] for each in crew.payloads(deep.session_id, "tool_call_error")] == [
        f"not run: agents call each other no deeper than {MAX_DEPTH}"
    ]
    assert crew.wait(wide).output == "done"
    ends = results(crew, wide)
    assert [ends[f"call_{place}"].get("result") for place in range(MAX_AGENT_CALLS)] == list(map(str, range(8)))
    assert "no more than" in ends[f"call_{MAX_AGENT_CALLS}"]["error"]


@pytest.mark.promise("A10", "F13")
@pytest.mark.case("openai/openai-agents-python#2500")
def test_calling_an_agent_can_need_approval_and_the_arguments_can_be_edited(crew: Fleet) -> None:
    receipt = crew.script({"calls": [ask("scout", {"text": "as asked"})]}, {"text": "done"}, agent="wary")
    crew.wait_for_event(receipt.session_id, "human_approval_requested")
    (question,) = [each for each in crew.client.approvals() if each.session_id == receipt.session_id]

    edited = {"task": json.dumps({"script": [{"text": "as edited"}]})}
    assert crew.client.answer(question.id, "approved", arguments=edited).accepted
    assert crew.wait(receipt).output == "done"
    (result,) = crew.payloads(receipt.session_id, "tool_call_success")
    assert (result["result"], result["arguments"]) == ("as edited", edited)


@pytest.mark.promise("A10", "E12")
def test_a_call_of_an_agent_with_arguments_that_do_not_fit_gets_an_error_that_the_model_can_read(crew: Fleet) -> None:
    calls = [
        {"name": "scout", "arguments": {}, "id": "call_1"},
        {"name": "scout", "arguments": {"task": " "}, "id": "call_2"},
    ]
    receipt = crew.script({"calls": calls}, {"text": "I see"}, agent="lead")

    assert crew.wait(receipt).output == "I see"
    ends = results(crew, receipt)
    assert 'give {"task": "..."}' in ends["call_1"]["error"]
    assert "empty" in ends["call_2"]["error"]


@pytest.mark.promise("A10", "C4", "H1")
def test_a_brain_killed_while_an_agent_and_its_caller_are_at_work_costs_nothing(crew: Fleet) -> None:
    noted = {"calls": [{"name": "note", "arguments": {"text": "before the end"}}]}
    receipt = crew.script(
        {"calls": [ask("scout", noted, {"text": "survived", "delay": 2}, id="call_1")]}, {"text": "good"}, agent="lead"
    )
    crew.wait_for_effect("note before the end")
    wait_until(
        lambda: any(
            task.kind == "generation" and task.phase == "request" and task.input["round"] == 2 and task.is_open
            for task in crew.client.session(receipt.session_id).tasks
        ),
        30,
        "the second round of the scout",
    )
    kill_worker_of(crew, receipt.session_id, "generation")
    crew.brain()

    assert crew.wait(receipt).output == "good"
    assert results(crew, receipt)["call_1"]["result"] == "survived"
    assert crew.effects().count("note before the end") == 1
