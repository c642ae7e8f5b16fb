"""Where two capabilities meet: agents under agents, cancels, reviews, forks, redaction and erasure, each on another."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from brainhands.shared.engine import approvals, ends
from brainhands.shared.engine.draft import Draft
from brainhands.shared.errors import BadInput, ErasedSession, StillNeeded
from brainhands.shared.model.approval import Question
from brainhands.shared.model.event import (
    ModelCall,
    ModelOutput,
    ModelRequest,
    TaskGiven,
    ToolCallStart,
    ToolCallSuccess,
    Usage,
)
from brainhands.shared.model.ids import ConversationId, SessionId, TaskId, new_conversation_id, new_task_id
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Done, Fail, Outcome, Status, Task, Transition, Wait
from brainhands.shared.rules import moves
from brainhands.shared.rules.calls import call_task
from brainhands.shared.store import commits, forks
from tests.instruments.invariants import violations
from tests.store.stage import Stage, decide, finish, play_task, spawn_and_wait
from tests.store.test_forks import PROMPT, Story
from tests.store.test_redaction import answered, seq_of


@pytest.fixture
def story(stage: Stage) -> Story:
    made = Story(stage)
    made.pin()
    return made


def output(text: str = "", *calls: ModelCall) -> ModelOutput:
    return ModelOutput(
        text=text, calls=list(calls), finish_reason="stop", model="m", usage=Usage(), request_digest="digest"
    )


# Agents under agents


@pytest.mark.promise("A10", "D5")
def test_a_generation_that_ends_in_the_commit_that_hands_on_to_it_lets_the_call_go_on(stage: Stage) -> None:
    """As one does whose session has used its budget up."""
    _, main = stage.session()
    call, first, onward = new_task_id(), new_task_id(), new_task_id()
    stage.advance(main, spawn_and_wait(call, phase="tools"))
    stage.advance(call, spawn_and_wait(first))

    def hand_on(draft: Draft, _task: Task) -> Transition:
        draft.hand_on(replace(play_task(draft, onward), owner_id=call), lambda _draft: Fail("the budget is used up"))
        draft.wait_also(call, onward)
        return Done()

    stage.advance(first, decide(hand_on))

    assert stage.task(onward).outcome is Outcome.FAILED
    assert (stage.status(call), call in stage.hinted()) == (Status.PENDING, True)
    assert stage.sql("SELECT 1 FROM brainhands.waits WHERE waiter_id = %s", call) == []
    assert violations(stage.database_url) == []


# Reviews and cancels


def in_review(stage: Stage, session_id: SessionId, main: TaskId) -> TaskId:
    """A call of which people shall find out whether it took effect."""
    call = new_task_id()

    def plan(draft: Draft, task: Task) -> Transition:
        planned = ModelCall(call_id="c1", provider_id="c1", name="play", arguments="{}")
        seq = draft.event(output("", planned), causes=[task.cause], task=task)
        draft.add(
            call_task(
                call,
                owner=task,
                kind="tool:play",
                version=1,
                call_id="c1",
                arguments={},
                cause=seq,
                now=draft.now,
            )
        )
        return Wait([call], phase="tools")

    stage.advance(main, decide(plan))

    def ask(draft: Draft) -> None:
        owned = draft.claim(draft.task(call), worker_id=stage.first.info.id, lease_seconds=60.0, phase_seconds=60.0)
        fields = {**ends.call_fields(owned), "operation_id": "o", "replay": "unsafe"}
        seq = draft.event(ToolCallStart(**fields, acts_until=None), causes=[owned.cause], task=owned)
        kept = replace(owned, checkpoint={"start_seq": seq})
        wait = approvals.ask(draft, kept, fields, Question.REVIEW, "it died", [seq], more={"partial": "half"})
        until = draft.now + timedelta(seconds=wait.seconds)
        waiting = moves.wait_for_signal(
            kept, phase=wait.phase, checkpoint=wait.checkpoint, name=wait.name, key=wait.key, until=until
        )
        draft.change(waiting)
        draft.record_step(owned, progress=None, deadline=None)

    stage.commit(session_id, ask, [call])
    return call


@pytest.mark.promise("C12", "F16")
@pytest.mark.parametrize("scope", ["session", "task"])
def test_a_call_that_is_cancelled_while_people_review_its_effect_stays_unknown(stage: Stage, scope: str) -> None:
    session_id, main = stage.session()
    call = in_review(stage, session_id, main)
    (question,) = stage.client.approvals()

    subjects = {"session": session_id, "task": call}
    stage.client.cancel(**{scope: str(subjects[scope])})

    assert stage.task(call).outcome is Outcome.INTERRUPTED
    (ended,) = (event for event in stage.client.events(session_id) if event.type == "tool_call_interrupted")
    assert '"half"' in ended.payload_text
    assert not stage.client.answer(question.id, "did_not_happen").accepted
    unknown: list[TaskId] = []
    stage.commit(session_id, lambda draft: unknown.extend(each.id for each in draft.locked.unknown_calls("tool:play")))
    assert unknown == [call]
    assert violations(stage.database_url) == []


# Forks, redaction and erasure


@pytest.mark.promise("I3", "I7")
def test_an_erased_fork_verifies_while_the_past_that_it_shares_is_there(stage: Stage) -> None:
    session_id = answered(stage)
    forked = stage.client.fork(session_id, at=2).session_id
    twice = stage.client.fork(forked, at=3).session_id
    stage.client.erase(twice, reason="why")

    stage.client.erase(forked, reason="why")

    assert [stage.client.verify(each) for each in (session_id, forked, twice)] == [None] * 3
    assert [event.redacted_at is None for event in stage.client.events(twice)][:4] == [True, True, False, False]
    assert violations(stage.database_url) == []


@pytest.mark.promise("I3", "I7")
@pytest.mark.hazard(32)
def test_a_session_erased_while_it_is_being_forked_has_no_fork(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    session_id = answered(stage)
    _before(monkeypatch, "keep", lambda: stage.client.erase(session_id, reason="why"))

    with pytest.raises(ErasedSession):
        stage.client.fork(session_id, at=2)

    assert len(stage.client.sessions()) == 1


@pytest.mark.promise("I3", "I7")
@pytest.mark.hazard(32)
def test_a_session_forked_while_it_is_being_erased_keeps_its_content(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = answered(stage)
    refused: list[StillNeeded] = []

    def erase() -> None:
        with pytest.raises(StillNeeded) as error:
            stage.client.erase(session_id, reason="why")
        refused.append(error.value)

    create = commits.create
    with ThreadPoolExecutor(1) as pool:
        started: list[Any] = []

        def create_later(*arguments: Any) -> Any:
            started.append(pool.submit(erase))
            stage.wait_for_a_waiter()
            return create(*arguments)

        monkeypatch.setattr(commits, "create", create_later)
        stage.client.fork(session_id, at=2)
        started[0].result()

    assert "forks of it" in str(refused[0])


def _before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Let something happen right before a function of the store's forks is called."""
    called = getattr(forks, name)

    def instead(*arguments: Any) -> Any:
        act()
        return called(*arguments)

    monkeypatch.setattr(forks, name, instead)


