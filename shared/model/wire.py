"""The JSON forms of stored values, the same at every door: ids as text, hashes in hex, times ISO 8601 in UTC."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.awake import AwakeReceipt
from brainhands.shared.model.document import DocumentVersion, StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.fork import ForkReceipt
from brainhands.shared.model.json import Json
from brainhands.shared.model.prices import dollars
from brainhands.shared.model.redaction import ErasureReceipt, RedactionReceipt
from brainhands.shared.model.session import Conversation, Session, SessionSummary
from brainhands.shared.model.signal import SignalReceipt
from brainhands.shared.model.submission import Cancellation, Receipt, Submission
from brainhands.shared.model.task import Task


def event(value: Event) -> dict[str, Json]:
    """An event with its payload as it is stored, of whatever type and version; null where it was redacted."""
    return {
        "session": _id(value.session_id),
        "seq": value.seq,
        "type": value.type,
        "version": value.version,
        "at": _time(value.at),
        "causes": list(value.causes),
        "payload": payload(value),
        "worker": _id(value.worker_id),
        "task": _id(value.task_id),
        "fence": value.fence,
        "hash": value.hash.hex(),
        "prev_hash": value.prev_hash.hex(),
        "conversation": _id(value.conversation_id),
        "pool": value.pool,
        "environment": value.environment,
        "tokens_in": value.tokens_in,
        "tokens_out": value.tokens_out,
        "redacted": value.redacted_at is not None,
    }


def payload(value: Event) -> Json:
    """An event's payload as JSON, None where it was redacted."""
    return json.loads(value.payload_text)


def session(value: Session) -> dict[str, Json]:
    return {
        "id": _id(value.id),
        "tenant": value.tenant,
        "created_at": _time(value.created_at),
        "log_format": value.log_format,
        "last_seq": value.last_seq,
        "last_at": _time(value.last_at),
        "last_hash": value.last_hash.hex(),
        "erased_at": _time(value.erased_at),
        "forked_from": _id(value.forked_from),
        "forked_at": value.forked_at,
        **_use(value),
    }


def session_summary(value: SessionSummary) -> dict[str, Json]:
    return {
        "id": _id(value.id),
        "agent": value.agent,
        "open_tasks": value.open_tasks,
        "last_seq": value.last_seq,
        "created_at": _time(value.created_at),
        "last_at": _time(value.last_at),
        "erased_at": _time(value.erased_at),
        "head": value.head,
    }


def conversation(value: Conversation) -> dict[str, Json]:
    return {
        "id": _id(value.id),
        "owner": _id(value.owner_id),
        "agent": value.agent,
        "agent_version": value.agent_version,
        "continues": _id(value.continues),
    }


def task(value: Task) -> dict[str, Json]:
    return {
        "id": _id(value.id),
        "conversation": _id(value.conversation_id),
        "owner": _id(value.owner_id),
        "submission": _id(value.submission_id),
        "kind": value.kind,
        "version": value.version,
        "requires": str(value.requires),
        "input": value.input,
        "cause": value.cause,
        "status": value.status,
        "outcome": value.outcome,
        "phase": value.phase,
        "phase_attempts": value.phase_attempts,
        "checkpoint": value.checkpoint,
        "result": value.result,
        "error": value.error,
        "cancel_wanted": value.cancel_wanted,
        "blocked": value.blocked,
        "worker": _id(value.worker_id),
        "fence": value.fence,
        "step": value.step,
        "lease_until": _time(value.lease_until),
        "deadline": _time(value.deadline),
        "wake_at": _time(value.wake_at),
        "created_at": _time(value.created_at),
    }


def submission(value: Submission) -> dict[str, Json]:
    return {
        "submission_id": _id(value.id),
        "session_id": _id(value.session_id),
        "request_id": value.request_id,
        "conversation": _id(value.conversation_id),
        "agent": value.agent,
        "mode": value.mode,
        "priority": value.priority.name.lower(),
        "input": value.input,
        "status": value.status,
        "outcome": value.outcome,
        "output": value.output,
        "error": value.error,
        "created_at": _time(value.created_at),
        "done_at": _time(value.done_at),
        **_use(value),
    }


def receipt(value: Receipt) -> dict[str, Json]:
    return {
        "submission_id": _id(value.submission_id),
        "session_id": _id(value.session_id),
        "request_id": value.request_id,
        "status": value.status,
        "head": value.head,
    }


def signal_receipt(value: SignalReceipt) -> dict[str, Json]:
    return {
        "signal_id": _id(value.signal_id),
        "session_id": _id(value.session_id),
        "request_id": value.request_id,
        "taken": value.taken,
    }


def fork_receipt(value: ForkReceipt) -> dict[str, Json]:
    return {
        "session_id": _id(value.session_id),
        "forked_from": _id(value.forked_from),
        "at": value.at,
        "request_id": value.request_id,
        "head": value.head,
    }


def awake_receipt(value: AwakeReceipt) -> dict[str, Json]:
    return {
        "session_id": _id(value.session_id),
        "request_id": value.request_id,
        "moved": [each.model_dump() for each in value.moved],
        "seq": value.seq,
    }


def approval(value: Approval) -> dict[str, Json]:
    return {
        "id": _id(value.id),
        "session": _id(value.session_id),
        "task": _id(value.task_id),
        "question": value.question,
        "tool": value.tool,
        "version": value.version,
        "operation_id": value.operation_id,
        "arguments": value.arguments,
        "about": value.about,
        "default_answer": value.default_answer,
        "asked_at": _time(value.asked_at),
        "answer_by": _time(value.answer_by),
        "answer": value.answer,
        "answered_at": _time(value.answered_at),
        "answered_by": value.answered_by,
        "comment": value.comment,
        "edited_arguments": value.edited_arguments,
        "result": value.result,
        "use_by": _time(value.use_by),
        "used_at": _time(value.used_at),
    }


def document(value: StoredDocument) -> dict[str, Json]:
    """A document as it is stored, in the schema version in which it was written."""
    return {
        "session": _id(value.session_id),
        "name": value.name,
        "version": value.version,
        "kind": value.kind,
        "schema_version": value.schema_version,
        "seq": value.seq,
        "value": value.value,
    }


def document_version(value: DocumentVersion) -> dict[str, Json]:
    return {
        "name": value.name,
        "version": value.version,
        "kind": value.kind,
        "schema_version": value.schema_version,
        "seq": value.seq,
        "at": _time(value.at),
        "change": value.change,
    }


def redaction(value: RedactionReceipt) -> dict[str, Json]:
    return {
        "session_id": _id(value.session_id),
        "redacted": list(value.redacted),
        "repeated_in": list(value.repeated_in),
        "found_in": [
            {"session": _id(place.session_id), "kind": place.kind, "id": place.id, "part": place.part}
            for place in value.found_in
        ],
        "searched": value.searched,
        "head": value.head,
    }


def erasure(value: ErasureReceipt) -> dict[str, Json]:
    return {"session_id": _id(value.session_id), "erased_at": _time(value.erased_at), "head": value.head}


def cancellation(value: Cancellation) -> dict[str, Json]:
    return {"session_id": _id(value.session_id), "state": value.state, "outcome": value.outcome}


def _use(value: Session | Submission) -> dict[str, Json]:
    """What model calls used: tokens, and US dollars as decimal text."""
    return {"tokens_in": value.tokens_in, "tokens_out": value.tokens_out, "cost": dollars(value.cost)}


def _id(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")
