"""Background responses: one create, a stored handle that is polled over any restart, and a cancel that gets through.

Most of it is staged in this process, with a real store, a real model server and the Brain's own task kinds; what
speaks of processes is done with real ones at the end.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest

from brainhands import Agent
from brainhands.brain import background
from brainhands.brain.background import response_cancel_kind
from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.brain.models import responses
from brainhands.shared.cli import timeline
from brainhands.shared.client import Client
from brainhands.shared.engine.definition import Registry, registry
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import CancelState, Receipt, Submission
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules.background import RESPONSE_CANCEL
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import workers
from deploy.demo import model_server
from deploy.demo.model_scripts import Reply, Request
from tests.conftest import migrated, new_database
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.invariants import check
from tests.instruments.processes import Child
from tests.instruments.responses import background_responses
from tests.instruments.sessions import events_of, fleet_for_many, wait_for_task, wait_hurrying
from tests.store.stage import NO_REDIS, OFFERS, Stage, sweep_of

ECHO = ToolSpec(
    kind="tool:echo",
    name="echo",
    version=1,
    description="Say it again.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
    pool="hands.default",
)
LOG = ("model_request", "model_accepted", "model_interrupted", "model_error", "model_output", "model_cancelled")


class BrainStage(Stage):
    """A stage whose workers think for `agent`, in the background."""

    def __init__(self, database_url: str) -> None:
        self.agents: dict[tuple[str, int], Agent] = {}
        self.interfere: Callable[[], object] | None = None
        """What happens once, while a create of the model `interfering` is in flight."""
        self.agent()
        super().__init__(database_url)

    def registry(self, offers: tuple[Offer, ...] = OFFERS) -> Registry:
        return registry((generation_kind(self.agents), intake_kind(), response_cancel_kind()), offers)

    def agent(self, **fields: Any) -> None:
        """From now on the agent is this one."""
        self.agents["sample", 1] = Agent(name="sample", version=1, instructions="Do it.", background=True, **fields)

    def begin(self, **step: Any) -> Receipt:
        """Submit an input of its own kind that makes the model play this step, and let the Brain send it."""
        receipt = self.submit(json.dumps({"script": [step], "mark": uuid4().hex}))
        self.work(receipt)
        return receipt

    def work(self, receipt: Receipt, times: int = 1) -> None:
        """Give the Brain a hint for whatever of the session can run now."""
        for _ in range(times):
            for task_id in self.hinted():
                if self.task(task_id).session_id == receipt.session_id:
                    self.advance(task_id)

    def wake(self, receipt: Receipt, times: int = 1) -> None:
        """Let the time come for which the session's sleepers wait, and let the Brain go on with them."""
        for _ in range(times):
            self.sql(
                "UPDATE brainhands.tasks SET wake_at = now() WHERE session_id = %s AND status = 'sleeping'",
                receipt.session_id,
            )
            self.sweep.sweep_once()
            self.work(receipt)

    def overdue(self, receipt: Receipt) -> None:
        """Let the time be over for which the response is waited for."""
        self.sql(
            "UPDATE brainhands.tasks SET checkpoint = jsonb_set(checkpoint::jsonb, '{handle,give_up_at}',"
            " '\"2000-01-01T00:00:00+00:00\"')::json WHERE session_id = %s AND status = 'sleeping'",
            receipt.session_id,
        )

    def done(self, receipt: Receipt) -> Submission:
        return self.client.submission(receipt.submission_id)

    def generation(self, receipt: Receipt) -> Task:
        """The newest generation of the session."""
        return [task for task in self.client.session(receipt.session_id).tasks if task.kind == "generation"][-1]

    def cancel_task(self, receipt: Receipt) -> Task:
        """The one task that has the provider stop."""
        (task,) = (task for task in self.client.session(receipt.session_id).tasks if task.kind == RESPONSE_CANCEL)
        return task

    def log(self, receipt: Receipt) -> list[str]:
        """The types of the session's events that tell of the model."""
        return [type for type in self.types(receipt.session_id) if type in LOG]

    def payloads(self, receipt: Receipt, type: str) -> list[dict[str, Any]]:
        events = self.client.events(receipt.session_id)
        return [json.loads(event.payload_text) for event in events if event.type == type]

    def at_provider(self, receipt: Receipt) -> list[dict[str, Any]]:
        """The responses that the provider made for this session, oldest first."""
        return made_for(settings().openai_base_url, self.payloads(receipt, "user_message")[0]["text"])


