"""Reads what a session was as of one of its commits, from which a fork goes on. A past does not change: no locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    Numeric,
    Text,
    and_,
    any_,
    bindparam,
    case,
    func,
    null,
    or_,
    select,
    true,
)
from sqlalchemy import cast as sql_cast

from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import PAYLOADS, ModelCall, ModelOutput, SystemPromptSet
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.task import Task
from brainhands.shared.rules.fork import CALL_EVENTS, CallFact
from brainhands.shared.store import documents, reads, rows
from brainhands.shared.store.database import Database, Row, Statement, Transaction
from brainhands.shared.store.past import LOG
from brainhands.shared.store.tables import conversations, events, sessions, tasks

_NEXT = events.alias("next")
_ENDS_ITS_COMMIT = or_(
    events.c.commit_seq == events.c.seq,
    # Written by a version that did not say so yet: the events of one commit have one time.
    and_(events.c.commit_seq.is_(None), _NEXT.c.at.is_distinct_from(events.c.at)),
)
CUT = Statement(
    select(events.c.seq, events.c.hash, events.c.at)
    .outerjoin(_NEXT, and_(_NEXT.c.session_id == events.c.session_id, _NEXT.c.seq == events.c.seq + 1))
    .where(events.c.session_id == bindparam("session_id"), events.c.seq <= bindparam("at"), _ENDS_ITS_COMMIT)
    .order_by(events.c.seq.desc())
    .limit(1)
)
_UP_TO = (events.c.session_id == bindparam("session_id"), events.c.seq <= bindparam("at"))
CALLS = Statement(
    select(
        events.c.seq,
        events.c.type,
        events.c.task_id,
        events.c.conversation_id,
        events.c.payload.op("->>")("call_id").label("call_id"),
        case(
            (or_(events.c.type == "tool_call_start", events.c.type == "tool_call_interrupted"), events.c.payload),
            else_=null(),
        ).label("payload"),
        events.c.redacted_at.is_not(None).label("redacted"),
        tasks.c.kind,
        tasks.c.version,
    )
    .join(tasks, tasks.c.id == events.c.task_id)
    .where(*_UP_TO, events.c.type == any_(bindparam("types", type_=ARRAY(Text))))
    .order_by(events.c.seq)
)
LAST_OUTPUT = Statement(
    select(events.c.seq, events.c.payload)
    .where(*_UP_TO, events.c.conversation_id == bindparam("conversation_id"), events.c.type == "model_output")
    .order_by(events.c.seq.desc())
    .limit(1)
)
CARRIED_UNKNOWN = Statement(
    select(tasks)
    .where(
        tasks.c.session_id == bindparam("session_id"),
        tasks.c.outcome == "interrupted",
        tasks.c.cause <= bindparam("after"),
    )
    .order_by(tasks.c.id)
)
_USED = (
    select(
        func.sum(events.c.tokens_in).label("tokens_in"),
        func.sum(events.c.tokens_out).label("tokens_out"),
        func.sum(sql_cast(events.c.payload.op("->")("usage").op("->>")("cost"), Numeric)).label("cost"),
    )
    .where(
        events.c.session_id == LOG.c.session_id,
        events.c.seq <= func.least(LOG.c.up_to, bindparam("at", type_=Integer)),
        events.c.tokens_in.is_not(None),
    )
    .lateral("used")
)
USED = Statement(
    select(
        sql_cast(func.coalesce(func.sum(_USED.c.tokens_in), 0), BigInteger).label("tokens_in"),
        sql_cast(func.coalesce(func.sum(_USED.c.tokens_out), 0), BigInteger).label("tokens_out"),
        func.coalesce(func.sum(_USED.c.cost), 0).label("cost"),
    ).select_from(LOG.join(_USED, true()))
)
KEEP = Statement(
    select(conversations.c.id)
    .where(conversations.c.session_id == bindparam("session_id"), conversations.c.owner_id.is_(None))
    .with_for_update(read=True)
)
SESSION_BY_FORK_REQUEST = Statement(select(sessions).where(sessions.c.fork_request == bindparam("digest")))
BY_ID = Statement(select(sessions).where(sessions.c.id == bindparam("session_id")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """The end of a commit, in the session whose own log has it."""

    session: Session
    seq: int
    hash: bytes
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What a session was at a cut, as far as a fork depends on it."""

    main: Conversation
    """With the agent's version as it was pinned then."""
    calls: Sequence[CallFact]
    """The events of calls in the session's own log."""
    planned: Sequence[ModelCall]
    """The calls of the last reply in the main conversation, if the session's own log has one."""
    planned_at: int
    """The seq of that reply, 0 if there is none."""
    unknown: Sequence[Task]
    """Calls, as tasks of the session, whose effect was unknown already when the session itself was forked."""
    documents: Sequence[StoredDocument]
    used: Row
    """What model calls had used by then: tokens_in, tokens_out, cost."""


