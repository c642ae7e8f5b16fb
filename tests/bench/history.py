"""A session with many earlier turns: copies of a real one, with events, tasks and submissions, and one hash chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from brainhands.shared.client import Client
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.model.commit import Commit, NewTask, SubmissionEnd
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import SubmissionId, TaskId, new_submission_id, new_task_id
from brainhands.shared.model.json import canonical
from brainhands.shared.model.session import Session
from brainhands.shared.model.submission import Submission, SubmissionStatus
from brainhands.shared.model.task import Outcome, Task
from brainhands.shared.rules import chain
from brainhands.shared.store import commits
from brainhands.shared.store.database import Database
from brainhands.shared.store.locked import Locked
from tests.bench.turns import make_turn

TURNS_A_COMMIT = 50


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one turn left, to be copied; its first event is at seq `start`."""

    start: int
    events: tuple[Event, ...]
    tasks: tuple[Task, ...]
    submission: Submission
    call_id: str


def long_session(client: Client, database: Database, turns: int) -> UUID:
    """A session in which `turns` turns were made, two of them in truth."""
    receipt = make_turn(client, "the first turn")
    first_events = client.events(receipt.session_id)
    make_turn(client, "the second turn", receipt.session_id)
    turn = _last_turn(client, receipt.session_id, start=first_events[-1].seq + 1)
    accepted: list[Submission] = []
    while missing := min(turns - 2 - len(accepted), TURNS_A_COMMIT):
        copied = commits.apply(database, receipt.session_id, [], partial(_copies, turn, missing))
        assert copied is not None
        accepted += copied.of(Submission)
    commits.apply(database, receipt.session_id, [], partial(_end_all, accepted))
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")  # as autovacuum would have done over so many turns
    return receipt.session_id


def _last_turn(client: Client, session_id: UUID, *, start: int) -> Turn:
    events = tuple(client.events(session_id, after=start - 1))
    ids = {event.task_id for event in events}
    view = client.session(session_id)
    tasks = tuple(task for task in view.tasks if task.id in ids)
    called = next(json.loads(event.payload_text) for event in events if event.type == "tool_call_start")
    return Turn(
        start=start,
        events=events,
        tasks=tasks,
        submission=view.submissions[-1],
        call_id=called["call_id"],
    )


def _copies(turn: Turn, number: int, view: Locked) -> Commit:
    """The turn so many times more at the end of the session, the submissions still to be ended."""
    session, copies = view.session, []
    for _ in range(number):
        session, copied = _copy(turn, session)
        copies.append(copied)
    return replace(
        freeze(Draft(view, NOBODY)),
        session=session,
        tasks=tuple(NewTask(task) for copied in copies for task in copied.tasks),
        writes=(
            *(event for copied in copies for event in copied.events),
            *(copied.submission for copied in copies),
        ),
    )


def _copy(turn: Turn, session: Session) -> tuple[Session, Turn]:
    start = session.last_seq + 1
    shift = start - turn.start
    tasks = {task.id: new_task_id() for task in turn.tasks}
    submission = replace(
        turn.submission,
        id=new_submission_id(),
        request_id=f"{turn.submission.request_id} {shift}",
        status=SubmissionStatus.ACCEPTED,
    )
    names = {str(old): str(new) for old, new in tasks.items()}
    call_id = f"{turn.call_id}_{shift}"
    names |= {str(turn.submission.id): str(submission.id), turn.call_id: call_id}
    events = []
    for event in turn.events:
        session, copied = _append(session, event, shift, tasks, names)
        events.append(copied)
    return session, Turn(
        start=start,
        events=tuple(events),
        tasks=tuple(_task(task, shift, tasks, submission.id, names) for task in turn.tasks),
        submission=submission,
        call_id=call_id,
    )


def _append(
    session: Session, event: Event, shift: int, tasks: Mapping[TaskId, TaskId], names: Mapping[str, str]
) -> tuple[Session, Event]:
    payload = json.loads(_renamed(event.payload_text, names))
    if "cutoff" in payload:
        payload["cutoff"] += shift
    text = canonical(payload)
    copied = replace(
        event,
        seq=event.seq + shift,
        at=max(event.at, session.last_at),
        causes=tuple(cause + shift for cause in event.causes),
        payload_text=text,
        payload_digest=hashlib.sha256(event.salt + text.encode()).digest(),
        task_id=None if event.task_id is None else tasks[event.task_id],
        prev_hash=session.last_hash,
    )
    copied = replace(copied, hash=chain.event_hash(copied))
    return replace(session, last_seq=copied.seq, last_hash=copied.hash, last_at=copied.at), copied


def _task(
    task: Task, shift: int, tasks: Mapping[TaskId, TaskId], submission_id: SubmissionId, names: Mapping[str, str]
) -> Task:
    def renamed(value: Any) -> Any:
        return json.loads(_renamed(canonical(value), names))

    return replace(
        task,
        id=tasks[task.id],
        owner_id=None if task.owner_id is None else tasks[task.owner_id],
        submission_id=None if task.submission_id is None else submission_id,
        cause=task.cause + shift,
        input=renamed(task.input),
        checkpoint=renamed(task.checkpoint),
        result=renamed(task.result),
    )


def _end_all(accepted: Sequence[Submission], view: Locked) -> Commit:
    ends = [
        SubmissionEnd(submission_id=each.id, outcome=Outcome.SUCCEEDED, output=canonical(each.output), error=None)
        for each in accepted
    ]
    return replace(freeze(Draft(view, NOBODY)), writes=tuple(ends))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text
