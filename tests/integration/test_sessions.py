"""Sessions as their users see them: inputs in their order, observers, pinned versions, events with all their fields."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC
from typing import Any
from uuid import uuid4

import pytest

from brainhands.shared.errors import UnknownAgent
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.event import Event, UnknownPayload, read_payload
from brainhands.shared.model.submission import Receipt, SubmissionStatus
from brainhands.shared.model.task import Outcome, Status
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child
from tests.instruments.sessions import events_of, fleet_for_many, open_gate, query

WAIT_ELSEWHERE = """
import sys
from brainhands.shared.client import Client

database_url, redis_url, submission = sys.argv[1:]
print(Client(database_url, redis_url).wait(submission, timeout=60).output)
"""


@pytest.fixture(scope="module")
def fleet_of_sessions(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis
) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process."""
    with fleet_for_many(tmp_path_factory.mktemp("sessions"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.odd_agents",
            "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.odd_tools",
        }
        fleet.everything()
        yield fleet


def gated(gate: str) -> dict[str, Any]:
    return {"calls": [{"name": "gated", "arguments": {"name": gate}}]}


@pytest.mark.promise("A1", "A5")
def test_submitting_returns_at_once_and_waiting_only_observes_also_again_and_from_elsewhere(
    fleet_of_sessions: Fleet,
) -> None:
    fleet = fleet_of_sessions
    receipt = fleet.script(gated("observed"), {"text": "seen"}, agent="odd")
    stored = fleet.client.submission(receipt.submission_id)
    assert stored.status is not SubmissionStatus.DONE
    with pytest.raises(TimeoutError):
        fleet.client.wait(receipt.submission_id, timeout=0.1)
    elsewhere = subprocess.Popen(
        [sys.executable, "-c", WAIT_ELSEWHERE, fleet.database_url, fleet.redis_url, str(receipt.submission_id)],
        stdout=subprocess.PIPE,
        text=True,
    )
    fleet.wait_for_effect("gated observed")
    before = fleet.types(receipt.session_id)
    open_gate(fleet, "observed")

    done = fleet.wait(receipt)

    assert elsewhere.communicate(timeout=60)[0] == "seen\n"
    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "seen")
    assert fleet.wait(receipt) == fleet.client.submission(receipt.submission_id) == done
    assert fleet.types(receipt.session_id)[: len(before)] == before
    assert fleet.types(receipt.session_id).count("submission_done") == 1


@pytest.mark.promise("A9", "E11")
@pytest.mark.case("agentscope-ai/QwenPaw#6918: two messages to one conversation at once")
def test_inputs_for_a_busy_session_are_queued_and_run_after_it_in_their_order(fleet_of_sessions: Fleet) -> None:
    fleet = fleet_of_sessions
    first = fleet.script(gated("busy"), {"text": "first"}, agent="odd")
    fleet.wait_for_effect("gated busy")
    later = [fleet.script({"text": f"answer {number}"}, agent="odd", session=first.session_id) for number in range(2)]
    failing = fleet.script({"fault": "401"}, agent="odd", session=first.session_id)
    last = fleet.script({"text": "answer last"}, agent="odd", session=first.session_id)

    queued = [*later, failing, last]
    assert {fleet.client.submission(each.submission_id).status for each in queued} == {SubmissionStatus.ACCEPTED}
    assert fleet.types(first.session_id).count("user_message") == 1
    open_gate(fleet, "busy")

    assert [fleet.wait(each).output for each in (first, *queued)] == [
        "first",
        "answer 0",
        "answer 1",
        None,
        "answer last",
    ]
    turns = [
        (event.type, json.loads(event.payload_text)["submission"])
        for event in events_of(fleet, first.session_id, "user_message", "submission_done")
    ]
    assert turns == [
        (type, str(each.submission_id)) for each in (first, *queued) for type in ("user_message", "submission_done")
    ]
    messages = next(
        body["messages"] for body in reversed(fleet.model_requests()) if "answer last" in str(body["messages"])
    )
    assert [message["content"] for message in messages if message["role"] == "assistant"] == [
        None,
        "first",
        "answer 0",
        "answer 1",
    ]


@pytest.mark.promise("A9")
@pytest.mark.case("agentscope-ai/QwenPaw#6918: two messages to one conversation at once")
@pytest.mark.case("agentscope-ai/QwenPaw#6918")
def test_inputs_that_come_while_generations_begin_and_end_never_run_at_the_same_time(fleet_of_sessions: Fleet) -> None:
    fleet = fleet_of_sessions
    first = fleet.script({"text": "begin"}, agent="odd")
    rest = [fleet.script({"text": f"{number}"}, agent="odd", session=first.session_id) for number in range(8)]

    assert [fleet.wait(each).output for each in rest] == [f"{number}" for number in range(8)]

    turns = [event.type for event in events_of(fleet, first.session_id, "user_message", "submission_done")]
    assert turns == ["user_message", "submission_done"] * 9
    assert query(fleet, "SELECT 1 FROM brainhands.inbox WHERE session_id = %s", first.session_id) == []


