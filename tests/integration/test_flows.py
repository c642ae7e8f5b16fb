"""Business flows as tools: item by item, over crashes, sleeps and children that end in every way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.bus.topics import HANDS_QUEUE, HANDS_TASK, write_hints
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import CancelState, Receipt
from brainhands.shared.model.task import Outcome, Status
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import (
    events_of,
    fleet_for_many,
    kill_worker_of,
    make_due,
    open_gate,
    query,
    task_of,
    tool_messages,
    wait_for_task,
)

ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and two Hands processes with the odd flows, on short leases."""
    with fleet_for_many(tmp_path_factory.mktemp("flows"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.odd_agents",
            "BRAINHANDS_TOOLS": "tests.sample.odd_tools,tests.sample.odd_flows",
            "BRAINHANDS_LEASE_SECONDS": "1.5",
        }
        fleet.relay(), fleet.brain(slots=2), fleet.hands(slots=2)
        fleet.wait_for_workers(relay=1, brain=1, hands=2)
        yield fleet


def start(fleet: Fleet, flow: str, **arguments: Any) -> Receipt:
    """Let the model call one flow, and then answer."""
    step = {"calls": [{"name": flow, "arguments": arguments, "id": f"call_{flow}"}]}
    return fleet.script(step, {"text": "done"}, agent="flowing")


def end_of(fleet: Fleet, receipt: Receipt) -> dict[str, Any]:
    """The payload of the event that ended the model's call, once the model has answered."""
    done = fleet.wait(receipt)
    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "done")
    (payload,) = (each for each in fleet.payloads(receipt.session_id, *ENDS) if each["call_id"] is not None)
    return payload


def result_of(fleet: Fleet, receipt: Receipt) -> Any:
    payload = end_of(fleet, receipt)
    assert "result" in payload, payload
    return payload["result"]


def acts(fleet: Fleet, start: str) -> list[str]:
    return [line for line in fleet.effects() if line.startswith(start)]


def document_of(fleet: Fleet, session: UUID, name: str) -> tuple[int, Any]:
    """Version and value of the session's document as observers see it."""
    (found,) = (each for each in fleet.client.session(session).documents if each.name == name)
    return found.version, found.value


@pytest.mark.promise("F12", "C4", "B10", "G1")
@pytest.mark.crash
def test_a_batch_recovers_item_by_item_as_a_flow_and_as_one_call_as_a_tool(flows: Fleet) -> None:
    customers = ["first", "held", "third"]
    flow = start(flows, "mailing", customers=customers, body="news")
    flows.wait_for_effect("deliver deliver:held/news")
    wait_until(lambda: len(flows.payloads(flow.session_id, "tool_call_success")) == 2, 20, "the other two are done")
    kill_worker_of(flows, flow.session_id, "tool:deliver")

    result = result_of(flows, flow)

    assert result == {"body": "news", "states": dict.fromkeys(customers, "succeeded")}
    assert sorted(acts(flows, "deliver ")) == sorted(
        ["deliver deliver:first/news", *["deliver deliver:held/news"] * 2, "deliver deliver:third/news"]
    )
    version, plan = document_of(flows, flow.session_id, "plan")
    assert (version, plan["mails"][1]) == (2, {"to": "held", "state": "succeeded"})

    box = start(flows, "deliver_all", customers=customers, body="news")
    flows.wait_for_effect("box held/news")
    kill_worker_of(flows, box.session_id, "tool:deliver_all")

    assert result_of(flows, box) == 3
    assert acts(flows, "box ") == [
        "box first/news",
        "box held/news",
        "box first/news",
        "box held/news",
        "box third/news",
    ]


@pytest.mark.promise("C11", "B1", "B10", "G1")
def test_the_plan_the_children_and_the_wait_for_them_are_one_commit(flows: Fleet) -> None:
    receipt = start(flows, "mailing", customers=["a", "b"], body="one commit")
    result_of(flows, receipt)

    owner = task_of(flows, receipt.session_id, "flow:mailing")
    made = events_of(flows, receipt.session_id, "task_created")
    (waits,) = events_of(flows, receipt.session_id, "task_phase")
    children = [task for task in flows.client.session(receipt.session_id).tasks if task.owner_id == owner.id]
    plan = flows.client.document(receipt.session_id, "plan", version=1)
    assert {task.kind for task in children} == {"tool:deliver"}
    assert len(made) == len(children) == 2
    assert {event.at for event in made} | {task.created_at for task in children} == {waits.at}
    assert plan.seq == waits.seq
    assert plan.value == {"mails": [{"to": to, "state": "planned"} for to in ("a", "b")]}
    assert flows.client.documents(receipt.session_id, at=waits.seq - 1) == []
    assert sorted(task.cause for task in children) == [event.seq for event in made]
    intents = flows.payloads(receipt.session_id, "tool_call_start")
    assert {each["operation_id"] for each in intents} >= {"deliver:a/one commit", "deliver:b/one commit"}