def made_for(base_url: str | None, text: str) -> list[dict[str, Any]]:
    """The responses that the provider made for a user's message."""
    made = background_responses(str(base_url).removesuffix("/v1"))
    return [each for each in made if each["body"]["input"][0]["content"] == text]


@pytest.fixture(scope="module")
def shared_stage(postgres: Postgres) -> Iterator[BrainStage]:
    made: list[BrainStage] = []

    def interfering(_request: Request) -> Reply:
        interfere, made[0].interfere = made[0].interfere, None
        if interfere is not None:
            interfere()
        return Reply(text="Said.", looks=("in_progress",))

    with (
        pytest.MonkeyPatch.context() as environment,
        model_server.start({"interfering": interfering}) as model,
        new_database(postgres, template=migrated(postgres)) as url,
    ):
        environment.setenv("OPENAI_API_KEY", "sk-test")
        environment.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        environment.setenv("BRAINHANDS_MODEL", "test-model")
        settings.cache_clear()
        made.append(BrainStage(url))
        workers.publish(made[0].database, [ECHO])
        try:
            yield made[0]
            check(url)
        finally:
            made[0].close()


@pytest.fixture
def stage(shared_stage: BrainStage) -> BrainStage:
    """The stage of this module, with its agent as it was."""
    shared_stage.agent()
    return shared_stage


# One create, then looks


@pytest.mark.promise("E1", "E7")
def test_the_handle_and_the_next_look_are_stored_together_and_nothing_is_held_meanwhile(stage: BrainStage) -> None:
    receipt = stage.begin(text="At last.", looks=["queued", "in_progress"])

    (accepted,) = stage.payloads(receipt, "model_accepted")
    asleep = stage.generation(receipt)
    (response,) = stage.at_provider(receipt)
    assert (asleep.status, asleep.phase, asleep.worker_id, asleep.lease_until) == (Status.SLEEPING, "poll", None, None)
    assert asleep.wake_at is not None
    assert asleep.checkpoint["handle"]["response_id"] == accepted["response_id"] == response["id"]
    assert accepted["status"] == "queued"

    stage.wake(receipt, times=2)
    assert stage.generation(receipt).status is Status.SLEEPING
    assert stage.log(receipt) == ["model_request", "model_accepted"]
    stage.wake(receipt)

    assert (stage.done(receipt).outcome, stage.done(receipt).output) == (Outcome.SUCCEEDED, "At last.")
    assert stage.log(receipt) == ["model_request", "model_accepted", "model_output"]
    (output,) = stage.payloads(receipt, "model_output")
    assert (output["response_id"], output["request_digest"]) == (response["id"], accepted["request_digest"])
    assert output["request_changed"] is False
    (response,) = stage.at_provider(receipt)
    assert (response["looks"], response["cancels"]) == (3, 0)
    assert all(not task.is_open for task in stage.client.session(receipt.session_id).tasks)


@pytest.mark.promise("E7", "E6")
def test_what_goes_wrong_with_a_look_postpones_the_next_one_and_never_asks_anew(stage: BrainStage) -> None:
    receipt = stage.begin(
        text="At last.", looks=["429", "cut", "500", "503", "404", "404", "queued", "404"], retry_after=100
    )

    for _ in range(8):
        stage.wake(receipt)
        asleep = stage.generation(receipt)
        assert (asleep.status, asleep.phase) == (Status.SLEEPING, "poll")
    assert asleep.checkpoint["retries"] == 0
    assert stage.log(receipt) == ["model_request", "model_accepted"]
    stage.wake(receipt)

    assert stage.done(receipt).output == "At last."
    assert len(stage.at_provider(receipt)) == 1


