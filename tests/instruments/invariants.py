"""What must hold in any store at any moment, and what must hold once all work has ended.

`check(database_url)` reads the whole database as of one moment and raises an AssertionError that lists every violation;
`check(database_url, at_rest=True)` also asks that nothing is left to do. An invariant is a function that takes the
snapshot and yields a line for each violation, so that a new one is found by being in one of the two lists below.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from brainhands.shared.model.event import GONE, Event
from brainhands.shared.rules import chain
from brainhands.shared.rules.delta import MOST_DELTAS, replay
from brainhands.shared.store import connections

Row = dict[str, Any]

OF_CALLS = ("model_output", "tool_call_success", "tool_call_error", "tool_call_interrupted")
CALL_ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All rows of one moment; events in order of their session's log, with the payload as text."""

    sessions: dict[UUID, Row]
    conversations: dict[UUID, Row]
    events: dict[UUID, list[Event]]
    """Each session's own events; a fork has those of its past before them."""
    commit_ends: dict[tuple[UUID, int], int | None]
    """The last seq of the commit of each event."""
    tasks: dict[UUID, Row]
    attempts: dict[UUID, list[Row]]
    waits: list[Row]
    submissions: dict[UUID, Row]
    inbox: list[Row]
    outbox: dict[UUID, Row]
    documents: list[Row]
    signals: list[Row]
    slots: list[Row]


Invariant = Callable[[Snapshot], Iterator[str]]


def check(database_url: str, *, at_rest: bool = False) -> None:
    """Raise AssertionError with every violation that the database shows now."""
    found = violations(database_url, at_rest=at_rest)
    assert not found, "the store breaks its invariants:\n" + "\n".join(found)


def violations(database_url: str, *, at_rest: bool = False) -> list[str]:
    """A line for each violation."""
    now = read(database_url)
    chosen = (*ALWAYS, *AT_REST) if at_rest else ALWAYS
    return [f"{invariant.__name__}: {problem}" for invariant in chosen for problem in invariant(now)]


def read(database_url: str) -> Snapshot:
    """The whole store as of one moment."""
    with connections.connect(database_url) as connection:
        connection.row_factory = dict_row
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True

        def rows(table: str, columns: str = "*", order: str = "1") -> list[Row]:
            return connection.execute(f"SELECT {columns} FROM brainhands.{table} ORDER BY {order}").fetchall()

        events: dict[UUID, list[Event]] = defaultdict(list)
        commit_ends: dict[tuple[UUID, int], int | None] = {}
        for row in rows("events", "*, payload::text AS payload_text", "session_id, seq"):
            del row["payload"]
            commit_ends[row["session_id"], row["seq"]] = row.pop("commit_seq")
            events[row["session_id"]].append(Event(**{**row, "causes": tuple(row["causes"])}))
        attempts: dict[UUID, list[Row]] = defaultdict(list)
        for row in rows("attempts", order="task_id, fence"):
            attempts[row["task_id"]].append(row)
        return Snapshot(
            sessions={row["id"]: row for row in rows("sessions")},
            conversations={row["id"]: row for row in rows("conversations")},
            events=events,
            commit_ends=commit_ends,
            tasks={row["id"]: row for row in rows("tasks")},
            attempts=attempts,
            waits=rows("waits"),
            submissions={row["id"]: row for row in rows("submissions")},
            inbox=rows("inbox"),
            outbox={row["task_id"]: row for row in rows("outbox")},
            documents=rows("documents", order="session_id, name, version"),
            signals=rows("signals"),
            slots=rows("slots", order="name, number"),
        )


# --- always -------------------------------------------------------------------------------------------------------


def the_log_has_no_gaps_and_its_head_is_the_sessions(now: Snapshot) -> Iterator[str]:
    for id, session in now.sessions.items():
        events = now.events[id]
        if [event.seq for event in events] != list(range(_begins(now, id) + 1, session["last_seq"] + 1)):
            yield f"session {id} has seqs {[event.seq for event in events]}, its head is {session['last_seq']}"
        elif events and (events[-1].hash, events[-1].at) != (bytes(session["last_hash"]), session["last_at"]):
            yield f"session {id} has another head than its last event"


