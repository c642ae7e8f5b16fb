"""Taking content out of a session, of single events or of all, in a commit that says so and leaves the chain valid.

What open work may still read stays: an event is redacted only when nothing is open in its conversation, and a session
erased only when nothing in it is. Asking again does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import BadInput, ErasedSession, NotStorable, StillNeeded, UnknownEvent
from brainhands.shared.model.commit import Commit, Redaction
from brainhands.shared.model.event import Event, EventsRedacted, SessionErased
from brainhands.shared.model.ids import ApprovalId, SessionId, SignalId, SubmissionId
from brainhands.shared.model.json import Json, parse
from brainhands.shared.model.redaction import ErasureReceipt, RedactionReceipt
from brainhands.shared.model.session import Session
from brainhands.shared.model.task import Task
from brainhands.shared.rules.background import RESPONSE_CANCEL
from brainhands.shared.rules.verify import head_of
from brainhands.shared.store import places, reads, redactions
from brainhands.shared.store.database import Row
from brainhands.shared.store.locked import Locked
from brainhands.shared.store.past import NO_END, LogPart

KEPT = {
    "session_forked": "it says what the session goes on from",
    "system_prompt_set": "every later request of its conversation stands on it",
    "events_redacted": "it says what was redacted",
    "session_erased": "it says what was erased",
}
"""Types of events that cannot be redacted one by one, and why."""

QUESTIONS = ("human_approval_requested", "human_approval_answered", "tool_call_settled")
CONTENT = (
    *("text", "refusal", "calls", "arguments", "edited_arguments", "result", "output", "error", "partial"),
    *("content", "key", "about", "comment", "summary", "unanswered"),
)
"""The fields of payloads in which somebody's words stand; the others are names, ids and numbers of the engine."""

TELLING_LENGTH = 12
"""Characters from which on a text is looked for elsewhere: an address, a number of an account, a key, a sentence."""

MOST_SOUGHT = 200
LONGEST_SOUGHT = 200
"""Characters of a long text that are looked for."""

_WORD = re.compile(rf"[^\s\"'`(){{}}\[\]<>,;\\]{{{TELLING_LENGTH},}}")

LAST_WORDS = ("model_output", "model_error", "task_failed")
"""What the end of a submission that it led to repeats word for word."""
OF_CALLS = (
    *("policy_decided", "tool_call_start", "tool_call_success", "tool_call_error", "tool_call_interrupted"),
    *QUESTIONS,
)


def refuse_erased(session: Session) -> None:
    """Raises ErasedSession for a session that takes nothing more."""
    if session.erased_at is not None:
        raise ErasedSession(session.id)


def redact(
    writer: Writer, tenant: str, session_id: SessionId, seqs: Sequence[int], *, reason: str, who: str | None
) -> RedactionReceipt:
    """Take the content of events out of the store, wherever it is kept. Raises BadInput and StillNeeded."""
    gone: list[Row] = []

    def fill(locked: Locked) -> Commit | None:
        found = _to_redact(locked, seqs)
        if not found:
            # A try whose COMMIT lost its reply finds its work done, and what it took out is still in `gone`.
            return None
        gone[:] = found
        wanted = [row["seq"] for row in found]
        draft = Draft(locked, NOBODY)
        draft.write(_with_copies(locked, found))
        draft.event(EventsRedacted(seqs=wanted, reason=reason, who=who), causes=wanted)
        return freeze(draft)

    writer.apply(session_id, [], fill)
    texts, all_texts = telling_texts(row["payload"] for row in gone)
    found, all_places = places.find(writer.database, session_id, texts)
    own = [place for place in found if (place.session_id, place.kind) == (session_id, "event")]
    repeating = repeated_in(_events(writer, session_id), gone) if gone else ()
    return RedactionReceipt(
        session_id=session_id,
        redacted=tuple(row["seq"] for row in gone),
        repeated_in=tuple(sorted({*repeating, *(int(place.id) for place in own)})),
        found_in=tuple(place for place in found if place not in own),
        searched=all_texts and all_places,
        head=head_of(_session(writer, tenant, session_id)),
    )


def erase(writer: Writer, tenant: str, session_id: SessionId, *, reason: str, who: str | None) -> ErasureReceipt:
    """Take all content of a session out of the store, for good. Raises StillNeeded while anything in it is open."""

    def fill(locked: Locked) -> Commit | None:
        if locked.session.erased_at is not None:
            return None
        _refuse_unless_at_rest(locked)
        _refuse_with_forks(locked)
        draft = Draft(locked, NOBODY)
        draft.event(SessionErased(through=locked.session.last_seq, reason=reason, who=who), causes=())
        draft.write(Redaction(whole=True))
        return freeze(draft)

    writer.apply(session_id, [], fill)
    session = _session(writer, tenant, session_id)
    assert session.erased_at is not None
    return ErasureReceipt(session_id=session_id, erased_at=session.erased_at, head=head_of(session))