@pytest.mark.promise("E6")
def test_the_next_look_is_made_when_the_provider_asks_for_it(stage: BrainStage) -> None:
    receipt = stage.begin(text="At last.", looks=["429"], retry_after=300)

    stage.wake(receipt)

    asleep = stage.generation(receipt)
    (now,) = stage.sql("SELECT clock_timestamp() AS now")
    assert asleep.wake_at is not None
    assert 250 < (asleep.wake_at - now["now"]).total_seconds() <= 375


@pytest.mark.promise("E7", "E5")
def test_calls_of_a_response_are_planned_as_those_of_a_stream_are(stage: BrainStage) -> None:
    stage.agent(tools=["echo"])
    calls = [
        {"name": "echo", "arguments": {"text": "a"}, "id": "a"},
        {"name": "no_such", "id": "b"},
        {"name": "echo", "id": "a"},
    ]
    receipt = stage.begin(text="I try.", calls=calls)
    stage.wake(receipt)

    (output,) = stage.payloads(receipt, "model_output")
    waiting = stage.generation(receipt)
    planned = [task for task in stage.client.session(receipt.session_id).tasks if task.owner_id == waiting.id]
    assert (waiting.status, waiting.phase) == (Status.WAITING, "tools")
    assert [call["provider_id"] for call in output["calls"]] == ["a", "b", "a"]
    assert len({call["call_id"] for call in output["calls"]}) == 3
    assert [task.input["arguments"] for task in planned] == [{"text": "a"}, {}]
    assert "there is no tool 'no_such'" in stage.payloads(receipt, "tool_call_error")[0]["error"]


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ({"refusal": "I would rather not."}, "the model refused: I would rather not."),
        ({"fault": "length", "text": "and then"}, "the reply was cut at the length limit"),
        ({"fault": "content_filter"}, "the provider's content filter stopped the reply"),
        ({"finish_reason": "mood"}, "the reply ended for an unknown reason: mood"),
        ({"fault": "cancelled"}, "the reply was cut: the response is cancelled at the provider"),
        ({"fault": "failed", "error_code": "invalid_prompt"}, "The model failed."),
        ({"looks": ["401"]}, "The key is not valid."),
    ],
)
def test_a_response_that_cannot_be_acted_on_ends_the_input_with_its_reason(
    stage: BrainStage, step: dict[str, Any], error: str
) -> None:
    receipt = stage.begin(**step)
    stage.wake(receipt)

    assert (stage.done(receipt).outcome, stage.done(receipt).error) == (Outcome.FAILED, error)
    assert len(stage.at_provider(receipt)) == 1


@pytest.mark.promise("E12")
def test_an_empty_response_is_asked_for_again_as_a_new_one(stage: BrainStage) -> None:
    receipt = stage.begin(fault="empty", times=1, text="Something.")
    stage.wake(receipt)

    asleep = stage.generation(receipt)
    first, second = stage.at_provider(receipt)
    assert (asleep.phase, asleep.checkpoint["handle"]["response_id"]) == ("poll", second["id"])
    assert first["body"] == second["body"]
    stage.wake(receipt)
    assert stage.done(receipt).output == "Something."


@pytest.mark.promise("E7", "E6")
@pytest.mark.parametrize("fault", ["failed", "expired"])
def test_a_response_that_the_provider_gave_up_is_asked_for_again_and_counted(stage: BrainStage, fault: str) -> None:
    stage.agent(retries=1)
    healed = stage.begin(fault=fault, times=1, text="Healed.")
    lost = stage.begin(fault=fault)
    for receipt in (healed, lost):
        stage.wake(receipt)
        assert (stage.generation(receipt).phase, stage.generation(receipt).checkpoint["retries"]) == ("retry", 1)
        assert "handle" not in stage.generation(receipt).checkpoint
        stage.wake(receipt, times=2)

    assert stage.done(healed).output == "Healed."
    assert stage.done(lost).outcome is Outcome.FAILED
    assert (stage.done(lost).error or "").endswith("(after 2 tries)")
    assert [len(stage.at_provider(receipt)) for receipt in (healed, lost)] == [2, 2]
    assert RESPONSE_CANCEL not in {task.kind for task in stage.client.session(lost.session_id).tasks}


