"""A fork goes on from the end of a commit of another session, and takes over what was so then and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from brainhands.brain import prompt
from brainhands.brain.history import NOT_IN_CONTEXT
from brainhands.shared.client import Client
from brainhands.shared.engine import documents, ends
from brainhands.shared.engine.draft import Draft
from brainhands.shared.errors import BadInput, RequestConflict, UnknownSession
from brainhands.shared.model.approval import Answer
from brainhands.shared.model.event import (
    ModelCall,
    ModelOutput,
    ModelRequest,
    SystemPromptSet,
    ToolCallInterrupted,
    ToolCallStart,
    ToolCallSuccess,
    Usage,
    read_payload,
)
from brainhands.shared.model.fork import ForkReceipt
from brainhands.shared.model.ids import ConversationId, SessionId, TaskId, new_task_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.rules.calls import call_task
from brainhands.shared.rules.verify import head_of
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import past, reads
from tests.instruments.invariants import violations
from tests.store.stage import AGENT, NO_REDIS, Stage

PROMPT = SystemPromptSet(agent=AGENT, agent_version=1, instructions="Do as you are told.")


class Story:
    """A session whose generation and calls a test writes by hand, a commit at a time."""

    def __init__(self, stage: Stage, session_id: SessionId | None = None) -> None:
        self.stage = stage
        self.session_id = stage.submit().session_id if session_id is None else session_id
        self.calls: dict[str, TaskId] = {}

    @property
    def conversation(self) -> Conversation:
        (main,) = self.stage.client.session(self.session_id).conversations
        return main

    @property
    def head(self) -> int:
        return self.stage.client.session(self.session_id).session.last_seq

    def commit(self, change: Callable[[Draft], object], *tasks: TaskId) -> int:
        """Store a change; gives the seq that the log ends with."""
        return self.stage.commit(self.session_id, change, tasks).session.last_seq

    def pin(self) -> int:
        main = self.conversation

        def change(draft: Draft) -> None:
            draft.event(PROMPT, causes=[1], conversation_id=main.id)
            draft.write(replace(main, agent_version=1))

        return self.commit(change)

    def reply(self, *names: str, tokens: int = 0) -> int:
        """The model calls a tool `send` once for each name, with that as its call id and argument."""
        main, owner = self.conversation, self.stage.task(self.stage.open_generation(self.session_id))
        output = ModelOutput(
            text="",
            calls=[
                ModelCall(call_id=name, provider_id=name, name="send", arguments=f'{{"to":"{name}"}}') for name in names
            ],
            finish_reason="tool_calls",
            model="m",
            usage=Usage(tokens_in=tokens, tokens_out=1),
            request_digest="",
        )

        def change(draft: Draft) -> None:
            seq = draft.event(output, causes=[1], conversation_id=main.id)
            for name in names:
                self.calls[name] = new_task_id()
                draft.add(
                    call_task(
                        self.calls[name],
                        owner=owner,
                        kind="tool:send",
                        version=1,
                        call_id=name,
                        arguments={"to": name},
                        cause=seq,
                        now=draft.now,
                    )
                )

        return self.commit(change)

    def begin(self, name: str) -> int:
        task = self.stage.task(self.calls[name])
        start = ToolCallStart(**{**ends.call_fields(task), "operation_id": name, "replay": "unsafe"}, acts_until=None)
        return self.commit(lambda draft: draft.event(start, causes=[task.cause], task=task))

    def succeed(self, name: str) -> int:
        return self._end(name, Outcome.SUCCEEDED, lambda fields: ToolCallSuccess(**fields, result=f"sent to {name}"))

    def interrupt(self, name: str) -> int:
        def payload(fields: dict[str, Json]) -> ToolCallInterrupted:
            return ToolCallInterrupted(**fields, partial="half", error="nobody knows")

        return self._end(name, Outcome.INTERRUPTED, payload)

    def _end(
        self, name: str, outcome: Outcome, payload: Callable[[dict[str, Json]], ToolCallSuccess | ToolCallInterrupted]
    ) -> int:
        task = self.stage.task(self.calls[name])

        def change(draft: Draft) -> None:
            draft.event(payload(ends.call_fields(task)), causes=[task.cause], task=task)
            draft.finish(task, outcome)

        return self.commit(change, task.id)

    def write(self, **values: Json) -> int:
        """Change documents, and say so with an event after it."""

        def change(draft: Draft) -> None:
            for name, value in values.items():
                documents.change(draft, name, name, 1, lambda _stored, value=value: value)  # type: ignore[misc]
            draft.event(PROMPT, causes=(), conversation_id=None)

        return self.commit(change)

    def fork(self, at: int) -> Story:
        story = Story(self.stage, self.stage.client.fork(self.session_id, at).session_id)
        story.calls = dict(self.calls)
        return story

    def messages(self) -> list[dict[str, Json]]:
        """What the model would be sent now."""
        main = self.conversation
        found = reads.context(
            self.stage.database,
            self.session_id,
            main.id,
            self.head,
            NOT_IN_CONTEXT,
            continues=main.continues is not None,
        )
        context = [
            prompt.ContextEvent(
                seq=row["seq"],
                type=row["type"],
                version=row["version"],
                payload=read_payload(row["type"], row["version"], row["payload"]),
            )
            for row in found
        ]
        request = ModelRequest(agent=AGENT, agent_version=1, model="m", options={}, tools=[], cutoff=self.head)
        messages: list[dict[str, Json]] = prompt.render(context, request, [])["messages"]
        return messages

    def results(self) -> dict[str, str]:
        """What the model would be told as the result of each call."""
        return {each["tool_call_id"]: each["content"] for each in self.messages() if each["role"] == "tool"}

    def unknown(self) -> dict[str, TaskId]:
        """Calls that must not simply be made again, by their argument."""
        found: dict[str, TaskId] = {}

        def look(draft: Draft) -> None:
            for task in draft.locked.unknown_calls("tool:send"):
                found[task.checkpoint.get("call", task.input)["arguments"]["to"]] = task.id

        self.commit(look)
        return found


@pytest.fixture
def story(shared_stage: Stage) -> Story:
    made = Story(shared_stage)
    made.pin()
    return made


def seqs(client: Client, session_id: SessionId) -> list[int]:
    return [event.seq for event in client.events(session_id)]


@pytest.mark.promise("I7")
@pytest.mark.hazard(32)
def test_a_fork_cuts_at_the_end_of_the_last_commit_at_or_before_the_event(story: Story) -> None:
    client = story.stage.client
    before = story.head

    def three(draft: Draft) -> None:
        for _ in range(3):
            draft.event(PROMPT, causes=(), conversation_id=None)

    after = story.commit(three)
    story.commit(three)

    receipts = [client.fork(story.session_id, at) for at in range(before, after + 1)]

    assert [receipt.at for receipt in receipts] == [before, before, before, after]
    for receipt in receipts:
        fork = client.session(receipt.session_id).session
        assert (fork.forked_from, fork.forked_at, receipt.head) == (story.session_id, receipt.at, head_of(fork))
        events = client.events(fork.id)
        assert [event.seq for event in events] == list(range(1, receipt.at + 2))
        assert [event.session_id for event in events] == [story.session_id] * receipt.at + [fork.id]
        assert events[: receipt.at] == client.events(story.session_id)[: receipt.at]
        assert (events[-1].type, events[-1].causes) == ("session_forked", (receipt.at,))
        assert events[-1].prev_hash == events[-2].hash
        assert client.effects(fork.id, receipt.at)[-1] == events[-1]
        assert client.verify(fork.id) is None
        assert client.verify(fork.id, receipt.head) is None
    assert violations(story.stage.database_url) == []


@pytest.mark.promise("I7")
@pytest.mark.hazard(32)
def test_commits_of_a_log_from_before_their_ends_were_stored_are_told_by_their_time(story: Story) -> None:
    story.reply("a", "b")
    end = story.write(plan={"n": 1})
    stored = [story.stage.client.fork(story.session_id, at).at for at in range(2, end + 1)]

    story.stage.sql("UPDATE brainhands.events SET commit_seq = NULL WHERE session_id = %s", story.session_id)

    assert [story.stage.client.fork(story.session_id, at).at for at in range(2, end + 1)] == stored


@pytest.mark.promise("I7", "E11")
@pytest.mark.hazard(32)
def test_the_calls_of_a_cut_reply_are_closed_and_the_next_input_goes_on(story: Story) -> None:
    story.reply("done", "begun", "planned")
    story.begin("done"), story.begin("begun")
    cut = story.succeed("done")
    story.succeed("begun"), story.begin("planned")

    fork = story.fork(cut)

    view = story.stage.client.session(fork.session_id)
    assert [event.type for event in story.stage.client.events(fork.session_id, after=cut)] == [
        "session_forked",
        "tool_call_interrupted",
        "tool_call_error",
    ]
    results = fork.results()
    assert results["done"] == "sent to done"
    assert "the session that this one was forked from" in results["begun"]
    assert "may have happened" in results["begun"]
    assert results["planned"] == "error: not carried over: it had not begun where this session was forked"
    assert [task.status for task in view.tasks] == [Status.DONE]
    assert (view.submissions, view.conversations[0].agent_version) == ((), 1)
    receipt = story.stage.submit("go on", session=fork.session_id)
    assert story.stage.types(fork.session_id)[-1] == "user_message"
    assert story.stage.open_generation(fork.session_id) in story.stage.hinted()
    assert [each["content"] for each in fork.messages() if each["role"] == "user"] == ["hello", "go on"]
    assert receipt.session_id == fork.session_id
    assert violations(story.stage.database_url) == []


@pytest.mark.promise("I7", "F16")
@pytest.mark.hazard(32)
def test_an_effect_that_is_unknown_at_the_cut_stays_so_in_each_fork_until_it_is_settled_there(story: Story) -> None:
    client = story.stage.client
    story.reply("settled", "open", "begun", "later")
    for name in ("settled", "open", "begun"):
        story.begin(name)
    story.interrupt("settled"), story.interrupt("open")
    client.settle(story.calls["settled"], Answer.HAPPENED)
    cut = story.head
    story.succeed("begun")
    client.settle(story.calls["open"], Answer.DID_NOT_HAPPEN)
    assert set(story.unknown()) == set()

    fork = story.fork(cut)

    assert set(fork.unknown()) == {"open", "begun"}
    assert set(fork.unknown().values()).isdisjoint(story.calls.values())
    assert "half" in fork.results()["open"]
    again = fork.fork(fork.head)
    assert client.settle(fork.unknown()["begun"], Answer.HAPPENED, result="it came") is not None
    assert client.settle(again.unknown()["open"], Answer.HAPPENED, result="it came too") is not None
    assert (set(fork.unknown()), set(again.unknown())) == ({"open"}, {"begun"})
    assert "it came" in fork.results()["begun"]
    assert "it came too" in again.results()["open"]
    third = fork.fork(fork.head)
    assert set(third.unknown()) == {"open"}
    assert "it came" in third.results()["begun"]
    assert violations(story.stage.database_url) == []


@pytest.mark.promise("I7", "E13")
@pytest.mark.hazard(32)
def test_documents_and_token_use_are_as_of_the_cut_and_go_on_from_there(story: Story) -> None:
    client = story.stage.client
    story.reply(tokens=10)
    story.write(plan={"n": 1}, notes={"n": 1})
    cut = story.write(plan={"n": 2})
    story.write(plan={"n": 3}, more={"n": 1})
    story.reply(tokens=100)

    fork = story.fork(cut)

    def documents(session_id: SessionId) -> dict[str, tuple[int, Json]]:
        return {each.name: (each.version, each.value["n"]) for each in client.session(session_id).documents}

    assert documents(fork.session_id) == {"plan": (2, 2), "notes": (1, 1)}
    view = client.session(fork.session_id)
    assert (view.tokens_in, view.tokens_out) == (10, 1)
    fork.write(plan={"n": 30})
    story.stage.submit("go on", session=fork.session_id)
    fork.reply(tokens=5)
    assert documents(fork.session_id) == {"plan": (3, 30), "notes": (1, 1)}
    assert documents(story.session_id) == {"plan": (3, 3), "notes": (1, 1), "more": (1, 1)}
    assert documents(fork.fork(fork.head).session_id) == documents(fork.session_id)
    used = {id: client.session(id) for id in (fork.session_id, story.session_id)}
    assert {id: (view.tokens_in, view.tokens_out) for id, view in used.items()} == {
        fork.session_id: (15, 2),
        story.session_id: (110, 2),
    }
    assert violations(story.stage.database_url) == []


@pytest.mark.promise("I7", "I3")
@pytest.mark.hazard(32)
def test_forks_of_forks_share_one_past_and_a_change_in_it_is_found_from_each(stage: Stage) -> None:
    client, root = stage.client, Story(stage)
    root.pin()
    child = root.fork(root.head)
    stage.submit("second", session=child.session_id)
    grandchild = child.fork(child.head)
    stage.submit("third", session=grandchild.session_id)
    stage.submit("meanwhile", session=root.session_id)

    log = client.events(grandchild.session_id)
    session = client.session(grandchild.session_id).session
    parts = past.parts(stage.database, session)
    assert [part.session_id for part in parts] == [root.session_id, child.session_id, grandchild.session_id]
    assert [event.seq for event in log] == list(range(1, session.last_seq + 1))
    pages, after = [], 0
    while page := reads.event_page(stage.database, parts, after, most=2):
        pages += page
        after = page[-1].seq
    assert pages == log
    watched = client.watch(grandchild.session_id, after=2)
    assert [next(watched) for _ in log[2:]] == log[2:]
    assert [each["content"] for each in grandchild.messages()] == [
        "Do as you are told.",
        "hello",
        "second",
        "third",
    ]
    assert client.fork(grandchild.session_id, at=2).forked_from == root.session_id
    assert client.fork(grandchild.session_id, at=child.head).forked_from == child.session_id
    everyone = (root, child, grandchild)
    assert [client.verify(each.session_id) for each in everyone] == [None, None, None]
    assert violations(stage.database_url) == []

    stage.sql("UPDATE brainhands.events SET tokens_in = 7 WHERE session_id = %s AND seq = 2", root.session_id)

    flaws = [client.verify(each.session_id) for each in everyone]
    assert [flaw.seq if flaw else None for flaw in flaws] == [2, 2, 2]


@pytest.mark.promise("I7")
@pytest.mark.hazard(32, 47)
def test_a_request_id_makes_one_fork(story: Story) -> None:
    client = story.stage.client
    end = story.write(plan={})

    def fork(_number: int) -> ForkReceipt:
        return client.fork(story.session_id, end, "fork-1")

    with ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(fork, range(4)))

    first = receipts[0]
    assert {(each.session_id, each.forked_from, each.at) for each in receipts} == {
        (first.session_id, story.session_id, end)
    }
    assert len(story.stage.sql("SELECT 1 FROM brainhands.sessions WHERE forked_from = %s", story.session_id)) == 1
    with pytest.raises(RequestConflict):
        client.fork(story.session_id, 2, "fork-1")
    assert client.fork(story.session_id, end, "fork-2").session_id != first.session_id
    assert client.fork(story.session_id, end).session_id != client.fork(story.session_id, end).session_id


@pytest.mark.promise("I7")
def test_what_cannot_be_forked_is_refused_with_the_reason(story: Story) -> None:
    client = story.stage.client
    sessions = len(story.stage.sql("SELECT 1 FROM brainhands.sessions"))

    for at, problem in (
        (0, "has no event 0"),
        (-1, "at must be a number from 0 up"),
        (10**12, "has no event"),
        (1, "first commit"),
    ):
        with pytest.raises(BadInput, match=problem) as refused:
            client.fork(story.session_id, at)
        assert refused.value.next_step
    with pytest.raises(UnknownSession):
        client.fork(UUID(int=9), 1)
    stranger = Client(story.stage.database_url, NO_REDIS, tenant="another")
    with pytest.raises(UnknownSession):
        stranger.fork(story.session_id, 2)
    stranger.close()

    assert len(story.stage.sql("SELECT 1 FROM brainhands.sessions")) == sessions


@pytest.mark.promise("I7", "E2")
def test_an_agents_version_is_pinned_in_a_fork_if_it_was_at_the_cut(story: Story) -> None:
    pinned_at = story.head

    before, after = story.fork(pinned_at - 1), story.fork(pinned_at)

    assert (before.conversation.agent_version, after.conversation.agent_version) == (None, 1)
    assert after.fork(after.head).conversation.agent_version == 1
    # Who prepares the first request pins the version, with the instructions that the log does not have yet.
    assert [each["role"] for each in before.messages()] == ["user"]
    before.pin()
    assert before.fork(before.head).conversation.agent_version == 1


@pytest.mark.promise("I7", "B2")
def test_a_session_that_is_locked_can_be_forked_and_what_comes_later_in_it_changes_no_fork(story: Story) -> None:
    client, cut = story.stage.client, story.head

    with psycopg.connect(libpq_url(story.stage.database_url)) as other:
        other.execute("SELECT 1 FROM brainhands.sessions WHERE id = %s FOR NO KEY UPDATE", [story.session_id])
        other.execute("SELECT 1 FROM brainhands.tasks WHERE session_id = %s FOR NO KEY UPDATE", [story.session_id])
        fork = story.fork(cut)
    before = (client.events(fork.session_id), fork.messages())
    story.write(plan={"n": 1})
    story.reply("a")

    assert (client.events(fork.session_id), fork.messages()) == before
    assert client.session(fork.session_id).tasks == ()
    assert story.stage.sql("SELECT 1 FROM brainhands.outbox WHERE session_id = %s", fork.session_id) == []


@pytest.mark.promise("I7")
def test_what_belongs_to_no_conversation_of_the_fork_closes_no_call_of_its_model(story: Story) -> None:
    """A flow's own call has no call id, and a sub-agent's call may have that of a call in the main conversation."""
    story.reply("flow", "main")
    flow = story.stage.task(story.calls["flow"])
    story.begin("main")
    for name, conversation in (("child", flow.conversation_id), ("elsewhere", None)):
        story.calls[name] = new_task_id()
        call_id = "flow" if conversation is None else None
        task = call_task(
            story.calls[name],
            owner=flow,
            kind="tool:send",
            version=1,
            call_id=call_id,
            arguments={"to": name},
            cause=flow.cause,
            now=flow.created_at,
        )
        story.commit(
            lambda draft, task=task, conversation=conversation: draft.add(  # type: ignore[misc]
                _in_conversation(task, conversation)
            )
        )
        story.begin(name)

    fork = story.fork(story.head)

    assert set(fork.unknown()) == {"main", "child", "elsewhere"}
    assert fork.results()["flow"].startswith("error: not carried over")
    assert fork.results()["main"].startswith("interrupted: not carried over")


def _in_conversation(task: Task, conversation_id: ConversationId | None) -> Task:
    return replace(task, conversation_id=conversation_id)