def repeated_in(events: Iterable[Event], gone: Sequence[Row]) -> tuple[int, ...]:
    """Events still there that have parts of what was redacted: the same call, the answer that ended a submission, what
    one agent told another, or a summary.
    """
    texts = {text for row in gone for text in _texts(row["payload"])}
    calls = {call_id for row in gone for call_id in _call_ids(row["payload"])}
    tasks = {row["task_id"] for row in gone if row["type"] in OF_CALLS}
    answers = {cause for row in gone if row["type"] == "submission_done" for cause in row["causes"]}

    def repeats(event: Event) -> bool:
        if event.type == "context_compacted":
            # A summary may have words of all that it stands for.
            upto = json.loads(event.payload_text)["upto"]
            return any(row["seq"] <= upto and row["conversation_id"] == event.conversation_id for row in gone)
        if event.type not in ("model_output", "task_given", *OF_CALLS):
            return False
        payload = json.loads(event.payload_text)
        own = _call_ids(payload)
        if event.seq in answers or not texts.isdisjoint(_texts(payload)) or not calls.isdisjoint(own):
            return True
        return event.type in OF_CALLS and not own and event.task_id in tasks

    return tuple(event.seq for event in events if event.redacted_at is None and repeats(event))


def telling_texts(payloads: Iterable[dict[str, Any]]) -> tuple[list[str], bool]:
    """What to look for elsewhere when these payloads are gone, and whether it is all: the texts that they hold, and of
    these the lines and the words, that are TELLING_LENGTH characters or longer. Shorter ones stand anywhere.
    """
    texts: set[str] = set()
    for content in _contents(payloads):
        for piece in (content, *content.splitlines(), *_WORD.findall(content)):
            if len(piece.strip()) >= TELLING_LENGTH:
                texts.add(piece.strip()[:LONGEST_SOUGHT])
    return sorted(texts, key=lambda text: (-len(text), text))[:MOST_SOUGHT], len(texts) <= MOST_SOUGHT