@pytest.mark.promise("E7", "E13")
@pytest.mark.hazard(26)
def test_a_handle_that_the_provider_forgot_counts_as_an_interrupted_attempt(stage: BrainStage) -> None:
    receipt = stage.begin(fault="forgotten", times=1, text="Again.")
    for _ in range(background.LOOKS_UNTIL_FORGOTTEN):
        assert (stage.generation(receipt).phase, len(stage.at_provider(receipt))) == ("poll", 1)
        stage.wake(receipt)

    (interrupted,) = stage.payloads(receipt, "model_interrupted")
    assert interrupted["reason"] == "the provider does not know the response any more"
    assert interrupted["usage"]["estimated"] is True
    assert interrupted["usage"]["tokens_in"] > 0
    assert stage.client.session(receipt.session_id).tokens_in == interrupted["usage"]["tokens_in"]
    assert (stage.generation(receipt).phase, stage.generation(receipt).checkpoint["retries"]) == ("retry", 1)
    stage.wake(receipt, times=2)
    assert stage.done(receipt).output == "Again."
    assert len(stage.at_provider(receipt)) == 2
    assert stage.cancel_task(receipt).outcome is Outcome.SUCCEEDED


@pytest.mark.promise("E7")
def test_a_response_that_takes_too_long_is_cancelled_and_counts_as_an_interrupted_attempt(stage: BrainStage) -> None:
    receipt = stage.begin(fault="stuck", times=1, text="Again.")
    stage.overdue(receipt)
    stage.wake(receipt)

    (interrupted,) = stage.payloads(receipt, "model_interrupted")
    assert interrupted["reason"] == "the response did not end in time"
    stage.wake(receipt, times=2)
    assert stage.done(receipt).output == "Again."
    first, second = stage.at_provider(receipt)
    assert (first["cancels"], second["cancels"]) == (1, 0)
    (cancelled,) = stage.payloads(receipt, "model_cancelled")
    assert (cancelled["response_id"], cancelled["status"], cancelled["error"]) == (first["id"], "cancelled", None)


@pytest.mark.promise("E7")
def test_what_has_ended_by_the_last_look_still_counts(stage: BrainStage) -> None:
    receipt = stage.begin(text="Just in time.")
    stage.overdue(receipt)
    stage.wake(receipt)

    assert stage.done(receipt).output == "Just in time."


@pytest.mark.promise("E7", "E6")
@pytest.mark.hazard(26)
def test_a_create_whose_reply_was_lost_is_sent_again_and_counted(stage: BrainStage) -> None:
    receipt = stage.begin(fault="cut", times=1, text="Again.")

    assert stage.log(receipt) == ["model_request", "model_interrupted", "model_error"]
    assert stage.generation(receipt).checkpoint["retries"] == 1
    stage.wake(receipt, times=2)
    assert stage.done(receipt).output == "Again."
    first, second = stage.at_provider(receipt)
    assert (first["body"], first["looks"]) == (second["body"], 0)
    assert stage.payloads(receipt, "model_interrupted")[0]["usage"]["tokens_in"] > 0


