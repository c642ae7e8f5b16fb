"""Redaction and erasure in the store: every copy goes, late writes find no place, and what is proof still proves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from brainhands.shared.engine import ends
from brainhands.shared.engine.draft import Draft
from brainhands.shared.errors import BadInput, ErasedSession, StillNeeded
from brainhands.shared.model.event import ModelOutput, SystemPromptSet, TaskPhase, ToolCallSuccess, Usage
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.task import Done, Next, Outcome, Task, Transition, WaitSignal
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import attempts
from tests.instruments.invariants import violations
from tests.store.stage import Act, Stage, answer, decide, finish, go_on, nap, play_task

SECRET = "grey-heron"


def said(text: str) -> Act:
    """An act with which a generation answers, as a model does."""

    def change(draft: Draft, task: Task) -> Transition:
        output = ModelOutput(
            text=text, calls=[], finish_reason="stop", model="m", usage=Usage(), request_digest="digest"
        )
        seq = draft.event(output, causes=[task.cause], task=task)
        ends.end_generation(draft, task, Outcome.SUCCEEDED, causes=[seq], output=text)
        return Done(text)

    return decide(change)


def gave(result: str) -> Act:
    """An act with which a task ends as a call does."""

    def change(draft: Draft, task: Task) -> Transition:
        payload = ToolCallSuccess(
            call_id=None, tool="play", version=1, arguments={}, operation_id=str(task.id), replay=None, result=result
        )
        draft.event(payload, causes=[task.cause], task=task)
        return Done(result)

    return decide(change)


def answered(stage: Stage, text: str = SECRET) -> SessionId:
    """A session at rest whose one input was answered."""
    session_id, generation = stage.session()
    stage.advance(generation, answer(Next("request")), said(text))
    return session_id


def seq_of(stage: Stage, session_id: SessionId, type: str) -> int:
    return 1 + stage.types(session_id).index(type)


def columns(stage: Stage, table: str, task_id: TaskId) -> dict[str, Any]:
    key = "task_id" if table == "attempts" else "id"
    (row,) = stage.sql(f"SELECT * FROM brainhands.{table} WHERE {key} = %s ORDER BY 2 LIMIT 1", task_id)
    return row


@pytest.mark.promise("I3")
def test_an_answer_goes_with_the_end_of_its_submission_and_its_tasks_copy(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    output, end = (seq_of(shared_stage, session_id, type) for type in ("model_output", "submission_done"))
    (generation,) = shared_stage.client.session(session_id).tasks
    assert (generation.result, generation.input) == (SECRET, {"round": 1})

    receipt = shared_stage.client.redact(session_id, [output], reason="why")

    assert receipt.redacted == (output, end)
    (generation,) = shared_stage.client.session(session_id).tasks
    assert (generation.result, generation.input, generation.checkpoint) == (None, {}, {})
    (submission,) = shared_stage.client.session(session_id).submissions
    assert (submission.output, submission.input, submission.outcome) == (None, "hello", "succeeded")
    assert shared_stage.client.verify(session_id) is None
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("I3")
def test_an_end_that_repeats_an_answer_can_go_alone_and_says_where_the_answer_still_is(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    output, end = (seq_of(shared_stage, session_id, type) for type in ("model_output", "submission_done"))

    receipt = shared_stage.client.redact(session_id, [end], reason="why")

    assert (receipt.redacted, receipt.repeated_in) == ((end,), (output,))


@pytest.mark.promise("I3")
def test_the_input_of_a_withdrawn_submission_goes_with_its_end(shared_stage: Stage) -> None:
    session_id, generation = shared_stage.session()
    withdrawn = shared_stage.submit(SECRET, session=session_id)
    shared_stage.client.cancel(submission=withdrawn.submission_id)
    end = seq_of(shared_stage, session_id, "submission_done")
    with pytest.raises(StillNeeded, match="while generation"):
        shared_stage.client.redact(session_id, [end], reason="too early")
    shared_stage.advance(generation)

    shared_stage.client.redact(session_id, [end], reason="why")

    assert shared_stage.client.submission(withdrawn.submission_id).input == "[redacted]"


@pytest.mark.promise("I3")
def test_what_a_call_gave_goes_from_its_owners_checkpoint_too(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    owner, child = shared_stage.add(session_id), new_task_id()

    def spawn(draft: Draft, task: Task) -> Transition:
        draft.spawn(play_task(draft, child, owner_id=task.id))
        return Next("second", checkpoint={"heard": SECRET})

    shared_stage.advance(owner, decide(spawn), nap)
    shared_stage.advance(child, gave(SECRET))
    result = seq_of(shared_stage, session_id, "tool_call_success")
    with pytest.raises(StillNeeded, match=r"while play .* is sleeping"):
        shared_stage.client.redact(session_id, [result], reason="too early")
    shared_stage.sql("UPDATE brainhands.tasks SET wake_at = now() WHERE id = %s", owner)
    shared_stage.sweep.sweep_once()
    shared_stage.advance(owner, finish())
    assert shared_stage.task(owner).checkpoint == {"heard": SECRET}

    shared_stage.client.redact(session_id, [result], reason="why")

    assert shared_stage.task(owner).checkpoint == {}
    assert (shared_stage.task(child).result, shared_stage.task(child).outcome) == (None, "succeeded")
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("I3")
@pytest.mark.hazard(44)
@pytest.mark.parametrize("whole", [False, True], ids=["redacted", "erased"])
def test_a_worker_that_comes_back_late_cannot_write_content_again(shared_stage: Stage, whole: bool) -> None:
    session_id = answered(shared_stage)
    task_id = shared_stage.add(session_id)
    lost = shared_stage.claim_and_die(task_id)
    shared_stage.lose(task_id)
    shared_stage.advance(task_id, go_on, gave(SECRET))
    if whole:
        shared_stage.client.erase(session_id, reason="why")
    else:
        seqs = [seq_of(shared_stage, session_id, "tool_call_success")]
        shared_stage.client.redact(session_id, seqs, reason="why")

    shared_stage.database.run(
        attempts.write_late_result(lost.id, lost.fence, {"result": SECRET}),
        attempts.write_progress(lost.id, lost.fence, SECRET),
    )

    first = columns(shared_stage, "attempts", task_id)
    assert (first["fence"], first["progress"], first["late_result"]) == (lost.fence, "", None)
    assert shared_stage.task(task_id).result is None


@pytest.mark.promise("I3")
def test_a_signal_is_redacted_once_it_was_taken_with_what_its_taker_kept(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    task_id = shared_stage.add(session_id)
    shared_stage.client.signal(session_id, "paid", {"by": SECRET}, key="order")
    shared_stage.sql("UPDATE brainhands.tasks SET blocked = 'later' WHERE id = %s", task_id)
    received = seq_of(shared_stage, session_id, "signal_received")
    with pytest.raises(StillNeeded, match="while play"):
        shared_stage.client.redact(session_id, [received], reason="too early")
    shared_stage.sql("UPDATE brainhands.tasks SET blocked = NULL WHERE id = %s", task_id)

    shared_stage.advance(task_id, answer(WaitSignal("paid", "second", 60, "order")))
    shared_stage.advance(task_id, finish())
    assert shared_stage.task(task_id).checkpoint["signal"]["payload"] == {"by": SECRET}
    shared_stage.client.signal(session_id, "paid", {"by": "nobody"}, key="order")
    untaken = len(shared_stage.types(session_id))
    with pytest.raises(StillNeeded, match="no task has taken the signal paid"):
        shared_stage.client.redact(session_id, [untaken], reason="too early")

    shared_stage.client.redact(session_id, [received], reason="why")

    (first, *_) = shared_stage.sql("SELECT * FROM brainhands.signals WHERE session_id = %s ORDER BY seq", session_id)
    assert (first["payload"], first["key"], first["name"], first["taken_by"]) == (None, "", "paid", task_id)
    assert shared_stage.task(task_id).checkpoint == {}
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("I3")
@pytest.mark.hazard(44)
def test_an_input_that_a_callers_transaction_brings_after_the_erasure_is_withdrawn_and_not_kept(
    shared_stage: Stage,
) -> None:
    session_id = answered(shared_stage)
    with psycopg.connect(libpq_url(shared_stage.database_url)) as caller:
        late = shared_stage.submit(SECRET, session=session_id, connection=caller)
        shared_stage.client.erase(session_id, reason="why")
        caller.commit()
        with pytest.raises(ErasedSession):
            shared_stage.submit("later still", session=session_id, connection=caller)
    (intake,) = [task for task in shared_stage.client.session(session_id).tasks if task.kind == "intake"]

    shared_stage.acts.clear()
    shared_stage.advance(intake.id)

    done = shared_stage.client.submission(late.submission_id)
    assert (done.outcome, done.error, done.input) == ("cancelled", "the session was erased", "[redacted]")
    assert shared_stage.sql("SELECT 1 FROM brainhands.inbox WHERE session_id = %s", session_id) == []
    assert shared_stage.client.verify(session_id) is None
    assert violations(shared_stage.database_url) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"seqs": []}, "no event is named"),
        ({"seqs": [2, 0]}, "0 is no event's seq"),
        ({"seqs": ["two"]}, "'two' is no event's seq"),
        ({"seqs": [2, 99]}, "has no event 99"),
        ({"seqs": [5]}, r"event 5 \(system_prompt_set\) cannot be redacted: every later request"),
        ({"seqs": [2, 6]}, r"event 6 \(events_redacted\) cannot be redacted: it says what was redacted"),
        ({"reason": " "}, "no reason is given"),
    ],
)
def test_what_cannot_be_redacted_is_refused_and_nothing_changes(
    shared_stage: Stage, wrong: dict[str, Any], problem: str
) -> None:
    session_id = answered(shared_stage)
    prompt = SystemPromptSet(agent="a", agent_version=1, instructions="")
    shared_stage.commit(session_id, lambda draft: draft.event(prompt, causes=()))
    shared_stage.client.redact(session_id, [3], reason="why")
    before = shared_stage.client.events(session_id)
    assert [event.type for event in before[4:]] == ["system_prompt_set", "events_redacted"]

    with pytest.raises(BadInput, match=problem):
        shared_stage.client.redact(session_id, **{"seqs": [2], "reason": "why", **wrong})

    assert shared_stage.client.events(session_id) == before


def test_redacting_in_an_erased_session_finds_nothing_left(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    shared_stage.client.erase(session_id, reason="why")

    assert shared_stage.client.redact(session_id, [1, 2], reason="why").redacted == ()
    with pytest.raises(BadInput, match="it says what was erased"):
        shared_stage.client.redact(session_id, [len(shared_stage.types(session_id))], reason="why")


BLANK = "payload = 'null', salt = '', redacted_at = now()"
UPDATE = "UPDATE brainhands.events"
SAYS = f"{UPDATE} SET payload = replace(payload::text, '[2]', '%s')::json WHERE seq = 5"
CUT = """
UPDATE brainhands.sessions s SET last_seq = 4, last_hash = e.hash
  FROM brainhands.events e WHERE e.session_id = s.id AND e.seq = 4
