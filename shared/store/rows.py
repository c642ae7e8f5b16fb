"""Between rows and values: how each value is read from and written to its table."""

from __future__ import annotations

from typing import Any

from brainhands.shared.model.approval import Answer, Approval, Question
from brainhands.shared.model.commit import InboxEntry
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.json import canonical
from brainhands.shared.model.session import Conversation, Inbox, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Mode, Submission, SubmissionStatus
from brainhands.shared.model.task import Attempt, Outcome, Priority, Requirement, Status, Task
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.store.database import Row


def session(row: Row) -> Session:
    return Session(**row)


def session_row(value: Session) -> dict[str, Any]:
    return _fields(value)


def conversation(row: Row) -> Conversation:
    return Conversation(**row)


def conversation_row(value: Conversation) -> dict[str, Any]:
    return _fields(value)


def inbox(row: Row) -> Inbox:
    return Inbox(
        position=row["position"],
        conversation_id=row["conversation_id"],
        submission_id=row["submission_id"],
        mode=Mode(row["mode"]),
        text=row["text"],
        priority=Priority(row["priority"]),
    )


def inbox_row(value: InboxEntry) -> dict[str, Any]:
    return {
        "session_id": value.submission.session_id,
        "conversation_id": value.submission.conversation_id,
        "submission_id": value.submission.id,
        "mode": value.submission.mode,
        "text": value.text,
        "priority": value.submission.priority,
    }


def task(row: Row) -> Task:
    fields = dict(row)
    requires = Requirement(name=fields.pop("requires_name"), version=fields.pop("requires_version"))
    outcome = fields.pop("outcome")
    return Task(
        **{
            **fields,
            "status": Status(fields["status"]),
            "priority": Priority(fields["priority"]),
            "refused_by": tuple(fields["refused_by"] or ()),
        },
        outcome=None if outcome is None else Outcome(outcome),
        requires=requires,
    )


def task_row(value: Task) -> dict[str, Any]:
    fields = _fields(value)
    requires: Requirement = fields.pop("requires")
    return {
        **fields,
        "requires_name": requires.name,
        "requires_version": requires.version,
        "refused_by": list(value.refused_by) or None,
        "input": canonical(value.input),
        **_mutable_json(value),
    }


MUTABLE_TASK_COLUMNS = (
    "version",
    "status",
    "outcome",
    "phase",
    "checkpoint",
    "result",
    "error",
    "fence",
    "step",
    "phase_attempts",
    "worker_id",
    "lease_until",
    "deadline",
    "wake_at",
    "signal_name",
    "signal_key",
    "blocked",
    "refused_by",
    "cancel_wanted",
    "holds_slots",
    "requires_version",
)


def task_change_row(value: Task) -> dict[str, Any]:
    """What a move may change of a task."""
    row = {name: getattr(value, name) for name in MUTABLE_TASK_COLUMNS if name != "requires_version"}
    refused_by = list(value.refused_by) or None
    return {**row, "requires_version": value.requires.version, "refused_by": refused_by, **_mutable_json(value)}


def _mutable_json(value: Task) -> dict[str, Any]:
    return {"checkpoint": canonical(value.checkpoint), "result": canonical(value.result)}


def attempt(row: Row) -> Attempt:
    return Attempt(
        task_id=row["task_id"],
        fence=row["fence"],
        worker_id=row["worker_id"],
        phase=row["phase"],
        started_at=row["started_at"],
        deadline=row["deadline"],
        progress=row["progress"],
        late_result=row["late_result"],
    )


def event(row: Row) -> Event:
    """From a row whose payload was read as text (column `payload_text`)."""
    return Event(**{**row, "causes": tuple(row["causes"])})


def event_row(value: Event) -> dict[str, Any]:
    fields = _fields(value)
    return {**fields, "payload": fields.pop("payload_text"), "causes": list(value.causes)}


def approval(row: Row) -> Approval:
    return Approval(
        **{
            **row,
            "question": Question(row["question"]),
            "default_answer": Answer(row["default_answer"]),
            "answer": Answer(row["answer"]),
        }
    )


def approval_row(value: Approval) -> dict[str, Any]:
    json = {name: canonical(getattr(value, name)) for name in ("arguments", "edited_arguments", "result")}
    return {**_fields(value), **json}


def signal(row: Row) -> Signal:
    return Signal(**{name: value for name, value in row.items() if name != "request_digest"})


def document_row(value: StoredDocument) -> dict[str, Any]:
    """A row holds the whole value, or what changed since the version before."""
    fields = _fields(value)
    del fields["deltas"]
    if value.delta is None:
        return {**fields, "value": canonical(value.value)}
    return {**fields, "value": None, "delta": canonical(value.delta)}


def submission(row: Row) -> Submission:
    fields = {name: value for name, value in row.items() if name != "request_digest"}
    outcome = fields.pop("outcome")
    return Submission(
        **{
            **fields,
            "mode": Mode(fields["mode"]),
            "priority": Priority(fields["priority"]),
            "status": SubmissionStatus(fields["status"]),
        },
        outcome=None if outcome is None else Outcome(outcome),
    )


def tool_spec(row: Row) -> ToolSpec:
    return ToolSpec.model_validate(row["spec"])


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
