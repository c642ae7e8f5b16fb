"""How an input is accepted: stored with its identity and its first work, or found to have been accepted before.

A new session is stored whole. Input for a session that exists is admitted at once if its conversation is free, else
it waits in the inbox. Inside a caller's transaction no session may be locked, so there the inbox entry comes with an
intake task, which admits it in a commit of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import psycopg

from brainhands.shared.doors.redact import refuse_erased
from brainhands.shared.engine import inbox
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import (
    OtherAgent,
    RequestConflict,
    RequestInProgress,
    ServerUnavailable,
    StaleWrite,
    UnknownSession,
    Unsettled,
)
from brainhands.shared.model.commit import Commit, NewInput
from brainhands.shared.model.event import SessionCreated
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.submission import Receipt, Submission
from brainhands.shared.rules import chain, first_work
from brainhands.shared.rules.verify import head_of
from brainhands.shared.store import commits, reads, rows, writes
from brainhands.shared.store.database import TRANSIENT, Pause, Transaction
from brainhands.shared.store.locked import CLOCK, Locked

PATIENCE_SECONDS = 10.0

Result = TypeVar("Result")


def accept_new(writer: Writer, submission: Submission) -> Receipt:
    """A new session with its first message, generation and hint, in one commit."""
    try:
        commit = patiently(
            writer, lambda transaction: commits.create(transaction, lambda now: _new_session(submission, now))
        )
    except (StaleWrite, psycopg.errors.UniqueViolation):
        # The session itself is there already if an earlier try was committed and lost only its reply.
        return _earlier(writer, submission)
    writer.ring(commit)
    return receipt(submission, commit)


def accept_into(writer: Writer, submission: Submission) -> Receipt:
    """Input for a session that exists."""
    submission, earlier = patiently(writer, lambda transaction: _look_up(transaction, submission))
    if earlier is not None:
        return receipt(earlier)

    def fill(locked: Locked) -> Commit:
        refuse_erased(locked.session)
        draft = Draft(locked, NOBODY)
        draft.write(submission)
        conversation, waiting, active = locked.conversation(submission.conversation_id)
        if active or waiting is not None:
            draft.write(NewInput(submission))
        else:
            inbox.admit(draft, conversation, submission.id, submission.input, submission.priority)
        return freeze(draft)

    try:
        commit = writer.apply(submission.session_id, [], fill)
    except Unsettled:
        # A twin came first, or Postgres was away, maybe only for the reply.
        return _earlier(writer, submission)
    return receipt(submission, commit)


def accept_within(transaction: Transaction, submission: Submission, *, new: bool) -> Receipt:
    """As part of a caller's transaction, which must be READ COMMITTED; its commit starts the work."""
    if new:
        earlier = find(transaction, submission)
        if earlier is not None:
            return receipt(earlier)
        return receipt(submission, commits.create(transaction, lambda now: _new_session(submission, now)))
    submission, earlier = _look_up(transaction, submission)
    if earlier is not None:
        return receipt(earlier)
    (conversation,) = transaction.run(reads.CONVERSATION(conversation_id=submission.conversation_id))
    assert conversation.first is not None
    (clock,) = transaction.run(CLOCK())
    assert clock.first is not None
    task = first_work.intake_task(
        new_task_id(),
        submission.session_id,
        submission.conversation_id,
        submission_id=submission.id,
        requires=first_work.agent_requirement(rows.conversation(conversation.first)),
        priority=submission.priority,
        now=clock.first["now"],
    )
    commits.queue(transaction, submission, task)
    return receipt(submission)


def find(transaction: Transaction, submission: Submission) -> Submission | None:
    """What an earlier call with this request_id stored. Raises RequestConflict if it had another input."""
    (result,) = transaction.run(
        reads.SUBMISSION_BY_REQUEST(digest=writes.request_digest(submission.tenant, submission.request_id))
    )
    if result.first is None:
        return None
    found = rows.submission(result.first)
    if found.input_digest != submission.input_digest:
        raise RequestConflict(submission.request_id)
    return found


def receipt(submission: Submission, commit: Commit | None = None) -> Receipt:
    return Receipt(
        head=None if commit is None else head_of(commit.session),
        submission_id=submission.id,
        session_id=submission.session_id,
        request_id=submission.request_id,
        status=submission.status,
    )


def _earlier(writer: Writer, submission: Submission) -> Receipt:
    found = patiently(writer, lambda transaction: find(transaction, submission))
    if found is None:
        raise RequestInProgress(submission.request_id)
    return receipt(found)


def patiently(writer: Writer, work: Callable[[Transaction], Result]) -> Result:
    """What a transaction gives, tried again over lost connections for a while. Raises ServerUnavailable."""
    pause = Pause(PATIENCE_SECONDS)
    while True:
        try:
            with writer.database.transaction() as transaction:
                return work(transaction)
        except (*TRANSIENT, ServerUnavailable) as error:
            if not pause.again():
                raise ServerUnavailable("Postgres", type(error).__name__, "ask again with this request_id") from error


def _look_up(transaction: Transaction, submission: Submission) -> tuple[Submission, Submission | None]:
    """The submission set into its session's main conversation, and an earlier one of the same request_id."""
    found, conversations = transaction.run(
        reads.SESSION(session_id=submission.session_id, tenant=submission.tenant),
        reads.SESSION_CONVERSATIONS(session_id=submission.session_id),
    )
    if found.first is None:
        raise UnknownSession(submission.session_id)
    main = next(rows.conversation(row) for row in conversations.rows if row["owner_id"] is None)
    if main.agent != submission.agent:
        raise OtherAgent(submission.session_id, main.agent, submission.agent)
    earlier = find(transaction, submission)
    if earlier is None:
        refuse_erased(rows.session(found.first))
    return replace(submission, conversation_id=main.id), earlier


def _new_session(submission: Submission, now: datetime) -> Commit:
    session = Session(
        id=submission.session_id,
        tenant=submission.tenant,
        log_format=SessionCreated.log_format,
        last_seq=0,
        last_hash=chain.GENESIS,
        last_at=now,
        created_at=now,
    )
    conversation = Conversation(
        id=submission.conversation_id,
        session_id=session.id,
        owner_id=None,
        agent=submission.agent,
        agent_version=None,
    )
    draft = Draft(Locked(None, session, now, {}), NOBODY, new_session=True)
    draft.write(conversation, submission)
    payload = SessionCreated(agent=submission.agent, tenant=submission.tenant)
    draft.event(payload, causes=(), conversation_id=conversation.id)
    inbox.admit(draft, conversation, submission.id, submission.input, submission.priority)
    return freeze(draft)
