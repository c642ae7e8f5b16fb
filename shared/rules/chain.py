"""The hash chain: each event's hash covers the one before it, its header, and a salted digest of its payload.

    payload_digest = sha256(salt | payload text)
    hash           = sha256(prev_hash | canonical header | payload_digest)

The payload text is stored as given and never rewritten; dropping text and salt later (redaction) keeps the chain valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from brainhands.shared.errors import NotStorable
from brainhands.shared.model.event import Event, Payload
from brainhands.shared.model.ids import ConversationId, WorkerId
from brainhands.shared.model.json import canonical, clean_inside, storable
from brainhands.shared.model.session import Session
from brainhands.shared.model.task import Task

GENESIS = bytes(32)
"""`prev_hash` of the first event of a session."""


def append(
    session: Session,
    payload: Payload,
    *,
    causes: Iterable[int],
    now: datetime,
    salt: bytes,
    conversation_id: ConversationId | None,
    task: Task | None = None,
    worker_id: WorkerId | None = None,
    pool: str | None = None,
    environment: str | None = None,
    tokens_in: int | None = None,
    tokens_out: int | None = None,
) -> tuple[Session, Event]:
    """The event at the session's next seq, and the session with its new head. Causes must be earlier events.

    Raises NotStorable for what is too large or too deep, unless it tells of an end.
    """
    seq = session.last_seq + 1
    sorted_causes = tuple(sorted(set(causes)))
    if (sorted_causes and not 0 < sorted_causes[-1] < seq) or (sorted_causes and sorted_causes[0] < 1):
        raise ValueError(f"causes {sorted_causes} of event {seq} are not all earlier events")
    text = payload_text(payload)
    event = Event(
        session_id=session.id,
        seq=seq,
        type=payload.event_type,
        version=payload.event_version,
        at=max(now, session.last_at),
        causes=sorted_causes,
        payload_text=text,
        conversation_id=conversation_id,
        task_id=task.id if task else None,
        fence=task.fence if task else None,
        worker_id=worker_id,
        pool=pool,
        environment=environment,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        salt=salt,
        payload_digest=hashlib.sha256(salt + text.encode()).digest(),
        prev_hash=session.last_hash,
        hash=b"",
    )
    event = replace(event, hash=event_hash(event))
    head = replace(
        session,
        last_seq=seq,
        last_hash=event.hash,
        last_at=event.at,
        log_format=max(session.log_format, payload.log_format),
    )
    return head, event


def payload_text(payload: Payload) -> str:
    """The text that is stored; of what tells of an end, with what does not fit shortened. Raises NotStorable."""
    try:
        return canonical(clean_inside(payload.model_dump(mode="json")))
    except (NotStorable, ValueError, RecursionError):
        if not payload.of_an_end:
            raise
    return canonical({name: storable(_dumped(payload, name)) for name in type(payload).model_fields})


def _dumped(payload: Payload, name: str) -> object:
    try:
        return payload.model_dump(mode="json", include={name})[name]
    except ValueError:  # deeper than pydantic goes
        return getattr(payload, name)


def event_hash(event: Event) -> bytes:
    """The hash that an event with this header, payload digest and predecessor must have."""
    header = canonical(
        [
            str(event.session_id),
            event.seq,
            event.type,
            event.version,
            event.at.astimezone(UTC).isoformat(timespec="microseconds"),
            list(event.causes),
            _text(event.conversation_id),
            _text(event.task_id),
            event.fence,
            _text(event.worker_id),
            event.pool,
            event.environment,
            event.tokens_in,
            event.tokens_out,
        ]
    )
    return hashlib.sha256(event.prev_hash + header.encode() + event.payload_digest).digest()


def _text(value: object) -> str | None:
    return None if value is None else str(value)
