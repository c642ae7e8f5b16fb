"""Reads of what is committed, without locks: for a look before a claim, for contexts, and for observers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    DateTime,
    Integer,
    Select,
    Text,
    Uuid,
    all_,
    any_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.types import TypeEngine

from brainhands.shared.model.approval import Approval
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import ApprovalId, ConversationId, SessionId, SubmissionId, TaskId, WorkerId
from brainhands.shared.model.json import Json
from brainhands.shared.model.session import Conversation, Session, SessionSummary
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Submission, SubmissionStatus
from brainhands.shared.model.task import Task
from brainhands.shared.store import documents, past, rows
from brainhands.shared.store.database import Call, Database, Row, Statement
from brainhands.shared.store.due import UNOFFERED_TASKS
from brainhands.shared.store.offers import fits
from brainhands.shared.store.past import LogPart
from brainhands.shared.store.tables import (
    approvals,
    conversations,
    events,
    inbox,
    outbox,
    sessions,
    signals,
    submissions,
    tasks,
    workers,
)

FIRST = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
LAST = (datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1))
"""Times and ids before and after all others."""

_EVENT = [column for column in events.c if column.name not in ("payload", "commit_seq")] + [
    sql_cast(events.c.payload, Text).label("payload_text")
]
LOOK = Statement(
    select(
        tasks,
        sessions.c.log_format,
        outbox.c.attempts.label("hints"),
        fits(
            tasks.c.requires_name,
            tasks.c.requires_version,
            workers.c.id == bindparam("worker_id"),
            log_format=sessions.c.log_format,
            refused_by=tasks.c.refused_by,
        ).label("fits"),
        conversations.c.owner_id.label("conversation_owner"),
        conversations.c.agent,
        conversations.c.agent_version,
        conversations.c.continues,
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
_OF_CONTEXT = (
    events.c.session_id == bindparam("session_id"),
    events.c.conversation_id == bindparam("conversation_id"),
    events.c.seq <= bindparam("cutoff"),
)
_CONTEXT_EVENT = (events.c.seq, events.c.type, events.c.version, events.c.payload)


def _newest(type: str) -> Select[tuple[int, str, int, Json]]:
    """The newest event of a type at which a context begins; an index holds these only."""
    # Written out: the server can use the index only if it sees the value.
    of_type = events.c.type == literal_column(f"'{type}'")
    return select(*_CONTEXT_EVENT).where(*_OF_CONTEXT, of_type).order_by(events.c.seq.desc()).limit(1)


_COMPACTED = _newest("context_compacted").cte("compacted")
_UPTO = select(sql_cast(_COMPACTED.c.payload.op("->>")("upto"), Integer)).scalar_subquery()
_BEHIND = select(*_CONTEXT_EVENT).where(
    *_OF_CONTEXT,
    events.c.seq > func.coalesce(_UPTO, 0),
    events.c.type != all_(bindparam("types", type_=ARRAY(Text))),
)
CONTEXT = Statement(union_all(_newest("system_prompt_set"), select(_COMPACTED), _BEHIND).order_by("seq"))
LAST_ANSWER = Statement(
    select(events.c.type, events.c.payload)
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.conversation_id == bindparam("conversation_id"),
        events.c.seq < bindparam("before"),
        or_(events.c.type == "model_output", events.c.type == "model_error"),
    )
    .order_by(events.c.seq.desc())
    .limit(1)
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
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.seq > bindparam("after"),
        events.c.seq <= bindparam("up_to"),
    )
    .order_by(events.c.seq)
    .limit(bindparam("most", type_=Integer))
)
EVENTS_OF = Statement(
    select(*_EVENT).where(
        events.c.session_id == bindparam("session_id"),
        events.c.seq == any_(bindparam("seqs", type_=ARRAY(Integer))),
        events.c.seq <= bindparam("up_to"),
    )
)
EFFECTS = Statement(
    select(*_EVENT).where(
        events.c.session_id == bindparam("session_id"),
        events.c.seq > bindparam("seq", type_=Integer),
        events.c.seq <= bindparam("up_to"),
        bindparam("seq", type_=Integer) == any_(events.c.causes),
    )
)
TAKEN_OUT = Statement(
    select(*_EVENT)
    .where(
        events.c.session_id == bindparam("session_id"),
        events.c.seq > bindparam("after"),
        events.c.type.in_([literal_column("'events_redacted'"), literal_column("'session_erased'")]),
    )
    .order_by(events.c.seq)
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
_OPEN_TASK = select(tasks.c.id).where(tasks.c.session_id == sessions.c.id, tasks.c.status != "done")
_MAIN_AGENT = (
    select(conversations.c.agent)
    .where(conversations.c.session_id == sessions.c.id, conversations.c.owner_id.is_(None))
    .limit(1)
    .scalar_subquery()
)


def _if_given(name: str, type_: TypeEngine[Any], condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return or_(sql_cast(bindparam(name), type_).is_(None), condition)


SESSIONS = Statement(
    select(
        sessions.c.id,
        sessions.c.last_seq,
        sessions.c.last_hash,
        sessions.c.created_at,
        sessions.c.last_at,
        sessions.c.erased_at,
        _OPEN_TASK.with_only_columns(func.count()).scalar_subquery().label("open_tasks"),
        _MAIN_AGENT.label("agent"),
    )
    .where(
        sessions.c.tenant == bindparam("tenant"),
        tuple_(sessions.c.created_at, sessions.c.id)
        < tuple_(bindparam("place_at", type_=DateTime(timezone=True)), bindparam("place_id", type_=Uuid)),
        _if_given("since", DateTime(timezone=True), sessions.c.created_at >= bindparam("since")),
        _if_given("agent", Text(), bindparam("agent") == _MAIN_AGENT),
        _if_given("open", Boolean(), _OPEN_TASK.exists() == bindparam("open")),
    )
    .order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
    .limit(bindparam("most", type_=Integer))
)
TASKS = Statement(
    select(tasks)
    .where(
        tasks.c.session_id == bindparam("session_id"),
        tasks.c.id > bindparam("place", type_=Uuid),
        _if_given("open", Boolean(), (tasks.c.status != "done") == bindparam("open")),
    )
    .order_by(tasks.c.id)
    .limit(bindparam("most", type_=Integer))
)
SUBMISSION = Statement(
    select(submissions).where(
        submissions.c.id == bindparam("submission_id"), submissions.c.tenant == bindparam("tenant")
    )
)
_OF_IDS = any_(bindparam("ids", type_=ARRAY(Uuid)))
LAST_SEQS = Statement(select(sessions.c.id, sessions.c.last_seq).where(sessions.c.id == _OF_IDS))
ENDED = Statement(
    select(submissions.c.id).where(submissions.c.id == _OF_IDS, submissions.c.status == SubmissionStatus.DONE)
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
    .where(
        approvals.c.answer == "pending",
        sessions.c.tenant == bindparam("tenant"),
        tuple_(approvals.c.asked_at, approvals.c.id)
        > tuple_(bindparam("place_at", type_=DateTime(timezone=True)), bindparam("place_id", type_=Uuid)),
        _if_given("of_session", Uuid(), approvals.c.session_id == bindparam("of_session")),
    )
    .order_by(approvals.c.asked_at, approvals.c.id)
    .limit(bindparam("most", type_=Integer))
)
TASK_APPROVAL = Statement(select(approvals).where(approvals.c.id == bindparam("approval_id")))
SIGNAL_BY_REQUEST = Statement(select(signals).where(signals.c.request_digest == bindparam("digest")))
TASK = Statement(select(tasks).where(tasks.c.id == bindparam("task_id")))
CHILDREN = Statement(
    select(tasks.c.id).where(
        tasks.c.owner_id == bindparam("owner_id"), tasks.c.id == any_(bindparam("ids", type_=ARRAY(Uuid)))
    )
)
LAST_GENERATION = Statement(
    select(tasks)
    .where(tasks.c.owner_id == bindparam("owner_id"), tasks.c.kind == literal_column("'generation'"))
    .order_by(tasks.c.cause.desc())
    .limit(1)
)
_ABOVE = (
    select(tasks.c.owner_id, literal("").label("kind")).where(tasks.c.id == bindparam("task_id")).cte(recursive=True)
)
_ABOVE = _ABOVE.union_all(select(tasks.c.owner_id, tasks.c.kind).join(_ABOVE, tasks.c.id == _ABOVE.c.owner_id))
CALLS_ABOVE = Statement(
    select(func.count().label("calls")).where(_ABOVE.c.kind.startswith(bindparam("what", type_=Text)))
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
    fits: bool
    """Whether the worker that looks can run it; no host tries again what it could not go on with."""


def look(database: Database, task_id: TaskId, worker_id: WorkerId) -> Look | None:
    """A first look without a lock, for a worker to walk away from what it cannot claim."""
    (result,) = database.run(LOOK(task_id=task_id, worker_id=worker_id))
    if result.first is None:
        return None
    row = dict(result.first)
    hints, owner, agent, version, continues, steered, log_format, fitting = (
        row.pop(name)
        for name in (
            *("hints", "conversation_owner", "agent", "agent_version"),
            *("continues", "steered", "log_format", "fits"),
        )
    )
    task = rows.task(row)
    conversation = None
    if task.conversation_id is not None:
        conversation = Conversation(
            id=task.conversation_id,
            session_id=task.session_id,
            owner_id=owner,
            agent=agent,
            agent_version=version,
            continues=continues,
        )
    return Look(task=task, conversation=conversation, hints=hints, steered=steered, log_format=log_format, fits=fitting)


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
    *,
    continues: bool = False,
) -> list[Row]:
    """What a context is made of, up to the cutoff and in order: rows (seq, type, version, payload).

    The newest instructions, the newest compaction, and the events of all types but these behind what that one replaces,
    so that an event of a type that is not known here is among them; what lies before is not read. A conversation that
    `continues` one of the past has what that is made of too.
    """
    parts = past.past_of_conversation(database, conversation_id) if continues else []
    results = database.run(
        *(
            CONTEXT(
                session_id=part.session_id,
                conversation_id=part.conversation_id,
                cutoff=part.up_to,
                types=list(besides),
            )
            for part in parts
        ),
        CONTEXT(session_id=session_id, conversation_id=conversation_id, cutoff=cutoff, types=list(besides)),
    )
    return [row for result in results for row in result.rows]


def last_error(database: Database, task: Task, before: int) -> Any:
    """The payload of the `model_error` that the request before this event came to; None if it came to a reply."""
    (result,) = database.run(
        LAST_ANSWER(session_id=task.session_id, conversation_id=task.conversation_id, before=before)
    )
    row = result.first
    return row["payload"] if row is not None and row["type"] == "model_error" else None


def task(database: Database, task_id: TaskId) -> Task | None:
    (result,) = database.run(TASK(task_id=task_id))
    return None if result.first is None else rows.task(result.first)


def children(database: Database, owner_id: TaskId, ids: Sequence[TaskId]) -> set[TaskId]:
    """Which of these tasks the owner made."""
    if not ids:
        return set()
    (result,) = database.run(CHILDREN(owner_id=owner_id, ids=list(ids)))
    return {TaskId(row["id"]) for row in result.rows}


def last_generation(database: Database, owner_id: TaskId) -> Task:
    """The newest generation that a task owns; there must be one."""
    (result,) = database.run(LAST_GENERATION(owner_id=owner_id))
    assert result.first is not None
    return rows.task(result.first)


def calls_above(database: Database, task_id: TaskId, what: str) -> int:
    """How many calls of some kind (`agent:` or `flow:`) stand above a task."""
    (result,) = database.run(CALLS_ABOVE(task_id=task_id, what=what))
    assert result.first is not None
    return int(result.first["calls"])


def document(database: Database, session_id: SessionId, name: str) -> StoredDocument | None:
    """The newest version of a document."""
    (result,) = database.run(documents.newest(session_id, name))
    return documents.read_one(result.rows)


def session(database: Database, tenant: str, session_id: SessionId) -> Session | None:
    (result,) = database.run(SESSION(session_id=session_id, tenant=tenant))
    return None if result.first is None else rows.session(result.first)


def observed(
    database: Database, watched: Collection[SessionId], awaited: Collection[SubmissionId]
) -> tuple[dict[SessionId, int], set[SubmissionId]]:
    """The last seq of each of some sessions, and those of some submissions that are done."""
    last_seqs, ended = database.run(LAST_SEQS(ids=list(watched)), ENDED(ids=list(awaited)))
    return {row["id"]: row["last_seq"] for row in last_seqs.rows}, {row["id"] for row in ended.rows}


def event_page(database: Database, parts: Sequence[LogPart], after: int, most: int = 500) -> list[Event]:
    """Events of a log after a seq, in order, no more than `most`."""
    calls: list[Call] = []
    for part in parts:
        if after < part.up_to and most > 0:
            calls.append(EVENTS(session_id=part.session_id, after=after, up_to=part.up_to, most=most))
            most -= part.up_to - after
            after = part.up_to
    return [rows.event(row) for result in database.run(*calls) for row in result.rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class EventAround:
    """An event with those that caused it and those that name it as a cause, both in order."""

    event: Event
    causes: tuple[Event, ...]
    effects: tuple[Event, ...]


def event_around(database: Database, parts: Sequence[LogPart], seq: int) -> EventAround | None:
    """One event of a log with its causes and effects, None where the log has no such seq."""

    def in_log(statement: Statement, **parameters: object) -> tuple[Event, ...]:
        calls = (statement(session_id=part.session_id, up_to=part.up_to, **parameters) for part in parts)
        found = [rows.event(row) for result in database.run(*calls) for row in result.rows]
        return tuple(sorted(found, key=lambda event: event.seq))

    found = in_log(EVENTS_OF, seqs=[seq])
    if not found:
        return None
    causes = in_log(EVENTS_OF, seqs=list(found[0].causes))
    return EventAround(event=found[0], causes=causes, effects=in_log(EFFECTS, seq=seq))


def taken_out(database: Database, session_id: SessionId, after: int) -> list[Event]:
    """The events of a session behind a seq that say what was taken out of it."""
    (result,) = database.run(TAKEN_OUT(session_id=session_id, after=after))
    return [rows.event(row) for row in result.rows]


def submission(database: Database, tenant: str, submission_id: SubmissionId) -> Submission | None:
    (result,) = database.run(SUBMISSION(submission_id=submission_id, tenant=tenant))
    return None if result.first is None else rows.submission(result.first)


def approval(database: Database, tenant: str, approval_id: ApprovalId) -> Approval | None:
    """A question put to people, of this tenant."""
    (result,) = database.run(APPROVAL(approval_id=approval_id, tenant=tenant))
    return None if result.first is None else rows.approval(result.first)


def open_approvals(
    database: Database,
    tenant: str,
    *,
    session_id: SessionId | None = None,
    after: tuple[datetime, UUID] = FIRST,
    most: int,
) -> list[Approval]:
    """Questions that wait for an answer, from behind a time and an id on."""
    at, approval_id = after
    call = OPEN_APPROVALS(tenant=tenant, of_session=session_id, place_at=at, place_id=approval_id, most=most)
    (result,) = database.run(call)
    return [rows.approval(row) for row in result.rows]


def stored(database: Database, approval_id: ApprovalId) -> bool:
    """Whether there is such a question."""
    (result,) = database.run(TASK_APPROVAL(approval_id=approval_id))
    return result.first is not None


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

    @property
    def tokens_in(self) -> int:
        """Tokens into the model in all its calls, estimates for interrupted ones included."""
        return self.session.tokens_in

    @property
    def tokens_out(self) -> int:
        return self.session.tokens_out

    @property
    def cost(self) -> Decimal:
        """USD for all calls of agents with prices."""
        return self.session.cost


def with_reasons(found: Sequence[Row], unoffered: Sequence[Row]) -> list[Task]:
    """Tasks with the reason why one is held up as it is now: what no live worker offers is not stored at once."""
    reasons = {row["id"]: row["reason"] for row in unoffered}
    return [replace(task, blocked=reasons.get(task.id, task.blocked)) for task in map(rows.task, found)]


def session_view(database: Database, tenant: str, session_id: SessionId) -> SessionView | None:
    """The whole current view of a session, None if the tenant has none of that id."""
    found, talks, work, unoffered, inputs, papers = database.run(
        SESSION(session_id=session_id, tenant=tenant),
        SESSION_CONVERSATIONS(session_id=session_id),
        SESSION_TASKS(session_id=session_id),
        UNOFFERED_TASKS(session_id=session_id),
        SESSION_SUBMISSIONS(session_id=session_id),
        documents.SESSION_DOCUMENTS(session_id=session_id, seq=documents.ALL),
    )
    if found.first is None:
        return None
    return SessionView(
        session=rows.session(found.first),
        conversations=tuple(rows.conversation(row) for row in talks.rows),
        tasks=tuple(with_reasons(work.rows, unoffered.rows)),
        submissions=tuple(rows.submission(row) for row in inputs.rows),
        documents=tuple(documents.read(papers.rows)),
    )


def sessions_of(
    database: Database,
    tenant: str,
    *,
    agent: str | None = None,
    open: bool | None = None,
    since: datetime | None = None,
    before: tuple[datetime, UUID] = LAST,
    most: int,
) -> list[SessionSummary]:
    """Sessions of a tenant, the newest first, from before a time and an id on."""
    at, session_id = before
    call = SESSIONS(tenant=tenant, agent=agent, open=open, since=since, place_at=at, place_id=session_id, most=most)
    (result,) = database.run(call)
    return [SessionSummary(head=f"{row['last_seq']}:{row.pop('last_hash').hex()}", **row) for row in result.rows]


def tasks_of(database: Database, session_id: SessionId, *, open: bool | None, after: UUID, most: int) -> list[Task]:
    """Tasks of a session in the order of their ids, which is that of their making, from behind an id on."""
    found, unoffered = database.run(
        TASKS(session_id=session_id, open=open, place=after, most=most), UNOFFERED_TASKS(session_id=session_id)
    )
    return with_reasons(found.rows, unoffered.rows)