@pytest.mark.promise("I3", "I7")
def test_a_fork_never_says_of_a_redacted_call_that_it_had_not_begun(story: Story) -> None:
    client = story.stage.client
    story.reply("a")
    start, end = story.begin("a"), story.succeed("a")
    story.stage.advance(story.stage.open_generation(story.session_id), finish("done"))
    client.redact(story.session_id, [end], reason="why")
    assert story.fork(end).results() == {"a": "[redacted]"}

    client.redact(story.session_id, [start], reason="why")

    with pytest.raises(BadInput, match=f"event {end} was redacted"):
        client.fork(story.session_id, end)


@pytest.mark.promise("B9", "I7")
def test_the_views_of_a_fork_show_what_it_goes_on_with(story: Story) -> None:
    client = story.stage.client
    story.reply("a", tokens=50)
    story.begin("a"), story.succeed("a")
    fork = story.fork(story.head)
    twice = fork.fork(fork.head)

    for each in (fork, twice):
        view, used = client.session(each.session_id), client.document(each.session_id, "usage").value
        assert (used["tokens_in"], used["tokens_out"]) == (view.tokens_in, view.tokens_out) == (50, 1)
        (talk,) = client.document(each.session_id, "agent_settings").value["conversations"]
        assert (talk["conversation"], talk["instructions"]) == (str(each.conversation.id), PROMPT.instructions)


