"""Whoever waits for an answer is told what it waits for, in words and with what would end the wait."""

from __future__ import annotations

import os
import warnings

import psycopg
import pytest

from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import UnknownAgent
from brainhands.shared.model.ids import new_worker_id
from brainhands.shared.model.task import Next, Sleep, Transition, WaitSignal
from brainhands.shared.model.worker import Offer, WorkerInfo
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import waiting, workers
from tests.store.stage import AGENT, Stage, answer, finish
from tests.store.test_seams import in_review

RELAY = "UPDATE brainhands.workers SET role = 'relay'"
OFFERLESS = "UPDATE brainhands.workers SET role = 'relay'; DELETE FROM brainhands.offers"
BLOCKED = "UPDATE brainhands.tasks SET blocked = 'no live worker offers agent:sample@3'"
LIMITED = "UPDATE brainhands.outbox SET awaits = ARRAY['{}']"
MISSING = {"waits_for": ["book"], "reason": "no Hands worker has published book"}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT 1", "a relay: none was seen lately; start one with `brainhands relay`"),
        (OFFERLESS, "a worker for the model: no live one offers agent:sample"),
        (BLOCKED, "a worker for the model: no live worker offers agent:sample@3; start one that offers agent:sample"),
        (LIMITED.format("tenant:default"), "a limit: as many tasks of tenant default run as may at a time"),
        (LIMITED.format("tool:book"), "a limit: as many tasks of tool book run as may at a time"),
        (RELAY, "its turn for the model"),
    ],
)
def test_what_is_pending_says_what_it_lacks(stage: Stage, statement: str, told: str) -> None:
    receipt = stage.submit()
    stage.sql(statement)

    assert stage.client.waits_for(receipt.submission_id) == [told]
    with pytest.raises(TimeoutError, match="is still accepted and waits for") as over:
        stage.client.wait(receipt.submission_id, timeout=0.01)
    assert told in str(over.value)


@pytest.mark.parametrize(
    ("transition", "told"),
    [
        (Sleep(3600, "prepare", MISSING), "a tool: no Hands worker has published book; name its module in"),
        (Sleep(3600, "request", {"retries": 1}), "a retry of the model, at "),
        (WaitSignal("paid", "tools", 3600), "`brainhands signal {session} paid`"),
        (
            WaitSignal("it's paid", "tools", 3600, key="a b"),
            "`brainhands signal {session} 'it'\"'\"'s paid' --key 'a b'`",
        ),
    ],
)
def test_what_sleeps_or_listens_says_until_when_and_for_what(stage: Stage, transition: Transition, told: str) -> None:
    receipt = stage.submit()
    stage.advance(stage.open_generation(receipt.session_id), answer(transition))

    (reason,) = stage.client.waits_for(receipt.submission_id)

    assert told.format(session=receipt.session_id) in reason


def test_what_runs_is_named_and_what_is_done_waits_for_nothing(stage: Stage) -> None:
    receipt = stage.submit()
    told: list[list[str]] = []

    def look(run: Run) -> PhaseResult:
        told.append(stage.client.waits_for(receipt.submission_id))
        told.append(waiting.at_work(stage.database, [os.getpid()]))
        told.append(waiting.at_work(stage.database, [1]))
        return finish("done")(run)

    stage.advance(stage.open_generation(receipt.session_id), answer(Next("request")), look)

    waits_for, (here,), elsewhere = told
    assert waits_for == ["the model, which is at work"]
    assert here.startswith(f"the model of session {receipt.session_id}, until 20")
    assert elsewhere == []
    assert stage.client.waits_for(receipt.submission_id) == []


def test_a_question_to_a_person_comes_with_the_command_to_answer_it_for_each_input_behind_it(stage: Stage) -> None:
    receipt = stage.submit()
    in_review(stage, receipt.session_id, stage.open_generation(receipt.session_id))
    (asked,) = stage.client.approvals()
    behind = stage.submit("and then", session=receipt.session_id)

    (first,) = stage.client.waits_for(receipt.submission_id)
    ahead, second = stage.client.waits_for(behind.submission_id)

    assert f"`brainhands review {asked.id} happened`" in first
    assert (ahead, second) == ("the work before it in its session", first)


def test_many_that_wait_for_the_same_are_told_once_and_many_reasons_are_counted(stage: Stage) -> None:
    receipt = stage.submit()
    tasks = [stage.add(receipt.session_id) for _ in range(15)]
    stage.sql("UPDATE brainhands.tasks SET submission_id = %s", receipt.submission_id)
    alike = stage.client.waits_for(receipt.submission_id)
    for number, task in enumerate(tasks):
        stage.sql("UPDATE brainhands.tasks SET blocked = %s WHERE id = %s", f"reason {number}", task)

    apart = stage.client.waits_for(receipt.submission_id)

    assert len(alike) == 1
    assert (len(apart), apart[-1]) == (11, "6 more")


@pytest.mark.parametrize("within", [False, True])
def test_an_agent_that_nobody_offers_is_warned_of_with_what_was_meant_and_accepted(stage: Stage, within: bool) -> None:
    stage.database.run(*workers.see(brain(Offer(name=f"agent:{AGENT}", low=1, high=1))))

    with psycopg.connect(libpq_url(stage.database_url)) as caller:
        connection = caller if within else None
        with pytest.warns(UnknownAgent, match="'smaple' lately, did you mean 'sample'"):
            stage.client.submit(agent="smaple", input="hello", connection=connection)
        with pytest.warns(UnknownAgent, match="'other' lately; there are: sample"):
            receipt = stage.client.submit(agent="other", input="hello", connection=connection)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stage.client.submit(agent=AGENT, input="hello", connection=connection)

    assert stage.client.submission(receipt.submission_id).agent == "other"


def test_where_no_brain_was_ever_seen_nothing_is_taken_for_misspelt(stage: Stage) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stage.client.submit(agent="smaple", input="hello")


def brain(*offers: Offer) -> WorkerInfo:
    return WorkerInfo(
        id=new_worker_id(),
        role="brain",
        pool="brain.default",
        host="there",
        pid=1,
        parent_pid=1,
        slots=1,
        environment="test",
        offers=offers,
    )
