"""Generations on a real Brain: odd replies, failing providers, killed Brains, and what the model gets to see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest

from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.store import workers
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import (
    events_of,
    fleet_for_many,
    make_due,
    open_gate,
    query,
    task_of,
    wait_for_task,
)

LONG_ANSWER = (
    "a long answer that comes in many small pieces, one after the other, until it is whole and can be believed"
)
ANSWER = {"text": "done"}


@pytest.fixture(scope="module")
def brains(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain of two threads and one Hands process, on short leases."""
    with fleet_for_many(tmp_path_factory.mktemp("brains"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.odd_agents",
            "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.odd_tools",
            "BRAINHANDS_LEASE_SECONDS": "1.5",
        }
        fleet.relay(), fleet.brain(slots=2), fleet.hands()
        fleet.wait_for_workers(relay=1, brain=1, hands=1)
        yield fleet


def begin(fleet: Fleet, *steps: dict[str, Any], agent: str = "odd", session: UUID | None = None) -> Receipt:
    """Submit an input of its own kind that makes the model play these steps."""
    text = json.dumps({"script": steps, "mark": uuid4().hex})
    return fleet.submit(text, agent=agent, session=session)


def bodies(fleet: Fleet, receipt: Receipt) -> list[dict[str, Any]]:
    """The requests that the model server got for this session, in order."""
    said = fleet.payloads(receipt.session_id, "user_message")[0]["text"]
    return [
        body
        for body in fleet.model_requests()
        if any(message["role"] == "user" and message["content"] == said for message in body["messages"])
    ]


def told(fleet: Fleet, receipt: Receipt) -> list[str]:
    """What the model was told as results of calls, by its newest request."""
    return [message["content"] for message in bodies(fleet, receipt)[-1]["messages"] if message["role"] == "tool"]


def goes_on(fleet: Fleet, receipt: Receipt, agent: str = "odd") -> bool:
    """Whether the session takes another input, with a transcript that the provider accepts."""
    again = begin(fleet, {"text": "still here"}, agent=agent, session=receipt.session_id)
    return bool(fleet.wait(again).output == "still here")


def generation_of(fleet: Fleet, receipt: Receipt) -> Task:
    """The session's one generation so far."""
    return task_of(fleet, receipt.session_id, "generation")


# Odd replies


@pytest.mark.promise("E12", "E11")
@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("no_such_tool", "{}", "error: there is no tool 'no_such_tool'; the tools are: note, "),
        ("do it, now!", "{}", "error: there is no tool 'do it, now!'; the tools are: "),
        ("", "{}", "error: there is no tool ''; the tools are: "),
        ("note", '{"text": "broken', "error: not run: the arguments cannot be used: "),
        ("note", '["text"]', "error: not run: the arguments are not a JSON object"),
        ("note", '{"text": 1e5000}', "error: not run: the arguments cannot be used: "),
        ("note", '{"txet": "misspelt"}', "error: the arguments do not fit: text: is required\ntxet: is no argument"),
        ("ping", "", "pong"),
        ("ping", "null", "pong"),
        ("ping", "{}", "pong"),
    ],
)
def test_an_odd_call_gets_a_result_that_the_model_can_read_and_the_session_goes_on(
    brains: Fleet, name: str, arguments: str, result: str
) -> None:
    receipt = begin(brains, {"calls": [{"name": name, "arguments": arguments}]}, ANSWER)

    done = brains.wait(receipt)

    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "done")
    (said,) = told(brains, receipt)
    assert said.startswith(result)
    (output, _) = brains.payloads(receipt.session_id, "model_output")
    assert output["calls"][0]["arguments"] == arguments
    assert goes_on(brains, receipt)


@pytest.mark.promise("E12", "E11")
def test_repeated_call_ids_are_renamed_on_the_wire_and_kept_as_they_came(brains: Fleet) -> None:
    twice = {"calls": [{"name": "ping", "id": "call_same"}, {"name": "ping", "id": "call_same"}]}
    nameless = {"calls": [{"name": "ping", "id": None}]}
    receipt = begin(brains, twice, twice, nameless, ANSWER)

    assert brains.wait(receipt).output == "done"

    calls = [call for output in brains.payloads(receipt.session_id, "model_output") for call in output["calls"]]
    assert [call["provider_id"] for call in calls] == ["call_same"] * 4 + [""]
    assert len({call["call_id"] for call in calls}) == 5
    assert told(brains, receipt) == ["pong"] * 5


