"""Agents under agents, all in the background: what ends, joins, forks or erases them while nobody is at work.

All of it is staged in this process, with a real store, a real model server and the Brain's own task kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from brainhands import Agent
from brainhands.brain import background
from brainhands.brain.background import response_cancel_kind
from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.brain.subagent import agent_kind, agent_specs
from brainhands.shared.engine.definition import Registry, registry
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.errors import StillNeeded
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.submission import CancelState, Receipt
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules.background import RESPONSE_CANCEL
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import health, workers
from deploy.demo import model_server
from tests.conftest import migrated, new_database
from tests.instruments.invariants import check
from tests.integration.test_background import ECHO, BrainStage, made_for
from tests.store.stage import OFFERS

CREW = (*OFFERS, Offer(name="agent:scout", low=1, high=1))
LOOKS = 40
"""More than any work of these tests takes."""


class CrewStage(BrainStage):
    """A stage whose agent calls `scout`, both in the background."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url)
        self.first = self.worker(offers=CREW)

    def registry(self, offers: tuple[Offer, ...] = OFFERS) -> Registry:
        kinds = (generation_kind(self.agents), intake_kind(), response_cancel_kind())
        return registry((*kinds, *map(agent_kind, self.agents.values())), offers)

    def agent(self, **fields: Any) -> None:
        super().agent(**{"tools": ["scout"], **fields})
        self.scout()

    def scout(self, **fields: Any) -> None:
        told = {"description": "Looks into it.", "instructions": "Look.", "tools": ["echo"], "background": True}
        self.agents["scout", 1] = Agent(name="scout", version=1, **{**told, **fields})

    def send(self, *steps: dict[str, Any]) -> Receipt:
        return self.submit(script(*steps))

    def go_on(self, receipt: Receipt, until: Callable[[], object]) -> None:
        """Let what can go on do so, and the time for each look come, until something is so."""
        for _ in range(LOOKS):
            if until():
                return
            self.work(receipt)
            check(self.database_url)
            if not until():
                self.wake(receipt)
        raise AssertionError("it did not come to that")

    def finish(self, receipt: Receipt) -> object:
        """Let all work of the session end; gives the answer."""
        self.go_on(receipt, lambda: not any(task.is_open for task in self.client.session(receipt.session_id).tasks))
        check(self.database_url, at_rest=True)
        return self.done(receipt).output

    def tasks(self, receipt: Receipt, kind: str) -> list[Task]:
        return [task for task in self.client.session(receipt.session_id).tasks if task.kind == kind]


def script(*steps: dict[str, Any]) -> str:
    """A text of its own kind that makes the model play these steps."""
    return json.dumps({"script": list(steps), "mark": uuid4().hex})


def ask(text: str) -> dict[str, Any]:
    """A call of the scout."""
    return {"name": "scout", "arguments": {"task": text}}


def at_provider(text: str) -> list[dict[str, Any]]:
    """The responses that the provider made for what the scout was told."""
    return made_for(settings().openai_base_url, text)


@pytest.fixture
def crew(postgres: Postgres) -> Iterator[CrewStage]:
    with (
        pytest.MonkeyPatch.context() as environment,
        model_server.start() as model,
        new_database(postgres, template=migrated(postgres)) as url,
    ):
        environment.setenv("OPENAI_API_KEY", "sk-test")
        environment.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        environment.setenv("BRAINHANDS_MODEL", "test-model")
        settings.cache_clear()
        stage = CrewStage(url)
        workers.publish(stage.database, [ECHO, *agent_specs(stage.agents.values())])
        try:
            yield stage
        finally:
            stage.close()


