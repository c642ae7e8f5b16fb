"""People decide: approvals before a call runs, reviews of what became of one; bound, dated, and each used once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from brainhands.shared.errors import BadInput, UnknownApproval
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.approval import Answer, Approval, Question
from brainhands.shared.model.ids import new_approval_id
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome, Status
from brainhands.shared.store import health
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.sessions import fleet_for_many

ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")


@pytest.fixture(scope="module")
def hands_child() -> list[Child]:
    """The Hands worker of the shared fleet, for tests that stop and start it."""
    return []


@pytest.fixture(scope="module")
def shared_fleet(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis, hands_child: list[Child]
) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("approvals"), postgres, redis_server) as fleet:
        fleet.relay()
        fleet.brain()
        hands_child.append(fleet.hands())
        fleet.wait_for_workers(brain=1, hands=1, relay=1)
        yield fleet


def call(fleet: Fleet, tool: str, *, agent: str = "careful", **arguments: Any) -> Receipt:
    step = {"calls": [{"name": tool, "arguments": arguments, "id": f"call_{tool}"}]}
    return fleet.script(step, {"text": "done"}, agent=agent)


def question(fleet: Fleet, receipt: Receipt) -> Approval:
    def found() -> list[Approval]:
        return [each for each in fleet.client.approvals() if each.session_id == receipt.session_id]

    wait_until(lambda: bool(found()), 30, "a question is asked")
    return found()[0]


def end(fleet: Fleet, receipt: Receipt) -> tuple[str, dict[str, Any]]:
    """The type and payload of the event that ended the model's call, once the model has answered."""
    assert fleet.wait(receipt).output == "done"
    (event,) = [event for event in fleet.client.events(receipt.session_id) if event.type in ENDS]
    (payload,) = fleet.payloads(receipt.session_id, event.type)
    return event.type, payload