def _contents(payloads: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Each text and number that a user, a model, a tool or a person put into payloads."""
    left: list[Json] = [payload[name] for payload in payloads for name in CONTENT if name in payload]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case bool() | None:
                pass
            case int() | float() as number:
                yield str(number)
            case list() as items:
                left += items
            case {"arguments": str() as made, "call_id": _}:
                left += [made, _parsed(made)]
            case dict() as members:
                left += [*members, *members.values()]


def _to_redact(locked: Locked, seqs: Sequence[int]) -> list[Row]:
    """The events named that still have content, with the ends of submissions that repeat an answer among them."""
    found = redactions.named(locked, seqs)
    if missing := sorted(set(seqs) - {row["seq"] for row in found}):
        source, cut = locked.session.forked_from, locked.session.forked_at
        if source is not None and cut is not None and missing[0] <= cut:
            raise BadInput(
                f"event {missing[0]} is in the log that this session was forked from", f"redact it in {source}"
            )
        raise UnknownEvent(locked.session.id, missing[0])
    wanted = [row for row in found if row["redacted_at"] is None]
    for row in wanted:
        if row["type"] in KEPT:
            raise BadInput(
                f"event {row['seq']} ({row['type']}) cannot be redacted: {KEPT[row['type']]}",
                "erase the whole session if it must go",
            )
    last_words = [row["seq"] for row in wanted if row["type"] in LAST_WORDS]
    ends = redactions.ends_caused_by(locked, last_words) if last_words else []
    more = sorted(set(ends) - {row["seq"] for row in wanted})
    return sorted([*wanted, *(redactions.named(locked, more) if more else [])], key=lambda row: int(row["seq"]))


def _with_copies(locked: Locked, gone: Sequence[Row]) -> Redaction:
    """What else holds the content of these events. Raises StillNeeded."""
    _refuse_open(gone, locked.open_tasks().values())
    signals = redactions.signals_of(locked, [SignalId(each) for each in _ids(gone, "signal", "signal_received")])
    for signal in signals:
        if signal.taken_by is None:
            raise StillNeeded(
                f"event {signal.seq} cannot be redacted: no task has taken the signal {signal.name} yet",
                "redact it once one has, or erase the session",
            )
    own = {row["task_id"] for row in gone if row["task_id"] is not None}
    work = redactions.with_owners(locked, own | {signal.taken_by for signal in signals if signal.taken_by is not None})
    for task in work:
        if task.is_open:
            raise _still_needed(gone[0], task)
    if unknown := redactions.unsettled(locked, [task.id for task in work]):
        raise StillNeeded(
            f"what call {min(unknown)} was made with is needed: nobody knows whether it took effect,"
            " so an equal call must not simply run",
            f"say what became of it: `brainhands settle {min(unknown)} ANSWER`",
        )
    # An input that was withdrawn has no message, only its end.
    withdrawn = [row for row in gone if row["type"] == "submission_done" and row["payload"]["outcome"] == "cancelled"]
    inputs = [*_ids(gone, "submission", "user_message"), *_ids(withdrawn, "submission", "submission_done")]
    return Redaction(
        seqs=tuple(row["seq"] for row in gone),
        tasks=tuple(task.id for task in work),
        inputs=tuple(SubmissionId(each) for each in inputs),
        outputs=tuple(SubmissionId(each) for each in _ids(gone, "submission", "submission_done")),
        approvals=tuple(ApprovalId(each) for each in _ids(gone, "approval", *QUESTIONS)),
        signals=tuple(signal.id for signal in signals),
    )


def _refuse_open(gone: Sequence[Row], open_tasks: Iterable[Task]) -> None:
    for task in open_tasks:
        for row in gone:
            if row["conversation_id"] in (None, task.conversation_id):
                raise _still_needed(row, task)


def _still_needed(row: Row, task: Task) -> StillNeeded:
    return StillNeeded(
        f"event {row['seq']} cannot be redacted while {task.kind} {task.id} is {task.status} and may read it",
        "wait until it has ended, or cancel it: `brainhands cancel --task ID`",
    )


def _refuse_unless_at_rest(locked: Locked) -> None:
    open_tasks = locked.open_tasks().values()
    still = [f"{task.kind} {task.id} is {task.status}" for task in open_tasks]
    still += [f"the input of submission {entry.submission_id} waits" for entry in locked.inputs()]
    if still:
        more = f", and {len(still) - 3} more" if len(still) > 3 else ""
        # A cancel of the session leaves out what has a provider stop.
        stuck = [task.id for task in open_tasks if task.kind == RESPONSE_CANCEL and task.blocked is not None]
        how = f"--task {stuck[0]}" if len(stuck) == len(still) else f"--session {locked.session.id}"
        raise StillNeeded(
            f"session {locked.session.id} cannot be erased while it has open work: {'; '.join(still[:3])}{more}",
            f"wait until it has ended, or cancel it: `brainhands cancel {how}`",
        )


def _refuse_with_forks(locked: Locked) -> None:
    if forks := redactions.forks_of(locked):
        raise StillNeeded(
            f"session {locked.session.id} cannot be erased while {len(forks)} forks of it have its log as their past",
            f"erase them first: `brainhands erase {forks[0]} --reason ... --yes`",
        )


def _ids(found: Sequence[Row], name: str, *types: str) -> list[UUID]:
    """The ids that payloads of these types have under a name."""
    return list(dict.fromkeys(UUID(row["payload"][name]) for row in found if row["type"] in types))


def _call_ids(payload: dict[str, object]) -> list[object]:
    """The model's calls that a payload is about."""
    made = payload.get("calls")
    found = [call["call_id"] for call in made] if isinstance(made, list) else [payload.get("call_id")]
    return [call_id for call_id in found if call_id is not None]


def _texts(payload: dict[str, Any]) -> set[str]:
    """What agents tell each other word for word, in a call of the one and in the conversation of the other."""
    arguments = [payload.get("arguments"), *(_parsed(call["arguments"]) for call in payload.get("calls") or ())]
    given = [each.get("task") for each in arguments if isinstance(each, dict)]
    return {each for each in (payload.get("text"), payload.get("result"), *given) if isinstance(each, str) and each}


def _parsed(arguments: str) -> Json:
    try:
        return parse(arguments)
    except NotStorable:
        return None


def _events(writer: Writer, session_id: SessionId) -> Iterable[Event]:
    after, own = 0, [LogPart(session_id=session_id, up_to=NO_END)]
    while page := reads.event_page(writer.database, own, after):
        yield from page
        after = page[-1].seq


def _session(writer: Writer, tenant: str, session_id: SessionId) -> Session:
    found = reads.session(writer.database, tenant, session_id)
    assert found is not None
    return found