def every_hash_is_that_of_its_event_and_chained_to_the_one_before(now: Snapshot) -> Iterator[str]:
    for id, events in now.events.items():
        past = _past(now, id)
        before = past[-1].hash if past else chain.GENESIS
        for event in events:
            if event.prev_hash != before:
                yield f"event {event.seq} of {id} is not chained to the one before"
            if event.redacted_at is None and event.payload_digest != _digest(event):
                yield f"event {event.seq} of {id} has another payload than its digest"
            if event.hash != chain.event_hash(event):
                yield f"event {event.seq} of {id} has another header than its hash"
            before = event.hash


def what_is_redacted_is_gone_and_a_later_event_says_so(now: Snapshot) -> Iterator[str]:
    for id, events in now.events.items():
        said: set[int] = set()
        for event in events:
            if event.redacted_at is None and event.type == "events_redacted":
                said |= set(json.loads(event.payload_text)["seqs"])
            elif event.type == "session_erased":
                said |= set(range(_begins(now, id) + 1, event.seq))
        gone = {event.seq for event in events if event.redacted_at is not None}
        if gone != said:
            yield f"{id} has no content at {sorted(gone)}, and its log says so of {sorted(said)}"
        for event in events:
            if event.redacted_at is not None and (event.payload_text, event.salt) != (GONE, b""):
                yield f"event {event.seq} of {id} was redacted and has content"
    for id, task in now.tasks.items():
        erased = now.sessions[task["session_id"]]["erased_at"]
        if erased and task["created_at"] < erased and (task["input"] or task["checkpoint"] or task["result"]):
            yield f"{task['kind']} {id} has content, and its session was erased"
    for document in now.documents:
        if now.sessions[document["session_id"]]["erased_at"]:
            yield f"document {document['name']} is there, and its session was erased"


def causes_are_earlier_events_and_time_does_not_run_back(now: Snapshot) -> Iterator[str]:
    for id, events in now.events.items():
        for before, event in pairwise([*_past(now, id)[-1:], *events]):
            if event.at < before.at:
                yield f"event {event.seq} of {id} is older than the one before"
        for event in events:
            if not all(0 < cause < event.seq for cause in event.causes):
                yield f"event {event.seq} of {id} has causes {event.causes}"


def events_are_of_tasks_and_claims_that_were(now: Snapshot) -> Iterator[str]:
    for id, events in now.events.items():
        for event in events:
            if event.task_id is None:
                continue
            task = now.tasks.get(event.task_id)
            if task is None or task["session_id"] != id:
                yield f"event {event.seq} of {id} is of a task that its session does not have"
            elif event.fence is not None and event.fence > task["fence"]:
                yield f"event {event.seq} of {id} has a fence that its task never had"


def a_call_begins_and_ends_at_most_once_and_ends_with_its_task(now: Snapshot) -> Iterator[str]:
    seen: dict[UUID, list[Event]] = defaultdict(list)
    for events in now.events.values():
        for event in events:
            if event.task_id is not None and event.type in ("tool_call_start", *CALL_ENDS):
                seen[event.task_id].append(event)
    for id, task in now.tasks.items():
        if not _is_call(task):
            continue
        starts = [event.seq for event in seen[id] if event.type == "tool_call_start"]
        ends = [event.seq for event in seen[id] if event.type != "tool_call_start"]
        if task["cause"] <= _begins(now, task["session_id"]):
            # Taken over by a fork as unknown: it began in the past, and may have ended as interrupted there.
            cause = _past(now, task["session_id"])[task["cause"] - 1]
            if cause.type not in ("tool_call_start", "tool_call_interrupted") or task["outcome"] != "interrupted":
                yield f"{task['kind']} {id} was taken over from {cause.type} {cause.seq} and is {task['outcome']}"
            ends += [cause.seq] * (cause.type == "tool_call_interrupted")
        if len(starts) > 1 or len(ends) != (task["outcome"] is not None):
            yield f"{task['kind']} {id} is {task['status']} and began at {starts}, ended at {ends}"
        elif starts and ends and starts > ends:
            yield f"{task['kind']} {id} ended before it began"