@pytest.mark.promise("A10", "C7", "C12", "E7")
def test_the_first_failure_cancels_a_siblings_response_at_the_provider(crew: CrewStage) -> None:
    crew.agent(fail_fast=True)
    stuck = script({"fault": "stuck"})
    receipt = crew.send({"calls": [ask(stuck), ask(script({"refusal": "no"}))]}, {"text": "stopped"})

    assert crew.finish(receipt) == "stopped"

    outcomes = [task.outcome for task in crew.tasks(receipt, "agent:scout")]
    assert outcomes == [Outcome.CANCELLED, Outcome.FAILED]
    assert [each["cancels"] for each in at_provider(stuck)] == [1]


@pytest.mark.promise("A10", "C12")
def test_a_cancel_of_an_input_that_joined_ends_the_agents_that_work_for_it(crew: CrewStage) -> None:
    slow, stuck = script({"text": "a", "looks": ["queued"]}), script({"fault": "stuck"})
    receipt = crew.send({"calls": [ask(slow)]})
    crew.go_on(receipt, lambda: at_provider(slow))
    joined = crew.submit(script({"calls": [ask(stuck)]}), session=receipt.session_id, mode="steer")
    crew.go_on(receipt, lambda: at_provider(stuck))

    crew.client.cancel(submission=joined.submission_id)
    crew.finish(receipt)

    assert [crew.done(each).outcome for each in (receipt, joined)] == [Outcome.CANCELLED] * 2
    assert [each["cancels"] for each in at_provider(stuck)] == [1]


