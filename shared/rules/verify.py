"""Whether a log is what it says: the chain of hashes, the digests of the payloads, the order and the causes.

An event may be without content only where a later one says so; its digest, hash and header hold all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from brainhands.shared.errors import BadInput
from brainhands.shared.model.event import GONE, Event, EventsRedacted, SessionErased
from brainhands.shared.model.session import Session
from brainhands.shared.rules.chain import GENESIS, event_hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """The first thing that does not fit, at a seq."""

    seq: int
    problem: str


def head_of(session: Session) -> str:
    """What a log says up to its last event, as `SEQ:HASH`."""
    return f"{session.last_seq}:{session.last_hash.hex()}"


def read_head(text: str) -> tuple[int, bytes]:
    """The seq and the hash of a head. Raises BadInput."""
    seq, _, digest = text.partition(":")
    try:
        head = int(seq), bytes.fromhex(digest)
    except ValueError:
        head = 0, b""
    if head[0] < 1 or len(head[1]) != len(GENESIS):
        raise BadInput(f"{text!r} is no head", "a head is SEQ:HASH, as a receipt gives it")
    return head


def check(
    events: Iterable[Event],
    session: Session,
    head: tuple[int, bytes] | None,
    gone: Mapping[int, int],
) -> Flaw | None:
    """The first flaw of a whole log, checked against the session's own head and one known from elsewhere.

    `gone` are the events whose content was taken out, as `said_to_be_gone` has it: of a fork's past also what was taken
    out after the cut.
    """
    previous, place = GENESIS, 0
    for place, event in enumerate(events, start=1):
        if flaw := _flaw(event, place, previous, gone.get(event.seq)):
            return Flaw(seq=place, problem=flaw)
        if head is not None and head[0] == event.seq and event.hash != head[1]:
            return Flaw(seq=event.seq, problem="the known head has another hash: the log was written anew")
        previous = event.hash
    if head is not None and head[0] > place:
        return Flaw(seq=place, problem=f"the log ends here, but the known head is at seq {head[0]}")
    if (session.last_seq, session.last_hash) != (place, previous):
        return Flaw(seq=place, problem=f"the log ends here, but its session says seq {session.last_seq}")
    return None


def said_to_be_gone(events: Iterable[Event], begins: int) -> dict[int, int]:
    """The events whose content a later one of their session says was taken out, each with the seq of that later one.

    `begins` is the seq of the session's own first event.
    """
    gone: dict[int, int] = {}
    for event in events:
        # What cannot be read here has another payload than its digest, which is a flaw of its own.
        with suppress(ValueError, TypeError, KeyError):
            if event.type == EventsRedacted.event_type:
                named: Iterable[int] = json.loads(event.payload_text)["seqs"]
            elif event.type == SessionErased.event_type:
                named = range(begins, min(json.loads(event.payload_text)["through"], event.seq) + 1)
            else:
                continue
            gone.update((seq, event.seq) for seq in named if seq < event.seq)
    return gone


def _flaw(event: Event, place: int, previous: bytes, gone: int | None) -> str | None:
    if event.seq != place:
        return f"event {place} is missing"
    if event.prev_hash != previous:
        return "it does not follow from the event before it"
    is_marked, blank = event.redacted_at is not None, event.payload_text == GONE and event.salt == b""
    if gone is None and (is_marked or blank):
        return "it is empty or marked so, and no later event says that it was redacted"
    if gone is not None and not (is_marked and blank):
        return f"event {gone} says that its content is gone, but there is content"
    if not blank and hashlib.sha256(event.salt + event.payload_text.encode()).digest() != event.payload_digest:
        return "its payload was changed"
    if event_hash(event) != event.hash:
        return "its header was changed"
    if any(cause >= event.seq or cause < 1 for cause in event.causes):
        return f"its causes {list(event.causes)} are not earlier events"
    return None
