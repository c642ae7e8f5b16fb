"""How each value is read from the row of its table; writes.py writes it."""

from __future__ import annotations

from brainhands.shared.model.approval import Answer, Approval, Question
from brainhands.shared.model.event import Event
from brainhands.shared.model.session import Conversation, Inbox, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Mode, Submission, SubmissionStatus
from brainhands.shared.model.task import Attempt, Outcome, Priority, Requirement, Status, Task
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.store.database import Row


def session(row: Row) -> Session:
    return Session(**row)


def conversation(row: Row) -> Conversation:
    return Conversation(**row)


def inbox(row: Row) -> Inbox:
    return Inbox(
        position=row["position"],
        conversation_id=row["conversation_id"],
        submission_id=row["submission_id"],
        mode=Mode(row["mode"]),
        text=row["text"],
        priority=Priority(row["priority"]),
    )


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


def approval(row: Row) -> Approval:
    return Approval(
        **{
            **row,
            "question": Question(row["question"]),
            "default_answer": Answer(row["default_answer"]),
            "answer": Answer(row["answer"]),
        }
    )


def signal(row: Row) -> Signal:
    return Signal(**{name: value for name, value in row.items() if name != "request_digest"})


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