@pytest.mark.promise("E12")
def test_of_too_many_calls_the_surplus_gets_errors_and_the_others_run(brains: Fleet) -> None:
    receipt = begin(brains, {"calls": [{"name": "ping"}] * 35}, ANSWER)

    assert brains.wait(receipt).output == "done"

    results = told(brains, receipt)
    assert results[:32] == ["pong"] * 32
    assert all(result.startswith("error: not run: only 32 calls of one reply are run") for result in results[32:])
    assert len(results) == 35


@pytest.mark.promise("E12")
def test_an_empty_reply_is_asked_again_twice_and_then_ends_the_input(brains: Fleet) -> None:
    healed = begin(brains, {"fault": "empty", "times": 2, "text": "at last"})
    empty = begin(brains, {"fault": "empty"})

    assert brains.wait(healed).output == "at last"
    failed = brains.wait(empty)

    assert (failed.outcome, failed.error) == (Outcome.FAILED, "the model's reply was empty 3 times")
    for receipt in (healed, empty):
        first, second, third = bodies(brains, receipt)
        assert first == second == third
        assert goes_on(brains, receipt)


CALLED = {"calls": [{"name": "note", "arguments": {"text": "must not be written"}}]}


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("reply", "reason", "kept"),
    [
        ({"refusal": "I would rather not."}, "the model refused: I would rather not.", None),
        ({"fault": "content_filter", "text": "a", **CALLED}, "the provider's content filter stopped the reply", None),
        ({"fault": "length", **CALLED}, "the reply was cut at the length limit", None),
        ({"fault": "length", "text": "First,"}, "the reply was cut at the length limit", "First,"),
        ({"finish_reason": "mood", "text": "no"}, "the reply ended for an unknown reason: mood", "no"),
    ],
)
def test_a_reply_that_cannot_be_acted_on_ends_the_input_with_its_reason_keeps_a_cut_text_and_runs_nothing(
    brains: Fleet, reply: dict[str, Any], reason: str, kept: str | None
) -> None:
    receipt = begin(brains, reply)

    done = brains.wait(receipt)

    assert (done.outcome, done.error, done.output) == (Outcome.FAILED, reason, kept)
    assert "note must not be written" not in brains.effects()
    assert not {"tool_call_start", "tool_call_error"} & set(brains.types(receipt.session_id))
    assert goes_on(brains, receipt)


@pytest.mark.promise("E12", "E11")
def test_an_input_that_takes_too_many_rounds_ends_with_every_call_closed(brains: Fleet) -> None:
    receipt = begin(brains, *[{"calls": [{"name": "ping"}]}] * 3, agent="brief")

    done = brains.wait(receipt)

    assert (done.outcome, done.error) == (Outcome.FAILED, "stopped after 2 model calls for one input")
    assert goes_on(brains, receipt, agent="brief")
    assert told(brains, receipt) == ["pong", "error: not run: stopped after 2 model calls for one input"]


# Providers that fail


@pytest.mark.promise("E6", "C5")
@pytest.mark.parametrize("fault", ["429", "503"])
def test_a_provider_that_asks_for_time_gets_it_as_a_stored_wake_time(brains: Fleet, fault: str) -> None:
    receipt = begin(brains, {"fault": fault, "times": 1, "retry_after": 3000, "text": "rested"})
    asleep = wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)

    (failed,) = events_of(brains, receipt.session_id, "model_error")
    (error,) = brains.payloads(receipt.session_id, "model_error")
    assert asleep.wake_at is not None
    assert 3000 <= (asleep.wake_at - failed.at).total_seconds() <= 3000 * 1.25
    assert (asleep.phase, asleep.checkpoint["retries"], asleep.worker_id) == ("retry", 1, None)
    assert (error["status"], 3000 <= error["retry_seconds"] <= 3750) == (int(fault), True)
    make_due(brains, receipt.session_id)

    assert brains.wait(receipt).output == "rested"
    first, second = bodies(brains, receipt)
    assert first == second


