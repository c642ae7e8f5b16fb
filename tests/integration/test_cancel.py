"""Cancel: the wish is stored first, goes down the tree, works in every status, and the caller learns what won."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brainhands.shared.client import Client
from brainhands.shared.errors import BadInput, UnknownAgent, UnknownTask
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.model.submission import CancelState, Receipt, SubmissionStatus
from brainhands.shared.model.task import Outcome, Status, Task
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and two Hands processes for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("cancel"), postgres, redis_server) as fleet:
        fleet.relay()
        fleet.brain()
        fleet.hands(slots=2)
        fleet.wait_for_workers(brain=1, hands=2, relay=1)
        yield fleet


def calls(*names_and_arguments: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in names_and_arguments]}


def tasks(fleet: Fleet, receipt: Receipt) -> list[Task]:
    return list(fleet.client.session(receipt.session_id).tasks)


def wait_for_status(fleet: Fleet, receipt: Receipt, kind: str, status: Status) -> Task:
    def found() -> list[Task]:
        return [task for task in tasks(fleet, receipt) if task.kind == kind and task.status is status]

    wait_until(lambda: bool(found()), 30, f"{kind} {status}")
    return found()[0]


@pytest.mark.promise("C12", "C13", "F7")
@pytest.mark.hazard(11)
@pytest.mark.case("langchain-ai/langgraph#6726")
def test_a_call_under_way_ends_as_unknown_and_the_submission_as_cancelled(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script(calls(("send_unsafe", {"to": "cancel-1", "seconds": 25})), {"text": "never"})
    shared_fleet.wait_for_effect("unsafe cancel-1")

    answer = shared_fleet.client.cancel(submission=receipt.submission_id)

    assert answer.state is CancelState.ENDING
    done = shared_fleet.wait(receipt, timeout=20)
    assert (done.outcome, done.error) == (Outcome.CANCELLED, "cancelled")
    (interrupted,) = shared_fleet.payloads(receipt.session_id, "tool_call_interrupted")
    assert "may have happened" in interrupted["error"]
    assert interrupted["partial"] == "sending to cancel-1\n"
    ended = {task.kind: task.outcome for task in tasks(shared_fleet, receipt)}
    assert ended == {"generation": Outcome.CANCELLED, "tool:send_unsafe": Outcome.INTERRUPTED}
    assert len([line for line in shared_fleet.effects() if line.startswith("unsafe cancel-1")]) == 1


@pytest.mark.promise("C12")
def test_what_is_owned_ends_before_its_owner(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script(calls(("slow", {"seconds": 20}), ("note", {"text": "quick"})), {"text": "never"})
    wait_for_status(shared_fleet, receipt, "tool:slow", Status.RUNNING)
    shared_fleet.wait_for_effect("note quick")

    shared_fleet.client.cancel(submission=receipt.submission_id)
    owner = wait_for_status(shared_fleet, receipt, "generation", Status.COMPLETING)

    assert owner.outcome is Outcome.CANCELLED
    assert shared_fleet.wait(receipt, timeout=20).outcome is Outcome.CANCELLED
    types = shared_fleet.types(receipt.session_id)
    assert types.index("tool_call_interrupted") < types.index("submission_done")


@pytest.mark.promise("C12")
@pytest.mark.case("restatedev/restate#3656")
def test_a_sleeping_retry_ends_at_once(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script({"fault": "429", "retry_after": 600}, {"text": "never"})
    wait_for_status(shared_fleet, receipt, "generation", Status.SLEEPING)

    answer = shared_fleet.client.cancel(submission=receipt.submission_id)

    assert (answer.state, answer.outcome) == (CancelState.CANCELLED, Outcome.CANCELLED)
    assert shared_fleet.client.submission(receipt.submission_id).status is SubmissionStatus.DONE


@pytest.mark.promise("C12")
def test_a_model_stream_is_cut_and_its_text_stays_as_a_record(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script({"text": "one two three four five six seven eight nine ten", "chunk_delay": 1.5})
    wait_for_status(shared_fleet, receipt, "generation", Status.RUNNING)

    shared_fleet.client.cancel(submission=receipt.submission_id)
    done = shared_fleet.wait(receipt, timeout=15)

    assert done.outcome is Outcome.CANCELLED
    assert "model_output" not in shared_fleet.types(receipt.session_id)
    assert "model_interrupted" in shared_fleet.types(receipt.session_id)


@pytest.mark.promise("C12")
@pytest.mark.case("celery/celery#6075")
def test_it_works_without_any_worker_that_fits(shared_fleet: Fleet) -> None:
    with pytest.warns(UnknownAgent, match="nobody-has-this-one"):
        receipt = shared_fleet.submit("hello", agent="nobody-has-this-one")

    answer = shared_fleet.client.cancel(session=receipt.session_id)

    assert answer.state is CancelState.CANCELLED
    assert shared_fleet.client.submission(receipt.submission_id).outcome is Outcome.CANCELLED
    assert all(not task.is_open for task in tasks(shared_fleet, receipt))


@pytest.mark.promise("C12", "A9")
def test_input_that_waits_is_withdrawn_and_the_session_goes_on(shared_fleet: Fleet) -> None:
    first = shared_fleet.script(calls(("slow", {"seconds": 2})), {"text": "first"})
    second = shared_fleet.submit("echo second", session=first.session_id)
    third = shared_fleet.script({"text": "third"}, session=first.session_id)

    answer = shared_fleet.client.cancel(submission=second.submission_id)

    assert (answer.state, answer.outcome) == (CancelState.CANCELLED, Outcome.CANCELLED)
    assert shared_fleet.wait(first).output == "first"
    assert shared_fleet.wait(third).output == "third"


@pytest.mark.promise("C13")
def test_a_completion_that_came_first_stands(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script({"text": "done already"})
    shared_fleet.wait(receipt)

    answer = shared_fleet.client.cancel(submission=receipt.submission_id)

    assert (answer.state, answer.outcome) == (CancelState.TOO_LATE, Outcome.SUCCEEDED)
    assert "cancel_requested" not in shared_fleet.types(receipt.session_id)


@pytest.mark.promise("C13")
def test_cancel_and_completion_at_the_same_time_agree_on_who_won(shared_fleet: Fleet) -> None:
    receipts = [shared_fleet.script({"text": "quick"}) for _ in range(8)]
    for place, receipt in enumerate(receipts):
        time.sleep(0.02 * place)
        shared_fleet.client.cancel(submission=receipt.submission_id)
    for receipt in receipts:
        done = shared_fleet.wait(receipt)
        ends = shared_fleet.payloads(receipt.session_id, "submission_done")
        assert [end["outcome"] for end in ends] == [done.outcome]
        assert done.outcome in (Outcome.CANCELLED, Outcome.SUCCEEDED)


@pytest.mark.promise("C12")
def test_one_task_can_be_cancelled_and_its_caller_goes_on(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script(calls(("slow", {"seconds": 30}), ("echo", {"text": "kept"})), {"text": "went on"})
    slow = wait_for_status(shared_fleet, receipt, "tool:slow", Status.RUNNING)

    shared_fleet.client.cancel(task=slow.id)

    assert shared_fleet.wait(receipt, timeout=20).output == "went on"


@pytest.mark.promise("C7")
def test_fail_fast_stops_owned_siblings_and_resumes_when_they_have_wound_up(shared_fleet: Fleet) -> None:
    receipt = shared_fleet.script(calls(("race", {"seconds": 30})), {"text": "told"})
    assert shared_fleet.wait(receipt, timeout=25).output == "told"

    (result,) = [
        payload["result"]
        for payload in shared_fleet.payloads(receipt.session_id, "tool_call_success")
        if payload["tool"] == "race"
    ]
    assert result["failing"] == "failed"
    assert result["slow"] in ("cancelled", "interrupted")


@pytest.mark.promise("C12")
def test_bad_wishes_are_told_what_is_wrong(shared_fleet: Fleet) -> None:
    client: Client = shared_fleet.client
    with pytest.raises(BadInput):
        client.cancel()
    with pytest.raises(UnknownTask):
        client.cancel(task=new_task_id())
