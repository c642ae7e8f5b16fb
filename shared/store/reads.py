"""Reads of what is committed, without locks: for a look before a claim, for contexts, and for observers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, Integer, Text, all_, any_, bindparam, func, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import distinct_on

from shared.model.approval import Approval
from shared.model.document import StoredDocument
from shared.model.event import Event
from shared.model.ids import ApprovalId, ConversationId, SessionId, SubmissionId, TaskId
from shared.model.session import Conversation, Session
from shared.model.signal import Signal
from shared.model.submission import Submission
from shared.model.task import Task
from shared.store import rows
from shared.store.database import Call, Database, Result, Row, Statement
from shared.store.tables import (
    approvals,
    conversations,
    documents,
    events,
    inbox,
    outbox,
    sessions,
    signals,
    submissions,
    tasks,
)
from shared.store.view import LATEST_DOCUMENT

OBSERVER_SECONDS = 2.0
"""How long a read for somebody outside is tried again."""

_EVENT = [column for column in events.c if column.name != "payload"] + [
    sql_cast(events.c.payload, Text).label("payload_text")
]
LOOK = Statement(
    select(
        tasks,
        sessions.c.log_format,
        outbox.c.attempts.label("hints"),
        conversations.c.owner_id.label("conversation_owner"),
        conversations.c.agent,
        conversations.c.agent_version,
        select(inbox.c.position)
        .where(inbox.c.conversation_id == tasks.c.conversation_id, inbox.c.mode == "steer")
        .exists()
        .label("steered"),
    )
    .join(sessions, sessions.c.id == tasks.c.session_id)
    .outerjoin(outbox, outbox.c.task_id == tasks.c.id)
    .outerjoin(conversations, conversations.c.id == tasks.c.conversation_id)
    .where(tasks.c.id == bindparam("task_id"))
)
CONVERSATION = Statement(select(conversations).where(conversations.c.id == bindparam("conversation_id")))
CONTEXT = Statement(
    select(events.c.seq, events.c.type, events.c.version, events.c.payload)
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.conversation_id == bindparam("conversation_id"),
        events.c.seq <= bindparam("cutoff"),
        events.c.type != all_(bindparam("types", type_=ARRAY(Text))),
    )
    .order_by(events.c.seq)
)
RESULTS_AFTER = Statement(
    select(events.c.seq)
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.conversation_id == bindparam("conversation_id"),
        events.c.seq > bindparam("after"),
        events.c.type == any_(bindparam("types", type_=ARRAY(Text))),
        events.c.payload.op("->>")("call_id").is_not(None),
    )
    .order_by(events.c.seq)
)
EVENTS = Statement(
    select(*_EVENT)
    .where(events.c.session_id == bindparam("session_id"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("most", type_=Integer))
)
SESSION = Statement(
    select(sessions).where(sessions.c.id == bindparam("session_id"), sessions.c.tenant == bindparam("tenant"))
)
SESSION_CONVERSATIONS = Statement(
    select(conversations).where(conversations.c.session_id == bindparam("session_id")).order_by(conversations.c.id)
)
SESSION_TASKS = Statement(
    select(tasks).where(tasks.c.session_id == bindparam("session_id")).order_by(tasks.c.created_at, tasks.c.id)
)
SESSION_SUBMISSIONS = Statement(
    select(submissions)
    .where(submissions.c.session_id == bindparam("session_id"))
    .order_by(submissions.c.created_at, submissions.c.id)
)
SESSION_DOCUMENTS = Statement(
    select(documents)
    .where(documents.c.session_id == bindparam("session_id"))
    .ext(distinct_on(documents.c.name))
    .order_by(documents.c.name, documents.c.version.desc())
)
SESSIONS = Statement(
    select(
        sessions,
        select(func.count())
        .where(tasks.c.session_id == sessions.c.id, tasks.c.status != "done")
        .scalar_subquery()
        .label("open_tasks"),
        select(conversations.c.agent)
        .where(conversations.c.session_id == sessions.c.id, conversations.c.owner_id.is_(None))
        .limit(1)
        .scalar_subquery()
        .label("agent"),
    )
    .where(sessions.c.tenant == bindparam("tenant"))
    .order_by(sessions.c.created_at.desc())
    .limit(bindparam("most", type_=Integer))
)
SUBMISSION = Statement(
    select(submissions).where(
        submissions.c.id == bindparam("submission_id"), submissions.c.tenant == bindparam("tenant")
    )
)
SUBMISSION_BY_REQUEST = Statement(select(submissions).where(submissions.c.request_digest == bindparam("digest")))
APPROVAL = Statement(
    select(approvals)
    .join(sessions, sessions.c.id == approvals.c.session_id)
    .where(approvals.c.id == bindparam("approval_id"), sessions.c.tenant == bindparam("tenant"))
)
OPEN_APPROVALS = Statement(
    select(approvals)
    .join(sessions, sessions.c.id == approvals.c.session_id)
    .where(approvals.c.answer == "pending", sessions.c.tenant == bindparam("tenant"))
    .order_by(approvals.c.asked_at, approvals.c.id)
)
TASK_APPROVAL = Statement(select(approvals).where(approvals.c.id == bindparam("approval_id")))
SIGNAL_BY_REQUEST = Statement(select(signals).where(signals.c.request_digest == bindparam("digest")))
TASK = Statement(select(tasks).where(tasks.c.id == bindparam("task_id")))
USAGE = Statement(
    select(
        func.coalesce(func.sum(events.c.tokens_in), 0).label("tokens_in"),
        func.coalesce(func.sum(events.c.tokens_out), 0).label("tokens_out"),
    ).where(events.c.session_id == bindparam("session_id"))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """A task as it stands with its conversation, and how often its present hint was published (None: no hint)."""

    task: Task
    conversation: Conversation | None
    hints: int | None
    steered: bool
    """Whether input waits that shall join the present work of the conversation."""
    log_format: int
    """The session's: who reads only older ones leaves its tasks to others."""


