"""What ends a task cannot fail: whatever its row holds, in every phase, it ends, and its session can be erased."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from uuid import UUID

import pytest

from brainhands.shared.cli import show
from brainhands.shared.engine import ends, questions
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.model.approval import HUMAN, Answer, Approval, Question
from brainhands.shared.model.commit import Commit, TaskChange
from brainhands.shared.model.event import ModelOutput, Usage
from brainhands.shared.model.ids import ApprovalId, SessionId, TaskId, new_approval_id, new_task_id, new_worker_id
from brainhands.shared.model.json import MAX_BYTES, SHORTENED_CHARACTERS, Json, canonical, digest
from brainhands.shared.model.submission import CancelState
from brainhands.shared.model.task import Done, Next, Outcome, Sleep, Status, Task, Transition, WaitSignal
from brainhands.shared.rules import background
from brainhands.shared.rules.times import LAST_TIME
from brainhands.shared.rules.tokens import MOST_TOKENS
from brainhands.shared.store.attempts import PROGRESS_LIMIT
from brainhands.shared.store.locked import Locked
from tests.store.extremes import BEYOND, LONGEST_NAME, VALUES
from tests.store.stage import Gone, Stage, answer, decide, nap, play_task, spawn_and_wait

SHOWN = "x" * PROGRESS_LIMIT

TOO_LONG = "\x00\ud800" + "x" * (MAX_BYTES + 1)

PHASES = {
    "tool:x": ("call", "again", "answered", "execute", "reconcile", "reviewed"),
    "flow:x": ("call", "answered", "own"),
    "agent:x": ("call", "answered", "collect"),
    "generation": ("prepare", "request", "retry", "poll", "tools"),
    "compaction": ("request", "retry"),
    "intake": ("admit",),
    "response_cancel": ("cancel",),
    "play": ("first",),
}
STATES = (
    *("pending", "blocked", "running", "at the limit", "to be cancelled"),
    *("sleeping", "signal", "reserved", "asking"),
)

EVERY = [pytest.param(kind, phase, id=f"{kind} in {phase}") for kind, phases in PHASES.items() for phase in phases]
DEEP_AND_LONG = {name: VALUES[name] for name in ("depth", "numbers", "names")}


@dataclass(frozen=True, slots=True)
class Rows:
    """Open tasks of a session, by their states."""

    session_id: SessionId
    tasks: dict[str, TaskId]


def row(draft: Draft, kind: str, phase: str, state: str, value: Json) -> Task:
    """A task that holds this value wherever a task can hold one."""
    session = draft.session
    task = replace(
        play_task(draft, new_task_id()),
        kind=kind,
        phase=phase,
        cause=1,
        input={"call_id": "c", "arguments": value, "response_id": "r", "round": 1},
        checkpoint={
            "call": {"call_id": "c", "arguments": value, "operation_id": LONGEST_NAME, "replay": "safe"},
            "author": value,
            "signal": {"name": LONGEST_NAME, "key": "", "payload": value},
            "partial": SHOWN,
            "start_seq": 1,
            "last_seq": 1,
            "asked_seq": 1,
            "request_seq": 1,
            "request": {"options": value, "cutoff": session.last_seq, "prices": {"input": "100000", "output": "0.01"}},
            **({background.HANDLE: {"response_id": "r", "tokens_in": MOST_TOKENS}} if phase == "poll" else {}),
        },
        result=value,
    )
    soon = draft.now - timedelta(seconds=1)
    running = replace(
        task, status=Status.RUNNING, fence=1, worker_id=new_worker_id(), lease_until=soon, deadline=LAST_TIME
    )
    waiting = replace(task, status=Status.WAITING, wake_at=soon)
    match state:
        case "pending":
            return task
        case "blocked":
            return replace(task, blocked=f"no live worker offers {LONGEST_NAME}", refused_by=(LONGEST_NAME,) * 200)
        case "running":
            return replace(running, phase_attempts=1)
        case "at the limit":
            return replace(running, phase_attempts=2**31 - 1)
        case "to be cancelled":
            return replace(running, phase_attempts=1, cancel_wanted=True)
        case "sleeping":
            return replace(task, status=Status.SLEEPING, wake_at=soon)
        case "signal":
            return replace(waiting, signal_name=LONGEST_NAME, signal_key="k" * 500)
        case "reserved":
            return replace(waiting, signal_name=HUMAN, signal_key="after")
        case _:
            asked = str(ask(draft, task, value).id)
            return replace(
                waiting, signal_name=HUMAN, signal_key=asked, checkpoint={**task.checkpoint, "approval": asked}
            )


def ask(draft: Draft, task: Task, value: Json) -> Approval:
    """A question of the task that nobody has answered; an answer of it could be used for ever."""
    question = Approval(
        id=ApprovalId(new_approval_id()),
        session_id=draft.session.id,
        task_id=task.id,
        question=Question.APPROVAL,
        tool=LONGEST_NAME,
        version=2**31 - 1,
        operation_id=LONGEST_NAME,
        arguments=value,
        digest="",
        about=LONGEST_NAME,
        default_answer=Answer.DENIED,
        use_seconds=1.7976931348623157e308,
        asked_at=draft.now,
        answer_by=draft.now - timedelta(seconds=1),
    )
    draft.write(question)
    questions.tell_question(draft, question, {**ends.call_fields(task), "arguments": None}, task=task, causes=[1])
    return question


def session_with(stage: Stage, kind: str, phase: str, value: Json, states: Sequence[str] = STATES) -> Rows:
    """A session in which nothing is open but tasks in these states, which hold this value and have shown much."""
    session_id, generation = stage.session()
    stage.advance(generation)
    made: dict[str, TaskId] = {}

    def add(draft: Draft) -> None:
        for state in states:
            task = row(draft, kind, phase, state, value)
            draft.add(task)
            made[state] = task.id

    stage.commit(session_id, add)
    stage.sql(
        "INSERT INTO brainhands.attempts (task_id, fence, worker_id, phase, started_at, deadline, progress)"
        " SELECT id, 1, id, phase, now(), now(), %s FROM brainhands.tasks WHERE id = ANY (%s)",
        SHOWN,
        list(made.values()),
    )
    return Rows(session_id, made)


def cancel_each(stage: Stage, rows: Rows) -> None:
    for state, task_id in rows.tasks.items():
        with named(state):
            if may_be_cancelled(stage.task(task_id)):
                assert stage.client.cancel(task=task_id).state is not CancelState.TOO_LATE


def may_be_cancelled(task: Task) -> bool:
    """What tells a provider to stop is cancelled only where nobody can run it."""
    return task.kind != background.RESPONSE_CANCEL or task.blocked is not None


def cancel_session(stage: Stage, rows: Rows) -> None:
    stage.client.cancel(session=rows.session_id)


def sweep(stage: Stage, rows: Rows) -> None:
    before = {task_id: stage.task(task_id) for task_id in rows.tasks.values()}
    stage.sweep.sweep_once()
    assert_moved(stage, rows, before)


def awake(stage: Stage, rows: Rows) -> None:
    before = {task_id: stage.task(task_id) for task_id in rows.tasks.values()}
    stage.client.awake(rows.session_id)
    assert_moved(stage, rows, before)


def assert_moved(stage: Stage, rows: Rows, before: dict[TaskId, Task]) -> None:
    """All that had come due is moved; of what was due nothing holds up anything else."""
    for state, task_id in rows.tasks.items():
        if state not in ("pending", "blocked"):
            assert stage.task(task_id) != before[task_id], state


def fail_each(stage: Stage, rows: Rows) -> None:
    def change(draft: Draft, task_id: TaskId) -> None:
        ends.fail(draft, draft.task(task_id), TOO_LONG)

    end_each(stage, rows, change)


def refuse_each(stage: Stage, rows: Rows) -> None:
    def change(draft: Draft, task_id: TaskId) -> None:
        refused = ends.refuse_call(draft, task=draft.task(task_id), error=TOO_LONG)
        draft.finish(draft.task(task_id), Outcome.FAILED, error=refused.error)

    end_each(stage, rows, change)


def end_each(stage: Stage, rows: Rows, change: Callable[..., None]) -> None:
    for state, task_id in rows.tasks.items():
        with named(state):
            stage.commit(rows.session_id, partial(change, task_id=task_id), [task_id])
            assert stage.status(task_id) is Status.DONE


WAYS = (cancel_each, cancel_session, sweep, awake, fail_each, refuse_each)


@contextmanager
def named(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"at {name}")
        raise


def end_all(stage: Stage, session_id: SessionId) -> None:
    """What is under way loses its lease, and the rest is cancelled."""
    for task_id in open_tasks(stage, session_id):
        stage.end_lease(task_id)
    stage.sweep.sweep_once()
    stage.client.cancel(session=session_id)
    for task_id in open_tasks(stage, session_id):
        stage.sql("UPDATE brainhands.tasks SET blocked = 'nobody can run it' WHERE id = %s", task_id)
        stage.client.cancel(task=task_id)
    assert open_tasks(stage, session_id) == []


def open_tasks(stage: Stage, session_id: SessionId) -> list[TaskId]:
    found = stage.sql("SELECT id FROM brainhands.tasks WHERE session_id = %s AND status <> 'done'", session_id)
    return [each["id"] for each in found]


def check_every_way(stage: Stage, kind: str, phase: str, value: Json, states: Sequence[str] = STATES) -> None:
    for way in WAYS:
        with named(way.__name__):
            rows = session_with(stage, kind, phase, value, states)
            way(stage, rows)
            end_all(stage, rows.session_id)
            assert stage.client.verify(rows.session_id) is None
            assert stage.client.erase(rows.session_id, reason="over").erased_at is not None


@pytest.mark.slow
@pytest.mark.promise("H12")
@pytest.mark.parametrize(("kind", "phase"), EVERY)
def test_tasks_with_values_at_each_limit_end_in_every_way_in_every_phase_and_state(
    shared_stage: Stage, kind: str, phase: str
) -> None:
    check_every_way(shared_stage, kind, phase, DEEP_AND_LONG)


@pytest.mark.slow
@pytest.mark.promise("H12")
@pytest.mark.parametrize("kind", ["tool:x", "generation"])
@pytest.mark.parametrize("value", [VALUES["bytes"], *BEYOND.values()], ids=["bytes", *BEYOND])
def test_tasks_with_values_at_the_limit_of_bytes_and_beyond_all_limits_end_in_every_way(
    shared_stage: Stage, kind: str, value: Json
) -> None:
    check_every_way(shared_stage, kind, "execute" if kind == "tool:x" else "request", value, ["running"])


@pytest.mark.promise("H12", "C12")
def test_tasks_owned_more_deeply_than_python_calls_itself_are_cancelled_and_shown(stage: Stage) -> None:
    session_id, generation = stage.session()
    owned = [generation]

    def nest(draft: Draft) -> None:
        for _ in range(2_000):
            child = new_task_id()
            draft.add(play_task(draft, child, owner_id=owned[-1]))
            owned.append(child)

    stage.commit(session_id, nest, [generation])

    assert [depth for depth, _ in show.tree(stage.client.session(session_id).tasks)] == list(range(2_001))
    assert stage.client.cancel(session=session_id).state is CancelState.CANCELLED
    ended = [event.task_id for event in stage.client.events(session_id) if event.type == "task_cancelled"]
    assert ended == owned[::-1]


@pytest.mark.promise("H12", "C12")
@pytest.mark.parametrize("begun", ["pending", "sleeping", "waiting", "blocked"])
@pytest.mark.parametrize("mode", ["follow_up", "steer"])
def test_a_cancelled_session_with_inputs_behind_what_ends_at_once_is_at_rest(
    shared_stage: Stage, begun: str, mode: str
) -> None:
    session_id, generation = shared_stage.session()
    for number in range(3):
        shared_stage.submit(f"more {number}", session=session_id, mode=mode)
    match begun:
        case "sleeping":
            shared_stage.advance(generation, nap)
        case "waiting":
            shared_stage.advance(generation, spawn_and_wait(new_task_id()))
        case "blocked":
            shared_stage.sql("UPDATE brainhands.tasks SET blocked = 'nobody' WHERE id = %s", generation)

    assert shared_stage.client.cancel(session=session_id).state is CancelState.CANCELLED

    view = shared_stage.client.session(session_id)
    assert {(each.status, each.outcome) for each in view.submissions} == {("done", "cancelled")}
    assert all(not task.is_open for task in view.tasks)
    assert shared_stage.client.cancel(session=session_id).state is CancelState.TOO_LATE


@pytest.mark.promise("H12", "C12")
def test_a_cancel_says_that_work_is_ending_for_as_long_as_it_is(shared_stage: Stage) -> None:
    session_id, generation = shared_stage.session()
    other = shared_stage.add(session_id)
    for task_id in (generation, other):
        shared_stage.claim_and_die(task_id)

    assert [shared_stage.client.cancel(session=session_id).state for _ in range(3)] == [CancelState.ENDING] * 3

    shared_stage.lose(generation)
    assert shared_stage.client.cancel(session=session_id).state is CancelState.ENDING
    shared_stage.lose(other)
    assert shared_stage.client.cancel(session=session_id).state is CancelState.TOO_LATE


@pytest.mark.promise("H12", "E13")
@pytest.mark.parametrize("counts", [(MOST_TOKENS, MOST_TOKENS), (MOST_TOKENS, 1), (1, MOST_TOKENS)])
def test_counts_of_tokens_that_are_each_believed_may_have_any_sum(shared_stage: Stage, counts: tuple[int, int]) -> None:
    session_id, generation = shared_stage.session()
    said = ModelOutput(
        text="",
        calls=[],
        finish_reason="stop",
        model="m",
        usage=Usage(tokens_in=counts[0], tokens_out=counts[1]),
        request_digest="",
    )

    def ask_again(draft: Draft, task: Task) -> Transition:
        draft.event(said, causes=[1], task=task)
        cutoff = draft.event(said, causes=[1], task=task)
        return Next("request", checkpoint={"request": {"cutoff": cutoff}, "request_seq": cutoff})

    def die(_run: Run) -> PhaseResult:
        raise Gone

    with pytest.raises(Gone):
        shared_stage.advance(generation, decide(ask_again), die)
    shared_stage.lose(generation)

    assert shared_stage.status(generation) is Status.PENDING
    used = shared_stage.client.session(session_id).session
    assert (used.tokens_in, used.tokens_out) == (
        2 * counts[0] + MOST_TOKENS * (sum(counts) > MOST_TOKENS),
        2 * counts[1],
    )
    assert shared_stage.client.document(session_id, "usage").value["tokens_in"] == used.tokens_in


@pytest.mark.promise("H12")
def test_an_answer_goes_to_the_task_that_asked_and_to_none_that_waits_under_its_name(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    made: list[Task] = []

    def add(draft: Draft) -> None:
        asker = row(draft, "tool:x", "call", "asking", {})
        stray = replace(row(draft, "flow:x", "own", "reserved", {}), signal_key=asker.signal_key, wake_at=LAST_TIME)
        made.extend([replace(stray, id=TaskId(UUID(int=0))), replace(asker, wake_at=LAST_TIME)])
        for task in made:
            draft.add(task)

    shared_stage.commit(session_id, add)
    stray, asker = made
    shared_stage.sql("UPDATE brainhands.approvals SET answer_by = now() + '1 h' WHERE task_id = %s", asker.id)

    assert shared_stage.client.answer(str(asker.signal_key), "approved").accepted

    assert shared_stage.status(asker.id) is Status.PENDING
    assert shared_stage.status(stray.id) is Status.WAITING


@pytest.mark.promise("H12")
@pytest.mark.parametrize("hints", [1, 2])
def test_a_task_whose_claim_cannot_be_committed_is_blocked_with_the_reason_and_can_be_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, hints: int
) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    if hints > 1:
        stage.forget_first_hint(task_id)

    def claim(*_args: object, **_named: object) -> Task:
        raise OverflowError("date value out of range")

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "claim", claim)
        stage.advance(task_id)

    assert "its claim failed (OverflowError)" in str(stage.task(task_id).blocked)
    assert stage.types(session_id)[-1] == "task_blocked"
    assert stage.client.cancel(task=task_id).state is CancelState.CANCELLED


@pytest.mark.promise("H12")
@pytest.mark.parametrize("seconds", [1e13, 1e308, float("inf"), float("nan"), -1e300])
def test_any_number_of_seconds_makes_a_time_that_can_be_stored_and_read(shared_stage: Stage, seconds: float) -> None:
    session_id, _ = shared_stage.session()
    sleeper, waiter, claimed = (shared_stage.add(session_id) for _ in range(3))

    shared_stage.advance(sleeper, answer(Sleep(seconds, "second")))
    shared_stage.advance(waiter, answer(WaitSignal("never", "second", seconds)))
    shared_stage.commit(session_id, partial(claim_for, task_id=claimed, seconds=seconds), [claimed])

    assert shared_stage.status(sleeper) is Status.SLEEPING
    assert shared_stage.status(waiter) is Status.WAITING
    assert shared_stage.status(claimed) is Status.RUNNING
    end_all(shared_stage, session_id)


def claim_for(draft: Draft, *, task_id: TaskId, seconds: float) -> None:
    draft.claim(draft.task(task_id), worker_id=new_worker_id(), lease_seconds=seconds, phase_seconds=seconds)


@pytest.mark.promise("H12")
def test_a_time_beyond_the_last_one_that_python_reads_is_stored_as_the_last_one(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    never = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))

    shared_stage.advance(task_id, answer(Sleep(0, "second", until=never)))

    assert shared_stage.task(task_id).wake_at == LAST_TIME
    assert shared_stage.client.cancel(task=task_id).state is CancelState.CANCELLED


@pytest.mark.promise("H12")
@pytest.mark.parametrize("result", BEYOND.values(), ids=BEYOND)
def test_a_result_that_no_store_takes_whole_is_stored_shortened_once_the_work_is_done(
    shared_stage: Stage, result: Json
) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    shared_stage.advance(task_id, answer(Done(result)))

    ended = shared_stage.task(task_id)
    assert ended.outcome is Outcome.SUCCEEDED
    assert ended.result["truncated"] is True
    assert ended.result["text"] == canonical(result)[:SHORTENED_CHARACTERS]
    assert ended.result["sha256"] == digest(result)


@pytest.mark.promise("H12")
@pytest.mark.hazard(7)
def test_what_an_attempt_found_out_is_kept_when_the_commit_of_its_step_fails(shared_stage: Stage) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)

    def refuse(_draft: Draft) -> Transition:
        raise ValueError("this cannot be stored")

    shared_stage.forget_first_hint(task_id)
    shared_stage.advance(task_id, lambda _run: PhaseResult(refuse, evidence={"result": "it was sent"}))

    assert shared_stage.status(task_id) is Status.PENDING
    (attempt,) = shared_stage.sql("SELECT late_result FROM brainhands.attempts WHERE task_id = %s", task_id)
    assert attempt["late_result"] == {"result": "it was sent"}


@pytest.mark.promise("H12")
@pytest.mark.hazard("6b", "6c")
@pytest.mark.parametrize("stale", [1, 2])
def test_who_owns_nothing_reads_again_where_a_row_had_moved(shared_stage: Stage, stale: int) -> None:
    session_id, _ = shared_stage.session()
    task_id = shared_stage.add(session_id)
    looks: list[Locked] = []

    def fill(view: Locked) -> Commit:
        looks.append(view)
        draft = Draft(view, NOBODY)
        task = draft.task(task_id)
        ends.cancel(draft, task)
        commit = freeze(draft)
        if len(looks) > stale:
            return commit
        return replace(commit, tasks=(TaskChange(before=replace(task, fence=7), after=draft.task(task_id)),))

    assert shared_stage.writer.apply(session_id, [task_id], fill) is not None

    assert len(looks) == stale + 1
    assert shared_stage.status(task_id) is Status.DONE