@pytest.mark.promise("E6")
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("insufficient_quota", 429, "insufficient_quota"),
        ("401", 401, "invalid_api_key"),
    ],
)
def test_an_error_that_cannot_heal_ends_the_input_at_once_and_says_why(
    brains: Fleet, fault: str, status: int, code: str
) -> None:
    receipt = begin(brains, {"fault": fault})

    done = brains.wait(receipt)

    (error,) = brains.payloads(receipt.session_id, "model_error")
    assert (done.outcome, done.error) == (Outcome.FAILED, error["error"])
    assert (error["status"], error["code"], error["retry_seconds"]) == (status, code, None)
    assert error["error"].endswith(".")
    assert len(bodies(brains, receipt)) == 1
    assert goes_on(brains, receipt)


@pytest.mark.promise("E6")
def test_retries_are_counted_over_sleeps_and_end_the_input_at_their_limit(brains: Fleet) -> None:
    receipt = begin(brains, {"fault": "500"}, agent="impatient")
    wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
    make_due(brains, receipt.session_id)

    done = brains.wait(receipt)

    assert (done.outcome, done.error) == (Outcome.FAILED, "The server failed. (after 2 tries)")
    assert len(bodies(brains, receipt)) == 2


@pytest.mark.promise("E2", "E13")
@pytest.mark.parametrize(
    ("fault", "times"), [("insufficient_quota", 1), ("404", 1), ("500", 2), ("429", 2), ("cut", 2), ("truncated", 2)]
)
def test_where_a_model_failed_for_good_the_next_one_is_asked_by_a_request_of_its_own_and_at_its_own_prices(
    brains: Fleet, fault: str, times: int
) -> None:
    usage = {"prompt_tokens": 1_000, "completion_tokens": 500}
    receipt = begin(brains, {"fault": fault, "times": times, "text": "rescued", "usage": usage}, agent="spare")
    for _ in range(times - 1):
        wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
        make_due(brains, receipt.session_id)

    assert brains.wait(receipt).output == "rescued"

    first, second = brains.payloads(receipt.session_id, "model_request")
    assert [body["model"] for body in bodies(brains, receipt)] == ["large"] * times + ["small"]
    assert second == {**first, "model": "small", "prices": second["prices"]}
    assert (first["prices"], second["prices"]["output"]) == (None, "2")
    failed, (_, asked) = (events_of(brains, receipt.session_id, each) for each in ("model_error", "model_request"))
    assert asked.causes == (failed[-1].seq,)
    (output,) = brains.payloads(receipt.session_id, "model_output")
    assert output["usage"]["cost"] == "0.002"
    assert not output["request_changed"]


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("fault", "asked"), [("401", ["large"]), ("404", ["large", "small"])])
def test_no_other_model_is_asked_with_a_key_that_is_refused_and_none_behind_the_last_one(
    brains: Fleet, fault: str, asked: list[str]
) -> None:
    receipt = begin(brains, {"fault": fault}, agent="spare")

    done = brains.wait(receipt)

    assert (done.outcome, done.error) == (
        Outcome.FAILED,
        brains.payloads(receipt.session_id, "model_error")[-1]["error"],
    )
    assert [body["model"] for body in bodies(brains, receipt)] == asked


@pytest.mark.promise("E13")
def test_a_budget_that_is_used_up_keeps_the_next_model_from_being_asked(brains: Fleet) -> None:
    receipt = begin(brains, {"fault": "cut", "chunks": 6, "text": LONG_ANSWER}, agent="frugal")

    done = brains.wait(receipt)

    assert "budget of 1 tokens is used up" in (done.error or "")
    assert [body["model"] for body in bodies(brains, receipt)] == ["large"]


@pytest.mark.promise("E2")
def test_the_work_on_one_input_stays_with_the_model_that_answered_and_the_next_input_begins_with_the_first(
    brains: Fleet,
) -> None:
    call = {"calls": [{"name": "ping"}]}
    receipt = begin(brains, {"fault": "404", "times": 1, **call}, call, ANSWER, agent="spare")
    assert brains.wait(receipt).output == "done"
    assert goes_on(brains, receipt, agent="spare")

    requests = brains.payloads(receipt.session_id, "model_request")
    assert [each["model"] for each in requests] == ["large", "small", "small", "small", "large"]