@pytest.mark.promise("B9", "B10", "B3")
@pytest.mark.hazard(9)
def test_parallel_children_that_change_one_document_lose_none_of_each_others_changes(flows: Fleet) -> None:
    receipt = start(flows, "count_all", names=["x", "y"], group="together")
    wait_until(lambda: len(acts(flows, "counts together")) == 2, 20, "both children run at once")
    open_gate(flows, "together")

    counted = result_of(flows, receipt)

    assert sorted(counted) == ["x", "y"]
    assert document_of(flows, receipt.session_id, "steps") == (2, {"done": counted})


@pytest.mark.promise("B9", "B10", "B3")
@pytest.mark.hazard(9)
def test_many_children_change_one_document_through_its_deltas_and_each_change_is_in_the_history(flows: Fleet) -> None:
    names = [f"customer-{number:02}@example.com".ljust(60, ".") for number in range(24)]
    open_gate(flows, "many")
    receipt = start(flows, "count_all", names=names, group="many")

    counted = result_of(flows, receipt)

    assert sorted(counted) == names
    history = flows.client.document_history(receipt.session_id, "steps")
    assert [each.change[-1][-1] for each in history[1:]] == [[name] for name in counted[1:]]
    for each in history:
        then = flows.client.document(receipt.session_id, "steps", at=each.seq)
        assert (then.version, then.value) == (each.version, {"done": counted[: each.version]})
    (rows,) = query(
        flows,
        "SELECT count(*) AS all, count(delta) AS deltas FROM brainhands.documents WHERE session_id = %s",
        receipt.session_id,
    )
    assert rows["all"] == len(names)
    assert rows["deltas"] > len(names) / 2


@pytest.mark.promise("C2", "C3", "B5", "F12")
@pytest.mark.crash
def test_a_flow_whose_process_dies_enters_its_stored_phase_at_the_start_again(flows: Fleet) -> None:
    receipt = start(flows, "stumble", name="once")

    assert result_of(flows, receipt) == {"left by": "one"}

    assert acts(flows, "stumble once") == [f"stumble once {name}" for name in ("one", "two", "two", "three")]
    assert document_of(flows, receipt.session_id, "steps") == (2, {"done": ["one", "two"]})
    assert len(events_of(flows, receipt.session_id, "task_created")) == 1
    (recovered,) = flows.payloads(receipt.session_id, "task_recovered")
    assert (recovered["kind"], recovered["phase"]) == ("flow:stumble", "two")


@pytest.mark.promise("C10")
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize(("how", "cause"), [("kill", "its worker died"), ("raise", "RuntimeError: cannot go on")])
def test_a_flow_that_always_fails_in_one_phase_stops_at_the_limit_with_its_cause(
    flows: Fleet, how: str, cause: str
) -> None:
    receipt = start(flows, "poison", name=how, how=how)

    error = end_of(flows, receipt)["error"]

    assert error.startswith(f"stopped after 3 attempts in phase fall: {cause}")
    assert len(acts(flows, f"poison {how}")) == 3
    (failed,) = flows.payloads(receipt.session_id, "task_failed")
    assert (failed["kind"], failed["error"]) == ("flow:poison", error)
    task = task_of(flows, receipt.session_id, "flow:poison")
    assert (task.status, task.outcome, task.error) == (Status.DONE, Outcome.FAILED, error)
    assert tool_messages(flows, f'"name": "{how}", "how"')[0] == f"error: {error}"


@pytest.mark.promise("C1", "C3", "C5", "B9")
def test_a_sleeping_flow_holds_nothing_and_wakes_with_all_it_knew(flows: Fleet) -> None:
    receipt = start(flows, "dream", about="sheep")
    asleep = wait_for_task(flows, receipt.session_id, "flow:dream", Status.SLEEPING)

    assert (asleep.kind, asleep.version, asleep.phase) == ("flow:dream", 1, "wake_up")
    assert (asleep.worker_id, asleep.lease_until) == (None, None)
    assert asleep.wake_at is not None
    (moved,) = events_of(flows, receipt.session_id, "task_phase")
    assert (asleep.wake_at - moved.at).total_seconds() == 3600
    assert document_of(flows, receipt.session_id, "steps") == (1, {"done": ["asleep"]})
    make_due(flows, receipt.session_id)

    assert result_of(flows, receipt) == {"about": "sheep", "checkpoint": {"dreams of": "sheep"}, "steps": ["asleep"]}


