"""Tokens and money: recorded with each model call, added up, and a stop before the next request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from brainhands import Prices
from brainhands.brain.models import chat
from brainhands.shared.model.task import Outcome
from deploy.demo.model_scripts import Fault, Reply
from tests.instruments import invariants
from tests.store.desk import Desk, desk_of, echoes
from tests.store.stage import Gone, Stage

PRICES = Prices(input=Decimal("0.5"), cached_input=Decimal("0.1"), output=Decimal("2"))
COUNTED = {"prompt_tokens": 90, "completion_tokens": 20}
COST = Decimal("0.000085")
"""Of one call with so many tokens."""

Desks = Callable[..., Desk]


@pytest.fixture
def desks(shared_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desks]:
    """Makes the desk of a test, with an agent of these fields."""
    made: list[Any] = []

    def make(**agent: Any) -> Desk:
        context = desk_of(shared_stage, monkeypatch, **agent)
        made.append(context)
        return context.__enter__()

    yield make
    for context in made:
        context.__exit__(None, None, None)
    invariants.check(shared_stage.database_url, at_rest=True)


@pytest.mark.promise("E13")
@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"session_tokens": 100}, "the session's budget of 100 tokens is used up: 110 were used"),
        ({"submission_tokens": 110}, "the input's budget of 110 tokens is used up: 110 were used"),
        ({"session_cost": COST}, "the session's budget of 0.000085 USD is used up: 0.000085 USD were spent"),
        ({"submission_cost": "0.00008"}, "the input's budget of 0.00008 USD is used up: 0.000085 USD were spent"),
    ],
)
def test_each_budget_stops_before_the_next_request_and_says_why(
    desks: Desks, budget: dict[str, Any], reason: str
) -> None:
    desk = desks(prices=PRICES, **budget)
    stopped = desk.turn("go", echoes("a", usage=COUNTED))

    done = desk.stage.client.submission(stopped.submission_id)
    assert (done.outcome, done.error) == (Outcome.FAILED, reason)
    assert len(desk.asked) == 1
    assert desk.payloads(stopped.session_id, "model_error")[-1]["code"] == "budget"
    desk.says("and on")
    again = desk.submit("and now?", session=stopped.session_id)
    desk.play()
    assert (desk.stage.client.submission(again.submission_id).output == "and on") is ("submission" in str(budget))


@pytest.mark.promise("E13")
def test_what_was_used_adds_up_by_submission_and_by_session(desks: Desks) -> None:
    desk = desks(prices=PRICES)
    cached = {**COUNTED, "prompt_tokens_details": {"cached_tokens": 50}}
    first = desk.turn("one", echoes("a", usage=COUNTED), Reply(text="1", usage=cached))
    second = desk.turn("two", Reply(text="2", usage=COUNTED), session=first.session_id)

    view = desk.stage.client.session(first.session_id)
    by_input = {each.id: each for each in view.submissions}
    uses = [(each.tokens_in, each.tokens_out, each.cost) for each in by_input.values()]
    assert uses == [(180, 40, 2 * COST - Decimal("0.00002")), (90, 20, COST)]
    assert (view.tokens_in, view.tokens_out, view.cost) == (270, 60, 3 * COST - Decimal("0.00002"))
    assert by_input[second.submission_id].outcome is Outcome.SUCCEEDED
    costs = [Decimal(each["usage"]["cost"]) for each in desk.payloads(first.session_id, "model_output")]
    assert sum(costs) == view.cost


@pytest.mark.promise("E13")
def test_without_prices_no_cost_is_made_up(desks: Desks) -> None:
    desk = desks()
    receipt = desk.turn("one", Reply(text="1", usage=COUNTED))

    assert desk.payloads(receipt.session_id, "model_output")[0]["usage"]["cost"] is None
    assert desk.stage.client.session(receipt.session_id).cost == 0


@pytest.mark.promise("E13", "E2")
def test_a_request_is_charged_by_the_prices_it_was_pinned_with(desks: Desks) -> None:
    desk = desks(prices=PRICES)
    desk.says(Reply(fault=Fault.RATE_LIMIT), Reply(text="1", usage=COUNTED))
    receipt = desk.submit("one")
    desk.advance(desk.task(receipt.session_id, "generation"))
    desk.change_agent(prices=Prices(input=Decimal(1000), output=Decimal(1000)))
    desk.play()

    assert desk.stage.client.submission(receipt.submission_id).output == "1"
    assert desk.stage.client.session(receipt.session_id).cost == COST


@pytest.mark.promise("E13")
@pytest.mark.hazard(50)
def test_a_cut_stream_is_charged_as_an_estimate_and_can_use_up_a_budget(desks: Desks) -> None:
    desk = desks(prices=PRICES, submission_tokens=300)
    cut = Reply(text="words " * 40, fault=Fault.CUT, chunks=10)
    receipt = desk.turn("x" * 1200, cut, "never")

    done = desk.stage.client.submission(receipt.submission_id)
    assert (done.outcome, len(desk.asked)) == (Outcome.FAILED, 1)
    assert "the input's budget of 300 tokens is used up" in (done.error or "")
    (usage,) = (each["usage"] for each in desk.payloads(receipt.session_id, "model_interrupted"))
    assert usage["estimated"]
    assert Decimal(usage["cost"]) == done.cost > 0


def lose_a_request(desk: Desk, session: UUID, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a Brain die while it asks the model."""
    task = desk.task(session, "generation")

    def die(*_: object, **__: object) -> None:
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr(chat, "send", die)
        with pytest.raises(Gone):
            desk.advance(task)
    desk.stage.lose(task.id)