def cut_of(database: Database, session: Session, at: int) -> Cut | None:
    """The end of the last commit at or before an event of a session's log; None if that lies in its first commit."""
    while True:
        begins = session.forked_at or 0
        if at > begins:
            (found,) = database.run_patiently(CUT(session_id=session.id, at=at))
            if found.first is not None:
                return Cut(session=session, **found.first)
        if session.forked_from is None:
            return None
        at = min(at, begins)
        session = _session(database, session.forked_from)


def past_of(database: Database, cut: Cut) -> Past:
    """What the session was at the cut."""
    source = cut.session
    (talks,) = database.run_patiently(reads.SESSION_CONVERSATIONS(session_id=source.id))
    main = next(rows.conversation(row) for row in talks.rows if row["owner_id"] is None)
    calls, output, carried, used = database.run_patiently(
        CALLS(session_id=source.id, at=cut.seq, types=list(CALL_EVENTS)),
        LAST_OUTPUT(session_id=source.id, conversation_id=main.id, at=cut.seq),
        CARRIED_UNKNOWN(session_id=source.id, after=source.forked_at or 0),
        USED(session_id=source.id, at=cut.seq),
    )
    assert used.first is not None
    return Past(
        used=used.first,
        main=_as_of(database, main, cut.seq),
        calls=[CallFact(**row) for row in calls.rows],
        planned=_calls_of(output.first),
        planned_at=0 if output.first is None else output.first["seq"],
        unknown=[rows.task(row) for row in carried.rows],
        documents=documents.as_of(database, source.id, cut.seq),
    )


def keep(transaction: Transaction, session_id: SessionId) -> Session:
    """The session as it is now, which nobody erases before the transaction ends. Its own lock is not taken."""
    _, found = transaction.run(KEEP(session_id=session_id), BY_ID(session_id=session_id))
    assert found.first is not None
    return rows.session(found.first)


def made_by(database: Database, digest: bytes) -> Session | None:
    """The fork that an earlier call with this request_id made."""
    (result,) = database.run_patiently(SESSION_BY_FORK_REQUEST(digest=digest))
    return None if result.first is None else rows.session(result.first)


def _calls_of(output: Row | None) -> list[ModelCall]:
    """The calls of a reply; one that was redacted is in no context, and so are its calls."""
    payload = None if output is None else output["payload"]
    return [] if payload is None else ModelOutput.model_validate(payload).calls


def _as_of(database: Database, main: Conversation, seq: int) -> Conversation:
    """The conversation with the version of the agent that the log had pinned by then."""
    others, continues = sorted({type for type, _ in PAYLOADS}), main.continues is not None
    found = reads.context(database, main.session_id, main.id, seq, others, continues=continues)
    prompts = [row["payload"] for row in found if row["type"] == SystemPromptSet.event_type]
    version = SystemPromptSet.model_validate(prompts[-1]).agent_version if prompts else None
    return replace(main, agent_version=version)


def _session(database: Database, session_id: SessionId) -> Session:
    (result,) = database.run_patiently(BY_ID(session_id=session_id))
    assert result.first is not None
    return rows.session(result.first)
