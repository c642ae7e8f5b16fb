"""What led to a question: what a person who answers it must know besides the call itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Select, Text, Uuid, any_, bindparam, func, or_, select, true

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.ids import ApprovalId
from brainhands.shared.model.task import Task
from brainhands.shared.store import rows
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.tables import approvals, conversations, events, submissions, tasks

AT_ONCE = 50
"""Questions in one statement."""

CALLS_SHOWN = 5
CALLS = ("tool:%", "flow:%", "agent:%")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenQuestion:
    """An open question with the work in which it came up.

    `asked` is the event that has all of the call, `said` what the model said with it and `said_at` the event of that.
    `calls` are the newest other calls of the same work, oldest first; `earlier` counts those before them.
    """

    approval: Approval
    agent: str | None
    input: str | None
    asked: int
    said: str | None
    said_at: int | None
    calls: tuple[Task, ...]
    earlier: int


def with_what_led_there(database: Database, found: Sequence[Approval]) -> Iterable[OpenQuestion]:
    """Each of these questions with what led there, in their order."""
    for start in range(0, len(found), AT_ONCE):
        some = found[start : start + AT_ONCE]
        ids = [each.id for each in some]
        work, calls = database.run(WORK(ids=ids), OTHER_CALLS(ids=ids))
        work_of = {row["approval_id"]: row for row in work.rows}
        calls_of: dict[ApprovalId, list[Row]] = {}
        for row in calls.rows:
            calls_of.setdefault(row["approval_id"], []).append(dict(row))
        for each in some:
            yield _question(each, work_of[each.id], calls_of.get(each.id, []))


def _question(approval: Approval, work: Row, calls: Sequence[Row]) -> OpenQuestion:
    total = calls[0]["total"] if calls else 0
    own = [{name: value for name, value in row.items() if name not in ("approval_id", "total")} for row in calls]
    return OpenQuestion(
        approval=approval,
        agent=work["agent"],
        input=work["input"],
        asked=work["asked"],
        said=work["said"] or None,
        said_at=work["said_at"],
        calls=tuple(rows.task(row) for row in reversed(own)),
        earlier=total - len(calls),
    )


def _work() -> Select[Any]:
    said = (
        select(events.c.seq, events.c.payload.op("->>")("text").label("text"))
        .where(
            events.c.session_id == tasks.c.session_id,
            events.c.conversation_id == tasks.c.conversation_id,
            events.c.seq <= tasks.c.cause,
            events.c.type == "model_output",
        )
        .order_by(events.c.seq.desc())
        .limit(1)
        .lateral("said")
    )
    asked = (
        select(func.max(events.c.seq))
        .where(
            events.c.session_id == tasks.c.session_id,
            events.c.seq > tasks.c.cause,
            events.c.task_id == tasks.c.id,
            events.c.type == "human_approval_requested",
            events.c.payload.op("->>")("approval") == approvals.c.id.cast(Text),
        )
        .scalar_subquery()
    )
    return (
        select(
            approvals.c.id.label("approval_id"),
            conversations.c.agent,
            submissions.c.input,
            asked.label("asked"),
            said.c.text.label("said"),
            said.c.seq.label("said_at"),
        )
        .join(tasks, tasks.c.id == approvals.c.task_id)
        .outerjoin(conversations, conversations.c.id == tasks.c.conversation_id)
        .outerjoin(submissions, submissions.c.id == tasks.c.submission_id)
        .outerjoin(said, true())
        .where(approvals.c.id == any_(bindparam("ids", type_=ARRAY(Uuid))))
    )


def _other_calls() -> Select[Any]:
    asking, call = tasks.alias("asking"), tasks.alias("call")
    newest = (
        select(call, func.count().over().label("total"))
        .where(
            call.c.session_id == asking.c.session_id,
            call.c.submission_id == asking.c.submission_id,
            call.c.id != asking.c.id,
            or_(*(call.c.kind.like(pattern) for pattern in CALLS)),
        )
        .order_by(call.c.created_at.desc(), call.c.id.desc())
        .limit(CALLS_SHOWN)
        .lateral("newest")
    )
    return (
        select(approvals.c.id.label("approval_id"), newest)
        .join(asking, asking.c.id == approvals.c.task_id)
        .join(newest, true())
        .where(approvals.c.id == any_(bindparam("ids", type_=ARRAY(Uuid))))
        .order_by(approvals.c.id, newest.c.created_at.desc(), newest.c.id.desc())
    )


WORK = Statement(_work())
OTHER_CALLS = Statement(_other_calls())