@pytest.mark.promise("I1")
def test_every_event_has_its_type_payload_causes_time_and_who_wrote_it(fleet_of_sessions: Fleet) -> None:
    fleet = fleet_of_sessions
    calls = [{"name": "ping"}, {"name": "definite", "arguments": {"text": "no"}}]
    receipt = fleet.script({"calls": calls}, {"text": "done"}, agent="odd")
    fleet.wait(receipt)

    events = fleet.client.events(receipt.session_id)
    pools = {"brain": "brain.default", "hands": "hands.default"}
    written_by = {row["id"]: row for row in query(fleet, "SELECT * FROM brainhands.workers")}
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for before, event in zip([None, *events], events, strict=False):
        payload = read_payload(event.type, event.version, json.loads(event.payload_text))
        assert not isinstance(payload, UnknownPayload)
        assert all(0 < cause < event.seq for cause in event.causes)
        assert event.at.tzinfo is UTC or event.at.utcoffset() is not None
        assert before is None or (event.at >= before.at and event.prev_hash == before.hash)
        assert event.session_id == receipt.session_id
        if event.type in ("session_created", "user_message"):
            assert (event.worker_id, event.task_id, event.causes) == (None, None, ())
            continue
        assert event.causes
        assert event.task_id is not None
        assert event.fence is not None
        assert event.fence > 0
        assert event.worker_id is not None
        worker = written_by[event.worker_id]
        assert (event.pool, event.environment) == (pools[worker["role"]], worker["environment"])
        assert (event.pool == "hands.default") == (event.type == "tool_call_start" or event in ends_of(events))
    assert any(event.at.microsecond % 1000 for event in events)
    counted = [event for event in events if event.tokens_in is not None]
    assert {event.type for event in counted} == {"model_output"}
    assert len(counted) == 2


def ends_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type in ("tool_call_success", "tool_call_error")]


@pytest.mark.promise("H7")
@pytest.mark.slow
def test_a_session_waits_for_its_agent_with_a_reason_and_keeps_the_version_it_began_with(
    fleet_of_sessions: Fleet,
) -> None:
    fleet = fleet_of_sessions

    def brain(versions: str) -> Child:
        queue = f"brain.versions-{versions.replace(',', '-')}"
        return fleet.brain(
            slots=1, queue=queue, BRAINHANDS_AGENTS="tests.sample.versioned_agents", SAMPLE_VERSIONS=versions
        )

    with pytest.warns(UnknownAgent, match="versioned"):
        old = ask(fleet)
    assert blocked(fleet, old, within=12) == "no live worker offers agent:versioned"
    first = brain("1")
    assert instructions_for(fleet, old) == "You are version 1."
    assert {"task_blocked", "task_unblocked"} <= set(fleet.types(old.session_id))

    second = brain("2")
    first.stop()
    again = ask(fleet, session=old.session_id)
    new = ask(fleet)
    assert instructions_for(fleet, new) == "You are version 2."
    assert blocked(fleet, again, within=12) == "no live worker offers agent:versioned@1"
    assert fleet.client.submission(again.submission_id).status is SubmissionStatus.ACCEPTED

    both = brain("1,2")
    assert instructions_for(fleet, again) == "You are version 1."
    prompts = fleet.payloads(old.session_id, "model_request")
    assert [prompt["agent_version"] for prompt in prompts] == [1, 1]
    second.kill()
    both.kill()


def ask(fleet: Fleet, **options: Any) -> Receipt:
    return fleet.submit(f"Hello {uuid4().hex}", agent="versioned", **options)


def instructions_for(fleet: Fleet, receipt: Receipt) -> str:
    """The instructions under which the model answered this input."""
    answer = str(fleet.wait(receipt).output)
    said = answer.removeprefix("You said: ")
    (body,) = (body for body in fleet.model_requests() if body["messages"][-1]["content"] == said)
    return str(body["messages"][0]["content"])


def blocked(fleet: Fleet, receipt: Receipt, *, within: float) -> str | None:
    """Why the session's newest generation is blocked, once it is."""

    def reason() -> str | None:
        tasks = [task for task in fleet.client.session(receipt.session_id).tasks if task.status is Status.PENDING]
        return tasks[-1].blocked if tasks else None

    wait_until(lambda: reason() is not None, within, "the reason why the session is blocked")
    return reason()