def every_call_of_the_model_is_closed_once_before_the_next_request(now: Snapshot) -> Iterator[str]:
    earlier = {id: conversation["continues"] for id, conversation in now.conversations.items()}
    for id, events in now.events.items():
        open_calls: dict[UUID | None, set[str]] = defaultdict(set)
        whole = [*_past(now, id), *events]
        # What was redacted does not say which calls it was about.
        untold = {_first(earlier, event) for event in whole if event.redacted_at and event.type in OF_CALLS}
        for event in whole:
            if event.redacted_at is not None or _first(earlier, event) in untold:
                continue
            calls = open_calls[_first(earlier, event)]
            payload = json.loads(event.payload_text)
            if event.type == "model_request" and calls:
                yield f"request {event.seq} of {id} follows open calls {sorted(calls)}"
            elif event.type == "model_output":
                calls |= {call["call_id"] for call in payload["calls"]}
            elif event.type in CALL_ENDS and payload["call_id"] is not None:
                if payload["call_id"] not in calls:
                    yield f"event {event.seq} of {id} closes no open call"
                calls.discard(payload["call_id"])


def a_submission_begins_and_ends_once_as_its_row_says(now: Snapshot) -> Iterator[str]:
    begun: dict[str, int] = defaultdict(int)
    ended: dict[str, list[str]] = defaultdict(list)
    untold: set[UUID] = set()
    for id, events in now.events.items():
        for event in events:
            if event.redacted_at is not None:
                untold.add(id)
                continue
            payload = json.loads(event.payload_text)
            if event.type == "user_message":
                begun[payload["submission"]] += 1
            elif event.type == "submission_done":
                ended[payload["submission"]].append(payload["outcome"])
    for id, submission in now.submissions.items():
        if submission["session_id"] in untold:
            continue
        outcomes = [] if submission["outcome"] is None else [submission["outcome"]]
        if ended[str(id)] != outcomes:
            yield f"submission {id} has outcome {submission['outcome']}, its log {ended[str(id)]}"
        waits = any(entry["submission_id"] == id for entry in now.inbox)
        if begun[str(id)] != (not waits) and not (begun[str(id)] == 0 and submission["outcome"] == "cancelled"):
            yield f"submission {id} has {begun[str(id)]} messages in the log, and {'waits' if waits else 'is taken'}"


def an_unfinished_submission_has_open_work_or_waits_in_the_inbox(now: Snapshot) -> Iterator[str]:
    open_tasks = [task for task in now.tasks.values() if task["status"] != "done"]
    at_work = {task["submission_id"] for task in open_tasks}
    for task in open_tasks:
        # Inputs that joined the work on another end with it.
        at_work |= {UUID(each) for each in {**task["input"], **(task["checkpoint"] or {})}.get("joined", ())}
    waiting = {entry["submission_id"] for entry in now.inbox}
    for id, submission in now.submissions.items():
        if submission["status"] != "done" and id not in at_work | waiting:
            yield f"submission {id} is {submission['status']} and nothing is at work on it"
    for entry in now.inbox:
        if not any(
            task["conversation_id"] == entry["conversation_id"] and task["kind"] in ("generation", "intake")
            for task in now.tasks.values()
            if task["status"] != "done"
        ):
            yield f"input {entry['submission_id']} waits for a conversation with nothing under way"


def who_runs_has_a_claim_and_nobody_else_has_one(now: Snapshot) -> Iterator[str]:
    for id, task in now.tasks.items():
        running = task["status"] == "running"
        claim = (task["worker_id"], task["lease_until"], task["deadline"])
        if running != all(part is not None for part in claim) or running != any(part is not None for part in claim):
            yield f"{task['kind']} {id} is {task['status']} with claim {claim}"
        attempts = {attempt["fence"]: attempt for attempt in now.attempts[id]}
        if running and (task["fence"] not in attempts or attempts[task["fence"]]["worker_id"] != task["worker_id"]):
            yield f"{task['kind']} {id} runs under fence {task['fence']}, which is no attempt of its worker"
        if running and attempts.get(task["fence"], {}).get("ended_at") is not None:
            yield f"{task['kind']} {id} runs under an attempt that has ended"


