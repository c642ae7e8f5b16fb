"""How a signal reaches a session: stored whether or not somebody waits for it, and taken once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from brainhands.shared.doors.redact import refuse_erased
from brainhands.shared.engine import signals
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import RequestConflict, Unsettled
from brainhands.shared.model.commit import Commit, NewSignal
from brainhands.shared.model.event import SignalReceived
from brainhands.shared.model.ids import SessionId, new_signal_id
from brainhands.shared.model.json import Json, canonical
from brainhands.shared.model.signal import Signal, SignalReceipt
from brainhands.shared.store import reads, writes
from brainhands.shared.store.locked import Locked


def send(
    writer: Writer, tenant: str, session_id: SessionId, *, name: str, key: str, payload: Json, request_id: str
) -> SignalReceipt:
    """Store a signal once for its request_id. Raises RequestConflict if that was used for another signal."""
    digest = writes.request_digest(tenant, f"signal:{request_id}")
    signal = Signal(
        id=new_signal_id(),
        session_id=session_id,
        name=name,
        key=key,
        payload=payload,
        seq=0,
        sent_at=datetime.now(UTC),
    )

    def fill(locked: Locked) -> Commit:
        refuse_erased(locked.session)
        draft = Draft(locked, NOBODY)
        _send(draft, signal, digest)
        return freeze(draft)

    try:
        commit = writer.apply(session_id, [], fill)
    except Unsettled:
        # A twin came first, or Postgres was away, maybe only for the reply.
        found = reads.signal_by_request(writer.database, digest)
        if found is None:
            raise
        if _content(found) != _content(signal):
            raise RequestConflict(request_id) from None
        return _receipt(found, request_id)
    assert commit is not None
    return _receipt(commit.of(NewSignal)[0].signal, request_id)


def _send(draft: Draft, signal: Signal, digest: bytes) -> None:
    """Store a signal and let who has waited longest for it go on."""
    waiter = draft.locked.signal_waiter(signal.name, signal.key)
    received = SignalReceived(signal=str(signal.id), name=signal.name, key=signal.key, content=signal.payload)
    stored = replace(
        signal,
        seq=draft.event(received, causes=()),
        sent_at=draft.now,
        taken_by=None if waiter is None else waiter.id,
    )
    draft.write(NewSignal(stored, digest))
    if waiter is not None:
        draft.load([waiter])
        signals.take(draft, waiter, stored)


def _content(signal: Signal) -> tuple[SessionId, str, str, str]:
    return signal.session_id, signal.name, signal.key, canonical(signal.payload)


def _receipt(signal: Signal, request_id: str) -> SignalReceipt:
    return SignalReceipt(
        signal_id=signal.id,
        session_id=signal.session_id,
        request_id=request_id,
        taken=signal.taken_by is not None,
    )