@pytest.mark.promise("C1", "C8")
def test_a_flow_with_its_outcome_decided_is_completing_until_its_child_has_ended(flows: Fleet) -> None:
    receipt = start(flows, "leave_early", gate="left-behind")
    flows.wait_for_effect("gated left-behind")
    completing = wait_for_task(flows, receipt.session_id, "flow:leave_early", Status.COMPLETING)
    generation = wait_for_task(flows, receipt.session_id, "generation", Status.WAITING)
    child = task_of(flows, receipt.session_id, "tool:gated")

    assert (completing.outcome, completing.result) == (Outcome.SUCCEEDED, "left early")
    assert (completing.worker_id, generation.phase) == (None, "tools")
    assert (child.status, child.owner_id, completing.owner_id) == (Status.RUNNING, completing.id, generation.id)
    open_gate(flows, "left-behind")

    assert result_of(flows, receipt) == "left early"
    ended = task_of(flows, receipt.session_id, "flow:leave_early")
    assert (ended.status, ended.outcome, ended.result) == (Status.DONE, Outcome.SUCCEEDED, "left early")


@pytest.mark.promise("C8", "C13")
@pytest.mark.hazard(49)
def test_cancelling_what_is_completing_ends_its_work_and_its_outcome_stands(flows: Fleet) -> None:
    receipt = start(flows, "leave_early", gate="never-opened")
    flows.wait_for_effect("gated never-opened")
    completing = wait_for_task(flows, receipt.session_id, "flow:leave_early", Status.COMPLETING)

    told = flows.client.cancel(task=completing.id)
    assert (told.state, told.outcome) == (CancelState.TOO_LATE, Outcome.SUCCEEDED)
    assert result_of(flows, receipt) == "left early"
    assert task_of(flows, receipt.session_id, "tool:gated").outcome is Outcome.INTERRUPTED


@pytest.mark.promise("C1", "C7", "F9", "F7")
def test_a_flow_goes_on_when_all_its_children_have_settled_and_is_told_how_each_ended(flows: Fleet) -> None:
    receipt = start(flows, "settle", gate="the-last")
    wait_until(lambda: len(flows.payloads(receipt.session_id, *ENDS)) == 3, 20, "three of four children have ended")

    waiting = task_of(flows, receipt.session_id, "flow:settle")
    assert (waiting.status, waiting.phase) == (Status.WAITING, "tell")
    open_gate(flows, "the-last")

    assert result_of(flows, receipt) == [
        ["succeeded", "noted settles"],
        ["failed", "settles not"],
        ["interrupted", "ValueError: boom"],
        ["succeeded", "through the-last"],
    ]


@pytest.mark.promise("F7", "F12")
def test_a_flow_that_gives_up_fails_for_sure_and_stores_only_what_it_returned(flows: Fleet) -> None:
    returned = start(flows, "give_up", how="return")
    raised = start(flows, "give_up", how="raise")

    assert end_of(flows, returned)["error"] == "gave up"
    assert end_of(flows, raised)["error"] == "nobody is at home"

    assert task_of(flows, returned.session_id, "flow:give_up").result == {"how": "return"}
    assert document_of(flows, returned.session_id, "steps") == (1, {"done": ["given up"]})
    assert flows.client.session(raised.session_id).documents == ()


@pytest.mark.promise("C10", "C11")
@pytest.mark.slow
def test_a_child_that_nobody_offers_fails_its_flow_with_the_reason_and_makes_nothing(flows: Fleet) -> None:
    receipt = start(flows, "give_up", how="nameless")

    error = end_of(flows, receipt)["error"]

    assert "no Hands worker has published no_such_tool" in error
    assert flows.client.session(receipt.session_id).documents == ()
    assert "task_created" not in flows.types(receipt.session_id)


@pytest.mark.promise("E12", "F12")
def test_arguments_that_do_not_fit_a_flow_are_a_definite_error(flows: Fleet) -> None:
    receipt = start(flows, "mailing", customers="everybody")

    error = end_of(flows, receipt)["error"]

    assert error.startswith("the arguments do not fit: ")
    assert "body: is required" in error
    assert "tool_call_start" not in flows.types(receipt.session_id)


@pytest.mark.promise("C9", "H3")
def test_a_flow_that_is_done_keeps_its_result_whatever_hints_come_for_it(flows: Fleet) -> None:
    receipt = start(flows, "mailing", customers=["only"], body="kept")
    result_of(flows, receipt)
    before = (flows.types(receipt.session_id), flows.client.session(receipt.session_id).tasks)
    app = celery_app("forger", redis_url=flows.redis_url, queue=HANDS_QUEUE, pool="prefork")
    for task in before[1]:
        app.send_task(HANDS_TASK, kwargs=write_hints([(task.id, task.session_id)]), queue=HANDS_QUEUE)
    app.close()

    # The queue is read in its order: when later flows are done, those hints were taken.
    for number in range(2):
        result_of(flows, start(flows, "mailing", customers=[f"after-{number}"], body="kept"))

    assert acts(flows, "deliver deliver:only") == ["deliver deliver:only/kept"]
    assert (flows.types(receipt.session_id), flows.client.session(receipt.session_id).tasks) == before