def who_holds_slots_runs_and_holds_one_of_a_name(now: Snapshot) -> Iterator[str]:
    held: dict[UUID, list[str]] = defaultdict(list)
    for slot in now.slots:
        if slot["task_id"] is not None:
            held[slot["task_id"]].append(slot["name"])
    for id, names in held.items():
        task = now.tasks.get(id)
        if task is None or task["status"] != "running" or len(names) != len(set(names)):
            yield f"slots {names} are held by {id}, which is {task['status'] if task else 'not there'}"
    for id, task in now.tasks.items():
        if task["holds_slots"] != (id in held):
            yield f"{task['kind']} {id} is {task['status']} and holds {held.get(id, 'nothing')}"


def attempts_commit_steps_one_after_the_other(now: Snapshot) -> Iterator[str]:
    for id, attempts in now.attempts.items():
        task = now.tasks.get(id)
        if task is None:
            yield f"attempts of a task {id} that is not there"
            continue
        steps = [attempt["step"] for attempt in attempts if attempt["step"] > 0]
        if steps != sorted(set(steps)) or (steps and steps[-1] > task["step"]):
            yield f"{task['kind']} {id} is at step {task['step']}, its attempts committed up to {steps}"
        if any(attempt["fence"] > task["fence"] for attempt in attempts):
            yield f"{task['kind']} {id} has an attempt beyond its fence {task['fence']}"


def a_hint_is_there_for_what_can_run_and_for_nothing_else(now: Snapshot) -> Iterator[str]:
    for id, task in now.tasks.items():
        runnable = task["status"] == "pending" and task["blocked"] is None
        if runnable and id not in now.outbox:
            yield f"{task['kind']} {id} is pending without a hint"
        if task["status"] != "pending" and id in now.outbox:
            yield f"{task['kind']} {id} is {task['status']} and has a hint"
    for id in now.outbox.keys() - now.tasks.keys():
        yield f"a hint for a task {id} that is not there"


def who_waits_waits_for_something_open(now: Snapshot) -> Iterator[str]:
    awaited: dict[UUID, list[Row]] = defaultdict(list)
    for wait in now.waits:
        dependency = now.tasks[wait["dependency_id"]]
        awaited[wait["waiter_id"]].append(dependency)
        if dependency["session_id"] != now.tasks[wait["waiter_id"]]["session_id"]:
            yield f"task {wait['waiter_id']} waits for a task of another session"
    for id, task in now.tasks.items():
        waits_on_open = any(dependency["status"] != "done" for dependency in awaited[id])
        waits_for_signal = task["signal_name"] is not None
        if (task["status"] == "waiting") != (waits_on_open or waits_for_signal):
            yield f"{task['kind']} {id} is {task['status']} and waits for {[each['status'] for each in awaited[id]]}"


def nobody_waits_for_a_signal_that_is_there(now: Snapshot) -> Iterator[str]:
    untaken = {(row["session_id"], row["name"], row["key"]) for row in now.signals if row["taken_by"] is None}
    for id, task in now.tasks.items():
        if (task["session_id"], task["signal_name"], task["signal_key"]) in untaken:
            yield f"{task['kind']} {id} waits for a signal that nobody has taken"
    for row in now.signals:
        if row["taken_by"] is not None and row["taken_by"] not in now.tasks:
            yield f"a signal {row['name']} was taken by a task {row['taken_by']} that is not there"


def what_is_decided_ends_with_the_work_it_owns(now: Snapshot) -> Iterator[str]:
    owned: dict[UUID, list[Row]] = defaultdict(list)
    for id, task in now.tasks.items():
        if task["owner_id"] is None:
            continue
        owned[task["owner_id"]].append(task)
        owner = now.tasks.get(task["owner_id"])
        if owner is None or owner["session_id"] != task["session_id"]:
            yield f"{task['kind']} {id} is owned by no task of its session"
    for id, task in now.tasks.items():
        owns_open = any(child["status"] != "done" for child in owned[id])
        if task["status"] == "completing" and not owns_open:
            yield f"{task['kind']} {id} is completing and owns nothing open"
        if task["status"] == "done" and owns_open:
            yield f"{task['kind']} {id} is done and owns open work"


