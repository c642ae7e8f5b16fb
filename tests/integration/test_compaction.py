"""A real fleet and a context that is too long for its model: compacted by a Brain, killed, cancelled, asked again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from uuid import UUID

import pytest

from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome, Status
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import fleet_for_many, query, task_of, wait_for_task

LONG = "x" * 900


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("compaction"), postgres, redis_server) as fleet:
        fleet.everything()
        yield fleet
        invariants.check(fleet.database_url)


def turn(fleet: Fleet, text: str, *, session: UUID | None = None, agent: str = "small") -> Receipt:
    """An input, with what the model answers to it."""
    return fleet.script({"text": f"{text} {LONG}"}, agent=agent, session=session)


def filled(fleet: Fleet, *, summary: dict[str, object], agent: str = "small") -> UUID:
    """A session of two turns, the first of which says how its summary will be played."""
    plan = json.dumps({"summary": summary})
    first = fleet.submit(f"{plan} {json.dumps({'script': [{'text': LONG}]})} {LONG}", agent=agent)
    fleet.wait(first)
    fleet.wait(turn(fleet, "second", session=first.session_id, agent=agent))
    return first.session_id


@pytest.mark.promise("E10", "B8", "E13")
@pytest.mark.hazard(27)
@pytest.mark.case("datakurre/graph-agent#85")
def test_an_overflow_is_compacted_and_answered_and_the_log_keeps_it_all(compacting: Fleet) -> None:
    session = filled(compacting, summary={"text": "They said x very often."})
    before = compacting.client.session(session)
    done = compacting.wait(turn(compacting, f"third {LONG}", session=session))

    assert done.output == f"third {LONG} {LONG}"
    types = compacting.types(session)
    assert (types.count("model_request_voided"), types.count("context_compacted")) == (1, 1)
    assert types.count("user_message") == 3
    requests = [each["messages"] for each in compacting.model_requests() if LONG in json.dumps(each)]
    refused = next(each for each in requests if len(json.dumps(each)) > 4000)
    assert len(json.dumps(requests[-1])) < len(json.dumps(refused))
    assert requests[-1][-1]["content"].endswith(refused[-1]["content"])
    assert "They said x very often." in requests[-1][1]["content"]
    assert compacting.client.verify(session) is None
    after = compacting.client.session(session)
    (usage,) = (each["usage"] for each in compacting.payloads(session, "context_compacted"))
    assert after.tokens_in > before.tokens_in + usage["tokens_in"] > before.tokens_in
    assert after.cost == (after.tokens_in * Decimal("0.5") + after.tokens_out * 2) / 1_000_000


@pytest.mark.promise("E10")
def test_with_a_stated_window_the_provider_never_refuses(compacting: Fleet) -> None:
    session = filled(compacting, summary={"text": "Short."}, agent="foreseeing")
    done = compacting.wait(turn(compacting, f"third {LONG}", session=session, agent="foreseeing"))

    assert done.outcome is Outcome.SUCCEEDED
    voided = compacting.payloads(session, "model_request_voided")
    assert len(voided) == compacting.types(session).count("context_compacted") > 0
    assert all("more than the 1,000 of context_tokens" in each["reason"] for each in voided)
    sent = [each for each in compacting.model_requests() if each["model"] == "window-8000"]
    assert all(len(json.dumps(each["messages"])) < 8000 for each in sent)


@pytest.mark.promise("E10")
def test_a_second_overflow_and_a_context_that_cannot_shrink_fail_clearly_and_the_session_goes_on(
    compacting: Fleet,
) -> None:
    session = filled(compacting, summary={"text": "Short."})
    second = compacting.wait(turn(compacting, "third" + "x" * 4000, session=session))
    alone = compacting.wait(turn(compacting, "x" * 4000))

    assert (second.outcome, alone.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert "the context is too long, also after it was compacted" in (second.error or "")
    assert "could not be compacted: there is nothing to summarise" in (alone.error or "")
    assert compacting.wait(turn(compacting, "fourth", session=session)).outcome is Outcome.SUCCEEDED


@pytest.mark.promise("E10", "C12")
def test_a_cancel_ends_a_summary_that_is_being_written(compacting: Fleet) -> None:
    session = filled(compacting, summary={"text": "Short.", "delay": 60})
    receipt = turn(compacting, f"third {LONG}", session=session)
    wait_for_task(compacting, session, "compaction", Status.RUNNING)
    compacting.client.cancel(submission=receipt.submission_id, reason="no longer needed")

    assert compacting.wait(receipt).outcome is Outcome.CANCELLED
    assert task_of(compacting, session, "compaction").outcome is Outcome.CANCELLED
    assert "context_compacted" not in compacting.types(session)


@pytest.mark.crash
@pytest.mark.promise("E10", "C4", "E4")
def test_a_brain_killed_in_a_compaction_is_replaced_and_the_context_compacted_once(fleet: Fleet) -> None:
    fleet.relay(), fleet.hands()
    brain = fleet.brain()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    summary = {"text": "A summary in several words.", "fault": "hang", "chunks": 3, "times": 1}
    session = filled(fleet, summary=summary)
    receipt = turn(fleet, f"third {LONG}", session=session)
    task = wait_for_task(fleet, session, "compaction", Status.RUNNING)
    shown = "SELECT 1 FROM brainhands.attempts WHERE task_id = %s AND progress <> ''"
    wait_until(lambda: bool(query(fleet, shown, task.id)), 30, "a piece of the summary")
    brain.kill()
    fleet.brain()

    assert fleet.wait(receipt).output == f"third {LONG} {LONG}"
    types = fleet.types(session)
    assert (types.count("context_compacted"), types.count("task_recovered")) == (1, 1)
    (lost,) = fleet.payloads(session, "model_interrupted")
    assert "A summary in several words.".startswith(lost["text"])
    assert lost["usage"]["estimated"]
    assert fleet.client.verify(session) is None
    invariants.check(fleet.database_url)