@pytest.mark.promise("A10", "C10")
def test_an_agent_whose_looks_keep_crashing_ends_as_a_failed_call_and_its_caller_goes_on(
    crew: CrewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = script({"fault": "stuck"})
    receipt = crew.send({"calls": [ask(stuck)]}, {"text": "without it"})
    crew.go_on(receipt, lambda: at_provider(stuck))
    (inner,) = (task.id for task in crew.tasks(receipt, "generation") if task.owner_id is not None)
    look = background.look

    def crash(run: Run) -> background.Seen:
        if run.task.id == inner:
            raise RuntimeError("it cannot look")
        return look(run)

    monkeypatch.setattr(background, "look", crash)

    def ended() -> bool:
        crew.sql("UPDATE brainhands.outbox SET not_before = now()")
        return not crew.task(inner).is_open

    crew.go_on(receipt, ended)
    assert crew.finish(receipt) == "without it"
    (error,) = crew.payloads(receipt, "tool_call_error")
    assert "the agent has no answer: stopped after 3 attempts in phase poll" in error["error"]
    assert [each["cancels"] for each in at_provider(stuck)] == [1]


@pytest.mark.promise("A10", "D5")
def test_a_brain_that_drains_while_it_hands_on_leaves_the_next_generation_to_others(crew: CrewStage) -> None:
    crew.scout(tools=[])
    inner = script({"calls": [{"name": "unheard_of", "arguments": {}}]}, {"text": "late"})
    receipt = crew.send({"calls": [ask(inner)]}, {"text": "fine"})
    crew.go_on(receipt, lambda: any(_is_to_close(crew.task(each)) for each in crew.hinted()))
    (closing,) = (each for each in crew.hinted() if _is_to_close(crew.task(each)))

    crew.advance(closing, worker=_drained_on_entry(crew))

    onward = crew.generation(receipt)
    assert (onward.status, onward.id in crew.hinted()) == (Status.PENDING, True)
    (call,) = crew.tasks(receipt, "agent:scout")
    assert (onward.owner_id, call.status) == (call.id, Status.WAITING)
    check(crew.database_url)
    assert crew.finish(receipt) == "fine"


def _is_to_close(task: Task) -> bool:
    return task.kind == "generation" and task.owner_id is not None and task.phase == "tools"


def _drained_on_entry(crew: CrewStage) -> Worker:
    """A worker that is told to drain once it has taken a task up."""
    worker = crew.worker(offers=CREW)
    enter = worker._enter

    def enter_and_drain(task_id: TaskId) -> bool:
        entered = enter(task_id)
        worker.keeper.drain()
        return entered

    worker._enter = enter_and_drain  # type: ignore[method-assign]
    return worker


@pytest.mark.promise("A10", "D5")
def test_an_agent_whose_budget_is_used_up_between_two_rounds_fails_its_call_at_once(crew: CrewStage) -> None:
    crew.scout(session_tokens=100_000, tools=[])
    used = {"prompt_tokens": 200_000, "completion_tokens": 0, "total_tokens": 200_000}
    inner = script({"calls": [{"name": "unheard_of", "arguments": {}}], "usage": used}, {"text": "never"})
    receipt = crew.send({"calls": [ask(inner)]}, {"text": "without it"})

    assert crew.finish(receipt) == "without it"
    assert len(at_provider(inner)) == 1
    assert "budget of 100,000 tokens is used up" in crew.payloads(receipt, "tool_call_error")[-1]["error"]


@pytest.mark.promise("C12", "I3")
def test_a_response_that_no_brain_can_cancel_keeps_no_session_from_being_erased(crew: CrewStage) -> None:
    client, stuck = crew.client, script({"fault": "stuck"})
    receipt = crew.send({"calls": [ask(stuck)]})
    crew.go_on(receipt, lambda: at_provider(stuck))
    crew.sql("DELETE FROM brainhands.offers")
    client.cancel(submission=receipt.submission_id)
    (telling,) = crew.tasks(receipt, RESPONSE_CANCEL)
    assert client.cancel(task=telling.id).state is CancelState.TOO_LATE
    ago = "now() - interval '1 minute'"
    crew.sql(f"UPDATE brainhands.outbox SET created_at = {ago}, not_before = {ago}")
    crew.sweep.sweep_once()
    assert [finding.problem for finding in health.blocked(crew.database)] == ["no live worker offers agent:scout"]

    with pytest.raises(StillNeeded, match=f"response_cancel {telling.id} is pending") as refused:
        client.erase(receipt.session_id, reason="why")

    assert f"brainhands cancel --task {telling.id}" in str(refused.value.next_step)
    assert client.cancel(session=receipt.session_id).state is CancelState.TOO_LATE
    assert client.cancel(task=telling.id).state is CancelState.CANCELLED
    client.erase(receipt.session_id, reason="why")
    check(crew.database_url, at_rest=True)


@pytest.mark.promise("I3", "I7", "E7")
def test_a_session_is_forked_while_a_response_for_an_agent_is_pending(crew: CrewStage) -> None:
    client, slow = crew.client, script({"text": "late", "looks": ["queued"] * 3})
    receipt = crew.send({"calls": [ask(slow)]}, {"text": "fine"})
    crew.go_on(receipt, lambda: at_provider(slow))

    forked = client.fork(receipt.session_id, at=client.session(receipt.session_id).session.last_seq)

    assert all(not task.is_open for task in client.session(forked.session_id).tasks)
    onward = crew.submit(script({"text": "on"}), session=forked.session_id)
    crew.go_on(onward, lambda: crew.done(onward).outcome)
    assert (crew.done(onward).output, crew.finish(receipt)) == ("on", "fine")
    assert [each["cancels"] for each in at_provider(slow)] == [0]
    client.erase(forked.session_id, reason="why")
    client.erase(receipt.session_id, reason="why")
    assert (client.verify(forked.session_id), client.verify(receipt.session_id)) == (None, None)


@pytest.mark.promise("A10", "I6")
def test_a_session_is_driven_on_by_awaking_it_alone(crew: CrewStage) -> None:
    slow = script({"text": "late", "looks": ["queued"]})
    receipt = crew.send({"calls": [ask(slow)]}, {"text": "fine"})

    for _ in range(LOOKS):
        crew.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE status = 'sleeping'")
        crew.sql("DELETE FROM brainhands.outbox")
        crew.client.awake(receipt.session_id)
        crew.work(receipt)

    assert crew.done(receipt).output == "fine"
    check(crew.database_url, at_rest=True)
