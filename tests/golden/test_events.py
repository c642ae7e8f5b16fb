"""Events of every type and version that was ever stored are read, and none changes without a version of its own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from brainhands.shared.model.event import (
    LOG_FORMAT,
    PAYLOADS,
    UPCASTS,
    Payload,
    UnknownPayload,
    UserMessage,
    read_payload,
)
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.session import Session
from brainhands.shared.rules import chain, verify
from tests.golden import events

FILES = sorted(events.FOLDER.glob("*.json"))
ADD = "run `python -m tests.golden`, and commit what it writes"


@pytest.mark.promise("H8")
@pytest.mark.hazard(24)
def test_each_type_and_version_has_a_golden_file() -> None:
    assert [key for key in PAYLOADS if not events.file_of(*key).exists()] == [], ADD


@pytest.mark.promise("H8")
@pytest.mark.hazard(24)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_event_that_was_stored_once_is_read_for_ever(file: Path) -> None:
    golden = json.loads(file.read_text())
    type, version = golden["type"], golden["version"]

    payload = read_payload(type, version, golden["payload"])

    assert not isinstance(payload, UnknownPayload)
    assert payload.event_type == type
    assert golden["log_format"] <= LOG_FORMAT
    if (type, version) not in UPCASTS:
        assert payload.model_dump(mode="json") == golden["payload"]


@pytest.mark.promise("H8")
@pytest.mark.hazard(24)
@pytest.mark.parametrize("key", [key for key in PAYLOADS if events.file_of(*key).exists()], ids=str)
def test_a_type_changes_only_with_a_new_version(key: tuple[str, int]) -> None:
    golden = json.loads(events.file_of(*key).read_text())

    assert events.stored(PAYLOADS[key]) == golden, "raise event_version and log_format, and add an upcast"


class NoteSecond(Payload):
    event_type = "note"
    event_version: ClassVar[int] = 2
    words: list[str]


class NoteThird(Payload):
    event_type = "note"
    event_version: ClassVar[int] = 3
    words: list[str]
    loud: bool


def split(content: dict[str, Any]) -> dict[str, Any]:
    return {"words": content["text"].split()}


def not_loud(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "loud": False}


@pytest.fixture
def three_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAYLOADS, ("note", 2), NoteSecond)
    monkeypatch.setitem(PAYLOADS, ("note", 3), NoteThird)
    monkeypatch.setitem(UPCASTS, ("note", 1), split)
    monkeypatch.setitem(UPCASTS, ("note", 2), not_loud)


@pytest.mark.promise("H8")
@pytest.mark.usefixtures("three_versions")
def test_an_event_of_an_older_version_is_read_as_the_newest_one() -> None:
    newest = NoteThird(words=["hello", "there"], loud=False)

    assert read_payload("note", 1, {"text": "hello there"}) == newest
    assert read_payload("note", 2, {"words": ["hello", "there"]}) == newest
    assert read_payload("note", 3, {"words": ["hello", "there"], "loud": False}) == newest
    assert read_payload("note", 4, {"shout": 1}) == UnknownPayload(content={"shout": 1})


@pytest.mark.promise("H8", "I3")
@pytest.mark.usefixtures("three_versions")
def test_the_chain_is_over_what_is_stored_and_not_over_what_it_is_read_as() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    empty = Session(
        id=SessionId(UUID(int=1)),
        tenant="default",
        log_format=1,
        last_seq=0,
        last_hash=chain.GENESIS,
        last_at=now,
        created_at=now,
    )
    old = NoteSecond(words=["hello"])
    session, event = chain.append(empty, old, causes=(), now=now, salt=b"salt", conversation_id=None)

    assert read_payload(event.type, event.version, json.loads(event.payload_text)) == NoteThird(
        words=["hello"], loud=False
    )
    assert json.loads(event.payload_text) == {"words": ["hello"]}
    assert verify.check([event], session, None, {}) is None


@pytest.mark.promise("K5")
def test_a_session_takes_the_log_format_of_its_newest_event_and_no_other() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    session = Session(
        id=SessionId(UUID(int=1)),
        tenant="default",
        log_format=1,
        last_seq=0,
        last_hash=chain.GENESIS,
        last_at=now,
        created_at=now,
    )

    class Newer(UserMessage):
        log_format: ClassVar[int] = 7

    def after(payload: Payload) -> int:
        return chain.append(session, payload, causes=(), now=now, salt=b"", conversation_id=None)[0].log_format

    assert after(UserMessage(text="hello", submission="s")) == 1
    assert after(Newer(text="hello", submission="s")) == 7
