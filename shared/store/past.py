"""Whose events a log is made of: a session that was forked has those of other sessions before its own.

The past of a fork is what the session in `forked_from` has up to `forked_at`; that one may be a fork itself. A cut
never lies before the session in `forked_from` begins, so the parts of a log follow each other without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, literal, select, true

from brainhands.shared.model.ids import ConversationId, SessionId
from brainhands.shared.model.session import Session
from brainhands.shared.store.database import Database, Statement
from brainhands.shared.store.tables import conversations, sessions

NO_END = 2**31 - 1
"""The upper end of a session's own part: whatever it will have."""

_OWN = (
    select(
        sessions.c.id.label("session_id"),
        literal(NO_END).label("up_to"),
        sessions.c.forked_from,
        sessions.c.forked_at,
    )
    .where(sessions.c.id == bindparam("session_id"))
    .cte("log", recursive=True)
)
_PARENT = sessions.alias("parent")
# With its limit the planner takes each step by the primary key, however small the table is.
_STEP = (
    select(_PARENT.c.id, _PARENT.c.forked_from, _PARENT.c.forked_at)
    .where(_PARENT.c.id == _OWN.c.forked_from)
    .limit(1)
    .lateral("step")
)
LOG = _OWN.union_all(
    select(_STEP.c.id, _OWN.c.forked_at, _STEP.c.forked_from, _STEP.c.forked_at).select_from(_OWN.join(_STEP, true()))
)
"""The parts of one session's log: (session_id, up_to)."""

PARTS = Statement(select(LOG.c.session_id, LOG.c.up_to).order_by(LOG.c.up_to))

_CONVERSATION = conversations.join(sessions, sessions.c.id == conversations.c.session_id)
_PRESENT = (
    select(
        conversations.c.id,
        conversations.c.session_id,
        literal(NO_END).label("up_to"),
        conversations.c.continues,
        sessions.c.forked_at,
    )
    .select_from(_CONVERSATION)
    .where(conversations.c.id == bindparam("conversation_id"))
    .cte("line", recursive=True)
)
_EARLIER = conversations.alias("earlier")
_ITS_SESSION = sessions.alias("its_session")
_STEP_BACK = (
    select(_EARLIER.c.id, _EARLIER.c.session_id, _EARLIER.c.continues, _ITS_SESSION.c.forked_at)
    .join(_ITS_SESSION, _ITS_SESSION.c.id == _EARLIER.c.session_id)
    .where(_EARLIER.c.id == _PRESENT.c.continues)
    .limit(1)
    .lateral("step")
)
_LINE = _PRESENT.union_all(
    select(
        _STEP_BACK.c.id,
        _STEP_BACK.c.session_id,
        _PRESENT.c.forked_at,
        _STEP_BACK.c.continues,
        _STEP_BACK.c.forked_at,
    ).select_from(_PRESENT.join(_STEP_BACK, true()))
)
PAST_OF_CONVERSATION = Statement(
    select(_LINE.c.id, _LINE.c.session_id, _LINE.c.up_to).where(_LINE.c.up_to < NO_END).order_by(_LINE.c.up_to)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPart:
    """The events of one session up to a seq, as part of a log."""

    session_id: SessionId
    up_to: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PastConversation:
    """What a conversation goes on with: the events of an earlier one up to a seq."""

    session_id: SessionId
    conversation_id: ConversationId
    up_to: int


def parts(database: Database, session: Session) -> list[LogPart]:
    """The parts of a session's log, in order; a session that is no fork is its own log, and nothing is read."""
    if session.forked_from is None:
        return [LogPart(session_id=session.id, up_to=NO_END)]
    (result,) = database.run_patiently(PARTS(session_id=session.id))
    return [LogPart(session_id=row["session_id"], up_to=row["up_to"]) for row in result.rows]


def past_of_conversation(database: Database, conversation_id: ConversationId) -> list[PastConversation]:
    """The earlier conversations that one goes on with, in order; none outside of a fork."""
    (result,) = database.run(PAST_OF_CONVERSATION(conversation_id=conversation_id))
    return [
        PastConversation(session_id=row["session_id"], conversation_id=row["id"], up_to=row["up_to"])
        for row in result.rows
    ]