@pytest.mark.promise("E4")
@pytest.mark.parametrize(
    ("fault", "agent", "shown"), [("cut", "odd", 6), ("truncated", "odd", None), ("hang", "hasty", 6)]
)
def test_a_stream_that_does_not_end_properly_is_kept_as_a_record_and_asked_for_again(
    brains: Fleet, fault: str, agent: str, shown: int | None
) -> None:
    receipt = begin(brains, {"fault": fault, "times": 1, "chunks": shown or 0, "text": LONG_ANSWER}, agent=agent)
    wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
    make_due(brains, receipt.session_id)

    assert brains.wait(receipt).output == LONG_ANSWER

    (interrupted,) = brains.payloads(receipt.session_id, "model_interrupted")
    (event,) = events_of(brains, receipt.session_id, "model_interrupted")
    assert interrupted["text"] == LONG_ANSWER[: 12 * (shown - 1) if shown else None]
    assert interrupted["usage"]["estimated"] is (fault != "truncated"), "a count that came is kept"
    assert (event.tokens_in or 0) > 0
    assert goes_on(brains, receipt, agent=agent)


@pytest.mark.promise("E4")
def test_calls_of_a_reply_that_was_cut_never_run(brains: Fleet) -> None:
    calls = [{"name": "note", "arguments": {"text": "half said"}, "id": f"call_{number}"} for number in range(2)]
    receipt = begin(brains, {"fault": "cut", "times": 1, "chunks": 5, "calls": calls}, {"text": "unused"})
    wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)

    assert "note half said" not in brains.effects()
    assert not {"tool_call_start", "model_output"} & set(brains.types(receipt.session_id))
    make_due(brains, receipt.session_id)

    assert brains.wait(receipt).output == "unused"
    assert brains.effects().count("note half said") == 2


# What is stored, and when


@pytest.mark.promise("E1", "E3", "B7")
def test_the_request_is_committed_before_the_provider_is_called_and_progress_is_written_apart(brains: Fleet) -> None:
    receipt = begin(brains, {"text": LONG_ANSWER, "chunk_delay": 0.3})
    wait_until(lambda: len(bodies(brains, receipt)) == 1, 20, "the provider has been called")

    assert brains.types(receipt.session_id)[-1] == "model_request"
    assert (generation_of(brains, receipt).phase, generation_of(brains, receipt).status) == ("request", Status.RUNNING)
    wait_until(lambda: 0 < len(progress_of(brains, receipt)) < len(LONG_ANSWER), 20, "some progress, not all")
    assert brains.types(receipt.session_id)[-1] == "model_request"

    assert brains.wait(receipt).output == LONG_ANSWER
    assert progress_of(brains, receipt) == LONG_ANSWER


def progress_of(fleet: Fleet, receipt: Receipt) -> str:
    statement = "SELECT progress FROM brainhands.attempts WHERE task_id = %s ORDER BY fence"
    return "".join(row["progress"] for row in query(fleet, statement, generation_of(fleet, receipt).id))


@pytest.mark.promise("E5", "E8", "E9")
def test_a_reply_and_its_tasks_a_round_and_the_next_an_answer_and_the_end_are_one_commit_each(brains: Fleet) -> None:
    calls = [{"name": "ping"}, {"name": "note", "arguments": {"text": "one commit each"}}, {"name": "no_such_tool"}]
    receipt = begin(brains, {"calls": calls}, ANSWER)
    brains.wait(receipt)

    tasks = brains.client.session(receipt.session_id).tasks
    outputs = events_of(brains, receipt.session_id, "model_output")
    requests = events_of(brains, receipt.session_id, "model_request")
    results = events_of(brains, receipt.session_id, "tool_call_success", "tool_call_error")
    (done,) = events_of(brains, receipt.session_id, "submission_done")
    first, second = (task for task in tasks if task.kind == "generation")
    called = [task for task in tasks if task.owner_id == first.id]
    # All that is stored together bears the time of its commit.
    assert {task.created_at for task in called} == {outputs[0].at}
    assert len(called) == 2
    assert (first.status, first.outcome) == (Status.DONE, Outcome.SUCCEEDED)
    assert second.created_at == requests[1].at
    assert requests[1].causes == tuple(sorted(event.seq for event in results))
    assert (done.at, done.causes) == (outputs[1].at, (outputs[1].seq,))


@pytest.mark.promise("E13")
def test_tokens_are_recorded_for_each_call_and_add_up_by_session(brains: Fleet) -> None:
    counted = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    receipt = begin(brains, {"calls": [{"name": "ping"}], "usage": counted}, {"text": "done", "usage": None})
    brains.wait(receipt)

    exact, estimated = brains.payloads(receipt.session_id, "model_output")
    first, second = events_of(brains, receipt.session_id, "model_output")
    session = brains.client.session(receipt.session_id)
    assert (exact["usage"]["tokens_in"], exact["usage"]["tokens_out"], exact["usage"]["tokens_cached"]) == (11, 7, 5)
    assert (exact["usage"]["estimated"], estimated["usage"]["estimated"]) == (False, True)
    assert (first.tokens_in, first.tokens_out) == (11, 7)
    assert second.tokens_in is not None
    assert second.tokens_in > 100
    assert (session.tokens_in, session.tokens_out) == (11 + second.tokens_in, 7 + (second.tokens_out or 0))


