"""Tools as their authors and the model see them: what becomes of a call, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.bus.topics import HANDS_QUEUE, HANDS_TASK, write_hints
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome, Status
from brainhands.shared.store.attempts import PROGRESS_LIMIT
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
    wait_hurrying,
)

ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process with the odd tools, on short leases."""
    with fleet_for_many(tmp_path_factory.mktemp("tools"), postgres, redis_server) as fleet:
        fleet.environment |= {
            "BRAINHANDS_AGENTS": "tests.sample.odd_agents",
            "BRAINHANDS_TOOLS": "tests.sample.tools,tests.sample.odd_tools",
            "BRAINHANDS_LEASE_SECONDS": "1.5",
        }
        fleet.everything()
        yield fleet


def call(fleet: Fleet, tool: str, arguments: Any = "", **options: Any) -> Receipt:
    """Let the model call one tool, and then answer."""
    step = {"calls": [{"name": tool, "arguments": arguments}]}
    return fleet.script(step, {"text": "done"}, **{"agent": "odd", **options})


def end_of(fleet: Fleet, receipt: Receipt) -> tuple[str, dict[str, Any]]:
    """How the session's one call ended, once the model has answered."""
    done = fleet.wait(receipt)
    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "done")
    (event,) = events_of(fleet, receipt.session_id, *ENDS)
    (payload,) = fleet.payloads(receipt.session_id, *ENDS)
    return event.type, payload


def result_of(fleet: Fleet, receipt: Receipt) -> Any:
    type, payload = end_of(fleet, receipt)
    assert type == "tool_call_success", payload
    return payload["result"]


def acts(fleet: Fleet, start: str) -> list[str]:
    return [line for line in fleet.effects() if line.startswith(start)]


@pytest.mark.promise("F1", "F2")
def test_a_tool_runs_only_after_its_final_arguments_policy_and_operation_id_are_committed(tools: Fleet) -> None:
    receipt = call(tools, "witness", {"text": "hello"})

    seen = result_of(tools, receipt)

    (start,) = seen["starts"]
    assert start["arguments"] == {"text": "hello", "times": 2}
    assert (start["replay"], start["operation_id"]) == ("unsafe", seen["operation_id"])
    assert start["operation_id"] == str(task_of(tools, receipt.session_id, "tool:witness").id)
    assert seen["text"] == "hellohello"