@pytest.mark.promise("B9", "I3")
def test_the_views_of_what_was_redacted_or_erased_show_nothing_of_it(stage: Stage) -> None:
    session_id, generation = stage.session()

    def ask(draft: Draft, task: Task) -> Transition:
        draft.event(PROMPT, causes=[task.cause], task=task)
        request = ModelRequest(agent="sample", agent_version=1, model="m", options={}, tools=[], cutoff=2)
        seq = draft.event(request, causes=[task.cause], task=task)
        ends.end_generation(draft, task, Outcome.SUCCEEDED, causes=[seq])
        return Done()

    def settings() -> tuple[object, object]:
        (talk,) = stage.client.document(session_id, "agent_settings").value["conversations"]
        return talk["instructions"], talk["model"]

    stage.advance(generation, decide(ask))
    assert settings() == (PROMPT.instructions, "m")
    stage.client.redact(session_id, [seq_of(stage, session_id, "model_request")], reason="why")
    assert settings() == (PROMPT.instructions, None)
    stage.client.erase(session_id, reason="why")
    assert settings() == (None, None)


@pytest.mark.promise("A10", "I3")
@pytest.mark.parametrize("gone", ["task_given", "tool_call_start", "tool_call_success", "model_output"])
def test_what_agents_tell_each_other_is_named_where_it_is_told_again(stage: Stage, gone: str) -> None:
    """The caller's reply, the intent, what was given, the answer and the result: five events with two secrets."""
    session_id, main = stage.session()
    call, inner = new_task_id(), new_conversation_id()
    told: dict[str, int] = {}

    def work(draft: Draft, task: Task) -> Transition:
        planned = ModelCall(call_id="c1", provider_id="c1", name="scout", arguments='{"task": "find the heron"}')
        told["reply"] = draft.event(output("", planned), causes=[task.cause], task=task)
        made = call_task(
            call,
            owner=task,
            kind="agent:scout",
            version=1,
            call_id="c1",
            arguments={"task": "find the heron"},
            cause=told["reply"],
            now=draft.now,
        )
        fields = {**ends.call_fields(made), "operation_id": str(call)}
        told["tool_call_start"] = draft.event(
            ToolCallStart(**fields, acts_until=None), causes=[told["reply"]], task=made
        )
        draft.write(Conversation(id=inner, session_id=session_id, owner_id=call, agent="scout", agent_version=1))
        told["task_given"] = _in(draft, inner, TaskGiven(text="find the heron", by="sample"), made)
        told["model_output"] = _in(draft, inner, output("it is grey"), made)
        told["tool_call_success"] = draft.event(
            ToolCallSuccess(**fields, result="it is grey"), causes=[told["tool_call_start"]], task=made
        )
        draft.add(replace(made, status=Status.DONE, outcome=Outcome.SUCCEEDED, result="it is grey"))
        ends.end_generation(draft, task, Outcome.SUCCEEDED, causes=[told["reply"]], output="done")
        return Done()

    stage.advance(main, decide(work))

    receipt = stage.client.redact(session_id, [told[gone]], reason="why")

    result = {"model_output", "tool_call_success"}
    asked = {"reply", "tool_call_start", "task_given", "tool_call_success"}
    expected = {"model_output": result, "tool_call_success": asked | result}.get(gone, asked) - {gone}
    assert {name for name, seq in told.items() if seq in receipt.repeated_in} == expected


def _in(draft: Draft, conversation_id: ConversationId, payload: TaskGiven | ModelOutput, task: Task) -> int:
    return draft.event(payload, causes=[task.cause], task=task, conversation_id=conversation_id)