@pytest.mark.promise("E11", "B8")
@pytest.mark.case("livekit/agents#6785")
def test_however_its_calls_ended_a_transcript_is_one_that_the_provider_takes(brains: Fleet) -> None:
    calls = [
        {"name": "leave", "arguments": {"how": "boom"}, "id": "call_a"},
        {"name": "definite", "arguments": {"text": "no"}, "id": "call_a"},
        {"name": "note", "arguments": "{", "id": "call_c"},
        {"name": "ping", "id": None},
    ]
    receipt = begin(brains, {"text": "I try", "calls": calls}, {"fault": "length", "text": "and then"})

    assert brains.wait(receipt).outcome is Outcome.FAILED
    assert goes_on(brains, receipt)

    messages = bodies(brains, receipt)[-1]["messages"]
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant"),
        *["tool"] * 4,
        *("assistant", "user"),
    ]
    assert messages[7] == {"role": "assistant", "content": "and then"}


# Settings, tools and workers that change meanwhile


@pytest.mark.promise("E2")
@pytest.mark.hazard(28)
def test_a_retry_that_is_rendered_differently_says_so(brains: Fleet) -> None:
    receipt = begin(brains, {"fault": "503", "times": 2, "retry_after": 3000, "text": "changed"})
    wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
    (ping,) = (spec for spec in workers.read_catalogue(brains.database) if spec.name == "ping")
    workers.publish(brains.database, [ping.model_copy(update={"description": "Say pong."})])

    def brain_has_read_it() -> bool:
        other = begin(brains, ANSWER)
        brains.wait(other)
        return "Say pong." in str(bodies(brains, other)[0]["tools"])

    wait_until(brain_has_read_it, 20, "the new description")
    make_due(brains, receipt.session_id)
    wait_until(lambda: len(bodies(brains, receipt)) == 2, 20, "the second try")
    wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
    make_due(brains, receipt.session_id)
    brains.wait(receipt)

    (output,) = brains.payloads(receipt.session_id, "model_output")
    first, second = brains.payloads(receipt.session_id, "model_error")
    assert output["request_changed"] is True
    assert first["request_digest"] != second["request_digest"] == output["request_digest"]


@pytest.mark.promise("H7")
@pytest.mark.hazard(25)
def test_an_agent_whose_tool_nobody_has_published_says_so_and_goes_on_when_it_is(brains: Fleet) -> None:
    step = {"calls": [{"name": "from_later", "arguments": {"text": "hello"}}]}
    receipt = begin(brains, step, ANSWER, agent="wanting")
    brains.wait_for_event(receipt.session_id, "task_blocked")

    (blocked,) = brains.payloads(receipt.session_id, "task_blocked")
    assert blocked["reason"] == "no Hands worker has published from_later"
    assert "model_request" not in brains.types(receipt.session_id)
    waiting = wait_for_task(brains, receipt.session_id, "generation", Status.SLEEPING)
    assert waiting.checkpoint["reason"] == blocked["reason"]
    later = brains.hands(queue="hands.later")

    assert brains.wait(receipt).output == "done"
    assert told(brains, receipt) == ["later: hello"]
    assert len(events_of(brains, receipt.session_id, "task_blocked")) == 1
    later.kill()


@pytest.mark.promise("H2")
def test_one_brain_of_two_threads_serves_many_sessions_that_wait_for_their_tools(brains: Fleet) -> None:
    step = {"calls": [{"name": "gated", "arguments": {"name": "everybody"}}]}
    many = [begin(brains, step, ANSWER) for _ in range(12)]
    for receipt in many:
        waiting = wait_for_task(brains, receipt.session_id, "generation", Status.WAITING)
        assert (waiting.worker_id, waiting.lease_until) == (None, None)

    assert brains.wait(begin(brains, {"text": "at once"})).output == "at once"
    assert "submission_done" not in {type for receipt in many for type in brains.types(receipt.session_id)}
    open_gate(brains, "everybody")

    assert {brains.wait(receipt).output for receipt in many} == {"done"}