@pytest.mark.promise("E13")
@pytest.mark.hazard(50)
def test_a_request_whose_worker_died_is_charged_by_what_was_counted_last_and_what_came_since(
    desks: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desks(prices=PRICES)
    first = desk.turn("one", Reply(text="1", usage={"prompt_tokens": 9000, "completion_tokens": 100}))
    receipt = desk.submit("x" * 400, session=first.session_id)
    lose_a_request(desk, first.session_id, monkeypatch)
    desk.says("2")
    desk.play()

    assert desk.stage.client.submission(receipt.submission_id).output == "2"
    (usage,) = (each["usage"] for each in desk.payloads(first.session_id, "model_interrupted"))
    assert usage["estimated"]
    assert 9200 <= usage["tokens_in"] <= 9500


@pytest.mark.promise("E13")
def test_a_reply_that_is_too_large_to_be_used_is_paid_for(desks: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MOST_CHARACTERS", 10)
    desk = desks(prices=PRICES)
    receipt = desk.turn("one", Reply(text="more than ten characters", usage=COUNTED))

    done = desk.stage.client.submission(receipt.submission_id)
    assert (done.outcome, done.error) == (Outcome.FAILED, "the reply was cut: the reply has more than 10 characters")
    assert done.cost > 0, "by an estimate, since the rest was not read"


@pytest.mark.promise("E13")
def test_an_empty_reply_is_not_asked_again_when_the_budget_is_used_up(desks: Desks) -> None:
    desk = desks(session_tokens=100)
    receipt = desk.turn("one", Reply(text="", usage=COUNTED), "never")

    done = desk.stage.client.submission(receipt.submission_id)
    assert (done.error, len(desk.asked)) == ("the session's budget of 100 tokens is used up: 110 were used", 1)


@pytest.mark.promise("E13", "E10")
@pytest.mark.hazard(50)
def test_a_summary_that_was_cut_is_not_asked_for_again_when_the_budget_is_used_up(desks: Desks) -> None:
    desk = desks(submission_tokens=100)
    session = desk.turn("one" + "x" * 900, Reply(text="1", usage=COUNTED)).session_id
    desk.window = 1900
    desk.summaries.append(Reply(text="They talked.", fault=Fault.CUT, chunks=2))
    receipt = desk.turn("two" + "x" * 900, session=session)

    done = desk.stage.client.submission(receipt.submission_id)
    assert "could not be compacted: the input's budget of 100 tokens is used up" in (done.error or "")


@pytest.mark.promise("E13", "E10")
def test_no_summary_is_asked_for_when_the_budget_is_used_up(desks: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desks(submission_tokens=300)
    session = desk.turn("one" + "x" * 900, Reply(text="1", usage=COUNTED)).session_id
    receipt = desk.submit("two" + "x" * 900, session=session)
    lose_a_request(desk, session, monkeypatch)
    desk.window = 1000
    desk.play()

    done = desk.stage.client.submission(receipt.submission_id)
    assert "the input's budget of 300 tokens is used up" in (done.error or "")
    assert not desk.payloads(session, "model_request_voided")