"""
UNSAID = "no later event says that it was redacted"
TAMPERINGS = {
    "the content comes back": (
        [f"{UPDATE} SET payload = '{{}}' WHERE seq = 2"],
        "event 5 says that its content is gone",
    ),
    "the mark is taken off": (
        [f"{UPDATE} SET redacted_at = NULL WHERE seq = 2"],
        "event 5 says that its content is gone",
    ),
    "another is blanked": ([f"{UPDATE} SET {BLANK} WHERE seq = 3"], UNSAID),
    "another is marked": ([f"{UPDATE} SET redacted_at = now() WHERE seq = 3"], UNSAID),
    "the one that says so is blanked": ([f"{UPDATE} SET {BLANK} WHERE seq = 5"], UNSAID),
    "another is blanked and named": (
        [SAYS % "[2,3]", f"{UPDATE} SET {BLANK} WHERE seq = 3"],
        "its payload was changed",
    ),
    "none is named": ([SAYS % "[]"], UNSAID),
    "its digest is changed": ([f"{UPDATE} SET payload_digest = sha256('x') WHERE seq = 2"], "its header was changed"),
    "its hash is changed": ([f"{UPDATE} SET hash = sha256('x') WHERE seq = 2"], "its header was changed"),
    "its time is changed": ([f"{UPDATE} SET at = at + interval '1 s' WHERE seq = 2"], "its header was changed"),
    "what says so is cut off": (["DELETE FROM brainhands.events WHERE seq = 5", CUT], UNSAID),
}


@pytest.mark.promise("I3")
@pytest.mark.hazard(23)
@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_around_a_redaction_any_other_change_is_found(stage: Stage, tampering: str) -> None:
    session_id = answered(stage)
    stage.client.redact(session_id, [2], reason="why")
    assert stage.types(session_id)[4:] == ["events_redacted"]
    assert stage.client.verify(session_id) is None

    statements, problem = TAMPERINGS[tampering]
    for statement in statements:
        stage.sql(statement)

    flaw = stage.client.verify(session_id)
    assert flaw is not None
    assert problem in flaw.problem


@pytest.mark.promise("I3")
def test_an_erased_log_in_which_something_has_content_again_is_found(shared_stage: Stage) -> None:
    session_id = answered(shared_stage)
    shared_stage.client.erase(session_id, reason="why")
    shared_stage.commit(
        session_id,
        lambda draft: draft.event(TaskPhase(kind="k", phase="p", next_phase="n", status="s"), causes=()),
    )
    assert shared_stage.client.verify(session_id) is None

    event = replace(shared_stage.client.events(session_id)[0], payload_text="{}")
    shared_stage.sql(
        f"{UPDATE} SET payload = %s::json WHERE session_id = %s AND seq = %s", event.payload_text, session_id, event.seq
    )

    flaw = shared_stage.client.verify(session_id)
    assert flaw is not None
    assert (flaw.seq, "but there is content" in flaw.problem) == (1, True)
    shared_stage.sql(f"{UPDATE} SET payload = 'null' WHERE session_id = %s AND seq = 1", session_id)


@pytest.mark.promise("I3", "I7")
@pytest.mark.hazard(32, 44)
@pytest.mark.case("langchain-ai/langgraph#7206")
def test_what_is_redacted_in_the_past_of_a_fork_is_gone_there_too_and_the_fork_still_verifies(stage: Stage) -> None:
    session_id, generation = stage.session()
    stage.advance(generation, finish("an answer"))
    forked = stage.client.fork(session_id, at=2).session_id

    stage.client.redact(session_id, [2], reason="why")

    assert [event.seq for event in stage.client.events(forked) if event.redacted_at is not None] == [2]
    assert stage.client.verify(forked) is None
    with pytest.raises(BadInput, match="forked from"):
        stage.client.redact(forked, [2], reason="why")
    with pytest.raises(StillNeeded, match="forks"):
        stage.client.erase(session_id, reason="why")
    stage.client.erase(forked, reason="why")
    stage.client.erase(session_id, reason="why")
    assert (stage.client.verify(forked), stage.client.verify(session_id)) == (None, None)
    with pytest.raises(ErasedSession):
        stage.client.fork(session_id, at=2)
    stage.sql("UPDATE brainhands.events SET redacted_at = NULL WHERE session_id = %s AND seq = 2", session_id)
    flaw = stage.client.verify(forked)
    assert flaw is not None
    assert flaw.seq == 2