@pytest.mark.promise("F13", "F14")
@pytest.mark.case("openai/openai-agents-python#4244")
def test_an_approved_call_runs_with_its_arguments_and_nothing_waits_in_memory(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay", to="ann", amount=50)
    asked = question(shared_fleet, receipt)
    assert (asked.question, asked.arguments) == (Question.APPROVAL, {"to": "ann", "amount": 50})
    assert {task.status for task in shared_fleet.client.session(receipt.session_id).tasks} == {Status.WAITING}
    assert health.without_mover(shared_fleet.database) == []

    answered = shared_fleet.client.answer(asked.id, "approved", who="carol", comment="fine")

    assert answered.accepted
    assert end(shared_fleet, receipt)[1]["result"] == "paid 50 to ann"
    (decided,) = shared_fleet.payloads(receipt.session_id, "policy_decided")
    (told,) = shared_fleet.payloads(receipt.session_id, "human_approval_answered")
    assert (decided["rule"], decided["by"], told["answered_by"]) == ("ask", "tool", "carol")
    assert shared_fleet.effects().count("pay ann 50") == 1


@pytest.mark.promise("F14")
@pytest.mark.parametrize(("amount", "type"), [(5, "tool_call_success"), (5_000, "tool_call_error")])
def test_a_rule_allows_or_denies_by_the_arguments(shared_fleet: Fleet, amount: int, type: str) -> None:
    receipt = call(shared_fleet, "pay", to="rule", amount=amount)

    assert end(shared_fleet, receipt)[0] == type
    (decided,) = shared_fleet.payloads(receipt.session_id, "policy_decided")
    assert decided["rule"] == ("allow" if amount == 5 else "deny")
    assert shared_fleet.effects().count(f"pay rule {amount}") == (amount == 5)


@pytest.mark.promise("F14")
def test_the_stricter_rule_of_agent_and_tool_counts(shared_fleet: Fleet) -> None:
    denied = call(shared_fleet, "note", text="denied by the agent")
    asked = call(shared_fleet, "echo", text="asked by the agent")

    assert "denied by a rule of the agent" in end(shared_fleet, denied)[1]["error"]
    shared_fleet.client.answer(question(shared_fleet, asked).id, Answer.APPROVED)
    assert end(shared_fleet, asked)[1]["result"] == "asked by the agent"


@pytest.mark.promise("F13")
def test_a_flow_is_asked_about_too(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "batch", texts=[])
    shared_fleet.client.answer(question(shared_fleet, receipt).id, "denied", comment="not today")

    assert "not today" in end(shared_fleet, receipt)[1]["error"]


def verdict(fleet: Fleet, asked: Approval) -> Approval:
    """The question once a worker has looked at the arguments that were proposed."""
    wait_until(lambda: not fleet.client.approval(asked.id).is_proposed, 30, "a worker has looked at the arguments")
    return fleet.client.approval(asked.id)


def told(fleet: Fleet, receipt: Receipt) -> str:
    """What the model was told of its one call."""
    assert fleet.wait(receipt).output == "done"
    (asked,) = [
        {"role": "user", "content": each["text"]} for each in fleet.payloads(receipt.session_id, "user_message")
    ]
    messages = [body["messages"] for body in fleet.model_requests() if asked in body["messages"]][-1]
    (result,) = [message["content"] for message in messages if message["role"] == "tool"]
    return str(result)


@pytest.mark.promise("F13", "F2")
@pytest.mark.hazard(20)
@pytest.mark.case("langchain-ai/langgraph#6533")
@pytest.mark.parametrize(
    ("tool", "arguments", "wrong", "said"),
    [
        ("pay", {"to": "typo", "amount": 50}, {"to": "e", "amount": "many"}, "amount: Input should be a valid integer"),
        ("pay", {"to": "short", "amount": 50}, {"to": "eve"}, "amount: is required"),
        ("pay", {"to": "rule", "amount": 50}, {"to": "eve", "amount": 5_000}, "a rule of the tool denies them"),
        ("pay", {"to": "extra", "amount": 50}, {"to": "eve", "amount": 60, "when": 1}, "when: is no argument"),
        ("batch", {"texts": []}, {"texts": "one"}, "texts: Input should be a valid array"),
        ("scout", {"task": "look around"}, {"task": 7}, 'give {"task": "..."}'),
    ],
)
def test_other_arguments_that_do_not_do_leave_the_question_open_and_it_says_why(
    shared_fleet: Fleet, tool: str, arguments: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    receipt = call(shared_fleet, tool, agent="wary" if tool == "scout" else "careful", **arguments)
    asked = question(shared_fleet, receipt)

    given = shared_fleet.client.answer(asked.id, "approved", arguments=wrong, who="carol", comment="better")
    open_still = verdict(shared_fleet, asked)

    assert (given.accepted, given.approval.answer, given.approval.is_proposed) == (True, Answer.PENDING, True)
    assert (open_still.answer, open_still.answer_by, open_still.comment) == (Answer.PENDING, asked.answer_by, None)
    assert f"{asked.about}; the other arguments of carol do not do: " in open_still.about
    assert said in open_still.about
    assert open_still in shared_fleet.client.approvals()
    assert health.without_mover(shared_fleet.database) == []
    again = shared_fleet.client.answer(asked.id, "approved", arguments=wrong, who="dave")
    assert (again.accepted, said in verdict(shared_fleet, asked).about) == (True, True)
    assert "carol" not in shared_fleet.client.approval(asked.id).about

    assert shared_fleet.client.answer(asked.id, "denied", who="ann").accepted
    assert "ann denied it" in end(shared_fleet, receipt)[1]["error"]
    answers = shared_fleet.payloads(receipt.session_id, "human_approval_answered")
    assert [each["answer"] for each in answers] == ["pending", "pending", "denied"]
    assert len(shared_fleet.payloads(receipt.session_id, "human_approval_requested")) == 3


@pytest.mark.promise("F13", "F2")
def test_other_arguments_that_do_are_the_answer_and_run_and_the_model_is_told_of_them(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay", to="ann", amount=51)
    asked = question(shared_fleet, receipt)

    shared_fleet.client.answer(
        asked.id, "approved", arguments={"to": "frank", "amount": 21}, who="carol", comment="only what is due"
    )

    answered = verdict(shared_fleet, asked)
    assert (answered.answer, answered.answered_by) == (Answer.APPROVED, "carol")
    assert answered.used_at == answered.answered_at
    _, payload = end(shared_fleet, receipt)
    assert (payload["result"], payload["arguments"]) == ("paid 21 to frank", {"to": "frank", "amount": 21})
    note, result = told(shared_fleet, receipt).splitlines()
    assert note == (
        'note: carol answered approved with these arguments instead: {"amount":21,"to":"frank"};'
        " comment: only what is due"
    )
    assert result == "paid 21 to frank"
    assert shared_fleet.effects().count("pay frank 21") == 1
    assert shared_fleet.effects().count("pay ann 51") == 0


def approve(fleet: Fleet, asked: Approval, arguments: str) -> subprocess.CompletedProcess[str]:
    """`brainhands approve` with other arguments."""
    return subprocess.run(
        [sys.executable, "-m", "brainhands.shared.cli.main", "approve", str(asked.id), "--arguments", arguments],
        env=fleet.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.promise("F13")
def test_the_command_to_approve_waits_until_other_arguments_count_or_says_what_is_wrong(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay", to="ann", amount=56)
    asked = question(shared_fleet, receipt)

    refused = approve(shared_fleet, asked, '{"to": "gina", "amount": 5000}')
    assert refused.returncode == 1
    assert "not accepted, the question is open" in refused.stdout
    assert "a rule of the tool denies them" in refused.stdout
    assert f"brainhands approve {asked.id}" in refused.stdout
    assert shared_fleet.client.approval(asked.id).answer is Answer.PENDING

    taken = approve(shared_fleet, asked, '{"to": "gina", "amount": 23}')
    assert (taken.returncode, taken.stdout) == (0, "answered approved\n")
    assert end(shared_fleet, receipt)[1]["result"] == "paid 23 to gina"
    assert shared_fleet.effects().count("pay gina 5000") == 0


@pytest.mark.promise("F13")
def test_a_comment_of_whoever_approves_or_reviews_reaches_the_model(shared_fleet: Fleet) -> None:
    approved = call(shared_fleet, "pay", to="comment", amount=52)
    shared_fleet.client.answer(question(shared_fleet, approved).id, "approved", who="carol", comment="the last one")
    happened = call(shared_fleet, "wire_money", to="comment")
    shared_fleet.client.answer(question(shared_fleet, happened).id, "happened", result="sent", comment="saw it")
    silent = call(shared_fleet, "pay", to="silent", amount=53)
    shared_fleet.client.answer(question(shared_fleet, silent).id, "approved", who="carol")
    denied = call(shared_fleet, "pay", to="denied", amount=54)
    shared_fleet.client.answer(question(shared_fleet, denied).id, "denied", who="carol", comment="no more")

    assert told(shared_fleet, approved) == "note: carol answered approved; comment: the last one\npaid 52 to comment"
    assert told(shared_fleet, happened) == "note: a person answered happened; comment: saw it\nsent"
    assert told(shared_fleet, silent) == "paid 53 to silent"
    assert told(shared_fleet, denied) == "error: not run: carol denied it: no more"


@pytest.mark.promise("F13", "C12")
@pytest.mark.hazard(20)
def test_while_other_arguments_wait_for_a_worker_no_other_answer_counts_and_the_call_can_be_cancelled(
    shared_fleet: Fleet, hands_child: list[Child]
) -> None:
    receipt = call(shared_fleet, "pay", to="stopped", amount=55)
    asked = question(shared_fleet, receipt)
    other = {"to": "stopped", "amount": 22}
    hands_child[0].kill(signal.SIGSTOP)
    try:
        first = shared_fleet.client.answer(asked.id, "approved", arguments=other, who="carol")
        again = shared_fleet.client.answer(asked.id, "approved", arguments=other, who="carol")
        late = shared_fleet.client.answer(asked.id, "denied", who="dave")
        shared_fleet.client.cancel(submission=receipt.submission_id)
    finally:
        hands_child[0].kill(signal.SIGCONT)

    assert (first.accepted, again.accepted, late.accepted) == (True, True, False)
    assert shared_fleet.wait(receipt).outcome is Outcome.CANCELLED
    assert shared_fleet.client.approval(asked.id).answer is Answer.CANCELLED
    assert not [line for line in shared_fleet.effects() if line.startswith("pay stopped")]


@pytest.mark.promise("F13")
@pytest.mark.hazard(20)
def test_other_arguments_that_no_worker_took_in_time_lapse_like_any_approval(
    shared_fleet: Fleet, hands_child: list[Child]
) -> None:
    receipt = call(shared_fleet, "pay_now", to="tuesday")
    asked = question(shared_fleet, receipt)
    hands_child[0].kill(signal.SIGSTOP)
    given = shared_fleet.client.answer(asked.id, "approved", arguments={"to": "wednesday"}).approval
    _wait_for_clock_after(shared_fleet, given)
    hands_child[0].kill(signal.SIGCONT)

    assert "not used in time" in end(shared_fleet, receipt)[1]["error"]
    assert shared_fleet.client.approval(asked.id).used_at is None
    assert not {"pay_now tuesday", "pay_now wednesday"} & set(shared_fleet.effects())


@pytest.mark.promise("F13")
@pytest.mark.case("use-agent-os/agent-os#1564")
@pytest.mark.case("LanternOps/breeze#3090")
@pytest.mark.case("vstorm-co/agenticos#457")
def test_nobody_answering_is_not_a_denial_and_a_late_answer_changes_nothing(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay_soon", to="late")
    asked = question(shared_fleet, receipt)

    _, payload = end(shared_fleet, receipt)
    late = shared_fleet.client.answer(asked.id, "approved")

    assert "nobody answered in time" in payload["error"]
    assert (late.accepted, late.approval.answer) == (False, Answer.EXPIRED)
    assert "pay_soon late" not in shared_fleet.effects()


@pytest.mark.promise("F13")
def test_the_first_answer_stands_and_bad_answers_are_told(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay", to="twice", amount=60)
    asked = question(shared_fleet, receipt)
    with pytest.raises(BadInput):
        shared_fleet.client.answer(asked.id, "happened")
    with pytest.raises(BadInput):
        shared_fleet.client.answer(asked.id, "perhaps")  # type: ignore[arg-type]
    with pytest.raises(UnknownApproval):
        shared_fleet.client.answer(new_approval_id(), "approved")

    first = shared_fleet.client.answer(asked.id, "denied", who="ann")
    second = shared_fleet.client.answer(asked.id, "approved", who="bob")

    assert (first.accepted, second.accepted, second.approval.answered_by) == (True, False, "ann")
    assert "ann denied it" in end(shared_fleet, receipt)[1]["error"]


@pytest.mark.promise("F13", "C12")
def test_cancelling_a_call_closes_its_question(shared_fleet: Fleet) -> None:
    receipt = call(shared_fleet, "pay", to="cancelled", amount=70)
    asked = question(shared_fleet, receipt)

    shared_fleet.client.cancel(submission=receipt.submission_id)

    late = shared_fleet.client.answer(asked.id, "approved")
    assert (late.accepted, late.approval.answer) == (False, Answer.CANCELLED)
    assert shared_fleet.wait(receipt).outcome is Outcome.CANCELLED


@pytest.mark.promise("F13")
@pytest.mark.hazard(20)
def test_an_approval_lapses_unless_it_is_used_in_time(shared_fleet: Fleet, hands_child: list[Child]) -> None:
    receipt = call(shared_fleet, "pay_now", to="monday")
    asked = question(shared_fleet, receipt)
    hands_child[0].kill(signal.SIGSTOP)
    answered = shared_fleet.client.answer(asked.id, "approved").approval
    assert answered.use_by is not None
    _wait_for_clock_after(shared_fleet, answered)
    hands_child[0].kill(signal.SIGCONT)

    assert "not used in time" in end(shared_fleet, receipt)[1]["error"]
    assert "pay_now monday" not in shared_fleet.effects()


@pytest.mark.promise("F6", "F13")
def test_a_person_settles_what_is_unknown(shared_fleet: Fleet) -> None:
    happened = call(shared_fleet, "wire_money", to="first")
    review = question(shared_fleet, happened)
    assert review.question is Question.REVIEW
    shared_fleet.client.answer(review.id, "happened", result="seen on the statement")
    type, payload = end(shared_fleet, happened)
    assert (type, payload["result"], payload["source"]) == ("tool_call_success", "seen on the statement", "review")

    unknown = call(shared_fleet, "wire_money", to="second")
    shared_fleet.client.answer(question(shared_fleet, unknown).id, "unknown", comment="no trace")
    type, payload = end(shared_fleet, unknown)
    assert type == "tool_call_interrupted"
    assert "no trace" in payload["error"]
    assert shared_fleet.effects().count("wire first") == shared_fleet.effects().count("wire second") == 1


@pytest.mark.promise("F16", "F6")
@pytest.mark.hazard(3)
def test_a_call_equal_to_an_unknown_one_is_a_review_of_that_one(shared_fleet: Fleet) -> None:
    first = call(shared_fleet, "wire_money", to="again")
    shared_fleet.client.answer(question(shared_fleet, first).id, "unknown")
    shared_fleet.wait(first)
    step = {"calls": [{"name": "wire_money", "arguments": {"to": "again"}, "id": "call_again"}]}
    second = shared_fleet.script(step, {"text": "done"}, agent="careful", session=first.session_id)
    review = question(shared_fleet, second)

    assert "without it being known" in review.about
    shared_fleet.client.answer(review.id, "happened", result="it was sent the first time")

    assert shared_fleet.wait(second).output == "done"
    assert shared_fleet.effects().count("wire again") == 1


@pytest.mark.promise("F6")
def test_a_call_that_the_model_knows_as_unknown_is_settled_by_a_new_fact(shared_fleet: Fleet) -> None:
    first = call(shared_fleet, "wire_money", to="settled")
    shared_fleet.client.answer(question(shared_fleet, first).id, "unknown")
    shared_fleet.wait(first)
    (task,) = [task for task in shared_fleet.client.session(first.session_id).tasks if task.kind == "tool:wire_money"]

    receipt = shared_fleet.client.settle(task.id, "happened", result="found later", who="dave")

    assert receipt is not None
    assert shared_fleet.client.settle(task.id, "did_not_happen") is None
    with pytest.raises(BadInput):
        shared_fleet.client.settle(task.owner_id or task.id, "happened")
    again = shared_fleet.script({"text": "done"}, agent="careful", session=first.session_id)
    shared_fleet.wait(again)
    messages = shared_fleet.model_requests()[-1]["messages"]
    (result,) = [message["content"] for message in messages if message["role"] == "tool"]
    assert "found later" in result


def _wait_for_clock_after(fleet: Fleet, approval: Approval) -> None:
    wait_until(
        lambda: bool(approval.use_by and health.server(fleet.database).clock > approval.use_by), 10, "it has lapsed"
    )


@pytest.mark.promise("F9", "F13", "E11")
@pytest.mark.case("pydantic/pydantic-ai#6370")
def test_a_call_that_waits_for_a_person_is_not_lost_when_another_of_its_reply_fails(shared_fleet: Fleet) -> None:
    calls = [
        {"name": "pay", "arguments": {"to": "eve", "amount": 60}, "id": "call_pay"},
        {"name": "note", "arguments": {"text": "denied"}, "id": "call_note"},
        {"name": "no_such_tool", "id": "call_nothing"},
    ]
    receipt = shared_fleet.script({"calls": calls}, {"text": "done"}, agent="careful")
    asked = question(shared_fleet, receipt)
    wait_until(lambda: len(shared_fleet.payloads(receipt.session_id, *ENDS)) == 2, 30, "the end of the others")

    assert shared_fleet.client.answer(asked.id, "approved").accepted
    assert shared_fleet.wait(receipt).output == "done"
    ends = {each["call_id"]: each for each in shared_fleet.payloads(receipt.session_id, *ENDS)}
    assert ends.keys() == {"call_pay", "call_note", "call_nothing"}
    assert "error" not in ends["call_pay"]
    assert shared_fleet.effects().count("pay eve 60") == 1