def test_a_provider_that_answers_at_once_needs_no_look(stage: BrainStage, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(body: dict[str, Any], **_options: Any) -> responses.Response:
        said = {"type": "message", "content": [{"type": "output_text", "text": "Here."}]}
        return responses.Response(content={"id": "r", "status": "completed", "output": [said], "model": body["model"]})

    monkeypatch.setattr(responses, "create", at_once)
    receipt = stage.begin(text="unused")

    assert stage.done(receipt).output == "Here."
    assert stage.log(receipt) == ["model_request", "model_output"]


@pytest.mark.promise("E7", "C10")
def test_a_crash_while_polling_is_followed_by_a_look_and_after_too_many_the_provider_is_told(
    stage: BrainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_arguments: Any, **_options: Any) -> responses.Response:
        raise RuntimeError("a phase that fails")

    survivor = stage.begin(text="At last.", looks=["queued"])
    lost = stage.begin(fault="stuck")
    with monkeypatch.context() as crashing:
        crashing.setattr(responses, "retrieve", crash)
        stage.wake(survivor)
        for _ in range(3):
            stage.wake(lost)
            stage.work(lost)
    stage.work(survivor)
    stage.wake(survivor)

    assert stage.done(survivor).output == "At last."
    assert "model_interrupted" not in stage.log(survivor)
    assert "stopped after 3 attempts in phase poll" in (stage.done(lost).error or "")
    stage.work(lost)
    assert [each["cancels"] for each in stage.at_provider(lost)] == [1]
    assert [len(stage.at_provider(each)) for each in (survivor, lost)] == [1, 1]


# Cancel


@pytest.mark.promise("C12", "E7")
def test_a_cancel_while_sleeping_ends_the_input_at_once_and_reaches_the_provider(stage: BrainStage) -> None:
    receipt = stage.begin(fault="stuck")

    answer = stage.client.cancel(submission=receipt.submission_id)

    assert (answer.state, answer.outcome) == (CancelState.CANCELLED, Outcome.CANCELLED)
    assert (stage.done(receipt).outcome, stage.generation(receipt).outcome) == (Outcome.CANCELLED,) * 2
    (interrupted,) = stage.payloads(receipt, "model_interrupted")
    assert (interrupted["reason"], interrupted["usage"]["tokens_in"] > 0) == ("cancelled", True)
    pending = stage.cancel_task(receipt)
    assert (pending.status, pending.owner_id) == (Status.PENDING, None)
    assert str(pending.requires) == "agent:sample"  # in any version, since that of the generation may be gone
    stage.work(receipt)
    assert [each["cancels"] for each in stage.at_provider(receipt)] == [1]
    assert stage.cancel_task(receipt).result == {"status": "cancelled"}
    assert all(not task.is_open for task in stage.client.session(receipt.session_id).tasks)


@pytest.mark.promise("C12")
def test_a_second_cancel_does_not_keep_the_first_from_the_provider(stage: BrainStage) -> None:
    receipt = stage.begin(fault="stuck")
    stage.client.cancel(session=receipt.session_id)

    again = stage.client.cancel(session=receipt.session_id)
    by_name = stage.client.cancel(task=stage.cancel_task(receipt).id)

    assert (again.state, by_name.state) == (CancelState.TOO_LATE, CancelState.TOO_LATE)
    stage.work(receipt)
    assert [each["cancels"] for each in stage.at_provider(receipt)] == [1]


@pytest.mark.promise("C12")
def test_a_provider_that_cannot_be_told_is_told_later_and_not_for_ever(
    stage: BrainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [stage.begin(fault="stuck"), stage.begin(fault="stuck")]
    for receipt in receipts:
        stage.client.cancel(submission=receipt.submission_id)
    with monkeypatch.context() as away:
        away.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        settings.cache_clear()
        for receipt in receipts:
            stage.work(receipt)
            assert stage.cancel_task(receipt).status is Status.SLEEPING
        for _ in range(background.CANCEL_TRIES - 1):
            stage.wake(receipts[1])
    settings.cache_clear()
    stage.wake(receipts[0])

    assert [stage.cancel_task(receipt).outcome for receipt in receipts] == [Outcome.SUCCEEDED, Outcome.FAILED]
    assert [stage.at_provider(receipt)[0]["cancels"] for receipt in receipts] == [1, 0]
    assert "cannot be reached" in stage.payloads(receipts[1], "model_cancelled")[0]["error"]


@pytest.mark.promise("C12")
def test_a_response_that_is_gone_needs_no_cancel(stage: BrainStage) -> None:
    receipt = stage.begin(fault="forgotten")
    stage.client.cancel(submission=receipt.submission_id)
    stage.work(receipt)

    assert stage.cancel_task(receipt).outcome is Outcome.SUCCEEDED
    assert stage.payloads(receipt, "model_cancelled")[0]["error"] == "There is no such response."


@pytest.mark.promise("C12", "C13")
def test_a_cancel_while_polling_reaches_the_provider_unless_the_answer_came_first(
    stage: BrainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending, answered = stage.begin(fault="stuck"), stage.begin(text="First.")

    def cancelled_meanwhile(receipt: Receipt) -> Callable[..., responses.Response]:
        def look(*arguments: Any, **options: Any) -> responses.Response:
            state = stage.client.cancel(submission=receipt.submission_id).state
            assert state is CancelState.ENDING
            return retrieve(*arguments, **options)

        return look

    retrieve = responses.retrieve
    for receipt in (pending, answered):
        monkeypatch.setattr(responses, "retrieve", cancelled_meanwhile(receipt))
        stage.wake(receipt)
        stage.work(receipt)

    assert (stage.done(pending).outcome, stage.done(answered).output) == (Outcome.CANCELLED, "First.")
    assert [stage.at_provider(receipt)[0]["cancels"] for receipt in (pending, answered)] == [1, 0]


def begin_with(stage: BrainStage, interfere: Callable[[Client, Receipt], object]) -> Receipt:
    """Submit an input, and let something happen while the provider has not answered its first create yet."""
    stage.agent(model="interfering")
    receipt = stage.submit(uuid4().hex)

    interfered = []

    def act() -> None:
        client = Client(stage.database_url, NO_REDIS)
        interfered.append(interfere(client, receipt))
        client.close()

    stage.interfere = act
    stage.work(receipt)
    assert len(interfered) == 1
    return receipt


@pytest.mark.promise("C12", "E7")
def test_a_cancel_while_the_create_is_in_flight_reaches_the_provider(stage: BrainStage) -> None:
    receipt = begin_with(stage, lambda client, receipt: client.cancel(submission=receipt.submission_id))

    assert stage.done(receipt).outcome is Outcome.CANCELLED
    stage.work(receipt)
    assert [each["cancels"] for each in stage.at_provider(receipt)] == [1]
    assert stage.log(receipt) == ["model_request", "model_interrupted", "model_cancelled"]
    assert stage.payloads(receipt, "model_interrupted")[0]["usage"]["tokens_in"] > 0


@pytest.mark.promise("C12", "D2")
@pytest.mark.hazard(26)
def test_a_claim_that_was_lost_during_the_create_leaves_nothing_running_at_the_provider(stage: BrainStage) -> None:
    def lose(client: Client, receipt: Receipt) -> None:
        (generation,) = client.session(receipt.session_id).tasks
        stage.end_lease(generation.id)
        sweep_of(stage.database).sweep_once()

    receipt = begin_with(stage, lose)
    stage.work(receipt)

    stage.wake(receipt, times=2)
    assert stage.done(receipt).output == "Said."
    (output,) = stage.payloads(receipt, "model_output")
    orphan, second = stage.at_provider(receipt)
    assert (orphan["cancels"], second["cancels"], second["id"]) == (1, 0, output["response_id"])


@pytest.mark.promise("C12")
@pytest.mark.hazard(26)
def test_a_cancel_that_outlives_a_slow_create_reaches_the_provider(stage: BrainStage) -> None:
    def cancel_and_lose(client: Client, receipt: Receipt) -> None:
        (generation,) = client.session(receipt.session_id).tasks
        client.cancel(submission=receipt.submission_id)
        stage.end_lease(generation.id)
        sweep_of(stage.database).sweep_once()

    receipt = begin_with(stage, cancel_and_lose)

    assert stage.done(receipt).outcome is Outcome.CANCELLED
    stage.work(receipt)
    assert [each["cancels"] for each in stage.at_provider(receipt)] == [1]


def test_people_are_shown_what_happens_at_the_provider(stage: BrainStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    receipt = stage.begin(fault="stuck")
    (response,) = stage.at_provider(receipt)
    stage.client.cancel(submission=receipt.submission_id)
    stage.work(receipt)

    shown = "\n".join(line.plain for line in timeline.lines(stage.client.events(receipt.session_id)))

    assert f"{response['id']} is queued at the provider" in shown
    assert f"{response['id']}: cancelled" in shown


# Real processes


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """A relay, a Hands process and a Brain, which the tests kill and replace."""
    with fleet_for_many(tmp_path_factory.mktemp("background"), postgres, redis_server) as made:
        made.environment["BRAINHANDS_LEASE_SECONDS"] = "1.5"
        made.relay(), made.hands()
        yield made


def of_session(fleet: Fleet, session: UUID) -> list[dict[str, Any]]:
    """What the provider made for this session."""
    return made_for(fleet.environment["OPENAI_BASE_URL"], fleet.payloads(session, "user_message")[0]["text"])


@dataclass(frozen=True)
class Restarted:
    """Sessions that were under way when the only Brain was killed, as they ended under the next one."""

    pending: Receipt
    creating: Receipt
    brain: Child
    """The next one."""


@pytest.fixture(scope="module")
def restarted(fleet: Fleet) -> Restarted:
    first = fleet.brain()
    calls = [{"name": "echo", "arguments": {"text": "back"}}]
    looked_at = {"calls": calls, "looks": ["queued"] * 2}
    pending = fleet.script(looked_at, {"text": "done", "looks": ["queued"]}, agent="thoughtful")
    creating = fleet.script({"fault": "hang", "times": 1, "text": "again"}, agent="thoughtful")
    fleet.wait_for_event(pending.session_id, "model_accepted")
    wait_until(lambda: len(of_session(fleet, creating.session_id)) == 1, 20, "the provider has begun")
    first.kill()
    second = fleet.brain()
    for receipt in (pending, creating):
        wait_hurrying(fleet, receipt)
    return Restarted(pending, creating, second)


@pytest.mark.promise("E7", "H6", "C4")
@pytest.mark.hazard(26)
@pytest.mark.crash
def test_a_brain_killed_while_the_response_is_pending_costs_no_second_create(
    fleet: Fleet, restarted: Restarted
) -> None:
    session = restarted.pending.session_id

    assert fleet.wait(restarted.pending).output == "done"
    assert len(of_session(fleet, session)) == 2, "one for each round"
    assert [each["cancels"] for each in of_session(fleet, session)] == [0, 0]
    types = [each.type for each in events_of(fleet, session, "model_request", "model_accepted", "model_output")]
    assert types == ["model_request", "model_accepted", "model_output"] * 2


@pytest.mark.promise("E7")
@pytest.mark.hazard(26)
@pytest.mark.crash
def test_a_brain_killed_before_the_handle_was_stored_is_followed_by_a_second_create(
    fleet: Fleet, restarted: Restarted
) -> None:
    session = restarted.creating.session_id

    assert fleet.wait(restarted.creating).output == "again"
    first, second = of_session(fleet, session)
    assert first["body"] == second["body"]
    assert len(events_of(fleet, session, "model_interrupted", "task_recovered")) == 2


@pytest.mark.promise("C12", "E7")
def test_a_cancel_while_every_brain_is_gone_reaches_the_provider_when_one_is_back(
    fleet: Fleet, restarted: Restarted
) -> None:
    receipt = fleet.script({"fault": "stuck"}, agent="thoughtful")
    fleet.wait_for_event(receipt.session_id, "model_accepted")
    restarted.brain.send(signal.SIGTERM)
    restarted.brain.wait()

    answer = fleet.client.cancel(submission=receipt.submission_id)

    assert (answer.state, answer.outcome) == (CancelState.CANCELLED, Outcome.CANCELLED)
    fleet.brain()
    told = wait_for_task(fleet, receipt.session_id, RESPONSE_CANCEL, Status.DONE)
    assert told.outcome is Outcome.SUCCEEDED
    assert [each["cancels"] for each in of_session(fleet, receipt.session_id)] == [1]
