"""How a session is forked: a new session whose past is another one's log up to the end of a commit.

Nothing is copied but what later steps read as rows: documents, the pinned version of the agent, and the calls whose
effects are unknown, so that an equal call is asked about instead of made. No task, question, signal or input comes
along. The model's open calls are closed, so the conversation is free. The past is read without a lock, since it does
not change, and the commit inserts the new session and locks nothing of the other but what keeps it from being erased.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial

import psycopg

from brainhands.shared.doors.redact import refuse_erased
from brainhands.shared.doors.submit import patiently
from brainhands.shared.engine import ends
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import BadInput, RequestConflict, RequestInProgress, UnknownEvent
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.event import ModelCall, SessionForked, ToolCallError, ToolCallInterrupted
from brainhands.shared.model.fork import ForkReceipt
from brainhands.shared.model.ids import ConversationId, new_conversation_id, new_session_id, new_task_id
from brainhands.shared.model.session import Session
from brainhands.shared.model.task import Outcome, Priority, Requirement, Status, Task
from brainhands.shared.rules.fork import CallFact, left_open
from brainhands.shared.rules.verify import head_of
from brainhands.shared.store import commits, forks, writes
from brainhands.shared.store.database import Transaction
from brainhands.shared.store.forks import Cut, Past
from brainhands.shared.store.locked import Locked

BEGUN = "not carried over: it belongs to the session that this one was forked from; its effect may have happened there"
NOT_BEGUN = "not carried over: it had not begun where this session was forked"


def fork(writer: Writer, session: Session, at: int, request_id: str) -> ForkReceipt:
    """A new session that goes on from the end of the last commit at or before `at`, made once for its request_id.

    Raises BadInput where there is no such commit, RequestConflict if the request_id was used for another fork.
    """
    refuse_erased(session)
    if not 1 <= at <= session.last_seq:
        raise UnknownEvent(session.id, at, f"name one from 1 to {session.last_seq}")
    cut = forks.cut_of(writer.database, session, at)
    if cut is None:
        raise BadInput(f"the first commit of session {session.id} goes beyond event {at}", "fork at a later event")
    digest = writes.request_digest(session.tenant, f"fork:{request_id}")
    if (made := forks.made_by(writer.database, digest)) is not None:
        return _earlier(made, cut, request_id)
    past = forks.past_of(writer.database, cut)
    new = replace(
        cut.session,
        id=new_session_id(),
        last_seq=cut.seq,
        last_hash=cut.hash,
        last_at=cut.at,
        forked_from=cut.session.id,
        forked_at=cut.seq,
        fork_request=digest,
        **past.used,
    )
    try:
        commit = patiently(writer, partial(_store, new=new, cut=cut, past=past))
    except psycopg.errors.UniqueViolation:
        # A twin came first, or an earlier try was committed and lost only its reply.
        if (made := forks.made_by(writer.database, digest)) is None:
            raise RequestInProgress(request_id) from None
        return _earlier(made, cut, request_id)
    return replace(_receipt(commit.session, request_id), head=head_of(commit.session))


def _store(transaction: Transaction, *, new: Session, cut: Cut, past: Past) -> Commit:
    """The past was read without a lock, and is still whole where the session was not erased meanwhile."""
    refuse_erased(forks.keep(transaction, cut.session.id))
    return commits.create(transaction, lambda now: _forked(new, cut, past, now))


def _earlier(made: Session, cut: Cut, request_id: str) -> ForkReceipt:
    if (made.forked_from, made.forked_at) != (cut.session.id, cut.seq):
        raise RequestConflict(request_id)
    return _receipt(made, request_id)


def _receipt(made: Session, request_id: str) -> ForkReceipt:
    assert made.forked_from is not None
    assert made.forked_at is not None
    return ForkReceipt(session_id=made.id, forked_from=made.forked_from, at=made.forked_at, request_id=request_id)


def _forked(new: Session, cut: Cut, past: Past, now: datetime) -> Commit:
    draft = Draft(Locked(None, replace(new, created_at=now), now, {}), NOBODY, new_session=True)
    main = replace(past.main, id=new_conversation_id(), session_id=new.id, continues=past.main.id)
    draft.write(main)
    payload = SessionForked(forked_from=str(cut.session.id), at=cut.seq, hash=cut.hash.hex())
    draft.event(payload, causes=[cut.seq], conversation_id=main.id)
    left = left_open(past.calls, past.planned, past.planned_at, past.main.id)
    if left.untold is not None:
        raise _redacted(left.untold)
    for start in left.begun:
        task = _unknown_call(draft, start, past.main.id, main.id)
        interrupted = ToolCallInterrupted(**ends.call_fields(task), partial="", error=BEGUN)
        draft.event(interrupted, causes=[start.seq], task=task)
    for call in left.not_begun:
        draft.event(_not_begun(call), causes=[cut.seq], conversation_id=main.id)
    for end in left.unknown:
        _unknown_call(draft, end, past.main.id, main.id)
    told_of = {fact.task_id for fact in past.calls}
    for task in past.unknown:
        if task.id not in told_of:
            conversation_id = None if task.conversation_id is None else main.id
            draft.add(replace(task, id=new_task_id(), session_id=new.id, conversation_id=conversation_id))
    for document in past.documents:
        draft.documents[document.name] = (None, replace(document, session_id=new.id))
    return freeze(draft)


def _unknown_call(draft: Draft, fact: CallFact, past_main: ConversationId, main: ConversationId) -> Task:
    """A call of the past whose effect is unknown, as an ended task of the fork: what reviews and settling look for."""
    if fact.payload is None:
        raise _redacted(fact.seq)
    in_main = fact.conversation_id == past_main
    call = {name: fact.payload[name] for name in ("arguments", "operation_id", "replay")}
    call["call_id"] = fact.call_id if in_main else None
    task = Task(
        id=new_task_id(),
        session_id=draft.session.id,
        conversation_id=main if in_main else None,
        owner_id=None,
        submission_id=None,
        kind=fact.kind,
        version=fact.version,
        requires=Requirement(name=fact.kind, version=fact.version),
        input={"call_id": call["call_id"], "arguments": call["arguments"]},
        cause=fact.seq,
        priority=Priority.INTERACTIVE,
        status=Status.DONE,
        outcome=Outcome.INTERRUPTED,
        phase="execute",
        checkpoint={"call": call},
        error=fact.payload.get("error", BEGUN),
        created_at=draft.now,
    )
    draft.add(task)
    return task


def _redacted(seq: int) -> BadInput:
    return BadInput(f"event {seq} was redacted, and a fork from here needs it", "fork at another event")


def _not_begun(call: ModelCall) -> ToolCallError:
    return ToolCallError(
        call_id=call.call_id,
        tool=call.name,
        version=None,
        arguments=call.arguments,
        operation_id=None,
        replay=None,
        error=NOT_BEGUN,
    )