def look(database: Database, task_id: TaskId) -> Look | None:
    """A first look without a lock, to walk away from what cannot be claimed."""
    (result,) = database.run(LOOK(task_id=task_id))
    if result.first is None:
        return None
    row = dict(result.first)
    hints, owner, agent, version, steered, log_format = (
        row.pop(name) for name in ("hints", "conversation_owner", "agent", "agent_version", "steered", "log_format")
    )
    task = rows.task(row)
    conversation = None
    if task.conversation_id is not None:
        conversation = Conversation(
            id=task.conversation_id, session_id=task.session_id, owner_id=owner, agent=agent, agent_version=version
        )
    return Look(task=task, conversation=conversation, hints=hints, steered=steered, log_format=log_format)


def conversation(database: Database, conversation_id: ConversationId) -> Conversation:
    (result,) = database.run(CONVERSATION(conversation_id=conversation_id))
    assert result.first is not None
    return rows.conversation(result.first)


def context(
    database: Database,
    session_id: SessionId,
    conversation_id: ConversationId,
    cutoff: int,
    besides: Sequence[str],
) -> list[Row]:
    """The events up to the cutoff, in order, of all types but these: rows (seq, type, version, payload).

    So an event of a type that is not known here is among them.
    """
    (result,) = database.run(
        CONTEXT(session_id=session_id, conversation_id=conversation_id, cutoff=cutoff, types=list(besides))
    )
    return result.rows


def task(database: Database, task_id: TaskId) -> Task | None:
    (result,) = database.run(TASK(task_id=task_id))
    return None if result.first is None else rows.task(result.first)


def document(database: Database, session_id: SessionId, name: str) -> StoredDocument | None:
    """The latest version of a document."""
    (result,) = database.run(LATEST_DOCUMENT(session_id=session_id, name=name))
    return None if result.first is None else rows.document(result.first)


