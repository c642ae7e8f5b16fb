"""Values at the limits of the doors, and flows in flows, played by real tools and flows to their end."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from brainhands import Done, Flow, Next, Wait, WaitSignal, phase, tool
from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import MAX_DEPTH as MAX_NESTED_FLOWS
from brainhands.hands.flows import flow_kind
from brainhands.hands.tool import MAX_OUTPUT_BYTES
from brainhands.shared.engine.definition import Kind
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.json import MAX_BYTES, MAX_DEPTH, Json, canonical, clean
from brainhands.shared.model.task import Outcome, Task
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules.calls import call_task
from tests.instruments.invariants import violations
from tests.store.desk import worker_of
from tests.store.extremes import VALUES, nested, of_bytes
from tests.store.stage import Stage

AT_THE_LIMIT = {
    "depth": clean(nested(MAX_DEPTH - 1)),
    "bytes": clean(of_bytes(MAX_BYTES - len('{"value":}'))),
    "numbers": VALUES["numbers"],
    "names": VALUES["names"],
}
"""Each as the argument `value`, with which it is the largest object that a door lets in."""


@tool(replay="safe", output_limit=MAX_OUTPUT_BYTES)
def keep(value: Any) -> Any:
    """Gives back what it gets."""
    return value


class Hold(Flow, name="hold", version=1):
    """Leaves what it gets for the next phase, waits for a signal, calls a tool with what came, and ends with it."""

    @phase
    def begin(self, value: Any) -> Next:
        return Next(self.listen, checkpoint=value)

    @phase
    def listen(self) -> WaitSignal:
        return WaitSignal("more", self.spread, seconds=60)

    @phase
    def spread(self) -> Wait:
        child = self.spawn(keep, {"value": self.signal["payload"]})
        return Wait([child], self.end, checkpoint=str(child))

    @phase
    def end(self) -> Done:
        return Done(self.signal["payload"])


class Nest(Flow, name="nest", version=1):
    """Calls itself for as long as it is let."""

    @phase
    def begin(self) -> Wait:
        child = self.spawn(Nest, {})
        return Wait([child], self.end, checkpoint=str(child))

    @phase
    def end(self) -> Done:
        return Done(self.result(TaskId(UUID(self.checkpoint))).outcome)


def hands_for(stage: Stage, kind: Kind) -> Worker:
    return worker_of(stage, "hands", (kind,), Offer(name=kind.name, low=1, high=1))


def called(stage: Stage, kind: str, arguments: Json) -> tuple[SessionId, TaskId]:
    session_id, generation = stage.session()
    task_id = new_task_id()

    def call(draft: Draft) -> None:
        owner = draft.task(generation)
        draft.add(
            call_task(
                task_id, owner=owner, kind=kind, version=1, call_id=None, arguments=arguments, cause=1, now=draft.now
            )
        )

    stage.commit(session_id, call, [generation])
    return session_id, task_id


def play(stage: Stage, session_id: SessionId, hands: list[Worker]) -> list[Task]:
    """Hand out hints of calls until none is left; gives the calls."""
    hints = "SELECT task_id FROM brainhands.outbox WHERE session_id = %s AND requires_name NOT LIKE 'agent:%%'"
    while found := stage.sql(hints, session_id):
        for hint in found:
            for worker in hands:
                worker.advance([(hint["task_id"], session_id)])
    return [task for task in stage.client.session(session_id).tasks if task.kind.partition(":")[0] in ("tool", "flow")]


@pytest.mark.promise("H12", "B12")
@pytest.mark.parametrize("value", AT_THE_LIMIT.values(), ids=AT_THE_LIMIT)
def test_a_tool_runs_with_arguments_and_a_result_at_each_limit(stage: Stage, value: Json) -> None:
    session_id, task_id = called(stage, "tool:keep", {"value": value})

    play(stage, session_id, [hands_for(stage, tool_kind(keep))])

    ended = stage.task(task_id)
    assert (ended.outcome, ended.phase_attempts) == (Outcome.SUCCEEDED, 0)
    assert ended.checkpoint["call"]["arguments"] == {"value": value}
    assert ended.result == value or len(canonical(value)) > MAX_OUTPUT_BYTES
    assert violations(stage.database_url) == []


@pytest.mark.promise("H12", "B12")
@pytest.mark.parametrize("value", [AT_THE_LIMIT[name] for name in ("depth", "numbers", "names")])
def test_a_flow_goes_on_with_input_checkpoint_signal_child_and_result_at_each_limit(stage: Stage, value: Json) -> None:
    session_id, task_id = called(stage, "flow:hold", {"value": value})
    hands = [hands_for(stage, tool_kind(keep)), hands_for(stage, flow_kind(Hold))]
    play(stage, session_id, hands)

    assert stage.client.signal(session_id, "more", value).taken
    calls = play(stage, session_id, hands)

    assert [task.outcome for task in calls] == [Outcome.SUCCEEDED] * 2
    assert stage.task(task_id).result == value
    assert "task_recovered" not in stage.types(session_id)


@pytest.mark.promise("H12")
def test_flows_are_nested_up_to_a_stated_depth_and_the_next_one_is_refused(stage: Stage) -> None:
    session_id, _ = called(stage, "flow:nest", {})

    calls = play(stage, session_id, [hands_for(stage, flow_kind(Nest))])

    assert len(calls) == MAX_NESTED_FLOWS + 1
    *fine, refused = calls
    assert all(task.outcome is Outcome.SUCCEEDED for task in fine)
    assert refused.error == f"not run: flows call each other no deeper than {MAX_NESTED_FLOWS}"
    assert "task_recovered" not in stage.types(session_id)
