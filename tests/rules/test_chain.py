"""The hash chain: events are gapless and chained, and a change of any part of one shows."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from brainhands.shared.errors import BadInput
from brainhands.shared.model.event import Event, UserMessage
from brainhands.shared.model.ids import ConversationId, SessionId, WorkerId
from brainhands.shared.model.session import Session
from brainhands.shared.model.task import Status
from brainhands.shared.rules import chain
from brainhands.shared.rules.verify import read_head
from tests.rules.tasks import NOW, task

EMPTY = Session(
    id=SessionId(UUID(int=2)),
    tenant="default",
    log_format=1,
    last_seq=0,
    last_hash=chain.GENESIS,
    last_at=NOW,
    created_at=NOW,
)


def append(session: Session, text: str = "hello", **options: Any) -> tuple[Session, Event]:
    given: dict[str, Any] = {"causes": (), "now": NOW, "salt": b"s" * 16, "conversation_id": None}
    return chain.append(session, UserMessage(text=text, submission="s"), **{**given, **options})


def log() -> list[Event]:
    session, events = EMPTY, []
    for number in range(4):
        session, event = append(
            session,
            f"message {number}",
            causes=range(1, number + 1),
            conversation_id=ConversationId(UUID(int=3)),
            task=task(Status.RUNNING),
            worker_id=WorkerId(UUID(int=9)),
            pool="brain.default",
            environment="abc",
            tokens_in=10,
            tokens_out=20,
        )
        events.append(event)
    return events


def is_whole(events: list[Event]) -> bool:
    """What a verifier recomputes."""
    before = chain.GENESIS
    for seq, event in enumerate(events, start=1):
        payload_digest = hashlib.sha256(event.salt + event.payload_text.encode()).digest()
        if (event.seq, event.prev_hash, event.payload_digest) != (seq, before, payload_digest):
            return False
        if event.hash != chain.event_hash(event) or event.redacted_at is not None:
            return False
        before = event.hash
    return True


@pytest.mark.promise("I1")
def test_events_follow_each_other_without_a_gap() -> None:
    events = log()

    assert is_whole(events)
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert events[0].prev_hash == chain.GENESIS
    assert events[3].causes == (1, 2, 3)


@pytest.mark.promise("I1")
@pytest.mark.hazard(23)
@pytest.mark.parametrize("column", [field.name for field in fields(Event)])
def test_a_change_of_any_column_is_detected(column: str) -> None:
    events = log()
    original = getattr(events[1], column)
    match original:
        case bytes():
            changed: Any = bytes([original[0] ^ 1]) + original[1:]
        case str():
            changed = original + " "
        case int():
            changed = original + 1
        case tuple():
            changed = ()
        case UUID():
            changed = UUID(int=original.int + 1)
        case None:
            changed = events[1].at
        case _:
            changed = original + timedelta(microseconds=1)

    tampered = [events[0], replace(events[1], **{column: changed}), *events[2:]]

    assert is_whole(events)
    assert not is_whole(tampered)


@pytest.mark.hazard(23)
def test_a_removed_an_inserted_and_a_moved_event_is_detected() -> None:
    events = log()

    assert not is_whole([events[0], *events[2:]])
    assert not is_whole([events[0], events[0], *events[1:]])
    assert not is_whole([events[1], events[0], *events[2:]])


@pytest.mark.hazard(23)
def test_the_same_payload_has_another_digest_under_another_salt() -> None:
    _, one = append(EMPTY, salt=b"a" * 16)
    _, other = append(EMPTY, salt=b"b" * 16)

    assert one.payload_text == other.payload_text
    assert one.payload_digest != other.payload_digest


@pytest.mark.promise("I1", "I2")
@pytest.mark.parametrize("causes", [(1,), (2,), (0,), (-1,), (5, 1)])
def test_a_cause_that_is_no_earlier_event_is_refused(causes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not all earlier"):
        append(EMPTY, causes=causes)


@pytest.mark.promise("I1")
def test_time_never_runs_back_in_a_log_and_causes_are_sorted_and_single() -> None:
    session, first = append(EMPTY, now=NOW + timedelta(seconds=5))
    session, second = append(session, now=NOW, causes=[1])
    _, third = append(session, now=NOW + timedelta(seconds=6), causes=[2, 1, 2])

    assert first.at == second.at == NOW + timedelta(seconds=5)
    assert third.at == NOW + timedelta(seconds=6)
    assert third.causes == (1, 2)


@pytest.mark.promise("B12")
def test_a_payload_that_the_store_could_not_hold_is_cleaned_before_it_is_hashed() -> None:
    _, event = append(EMPTY, "a\x00b \ud83c")

    assert "\x00" not in event.payload_text
    assert "a\ufffdb \ufffd" in event.payload_text
    assert is_whole([event])


@pytest.mark.promise("I3")
@pytest.mark.parametrize("text", ["", "3", "0:", "-1:", "0:" + "00" * 32, "three:" + "00" * 32, "3:" + "0g" * 32])
def test_what_is_no_head_of_a_log_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="no head"):
        read_head(text)
