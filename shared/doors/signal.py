"""How a signal reaches a session: stored whether or not somebody waits for it, and taken once."""

from __future__ import annotations

from datetime import UTC, datetime

from brainhands.shared.doors.redact import refuse_erased
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import RequestConflict, Unsettled
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.ids import SessionId, new_signal_id
from brainhands.shared.model.json import Json, canonical
from brainhands.shared.model.signal import Signal, SignalReceipt
from brainhands.shared.store import commits, reads
from brainhands.shared.store.locked import Locked


def send(
    writer: Writer, tenant: str, session_id: SessionId, *, name: str, key: str, payload: Json, request_id: str
) -> SignalReceipt:
    """Store a signal once for its request_id. Raises RequestConflict if that was used for another signal."""
    digest = commits.request_digest(tenant, f"signal:{request_id}")
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
        draft.send_signal(signal, digest)
        return draft.freeze()

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
    return _receipt(commit.new_signals[0][0], request_id)


def _content(signal: Signal) -> tuple[SessionId, str, str, str]:
    return signal.session_id, signal.name, signal.key, canonical(signal.payload)


def _receipt(signal: Signal, request_id: str) -> SignalReceipt:
    return SignalReceipt(
        signal_id=signal.id,
        session_id=signal.session_id,
        request_id=request_id,
        taken=signal.taken_by is not None,
    )