# A Brain is killed, and another one with other settings goes on


@dataclass(frozen=True)
class Restarted:
    """Sessions that were under way when their Brain was killed, as they ended under the next one."""

    streaming: Receipt
    calling: Receipt
    retrying: Receipt


@pytest.fixture(scope="module")
def restarted(brains: Fleet) -> Restarted:
    def brain(**settings: str) -> Any:
        return brains.brain(slots=4, queue="brain.apart", BRAINHANDS_AGENTS="tests.sample.apart_agents", **settings)

    first = brain(BRAINHANDS_MODEL="model-before", SAMPLE_TEMPERATURE="0.25")
    brains.wait_for_agent("apart")
    retrying = begin(brains, {"fault": "503", "times": 1, "retry_after": 3000, "text": "retried"}, agent="apart")
    step = {"calls": [{"name": "gated", "arguments": {"name": "brainless"}}]}
    calling = begin(brains, step, ANSWER, agent="apart")
    half = {"text": LONG_ANSWER, "fault": "hang", "times": 1, "chunks": 4, "chunk_delay": 0.4}
    streaming = begin(brains, half, agent="apart")
    wait_for_task(brains, retrying.session_id, "generation", Status.SLEEPING)
    wait_for_task(brains, calling.session_id, "generation", Status.WAITING)
    wait_until(lambda: len(bodies(brains, streaming)) == 1, 20, "the stream has begun")
    wait_until(lambda: progress_of(brains, streaming) != "", 20, "some of the stream is shown")
    first.kill()
    open_gate(brains, "brainless")
    brains.wait_for_event(calling.session_id, "tool_call_success")
    assert len(events_of(brains, calling.session_id, "model_request")) == 1
    brain(BRAINHANDS_MODEL="model-after", SAMPLE_TEMPERATURE="0.75")
    make_due(brains, retrying.session_id)
    for receipt in (streaming, calling, retrying):
        brains.wait(receipt)
    return Restarted(streaming, calling, retrying)


@pytest.mark.promise("E2", "E6")
@pytest.mark.crash
def test_a_retry_sends_what_was_pinned_even_by_a_brain_with_other_settings(brains: Fleet, restarted: Restarted) -> None:
    first, second = bodies(brains, restarted.retrying)

    assert first == second
    assert (second["model"], second["temperature"]) == ("model-before", 0.25)
    (output,) = brains.payloads(restarted.retrying.session_id, "model_output")
    assert (output["text"], output["request_changed"]) == ("retried", False)


@pytest.mark.promise("E2", "E4", "C4")
@pytest.mark.crash
def test_a_request_whose_brain_was_killed_is_sent_again_and_its_partial_text_stays_as_a_record(
    brains: Fleet, restarted: Restarted
) -> None:
    first, second = bodies(brains, restarted.streaming)

    assert first == second
    (partial,) = brains.payloads(restarted.streaming.session_id, "model_interrupted")
    (output,) = brains.payloads(restarted.streaming.session_id, "model_output")
    assert partial["text"]
    assert LONG_ANSWER.startswith(partial["text"])
    assert partial["usage"]["estimated"] is True
    assert (output["text"], output["request_changed"]) == (LONG_ANSWER, False)


@pytest.mark.promise("E5", "F10", "H1", "B8")
@pytest.mark.crash
@pytest.mark.case("openai/openai-agents-python#2426")
def test_planned_calls_run_while_every_brain_is_gone_and_the_next_one_applies_their_results(
    brains: Fleet, restarted: Restarted
) -> None:
    first, second = bodies(brains, restarted.calling)

    assert brains.effects().count("gated brainless") == 1
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][3]["content"] == "through brainless"
    assert (second["model"], second["temperature"]) == ("model-after", 0.75)


@pytest.mark.promise("E6")
def test_a_brain_without_a_key_ends_the_input_and_says_what_is_missing(brains: Fleet) -> None:
    brain = brains.brain(queue="brain.keyless", BRAINHANDS_AGENTS="tests.sample.versioned_agents", OPENAI_API_KEY="")
    brains.wait_for_agent("versioned")
    receipt = begin(brains, ANSWER, agent="versioned")

    done = brains.wait(receipt)

    assert (done.outcome, done.error) == (Outcome.FAILED, "OPENAI_API_KEY is not set for this Brain worker")
    brain.kill()
