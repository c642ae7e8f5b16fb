"""The documents that are views of rows: what a session's agents are set to, its inbox, what is under way, its usage.

What a guard or the sweep must find is rows, so there is nothing to keep in step with them: these are made when asked
for. Each read sees what is committed, without a lock. Settings and usage walk the session's log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import bindparam, func, or_, select, true
from sqlalchemy.dialects.postgresql import distinct_on

from brainhands.shared.model.derived import (
    AgentSetting,
    AgentSettings,
    ConversationUsage,
    InboxContents,
    LiveState,
    LiveTask,
    TokenUsage,
    WaitingInput,
)
from brainhands.shared.model.document import Document, StoredDocument
from brainhands.shared.model.ids import SessionId
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.documents import PATIENCE
from brainhands.shared.store.due import UNOFFERED_TASKS
from brainhands.shared.store.locked import INPUTS
from brainhands.shared.store.past import LOG
from brainhands.shared.store.tables import attempts, conversations, events, sessions, tasks, waits

HEAD = Statement(select(sessions.c.last_seq).where(sessions.c.id == bindparam("session_id")))
CONVERSATIONS = Statement(
    select(conversations).where(conversations.c.session_id == bindparam("session_id")).order_by(conversations.c.id)
)
_OF_PART = (events.c.session_id == LOG.c.session_id, events.c.seq <= LOG.c.up_to)
_PINNED = (
    select(events.c.conversation_id, events.c.type, events.c.payload)
    .where(*_OF_PART, or_(events.c.type == "system_prompt_set", events.c.type == "model_request"))
    .ext(distinct_on(events.c.conversation_id, events.c.type))
    .order_by(events.c.conversation_id, events.c.type, events.c.seq.desc())
    .lateral("pinned")
)
REQUESTS = Statement(
    select(_PINNED, conversations.c.owner_id.is_(None).label("main"))
    .select_from(LOG.join(_PINNED, true()).join(conversations, conversations.c.id == _PINNED.c.conversation_id))
    .order_by(LOG.c.up_to)
)
_OTHER = tasks.alias("other")
OPEN_TASKS = Statement(
    select(
        tasks,
        # For each task by itself: a join may read all attempts that there are.
        func.coalesce(
            select(attempts.c.progress)
            .where(attempts.c.task_id == tasks.c.id, attempts.c.fence == tasks.c.fence, tasks.c.status == "running")
            .scalar_subquery(),
            "",
        ).label("shown"),
        func.array(
            select(waits.c.dependency_id)
            .join(_OTHER, _OTHER.c.id == waits.c.dependency_id)
            .where(waits.c.waiter_id == tasks.c.id, _OTHER.c.status != "done")
            .order_by(waits.c.dependency_id)
            .scalar_subquery()
        ).label("waits_for"),
    )
    .where(tasks.c.session_id == bindparam("session_id"), tasks.c.status != "done")
    .order_by(tasks.c.created_at, tasks.c.id)
)
_USED = (
    select(
        events.c.conversation_id,
        func.count().label("calls"),
        func.coalesce(func.sum(events.c.tokens_in), 0).label("tokens_in"),
        func.coalesce(func.sum(events.c.tokens_out), 0).label("tokens_out"),
    )
    .where(*_OF_PART, events.c.tokens_in.is_not(None))
    .group_by(events.c.conversation_id)
    .lateral("used")
)
USAGE = Statement(select(_USED).select_from(LOG.join(_USED, true())).order_by(_USED.c.conversation_id))


def read(database: Database, session_id: SessionId, name: str) -> StoredDocument:
    """A reserved document as it is now; its version is 0, its seq the session's last event when it was read."""
    statements, made = _DOCUMENTS[name]
    asked = [each(session_id=session_id) for each in (HEAD, *statements)]
    head, *found = database.run_patiently(*asked, seconds=PATIENCE)
    assert head.first is not None
    document = made(*(result.rows for result in found))
    return StoredDocument(
        session_id=session_id,
        name=name,
        version=0,
        kind=document.kind,
        schema_version=document.schema_version,
        value=document.model_dump(mode="json"),
        seq=head.first["last_seq"],
    )


def _agent_settings(talks: Sequence[Row], pinned: Sequence[Row]) -> Document:
    by_place = {(row["conversation_id"], row["type"]): row["payload"] for row in pinned}
    # The main conversation of a fork goes on with what was pinned in its past, the latest part of which comes last.
    earlier = {row["type"]: row["payload"] for row in pinned if row["main"]}
    return AgentSettings(conversations=tuple(_agent_setting(row, by_place, earlier) for row in talks))


def _agent_setting(row: Row, pinned: Mapping[tuple[object, str], Row], earlier: Mapping[str, Row]) -> AgentSetting:
    past = {} if row["continues"] is None else earlier
    # None in place of what was redacted or erased.
    request = pinned.get((row["id"], "model_request"), past.get("model_request")) or {}
    prompt = pinned.get((row["id"], "system_prompt_set"), past.get("system_prompt_set")) or {}
    return AgentSetting(
        conversation=str(row["id"]),
        owner=_id(row["owner_id"]),
        agent=row["agent"],
        agent_version=row["agent_version"],
        instructions=prompt.get("instructions"),
        model=request.get("model"),
        options=request.get("options", {}),
        tools=request.get("tools", ()),
    )


def _inbox(inputs: Sequence[Row]) -> Document:
    return InboxContents(
        inputs=tuple(
            WaitingInput(
                submission=str(row["submission_id"]),
                conversation=str(row["conversation_id"]),
                mode=row["mode"],
                text=row["text"],
                at=row["created_at"],
            )
            for row in inputs
        )
    )


def _live(open_tasks: Sequence[Row], unoffered: Sequence[Row]) -> Document:
    reasons = {row["id"]: row["reason"] for row in unoffered}
    return LiveState(tasks=tuple(_live_task(row, reasons.get(row["id"], row["blocked"])) for row in open_tasks))


def _live_task(row: Row, blocked: str | None) -> LiveTask:
    same = ("kind", "version", "status", "phase", "lease_until", "wake_at", "cancel_wanted", "shown")
    named = row["signal_name"]
    return LiveTask(
        **{name: row[name] for name in same},
        task=str(row["id"]),
        blocked=blocked,
        owner=_id(row["owner_id"]),
        conversation=_id(row["conversation_id"]),
        attempts=row["phase_attempts"],
        worker=_id(row["worker_id"]),
        signal=None if named is None else " ".join(filter(None, (named, row["signal_key"]))),
        waits_for=tuple(str(each) for each in row["waits_for"]),
    )


def _usage(by_conversation: Sequence[Row]) -> Document:
    return TokenUsage(
        tokens_in=sum(row["tokens_in"] for row in by_conversation),
        tokens_out=sum(row["tokens_out"] for row in by_conversation),
        conversations=tuple(
            ConversationUsage(
                conversation=_id(row["conversation_id"]),
                calls=row["calls"],
                tokens_in=row["tokens_in"],
                tokens_out=row["tokens_out"],
            )
            for row in by_conversation
        ),
    )


def _id(value: object) -> str | None:
    return None if value is None else str(value)


_DOCUMENTS: dict[str, tuple[tuple[Statement, ...], Callable[..., Document]]] = {
    AgentSettings.kind: ((CONVERSATIONS, REQUESTS), _agent_settings),
    InboxContents.kind: ((INPUTS,), _inbox),
    LiveState.kind: ((OPEN_TASKS, UNOFFERED_TASKS), _live),
    TokenUsage.kind: ((USAGE,), _usage),
}