def session(database: Database, tenant: str, session_id: SessionId) -> Session | None:
    (result,) = _read(database, SESSION(session_id=session_id, tenant=tenant))
    return None if result.first is None else rows.session(result.first)


def event_page(database: Database, session_id: SessionId, after: int, most: int = 500) -> list[Event]:
    """Events after a seq, in order, no more than `most`."""
    (result,) = _read(database, EVENTS(session_id=session_id, after=after, most=most))
    return [rows.event(row) for row in result.rows]


def submission(database: Database, tenant: str, submission_id: SubmissionId) -> Submission | None:
    (result,) = _read(database, SUBMISSION(submission_id=submission_id, tenant=tenant))
    return None if result.first is None else rows.submission(result.first)


def approval(database: Database, tenant: str, approval_id: ApprovalId) -> Approval | None:
    """A question put to people, of this tenant."""
    (result,) = database.run(APPROVAL(approval_id=approval_id, tenant=tenant))
    return None if result.first is None else rows.approval(result.first)


def open_approvals(database: Database, tenant: str) -> list[Approval]:
    """All questions of a tenant that wait for an answer, oldest first."""
    (result,) = database.run(OPEN_APPROVALS(tenant=tenant))
    return [rows.approval(row) for row in result.rows]


def approval_of_task(database: Database, approval_id: ApprovalId) -> Approval:
    """The question that a task of ours has asked."""
    (result,) = database.run(TASK_APPROVAL(approval_id=approval_id))
    assert result.first is not None
    return rows.approval(result.first)


def signal_by_request(database: Database, digest: bytes) -> Signal | None:
    """What an earlier sending with this request_id stored."""
    (result,) = database.run(SIGNAL_BY_REQUEST(digest=digest))
    return None if result.first is None else rows.signal(result.first)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionView:
    """A session with what belongs to it, read in one go; the newest version of each document."""

    session: Session
    conversations: tuple[Conversation, ...]
    tasks: tuple[Task, ...]
    submissions: tuple[Submission, ...]
    documents: tuple[StoredDocument, ...]
    tokens_in: int
    tokens_out: int


def usage(database: Database, session_id: SessionId) -> tuple[int, int]:
    """Tokens into and out of the model in a session, estimates of interrupted calls included."""
    (result,) = database.run(USAGE(session_id=session_id))
    assert result.first is not None
    return int(result.first["tokens_in"]), int(result.first["tokens_out"])


def session_view(database: Database, tenant: str, session_id: SessionId) -> SessionView | None:
    """The whole current view of a session, None if the tenant has none of that id."""
    found, talks, work, inputs, papers, usage = _read(
        database,
        SESSION(session_id=session_id, tenant=tenant),
        SESSION_CONVERSATIONS(session_id=session_id),
        SESSION_TASKS(session_id=session_id),
        SESSION_SUBMISSIONS(session_id=session_id),
        SESSION_DOCUMENTS(session_id=session_id),
        USAGE(session_id=session_id),
    )
    if found.first is None or usage.first is None:
        return None
    return SessionView(
        session=rows.session(found.first),
        conversations=tuple(rows.conversation(row) for row in talks.rows),
        tasks=tuple(rows.task(row) for row in work.rows),
        submissions=tuple(rows.submission(row) for row in inputs.rows),
        documents=tuple(rows.document(row) for row in papers.rows),
        tokens_in=usage.first["tokens_in"],
        tokens_out=usage.first["tokens_out"],
    )


def sessions_of(database: Database, tenant: str, most: int = 50) -> list[Row]:
    """The newest sessions of a tenant: rows of the table with `agent` and the number of `open_tasks`."""
    (result,) = _read(database, SESSIONS(tenant=tenant, most=most))
    return result.rows


def _read(database: Database, *calls: Call) -> list[Result]:
    """For those who look from outside: the first connection may be one that died while nobody used it."""
    return database.run_patiently(*calls, seconds=OBSERVER_SECONDS)