@pytest.mark.promise("F1")
def test_a_typed_coroutine_with_nested_arguments_is_a_tool_like_any_other(tools: Fleet) -> None:
    receipt = call(tools, "order", {"items": [{"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 1}]})

    assert result_of(tools, receipt) == {"quantities": {"a": 2, "b": 1}, "express": False}
    offered = {tool["function"]["name"]: tool["function"] for tool in tools.model_requests()[-1]["tools"]}
    assert offered["order"]["description"] == "Order items; a tool may be a coroutine."
    assert offered["order"]["parameters"]["required"] == ["items"]
    assert "ctx" not in offered["witness"]["parameters"]["properties"]


@pytest.mark.promise("E12", "F2", "F7")
def test_arguments_that_do_not_fit_are_a_definite_error_that_says_what_to_mend(tools: Fleet) -> None:
    bad = {"items": [{"sku": "bad-order", "quantity": 0}], "speed": 3}
    receipt = call(tools, "order", bad)

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_error"
    assert "items.0.quantity: " in payload["error"]
    assert "speed: is no argument; there are: items, express" in payload["error"]
    assert (payload["arguments"], payload["operation_id"]) == (bad, None)
    assert "tool_call_start" not in tools.types(receipt.session_id)
    (told,) = tool_messages(tools, "bad-order")
    assert told == f"error: {payload['error']}"


@pytest.mark.promise("F4", "F6", "F7", "C4")
@pytest.mark.crash
def test_an_unsafe_call_whose_worker_is_killed_is_interrupted_with_what_it_had_shown_and_never_repeated(
    tools: Fleet,
) -> None:
    receipt = call(tools, "hold_unsafe", {"name": "killed-unsafe"})
    tools.wait_for_effect("shown killed-unsafe")
    wait_until(lambda: "step two" in progress_of(tools, receipt.session_id), 5, "progress in the attempt's row")
    kill_worker_of(tools, receipt.session_id, "tool:hold_unsafe")

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_interrupted"
    assert payload["partial"] == "step one of killed-unsafe\nstep two of killed-unsafe\n"
    assert len(acts(tools, "hold_unsafe killed-unsafe")) == 1
    assert task_of(tools, receipt.session_id, "tool:hold_unsafe").outcome is Outcome.INTERRUPTED
    (told,) = tool_messages(tools, "killed-unsafe")
    assert "outcome of this call is unknown" in told
    assert "step two of killed-unsafe" in told


def progress_of(fleet: Fleet, session: UUID) -> str:
    rows = query(
        fleet,
        "SELECT a.progress FROM brainhands.attempts a JOIN brainhands.tasks t ON t.id = a.task_id"
        " WHERE t.session_id = %s AND t.kind LIKE 'tool:%%'",
        session,
    )
    return "".join(row["progress"] for row in rows)


@pytest.mark.promise("F3", "C4")
@pytest.mark.crash
def test_a_safe_call_whose_worker_is_killed_runs_again_with_the_stored_arguments_and_operation_id(tools: Fleet) -> None:
    receipt = call(tools, "hold_safe", {"name": "killed-safe"})
    tools.wait_for_effect("hold_safe killed-safe")
    kill_worker_of(tools, receipt.session_id, "tool:hold_safe")

    assert result_of(tools, receipt) == "attempt 2 of killed-safe"

    first, second = acts(tools, "hold_safe killed-safe")
    assert first == second
    assert tools.types(receipt.session_id).count("tool_call_start") == 1
    (recovered,) = tools.payloads(receipt.session_id, "task_recovered")
    assert (recovered["phase"], recovered["attempts"]) == ("execute", 1)
    assert "worker died" in recovered["reason"]


@pytest.mark.promise("F3")
@pytest.mark.crash
def test_a_safe_call_is_not_repeated_by_a_worker_whose_tool_is_no_longer_safe(tools: Fleet) -> None:
    before = tools.hands(queue="hands.turning", SAMPLE_TURNING="safe")
    receipt = call(tools, "turning", {"name": "changed"}, agent="turner")
    tools.wait_for_effect("turning changed")
    before.kill()
    after = tools.hands(queue="hands.turning", SAMPLE_TURNING="unsafe")

    type, payload = end_of(tools, receipt)

    assert (type, payload["replay"]) == ("tool_call_interrupted", "safe")
    assert acts(tools, "turning changed") == ["turning changed"]
    after.kill()


@pytest.mark.promise("F5", "F10", "B11")
@pytest.mark.crash
def test_a_reconcile_call_whose_effect_is_found_is_not_made_again(tools: Fleet) -> None:
    receipt = call(tools, "hold_reconcile", {"name": "was-sent"})
    tools.wait_for_effect("holding was-sent")
    kill_worker_of(tools, receipt.session_id, "tool:hold_reconcile")

    type, payload = end_of(tools, receipt)

    assert (type, payload["source"]) == ("tool_call_success", "lookup")
    assert payload["operation_id"] == "hold_reconcile:was-sent"
    assert payload["result"] == "found hold_reconcile:was-sent"
    assert acts(tools, "holding was-sent") == ["holding was-sent"]


@pytest.mark.promise("F5")
@pytest.mark.crash
def test_a_reconcile_call_whose_effect_is_not_found_is_made_again_as_the_same_operation(tools: Fleet) -> None:
    receipt = call(tools, "hold_reconcile", {"name": "unsent", "sent": False})
    tools.wait_for_effect("holding unsent")
    kill_worker_of(tools, receipt.session_id, "tool:hold_reconcile")

    assert result_of(tools, receipt) == "attempt 2 of unsent"

    assert acts(tools, "holding unsent") == ["holding unsent"] * 2
    assert acts(tools, "asked hold_reconcile:unsent") == ["asked hold_reconcile:unsent"]
    assert acts(tools, "hold_reconcile hold_reconcile:unsent") == ["hold_reconcile hold_reconcile:unsent"]


@pytest.mark.promise("F5")
@pytest.mark.crash
def test_a_look_up_that_fails_or_does_not_know_is_asked_again_later_and_then_believed(tools: Fleet) -> None:
    receipt = call(tools, "hold_reconcile", {"name": "riddle"})
    tools.wait_for_effect("holding riddle")
    kill_worker_of(tools, receipt.session_id, "tool:hold_reconcile")
    waiting = wait_for_task(tools, receipt.session_id, "tool:hold_reconcile", Status.SLEEPING)
    wait_hurrying(tools, receipt)

    type, payload = end_of(tools, receipt)

    assert (waiting.phase, waiting.worker_id) == ("reconcile", None)
    assert (type, payload["source"]) == ("tool_call_success", "lookup")
    assert len(acts(tools, "asked hold_reconcile:riddle")) == 3
    assert len(acts(tools, "holding riddle")) == 1


@pytest.mark.promise("F6", "G3")
@pytest.mark.crash
@pytest.mark.slow
def test_what_no_look_up_can_settle_is_shown_as_unknown_and_neither_repeated_nor_skipped(tools: Fleet) -> None:
    receipt = call(tools, "hold_reconcile", {"name": "mystery"})
    tools.wait_for_effect("holding mystery")
    kill_worker_of(tools, receipt.session_id, "tool:hold_reconcile")

    wait_hurrying(tools, receipt)
    type, payload = end_of(tools, receipt)

    assert (type, payload["operation_id"]) == ("tool_call_interrupted", "hold_reconcile:mystery")
    assert "the look-up does not know yet (asked 10 times)" in payload["error"]
    assert len(acts(tools, "asked hold_reconcile:mystery")) == 10
    assert len(acts(tools, "holding mystery")) == 1
    assert task_of(tools, receipt.session_id, "tool:hold_reconcile").outcome is Outcome.INTERRUPTED
    (told,) = tool_messages(tools, "mystery")
    assert "outcome of this call is unknown" in told


@pytest.mark.promise("F5")
@pytest.mark.hazard(1)
@pytest.mark.crash
def test_not_found_is_not_believed_while_the_last_attempt_can_still_act(tools: Fleet) -> None:
    receipt = call(tools, "send_late", {"to": "late-box"})
    tools.wait_for_effect("asked for late-box")
    kill_worker_of(tools, receipt.session_id, "tool:send_late")
    for asked in (1, 2):
        wait_until(lambda asked=asked: len(acts(tools, "late look-up")) == asked, 30, f"look-up {asked}")  # type: ignore[misc]
        patient = wait_for_task(tools, receipt.session_id, "tool:send_late", Status.SLEEPING)
        (started,) = events_of(tools, receipt.session_id, "tool_call_start")
        assert patient.wake_at == started.at + timedelta(seconds=3 + 27)
        if asked == 2:
            open_gate(tools, "late-box")
            tools.wait_for_effect("late late-box")
        make_due(tools, receipt.session_id)

    type, payload = end_of(tools, receipt)

    assert (type, payload["source"]) == ("tool_call_success", "lookup")
    assert acts(tools, "late look-up") == ["late look-up not found"] * 2 + ["late look-up found"]
    assert len(acts(tools, "late late-box")) == 1
    assert len(acts(tools, "asked for late-box")) == 1


@pytest.mark.promise("F5")
@pytest.mark.hazard(1)
def test_a_call_not_found_after_its_last_attempt_can_no_longer_act_is_made_again(tools: Fleet) -> None:
    receipt = call(tools, "send_lost", {"to": "lost-box"})

    assert result_of(tools, receipt) == "attempt 2"

    (started,) = events_of(tools, receipt.session_id, "tool_call_start")
    (ended,) = events_of(tools, receipt.session_id, "tool_call_success")
    assert ended.at - started.at > timedelta(seconds=1.5)
    assert acts(tools, "lost lost-box") == ["lost lost-box 1", "lost lost-box 2"]


@pytest.mark.promise("F7")
@pytest.mark.hazard(2)
def test_an_exception_after_the_effect_is_unknown_and_the_look_up_finds_what_happened(tools: Fleet) -> None:
    receipt = call(tools, "send_reconcile", {"to": "cut-after", "mode": "cut after"})

    type, payload = end_of(tools, receipt)

    assert (type, payload["source"]) == ("tool_call_success", "lookup")
    assert payload["result"] == "found send_reconcile:cut-after"
    assert len(acts(tools, "reconcile cut-after")) == 1


@pytest.mark.promise("F7", "F11")
def test_a_call_that_never_gets_through_is_tried_as_often_as_it_may_be_and_then_fails_for_sure(tools: Fleet) -> None:
    receipt = call(tools, "send_reconcile", {"to": "cut-before", "mode": "cut before"})

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_error"
    assert payload["error"] == "ConnectionError: cut before it was sent (after 4 attempts)"


@pytest.mark.promise("F7", "F4")
@pytest.mark.hazard(2)
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("boom", "ValueError: boom"),
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt: "),
        ("misuse", "BadArguments: items: is required"),
    ],
)
def test_whatever_an_unsafe_tool_raises_leaves_its_effect_unknown_and_its_worker_alive(
    tools: Fleet, how: str, error: str
) -> None:
    receipt = call(tools, "leave", {"how": how})

    type, payload = end_of(tools, receipt)

    assert (type, payload["error"]) == ("tool_call_interrupted", error)
    assert acts(tools, f"leave {how}") == [f"leave {how}"]
    assert "task_recovered" not in tools.types(receipt.session_id)


@pytest.mark.promise("F4", "F7")
@pytest.mark.crash
def test_a_tool_that_ends_its_process_is_an_unknown_effect_too(tools: Fleet) -> None:
    receipt = call(tools, "vanish")

    type, payload = end_of(tools, receipt)

    assert (type, payload["arguments"]) == ("tool_call_interrupted", {})
    assert acts(tools, "vanish") == ["vanish"]


@pytest.mark.promise("F7")
def test_a_tool_error_is_definite_and_other_events_than_an_unknown_outcome(tools: Fleet) -> None:
    receipt = call(tools, "definite", {"text": "no such customer"})

    type, payload = end_of(tools, receipt)

    assert (type, payload["error"]) == ("tool_call_error", "no such customer")
    assert task_of(tools, receipt.session_id, "tool:definite").outcome is Outcome.FAILED


@pytest.mark.promise("F11")
def test_a_safe_tool_that_loses_its_connection_is_tried_again_durably(tools: Fleet) -> None:
    healed = call(tools, "shaky", {"name": "heals", "until": 2})
    lost = call(tools, "shaky", {"name": "stays-lost", "until": 9})

    for receipt in (healed, lost):
        wait_hurrying(tools, receipt)

    assert result_of(tools, healed) == "held at attempt 2"
    type, payload = end_of(tools, lost)

    assert (type, payload["error"]) == ("tool_call_error", "OSError: connection reset (after 3 attempts)")
    assert acts(tools, "shaky stays-lost") == [f"shaky stays-lost {attempt}" for attempt in (1, 2, 3)]


@pytest.mark.promise("F11", "C5")
def test_a_retry_is_a_stored_time_that_holds_no_worker(tools: Fleet) -> None:
    receipt = call(tools, "not_before", {"name": "later"})
    asleep = wait_for_task(tools, receipt.session_id, "tool:not_before", Status.SLEEPING)

    assert result_of(tools, call(tools, "witness", {"text": "meanwhile"}))["text"] == "meanwhilemeanwhile"
    (started,) = events_of(tools, receipt.session_id, "tool_call_start")
    assert asleep.wake_at is not None
    assert 3600 <= (asleep.wake_at - started.at).total_seconds() < 3600 * 1.25 + 30
    assert (asleep.worker_id, asleep.lease_until) == (None, None)
    make_due(tools, receipt.session_id)

    assert result_of(tools, receipt) == "attempt 2"
    assert acts(tools, "not_before later") == ["not_before later 1", "not_before later 2"]


@pytest.mark.promise("F11")
@pytest.mark.crash
def test_a_runaway_tool_is_ended_with_its_process_and_reported(tools: Fleet) -> None:
    receipt = call(tools, "spin", {"name": "runaway"})
    tools.wait_for_effect("spin runaway")
    pid = int(acts(tools, "spin runaway")[0].split()[-1])

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_interrupted"
    assert payload["error"].endswith("ended without a result")
    (recovered,) = tools.payloads(receipt.session_id, "task_recovered")
    assert recovered["reason"] == "it ran past its deadline"
    assert not is_alive(pid)
    assert len(acts(tools, "spin runaway")) == 1


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.promise("F11", "C10")
@pytest.mark.crash
@pytest.mark.slow
def test_a_safe_tool_that_always_runs_away_stops_at_the_restart_limit(tools: Fleet) -> None:
    receipt = call(tools, "spin_safe", {"name": "for-ever"})

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_interrupted"
    assert payload["error"] == "stopped after 3 attempts in phase execute: it ran past its deadline"
    assert len(acts(tools, "spin_safe for-ever")) == 3
    (failed,) = tools.payloads(receipt.session_id, "task_failed")
    assert failed["error"] == payload["error"]


@pytest.mark.promise("F11", "B12")
def test_a_result_longer_than_its_cap_is_kept_and_told_as_far_as_the_cap(tools: Fleet) -> None:
    receipt = call(tools, "talk", {"characters": 5_000})

    assert result_of(tools, receipt) == {"truncated": True, "text": "é" * 500}


@pytest.mark.promise("F11", "B7")
def test_a_tool_that_shows_far_too_much_keeps_its_last_words_only(tools: Fleet) -> None:
    receipt = call(tools, "chatter", {"megabytes": 20})

    type, payload = end_of(tools, receipt)

    assert type == "tool_call_interrupted"
    assert len(payload["partial"]) == PROGRESS_LIMIT
    assert payload["partial"].endswith("xxxthe last words")


@pytest.mark.promise("D2", "F10")
def test_the_late_result_of_a_call_whose_claim_was_lost_is_kept_and_used(tools: Fleet) -> None:
    receipt = call(tools, "slow_unsafe", {"name": "late-word"})
    tools.wait_for_effect("slow_unsafe late-word")
    query(
        tools,
        "UPDATE brainhands.tasks SET lease_until = clock_timestamp() - interval '1 second'"
        " WHERE session_id = %s AND status = 'running'",
        receipt.session_id,
    )
    tools.wait_for_event(receipt.session_id, "task_recovered")
    open_gate(tools, "late-word")

    type, payload = end_of(tools, receipt)

    assert (type, payload["source"], payload["result"]) == ("tool_call_success", "late", "came back for late-word")
    assert len(acts(tools, "slow_unsafe late-word")) == 1


@pytest.mark.promise("F9", "F8")
@pytest.mark.case("celery/celery#1564")
def test_parallel_calls_keep_their_own_results_and_a_failing_one_costs_its_siblings_nothing(tools: Fleet) -> None:
    calls = [
        {"name": "note", "arguments": {"text": "sibling one"}, "id": "call_one"},
        {"name": "definite", "arguments": {"text": "sibling two"}, "id": "call_two"},
        {"name": "leave", "arguments": {"how": "boom"}, "id": "call_three"},
        {"name": "note", "arguments": {"text": "sibling four"}, "id": "call_four"},
    ]
    receipt = tools.script({"calls": calls}, {"text": "done"}, agent="odd")

    assert tools.wait(receipt).outcome is Outcome.SUCCEEDED

    ends = {payload["call_id"]: payload for payload in tools.payloads(receipt.session_id, *ENDS)}
    assert ends["call_one"]["result"] == "noted sibling one"
    assert ends["call_two"]["error"] == "sibling two"
    assert ends["call_three"]["error"] == "ValueError: boom"
    assert ends["call_four"]["result"] == "noted sibling four"
    told = tool_messages(tools, "sibling four")
    assert (told[0], told[1], told[3]) == ("noted sibling one", "error: sibling two", "noted sibling four")
    assert told[2].startswith("interrupted: ValueError: boom")


@pytest.mark.promise("F8", "F10")
def test_a_result_the_end_of_its_task_and_the_readiness_of_its_parent_are_one_commit(tools: Fleet) -> None:
    receipt = call(tools, "note", {"text": "one commit"})
    end_of(tools, receipt)

    accepted, completed = events_of(tools, receipt.session_id, "tool_call_start", "tool_call_success")
    _, applied = events_of(tools, receipt.session_id, "model_request")
    (hint,) = query(
        tools,
        "SELECT a.ended_at, w.waiter_id FROM brainhands.attempts a"
        " LEFT JOIN brainhands.waits w ON w.dependency_id = a.task_id WHERE a.task_id = %s",
        completed.task_id,
    )
    assert accepted.at < completed.at < applied.at
    assert completed.causes == (accepted.seq,)
    assert completed.seq in applied.causes
    assert hint["waiter_id"] is None


@pytest.mark.promise("C9", "H3")
@pytest.mark.case("langchain-ai/langgraph#7780")
def test_a_call_that_is_done_keeps_its_result_whatever_hints_come_for_it(tools: Fleet) -> None:
    receipt = call(tools, "note", {"text": "done once"})
    end_of(tools, receipt)
    done = task_of(tools, receipt.session_id, "tool:note")
    events = tools.types(receipt.session_id)
    app = celery_app("forger", redis_url=tools.redis_url, queue=HANDS_QUEUE, pool="prefork")
    for hints in ([(done.id, done.session_id)] * 3, [(done.id, uuid4())]):
        app.send_task(HANDS_TASK, kwargs=write_hints(hints), queue=HANDS_QUEUE)  # type: ignore[arg-type]
    app.close()

    # One process takes hints in their order: when it has done this call, it has had those hints.
    result_of(tools, call(tools, "note", {"text": "done after"}))

    assert acts(tools, "note done once") == ["note done once"]
    assert tools.types(receipt.session_id) == events
    assert task_of(tools, receipt.session_id, "tool:note") == done
