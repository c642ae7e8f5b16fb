"""What authors say of older versions: which calls a tool runs, how a flow is migrated, which sessions an agent has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from brainhands import Done, Flow, FlowState, Next, phase, tool
from brainhands.brain.agent import Agent, agent_of
from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import flow_kind
from brainhands.shared.cli import timeline
from brainhands.shared.errors import BadDefinition, Incompatible
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.json import canonical
from brainhands.shared.model.task import Requirement, Task
from brainhands.shared.rules.chain import GENESIS
from tests.rules.tasks import task


def name_the_phase(state: FlowState) -> FlowState:
    return replace(state, phase="send" if state.phase == "mail" else state.phase)


def add_currency(state: FlowState) -> FlowState:
    return replace(
        state,
        arguments={**state.arguments, "currency": "EUR"},
        checkpoint=None if state.checkpoint is None else {"open": state.checkpoint},
    )


class Billing(Flow, name="billing", version=3, migrations={1: name_the_phase, 2: add_currency}):
    """Bill customers."""

    @phase
    def plan(self, customers: list[str], currency: str) -> object:
        return Next(self.send, {"open": customers, "in": currency})

    @phase
    def send(self) -> object:
        return Done(self.checkpoint)


def stored(version: int, phase: str, **fields: Any) -> Task:
    kind = "flow:billing"
    return task(kind=kind, version=version, requires=Requirement(name=kind, version=version), phase=phase, **fields)


def under_way(version: int, phase: str) -> Task:
    call = {"call_id": "c", "arguments": {"customers": ["a"]}, "operation_id": "o", "replay": None}
    checkpoint = {"call": call, "start_seq": 4, "last_seq": 5, "author": ["a"]}
    return stored(version, phase, input={"call_id": "c", "arguments": {"customers": ["raw"]}}, checkpoint=checkpoint)


@pytest.mark.promise("H8")
def test_a_flow_of_an_older_version_is_read_through_all_migrations_and_what_is_stored_stays() -> None:
    kind = flow_kind(Billing)
    before = under_way(1, "mail")

    read = kind.read(before)

    assert list(kind.versions) == [1, 2, 3]
    assert (read.version, read.requires, read.phase) == (3, Requirement(name="flow:billing", version=3), "send")
    assert read.checkpoint["author"] == {"open": ["a"]}
    assert read.checkpoint["call"]["arguments"] == {"customers": ["a"], "currency": "EUR"}
    assert read.checkpoint["last_seq"] == 5
    assert before == under_way(1, "mail")
    assert kind.read(under_way(3, "send")) == under_way(3, "send")
    assert kind.read(under_way(2, "send")).checkpoint["author"] == {"open": ["a"]}


@pytest.mark.promise("H8")
def test_the_input_of_a_flow_that_has_not_begun_or_is_asked_about_is_migrated_too() -> None:
    kind = flow_kind(Billing)
    new = stored(1, "call", input={"call_id": None, "arguments": {"customers": ["a"]}}, checkpoint={})
    asked = under_way(2, "answered")

    assert kind.read(new).input == {"call_id": None, "arguments": {"customers": ["a"], "currency": "EUR"}}
    assert kind.read(new).phase == "call"
    assert kind.read(asked).checkpoint["call"]["arguments"]["currency"] == "EUR"
    assert kind.read(asked).phase == "answered"


@pytest.mark.promise("H8")
def test_a_migration_that_fails_or_leads_nowhere_leaves_the_flow_as_it_is() -> None:
    def away(state: FlowState) -> FlowState:
        return replace(state, phase=state.checkpoint["phase"])

    class Lost(Flow, name="lost", version=2, migrations={1: away}):
        @phase
        def only(self) -> object:
            return Done()

    kind = flow_kind(Lost)
    call: dict[str, Any] = {"call_id": None, "arguments": {}, "operation_id": "o", "replay": None}

    for author in ({"phase": "nowhere"}, {}):
        with pytest.raises(Incompatible, match="its state of version 1 cannot be made one of version 2"):
            kind.read(stored(1, "only", checkpoint={"call": call, "author": author}))


@pytest.mark.parametrize("steps", [(1,), (2, 4), (3,), (0, 1, 2)])
def test_migrations_with_a_gap_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(BadDefinition, match=r"do not lead to version 3"):

        class Gap(Flow, name="gap", version=3, migrations=dict.fromkeys(steps, name_the_phase)):
            @phase
            def only(self) -> object:
                return Done()


@pytest.mark.promise("H8")
def test_a_tool_runs_the_stored_calls_of_the_versions_that_it_accepts() -> None:
    def send(to: str) -> str:
        return to

    third = tool_kind(tool(version=3, accepts=2)(send))
    call = task(kind="tool:send", version=2, requires=Requirement(name="tool:send", version=2), phase="execute")

    assert list(third.versions) == [2, 3]
    assert third.read(call) == replace(call, version=3, requires=Requirement(name="tool:send", version=3))
    assert list(tool_kind(tool(version=3)(send)).versions) == [3]
    for accepts, said in ((4, "accepts=4 is newer than version 3"), (0, "accepts=0 is not possible")):
        with pytest.raises(BadDefinition, match=said):
            tool(version=3, accepts=accepts)(send)


def test_an_agent_goes_on_with_the_sessions_that_it_says_where_their_own_version_is_gone() -> None:
    def agents(*versions: tuple[int, int | None]) -> dict[tuple[str, int], Agent]:
        made = [Agent(name="a", version=version, continues=oldest, instructions="") for version, oldest in versions]
        return {(agent.name, agent.version): agent for agent in made}

    several = agents((1, None), (3, 1), (4, 2))

    assert [agent_of(several, "a", version).version for version in (None, 1, 2, 3, 4)] == [4, 1, 3, 3, 4]
    assert agent_of(agents((3, 1)), "a", 1).version == 3
    with pytest.raises(BadDefinition, match="continues=4 is newer than version 3"):
        agents((3, 4))


@pytest.mark.promise("H8")
@pytest.mark.parametrize("shown", [("deferred", 1, {"until": "noon"}), ("user_message", 9, {"words": ["hello"]})])
def test_an_event_that_is_not_known_here_is_shown_as_it_is_stored(
    shown: tuple[str, int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    type, version, payload = shown
    event = Event(
        session_id=SessionId(UUID(int=1)),
        seq=1,
        type=type,
        version=version,
        at=datetime(2026, 1, 1, tzinfo=UTC),
        causes=(),
        payload_text=canonical(payload),
        conversation_id=None,
        task_id=None,
        fence=None,
        worker_id=None,
        pool=None,
        environment=None,
        tokens_in=None,
        tokens_out=None,
        salt=b"",
        payload_digest=b"",
        prev_hash=GENESIS,
        hash=b"",
    )

    (line,) = timeline.lines([event])

    assert type in line.plain
    assert f"version {version}, not known here" in line.plain
    assert "noon" in line.plain or "hello" in line.plain