def a_conversation_has_one_open_generation_at_most(now: Snapshot) -> Iterator[str]:
    active: dict[UUID, list[UUID]] = defaultdict(list)
    for id, task in now.tasks.items():
        if task["kind"] == "generation" and task["status"] != "done":
            active[task["conversation_id"]].append(id)
    for conversation, generations in active.items():
        if len(generations) > 1:
            yield f"conversation {conversation} has open generations {generations}"


def what_model_calls_used_adds_up(now: Snapshot) -> Iterator[str]:
    used: dict[UUID, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    # Of a call that was redacted the tokens are known, and no more what it cost.
    told = {id: [True, True, True] for id in (*now.sessions, *now.submissions)}
    for id, own in now.events.items():
        past = _past(now, id)
        for event in (*past, *own):
            counted = {"tokens_in": event.tokens_in, "tokens_out": event.tokens_out}
            payload = json.loads(event.payload_text)
            usage = counted if payload is None and event.tokens_in is not None else (payload or {}).get("usage")
            if usage is None:
                continue
            if (event.tokens_in, event.tokens_out) != (usage["tokens_in"], usage["tokens_out"]):
                yield f"event {event.seq} of {id} has other tokens than its payload"
            parts = [Decimal(usage.get(name) or 0) for name in ("tokens_in", "tokens_out", "cost")]
            submission = None if event.task_id is None else now.tasks[event.task_id]["submission_id"]
            totals = [id] if submission is None or event in past else [id, submission]
            for total in totals:
                used[total] = [before + part for before, part in zip(used[total], parts, strict=True)]
                told[total][2] &= payload is not None
    for id, row in (now.sessions | now.submissions).items():
        stored = [row[name] for name in ("tokens_in", "tokens_out", "cost")]
        if any(known and here != there for known, here, there in zip(told[id], stored, used[id], strict=True)):
            yield f"{id} used {stored} by its row and {used[id]} by its log"


def versions_of_a_document_follow_each_other(now: Snapshot) -> Iterator[str]:
    versions: dict[tuple[UUID, str], list[Row]] = defaultdict(list)
    for row in now.documents:
        versions[row["session_id"], row["name"]].append(row)
    for (session, name), rows in versions.items():
        first = 1 if now.sessions[session]["forked_from"] is None else rows[0]["version"]
        if [row["version"] for row in rows] != list(range(first, first + len(rows))):
            yield f"document {name} of {session} has versions {[row['version'] for row in rows]}"
        seqs = [row["seq"] for row in rows]
        if seqs != sorted(set(seqs)) or seqs[-1] > now.sessions[session]["last_seq"]:
            yield f"document {name} of {session} was written at {seqs}"
        value, deltas = None, 0
        for row in rows:
            whole = row["delta"] is None
            value, deltas = (row["value"], 0) if whole else (replay(value, row["delta"]), deltas + 1)
        if rows[0]["delta"] is not None or deltas > MOST_DELTAS:
            yield f"document {name} of {session} has no value stored whole before {deltas} changes"


def a_fork_goes_on_from_the_end_of_a_commit_and_says_so_first(now: Snapshot) -> Iterator[str]:
    for id, session in now.sessions.items():
        source, cut = session["forked_from"], session["forked_at"]
        if source is None:
            continue
        past = _past(now, id)
        if not _begins(now, source) < cut <= now.sessions[source]["last_seq"] or len(past) != cut:
            yield f"session {id} is forked from {source} at {cut}, which has it not in its own log"
        elif now.commit_ends[source, cut] not in (None, cut):
            yield f"session {id} is forked at {cut}, in the middle of a commit"
        elif (first := now.events[id][0]).type != "session_forked" or first.causes != (cut,):
            yield f"session {id} is a fork, and its own log begins with {first.type}"
        elif first.redacted_at is None and json.loads(first.payload_text) != {
            "forked_from": str(source),
            "at": cut,
            "hash": past[-1].hash.hex(),
        }:
            yield f"session {id} says of its past {first.payload_text}"
        if now.sessions[source]["tenant"] != session["tenant"]:
            yield f"session {id} is forked from a session of another tenant"


def the_events_of_a_commit_are_written_together(now: Snapshot) -> Iterator[str]:
    for id, events in now.events.items():
        for before, event in pairwise(events):
            ended, ends = now.commit_ends[id, before.seq], now.commit_ends[id, event.seq]
            if ended is not None and ended != before.seq and ended != ends:
                yield f"event {event.seq} of {id} is of another commit, but that of {before.seq} ends at {ended}"
        if events and now.commit_ends[id, events[-1].seq] not in (None, events[-1].seq):
            yield f"the last commit of {id} ends beyond its log"


# --- at rest ------------------------------------------------------------------------------------------------------


def nothing_is_left_to_do(now: Snapshot) -> Iterator[str]:
    for id, task in now.tasks.items():
        if task["status"] != "done":
            yield f"{task['kind']} {id} is {task['status']} in phase {task['phase']}"
    for table, rows in (("outbox", now.outbox), ("waits", now.waits), ("inbox", now.inbox)):
        if rows:
            yield f"{len(rows)} rows are left in {table}"


def every_submission_has_ended(now: Snapshot) -> Iterator[str]:
    for id, submission in now.submissions.items():
        if submission["status"] != "done":
            yield f"submission {id} is {submission['status']}"


def _digest(event: Event) -> bytes:
    return hashlib.sha256(event.salt + event.payload_text.encode()).digest()


def _first(earlier: dict[UUID, UUID | None], event: Event) -> UUID | None:
    """The conversation of an event, or the one that it continues by way of forks."""
    conversation_id: UUID | None = event.conversation_id
    while conversation_id is not None and earlier.get(conversation_id) is not None:
        conversation_id = earlier[conversation_id]
    return conversation_id


def _begins(now: Snapshot, session: UUID) -> int:
    """The last seq before a session's own events."""
    return now.sessions[session]["forked_at"] or 0


def _past(now: Snapshot, session: UUID) -> list[Event]:
    """The events before a session's own: those of the sessions that it was forked from."""
    source, cut = now.sessions[session]["forked_from"], now.sessions[session]["forked_at"]
    if source is None:
        return []
    return [event for event in (*_past(now, source), *now.events[source]) if event.seq <= cut]


def _is_call(task: Row) -> bool:
    return str(task["kind"]).startswith(("tool:", "flow:", "agent:"))


ALWAYS: tuple[Invariant, ...] = (
    the_log_has_no_gaps_and_its_head_is_the_sessions,
    every_hash_is_that_of_its_event_and_chained_to_the_one_before,
    what_is_redacted_is_gone_and_a_later_event_says_so,
    causes_are_earlier_events_and_time_does_not_run_back,
    events_are_of_tasks_and_claims_that_were,
    a_call_begins_and_ends_at_most_once_and_ends_with_its_task,
    every_call_of_the_model_is_closed_once_before_the_next_request,
    a_submission_begins_and_ends_once_as_its_row_says,
    an_unfinished_submission_has_open_work_or_waits_in_the_inbox,
    who_runs_has_a_claim_and_nobody_else_has_one,
    who_holds_slots_runs_and_holds_one_of_a_name,
    attempts_commit_steps_one_after_the_other,
    a_hint_is_there_for_what_can_run_and_for_nothing_else,
    who_waits_waits_for_something_open,
    nobody_waits_for_a_signal_that_is_there,
    what_is_decided_ends_with_the_work_it_owns,
    a_conversation_has_one_open_generation_at_most,
    what_model_calls_used_adds_up,
    versions_of_a_document_follow_each_other,
    a_fork_goes_on_from_the_end_of_a_commit_and_says_so_first,
    the_events_of_a_commit_are_written_together,
)
AT_REST: tuple[Invariant, ...] = (nothing_is_left_to_do, every_submission_has_ended)
