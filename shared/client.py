"""The Python door: submit input to an agent, wait for the answer, and watch a session.

    client = Client()
    receipt = client.submit(agent="notices", input="Tell them we open at nine.", request_id="notice-7")
    print(client.wait(receipt.submission_id).output)

Submitting returns at once; waiting and watching only observe, from any process and as often as one likes.
"""

from __future__ import annotations

import copy
import difflib
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any, Self, TypeAlias, TypeVar
from uuid import UUID

import psycopg
import sqlalchemy
from sqlalchemy import text

from brainhands.shared import doors
from brainhands.shared.errors import (
    BadCursor,
    BadInput,
    ServerUnavailable,
    SettingsError,
    StaleWrite,
    TooLarge,
    UnfitConnection,
    UnknownAgent,
    UnknownApproval,
    UnknownDocument,
    UnknownEvent,
    UnknownSession,
    UnknownSubmission,
    UnknownTask,
    WaitTimeout,
)
from brainhands.shared.model.approval import Answer, AnswerName, AnswerReceipt, Approval, SettledName
from brainhands.shared.model.awake import AwakeReceipt
from brainhands.shared.model.document import RESERVED, DocumentVersion, StoredDocument
from brainhands.shared.model.event import Event
from brainhands.shared.model.fork import ForkReceipt
from brainhands.shared.model.ids import (
    ApprovalId,
    SessionId,
    SubmissionId,
    TaskId,
    new_conversation_id,
    new_session_id,
    new_submission_id,
    new_uuid,
)
from brainhands.shared.model.json import Json, clean, clean_text, digest
from brainhands.shared.model.page import Page, cursor, read_cursor
from brainhands.shared.model.redaction import ErasureReceipt, RedactionReceipt
from brainhands.shared.model.session import Session, SessionSummary
from brainhands.shared.model.signal import OF_PEOPLE, SignalReceipt
from brainhands.shared.model.submission import Cancellation, Mode, ModeName, Receipt, Submission, SubmissionStatus
from brainhands.shared.model.task import Priority, PriorityName, Task
from brainhands.shared.rules.verify import Flaw, check, read_head, said_to_be_gone
from brainhands.shared.runtime.address import postgres_address, redis_address
from brainhands.shared.runtime.settings import addresses, settings
from brainhands.shared.store import derived, documents, past, reads, waiting, wake
from brainhands.shared.store.database import TRANSIENT, Connection, Database, Statement, Transaction
from brainhands.shared.store.wake import NextWake

CallerConnection: TypeAlias = "psycopg.Connection[Any] | sqlalchemy.Connection"

Read = TypeVar("Read")
Item = TypeVar("Item")

INPUT_LIMIT = 1_000_000
"""Characters of one input."""

REMARK_LIMIT = 2_000
SIGNAL_BYTES = 256 * 1024
ALL = 2**31 - 1
NAME_LIMIT = 500
"""Characters of a request_id or an agent's name."""

MOST_A_PAGE = 1000
"""Items of one page."""

SILENCE_SECONDS = 0.5
"""After which a watch says that nothing has come."""

READ_SECONDS = 2.0
"""How long a read is tried again: the pool's connections may have died while nobody used them."""

WHERE = Statement(
    text(
        "SELECT current_setting('transaction_isolation') AS isolation, current_setting('lock_timeout') AS patience,"
        " current_setting('transaction_read_only') AS read_only, current_database() AS name,"
        " pg_postmaster_start_time() AS started"
    )
)
BE_PATIENT = Statement(text("SELECT set_config('lock_timeout', :patience, true)"))
SPEAK = Statement(text("SELECT set_config('client_encoding', :encoding, true), set_config('DateStyle', :dates, true)"))
"""How values are written on the wire: on a caller's connection ours only while we use it."""


class Client:
    """Submits and observes, for one tenant.

    Addresses that are not given are DATABASE_URL and REDIS_URL, or those of the embedded servers.
    """

    def __init__(self, database_url: str | None = None, redis_url: str | None = None, tenant: str = "default") -> None:
        if database_url is None or redis_url is None:
            found = addresses()
            database_url, redis_url = database_url or found.database_url, redis_url or found.redis_url
        self.tenant = _name(tenant, "tenant")
        database_url = _address(database_url, postgres_address, "DATABASE_URL")
        redis_url = _address(redis_url, redis_address, "REDIS_URL")
        self._database = Database(database_url, patience=READ_SECONDS)
        # What a client works with comes with the first one, so that to import the class is cheap.
        from brainhands.shared.bus.bell import Bell
        from brainhands.shared.doors.watch import Hub
        from brainhands.shared.engine.writer import Writer

        self._bell = Bell(redis_url)
        self._known_agents: set[str] = set()
        self._writer = Writer(self._database, self._bell)
        self._hub = Hub(self._database, redis_url)

    def for_tenant(self, tenant: str) -> Client:
        """A client for another tenant over this one's connections; to close either closes both."""
        other = copy.copy(self)
        other.tenant = _name(tenant, "tenant")
        return other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def submit(
        self,
        *,
        agent: str,
        input: str,
        request_id: str | None = None,
        session: SessionId | UUID | str | None = None,
        mode: ModeName = Mode.FOLLOW_UP,
        priority: PriorityName = "interactive",
        connection: CallerConnection | None = None,
    ) -> Receipt:
        """Accept an input durably and return its receipt; it starts a new session unless one is named.

        Work of `priority` "batch" lets "interactive" work go first, but not all of it. The same request_id with the
        same input gets the first receipt again; of two priorities the first one holds. With `connection` (psycopg or
        SQLAlchemy, READ COMMITTED, on this database) the submission is part of the caller's transaction and starts with
        its commit. Warns (UnknownAgent) of an agent that no worker has offered lately. Raises BadInput and its kinds
        (RequestConflict, UnknownSession, UnfitConnection) and RequestInProgress.
        """
        session_id = None if session is None else SessionId(_uuid(session, "session"))
        submission = self._submission(agent, input, request_id, session_id, mode, priority)
        if connection is not None:
            self._warn_of_a_stranger(agent)
            try:
                return self._submit_within(connection, submission, new=session_id is None)
            except StaleWrite:
                # A twin was committed while this one waited for it, and is found now.
                return self._submit_within(connection, submission, new=session_id is None)
        if session_id is None:
            receipt = doors.submit.accept_new(self._writer, submission)
        else:
            receipt = doors.submit.accept_into(self._writer, submission)
        self._warn_of_a_stranger(agent)
        return receipt

    def submission(self, id: SubmissionId | UUID | str) -> Submission:
        """Where a submission stands. Raises UnknownSubmission."""
        submission_id = SubmissionId(_uuid(id, "submission"))
        found = reads.submission(self._database, self.tenant, submission_id)
        if found is None:
            raise UnknownSubmission(submission_id)
        return found

    def session(self, id: SessionId | UUID | str) -> reads.SessionView:
        """The current view: conversations, tasks, submissions, newest documents, token use. Raises UnknownSession."""
        session_id = SessionId(_uuid(id, "session"))
        found = reads.session_view(self._database, self.tenant, session_id)
        if found is None:
            raise UnknownSession(session_id)
        return found

    def sessions(
        self,
        *,
        agent: str | None = None,
        open: bool | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[SessionSummary]:
        """The tenant's sessions, the newest first, at most `limit` of them, from behind the `next` of another page on.

        Only those of an agent, with open tasks or without any, made since a time, or before one. Raises BadInput.
        """
        place = (_time(until, "until") or reads.LAST[0], UUID(int=0) if until else reads.LAST[1])
        most = _limit(limit)
        found = reads.sessions_of(
            self._database,
            self.tenant,
            agent=None if agent is None else _name(agent, "agent"),
            open=_flag(open, "open"),
            since=_time(since, "since"),
            before=place if after is None else _timed_place(after),
            most=most + 1,
        )
        return _page(found, most, lambda last: (last.created_at.isoformat(), str(last.id)))

    def tasks(
        self,
        session: SessionId | UUID | str,
        *,
        open: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Task]:
        """A session's tasks in the order in which they were made, in pages: all, or those that are open, or not."""
        most = _limit(limit)
        place = UUID(int=0) if after is None else _place_id(after, 1)
        found = reads.tasks_of(
            self._database, self._known(session), open=_flag(open, "open"), after=place, most=most + 1
        )
        return _page(found, most, lambda last: (str(last.id),))

    def events(self, session: SessionId | UUID | str, after: int = 0, *, limit: int | None = None) -> list[Event]:
        """The committed events of a session after a seq, in order; a fork has those of its past too.

        All of them, or `limit` at the most: the seq of the last one is the `after` of what follows. Raises BadInput and
        UnknownSession.
        """
        after, parts = self._log(session, after)
        most = ALL if limit is None else _limit(limit)
        return list(islice(self._pages(parts, after), most))

    def event(self, session: SessionId | UUID | str, seq: int) -> reads.EventAround:
        """One event with those that caused it and those that it caused. Raises UnknownSession and UnknownEvent."""
        found = self._found(session)
        around = reads.event_around(self._database, past.parts(self._database, found), _bound(seq, "seq"))
        if around is None:
            raise UnknownEvent(found.id, seq)
        return around

    def documents(self, session: SessionId | UUID | str, *, at: int | None = None) -> list[StoredDocument]:
        """The session's documents as they are now, or as of the commit that ended at or before event `at`.

        The views of rows, which every session has, are not among them. Raises UnknownSession, and Incompatible for one
        that newer code has stored in another way.
        """
        return documents.as_of(self._database, self._known(session), _bound(at, "at"))

    def document(
        self, session: SessionId | UUID | str, name: str, *, version: int | None = None, at: int | None = None
    ) -> StoredDocument:
        """One document as it is stored: now, in a version, or as of the commit that ended at or before event `at`.

        `MailPlan.read(...)` makes it a value of its class. `agent_settings`, `inbox`, `live` and `usage` are views of
        rows as they are now. Raises UnknownSession, UnknownDocument, BadInput, and Incompatible as `documents` does.
        """
        if version is not None and at is not None:
            raise BadInput("a document is asked for by its version or as of an event, not both")
        session_id, name = self._known(session), _name(name, "name")
        if name in RESERVED:
            if version is not None or at is not None:
                raise BadInput(f"{name} is a view of what is now and has no earlier versions")
            return derived.read(self._database, session_id, name)
        if version is not None:
            found = documents.in_version(self._database, session_id, name, _bound(version, "version"))
            asked = f" in version {version}"
        else:
            found = documents.one_as_of(self._database, session_id, name, _bound(at, "at"))
            asked = "" if at is None else f" as of event {at}"
        if found is None:
            raise UnknownDocument(name, asked)
        return found

    def document_history(self, session: SessionId | UUID | str, name: str) -> list[DocumentVersion]:
        """Every version of a document, oldest first: the commit that wrote it (its last event), when, and the change.

        A change is a list of edits: `[path, value]` puts, `[path]` removes, `[path, start, count, values]` replaces a
        part of a list. Raises as `document` does.
        """
        session_id, name = self._known(session), _name(name, "name")
        if name in RESERVED:
            raise BadInput(f"{name} is a view of what is now and has no history")
        found = documents.history(self._database, session_id, name)
        if not found:
            raise UnknownDocument(name)
        return found

    def watch(
        self, session: SessionId | UUID | str, after: int = 0, *, on_silence: Callable[[], object] | None = None
    ) -> Iterator[Event]:
        """Each committed event after a seq, once and in order, then live, for as long as the caller iterates.

        `on_silence` is called whenever none has come for half a second.
        """
        after, parts = self._log(session, after)
        silence = None if on_silence is None else SILENCE_SECONDS
        while True:
            try:
                page = doors.watch.result(self._hub.page(parts, after), silence)
            except TimeoutError:
                assert on_silence is not None
                on_silence()
                continue
            for event in page:
                after = event.seq
                yield event

    def wait(self, submission: SubmissionId | UUID | str, timeout: float | None = None) -> Submission:
        """Block until a submission is done and return it.

        Raises WaitTimeout, a TimeoutError that says what it waits for, after `timeout` seconds.
        """
        end = end_of(timeout)
        found = self.submission(submission)
        while found.status is not SubmissionStatus.DONE:
            try:
                doors.watch.result(self._hub.ended(found.id, found.session_id), seconds_until(end))
            except TimeoutError:
                raise self._wait_timeout(found) from None
            found = or_later(lambda: self.submission(submission)) or found
        return found

    def waits_for(self, submission: SubmissionId | UUID | str) -> list[str]:
        """What a submission waits for now, in words and with what would end the wait; empty when it is done.

        Such as a worker, a tool, a person, a signal, a limit, a retry, or what runs. Raises UnknownSubmission.
        """
        return waiting.reasons(self._database, self.submission(submission))

    def effects(self, session: SessionId | UUID | str, seq: int) -> list[Event]:
        """The events that name this one as a cause; `causes` of an event is the other direction."""
        seq, parts = self._log(session, seq)
        around = reads.event_around(self._database, parts, seq)
        return [] if around is None else list(around.effects)

    def verify(self, session: SessionId | UUID | str, head: str | None = None) -> Flaw | None:
        """The first thing in a session's log that does not fit, or None.

        A chain cannot show by itself that its end is missing or that all of it was computed anew: against that, `head`
        (`SEQ:HASH`, as receipts and `show` give it) is what the log was known to say at that seq.
        """
        found = self._found(session)
        known = None if head is None else read_head(_text(head, "a head"))
        parts = past.parts(self._database, found)
        gone: dict[int, int] = {}
        begins = 1
        for part in parts:
            said = said_to_be_gone(reads.taken_out(self._database, part.session_id, begins - 1), begins)
            gone.update((seq, by) for seq, by in said.items() if seq <= part.up_to)
            begins = part.up_to + 1
        events = takewhile(lambda event: event.seq <= found.last_seq, self._pages(parts, 0))
        return check(events, found, known, gone)

    def cancel(
        self,
        *,
        submission: SubmissionId | UUID | str | None = None,
        session: SessionId | UUID | str | None = None,
        task: TaskId | UUID | str | None = None,
        reason: str = "asked for",
        who: str | None = None,
    ) -> Cancellation:
        """End a submission, one task with all it owns, or everything that a session has open; say what came of it.

        The wish is stored first, so it holds over any crash; asking again does no harm. What is under way when it comes
        may still complete: then that stands, and `wait` tells. Raises UnknownSubmission, UnknownSession, UnknownTask.
        """
        given = [name for name in (submission, session, task) if name is not None]
        if len(given) != 1:
            raise BadInput("name one of submission, session and task to cancel")
        reason, who = clean_text(_text(reason, "a reason"))[:REMARK_LIMIT], _remark(who, "who")
        if submission is not None:
            return doors.cancel.cancel_submission(self._writer, self.submission(submission), reason=reason, who=who)
        if session is not None:
            return doors.cancel.cancel_session(self._writer, self._known(session), reason=reason, who=who)
        return doors.cancel.cancel_task(self._writer, self._task(given[0]), reason=reason, who=who)

    def approvals(
        self, *, session: SessionId | UUID | str | None = None, after: str | None = None, limit: int = 1000
    ) -> Page[Approval]:
        """The questions to people that wait for an answer, the oldest first, in pages: of all sessions, or of one."""
        most = _limit(limit)
        found = reads.open_approvals(
            self._database,
            self.tenant,
            session_id=None if session is None else self._known(session),
            after=reads.FIRST if after is None else _timed_place(after),
            most=most + 1,
        )
        return _page(found, most, lambda last: (last.asked_at.isoformat(), str(last.id)))

    def approval(self, approval: ApprovalId | UUID | str) -> Approval:
        """A question to a person as it stands, open or answered. Raises BadInput and UnknownApproval."""
        approval_id = ApprovalId(_uuid(approval, "question"))
        asked = reads.approval(self._database, self.tenant, approval_id)
        if asked is None:
            raise UnknownApproval(approval_id)
        return asked

    def answer(
        self,
        approval: ApprovalId | UUID | str,
        answer: AnswerName,
        *,
        arguments: Json = None,
        result: Json = None,
        comment: str | None = None,
        who: str | None = None,
    ) -> AnswerReceipt:
        """Answer a question: `approved` (also with other `arguments`) or `denied`; for a review `happened` (with its
        `result`), `did_not_happen` or `unknown`.

        The first answer stands; one that comes later, or after the deadline, is not accepted and changes nothing. Other
        arguments are validated and judged by a worker before they count: until then the question stays pending, and
        where they do not do it is open again, with the reason in its `about` (see `approval`).
        Raises BadInput and UnknownApproval.
        """
        return doors.answer.answer(
            self._writer,
            self.approval(approval),
            _answer(answer),
            arguments=None if arguments is None else clean(arguments, limit=SIGNAL_BYTES),
            result=clean(result, limit=SIGNAL_BYTES),
            comment=_remark(comment, "a comment"),
            who=_remark(who, "who"),
        )

    def settle(
        self,
        task: TaskId | UUID | str,
        answer: SettledName,
        *,
        result: Json = None,
        comment: str | None = None,
        who: str | None = None,
    ) -> AnswerReceipt | None:
        """Say what became of a call that ended as unknown: `happened` (with its `result`) or `did_not_happen`.

        It is a new fact that later requests to the model know; None if somebody else settled it before. Raises BadInput
        and UnknownTask.
        """
        return doors.answer.report(
            self._writer,
            self._task(task),
            _answer(answer),
            result=clean(result, limit=SIGNAL_BYTES),
            comment=_remark(comment, "a comment"),
            who=_remark(who, "who"),
        )

    def signal(
        self,
        session: SessionId | UUID | str,
        name: str,
        payload: Json = None,
        *,
        key: str = "",
        request_id: str | None = None,
    ) -> SignalReceipt:
        """Tell a session something, durably, whether or not somebody waits for it yet; it is taken once.

        The same request_id with the same signal is stored once. Raises BadInput and its kinds.
        """
        return doors.signal.send(
            self._writer,
            self.tenant,
            self._known(session),
            name=_signal_name(name),
            key=_signal_key(key),
            payload=clean(payload, limit=SIGNAL_BYTES),
            request_id=_request_id(request_id),
        )

    def redact(
        self, session: SessionId | UUID | str, seqs: Sequence[int], *, reason: str, who: str | None = None
    ) -> RedactionReceipt:
        """Take the content of events out of the store, and what is kept of it beside the log; the chain stays valid.

        The reason stays in the log, so it must not repeat the content. Raises StillNeeded while open work may read the
        events, and BadInput for events that cannot be redacted. Asking again does no harm.
        """
        return doors.redact.redact(
            self._writer,
            self.tenant,
            self._known(session),
            _seqs(seqs),
            reason=_reason(reason),
            who=_remark(who, "who"),
        )

    def erase(self, session: SessionId | UUID | str, *, reason: str, who: str | None = None) -> ErasureReceipt:
        """Take all content of a session out of the store, for good; it takes no more input.

        Its events stay without content, as proof of what there was. Raises StillNeeded while anything in it is open.
        Asking again does no harm.
        """
        return doors.redact.erase(
            self._writer, self.tenant, self._known(session), reason=_reason(reason), who=_remark(who, "who")
        )

    def awake(self, session: SessionId | UUID | str, request_id: str | None = None) -> AwakeReceipt:
        """Drive a session on from its last commit, at once; the receipt says what had to be moved for that.

        Harmless at any time: what is under way, sleeps or waits for a person is left alone, and where all is in order
        nothing is written. The same request_id again gets the receipt of what it moved. Raises UnknownSession.
        """
        return doors.awake.awake(
            self._writer,
            self._known(session),
            _request_id(request_id),
            restart_limit=settings().restart_limit,
        )

    def fork(self, session: SessionId | UUID | str, at: int, request_id: str | None = None) -> ForkReceipt:
        """A new session that goes on from the end of the last commit at or before event `at` of another one.

        It has the shared past, the documents and the token use as of then. What was open there is not carried over:
        nothing runs in it until the next input, which goes on from there. The same request_id again gets the first
        fork. Raises BadInput and its kinds (RequestConflict, UnknownSession), and RequestInProgress.
        """
        return doors.fork.fork(
            self._writer,
            self._found(session),
            _seq(at, "at"),
            _request_id(request_id),
        )

    def next_wake(self, pool: str) -> NextWake:
        """Whether work is ready for a pool (such as `hands.gpu`), of any tenant, and when the next is due.

        Until then a host may stop all workers of the pool; also where there is none, what waits for one counts. Raises
        BadInput for a name that is no pool's.
        """
        return wake.next_wake(self._database, _pool(pool))

    def close(self) -> None:
        """Give back the connections, to Postgres and to Redis; what still waits or watches ends with ClientClosed."""
        self._hub.close()
        self._database.close()
        self._bell.close()

    def _submission(
        self,
        agent: str,
        input: str,
        request_id: str | None,
        session_id: SessionId | None,
        mode: ModeName,
        priority: PriorityName,
    ) -> Submission:
        text = _input(input)
        mode = _mode(mode)
        return Submission(
            id=new_submission_id(),
            tenant=self.tenant,
            request_id=_request_id(request_id),
            session_id=session_id or new_session_id(),
            conversation_id=new_conversation_id(),
            agent=_name(agent, "agent"),
            mode=mode,
            input=text,
            input_digest=digest([agent, None if session_id is None else str(session_id), mode, text]),
            priority=_priority(priority),
            status=SubmissionStatus.ACCEPTED,
            created_at=datetime.now(UTC),
        )

    def _warn_of_a_stranger(self, agent: str) -> None:
        """Warns of an agent that nobody offers, which is most likely misspelt; it is accepted, since it may come."""
        if agent in self._known_agents:
            return
        others = or_later(lambda: waiting.strangers(self._database, agent))
        if others is None:
            self._known_agents.add(agent)
            return
        like = difflib.get_close_matches(agent, others, n=1)
        meant = f", did you mean {like[0]!r}?" if like else f"; there are: {', '.join(others)}"
        warnings.warn(f"no worker has offered agent {agent!r} lately{meant}", UnknownAgent, stacklevel=3)

    def _submit_within(self, connection: CallerConnection, submission: Submission, *, new: bool) -> Receipt:
        with self._caller(connection) as transaction:
            return doors.submit.accept_within(transaction, submission, new=new)

    @contextmanager
    def _caller(self, connection: CallerConnection) -> Iterator[Transaction]:
        """The caller's transaction, in a savepoint of its own, so that a refusal does not spoil it."""
        (ours,) = self._database.run(WHERE())
        driver = _driver(connection)
        spoken = {"encoding": driver.info.parameter_status("client_encoding"), "dates": _dates(driver)}
        transaction = Transaction(driver, begun=True)
        with driver.transaction():
            transaction.run(SPEAK(encoding="UTF8", dates="ISO"))
            (theirs,) = transaction.run(WHERE())
            assert theirs.first is not None
            assert ours.first is not None
            if theirs.first["isolation"] != "read committed":
                raise UnfitConnection(f"the connection's transaction is {theirs.first['isolation']}")
            if any(theirs.first[name] != ours.first[name] for name in ("name", "started")):
                raise UnfitConnection(f"the connection is to database {theirs.first['name']}, not to ours")
            if theirs.first["read_only"] == "on":
                raise UnfitConnection("the connection's transaction is read-only")
            transaction.run(BE_PATIENT(patience=ours.first["patience"]))
            yield transaction
            transaction.run(BE_PATIENT(patience=theirs.first["patience"]))
            transaction.run(SPEAK(**spoken))

    def _task(self, task: TaskId | UUID | str) -> Task:
        task_id = TaskId(_uuid(task, "task"))
        found = reads.task(self._database, task_id)
        if found is None or reads.session(self._database, self.tenant, found.session_id) is None:
            raise UnknownTask(task_id)
        return found

    def _pages(self, parts: Sequence[past.LogPart], after: int) -> Iterator[Event]:
        """The events of a log after a seq, of which one page is held at a time."""
        while page := reads.event_page(self._database, parts, after):
            yield from page
            after = page[-1].seq

    def _log(self, session: SessionId | UUID | str, after: int) -> tuple[int, Sequence[past.LogPart]]:
        return _seq(after, "after"), past.parts(self._database, self._found(session))

    def _wait_timeout(self, found: Submission) -> WaitTimeout:
        waits_for = "; ".join(or_later(lambda: self.waits_for(found.id)) or ["nothing known"])
        return WaitTimeout(
            f"submission {found.id} is still {found.status} and waits for {waits_for}",
            "it goes on meanwhile; wait again with its id",
        )

    def _known(self, session: SessionId | UUID | str) -> SessionId:
        return self._found(session).id

    def _found(self, session: SessionId | UUID | str) -> Session:
        session_id = SessionId(_uuid(session, "session"))
        found = reads.session(self._database, self.tenant, session_id)
        if found is None:
            raise UnknownSession(session_id)
        return found


def _driver(connection: CallerConnection) -> Connection:
    """The psycopg connection, with a transaction begun. Raises UnfitConnection for one that has none, or cannot."""
    given: object = connection
    if isinstance(given, sqlalchemy.Connection):
        if given.closed:
            raise UnfitConnection("the connection is closed")
        given.exec_driver_sql("SELECT 1")
        given = given.connection.driver_connection
    if not isinstance(given, psycopg.Connection):
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        raise UnfitConnection(f"a {kind} is no psycopg connection, nor SQLAlchemy's of one", _instead(kind))
    if given.closed:
        raise UnfitConnection("the connection is closed")
    match given.info.transaction_status:
        case psycopg.pq.TransactionStatus.INTRANS:
            pass
        case psycopg.pq.TransactionStatus.IDLE if given.autocommit:
            raise UnfitConnection("the connection is in autocommit, with no transaction that the submission could join")
        case psycopg.pq.TransactionStatus.IDLE:
            given.execute("SELECT 1")
        case psycopg.pq.TransactionStatus.INERROR:
            raise UnfitConnection("a statement of the connection's transaction has failed", "roll it back first")
        case _:
            raise UnfitConnection("the connection is busy with a statement", "let it end first")
    return given


INSTEAD = {
    "sqlalchemy.orm.": """with Session(engine) as session, session.begin():
    session.add(order)
    client.submit(agent=..., input=..., connection=session.connection())""",
    "django.": """with django.db.transaction.atomic():
    order.save()
    client.submit(agent=..., input=..., connection=django.db.connection.connection)""",
    "async": """async with AsyncClient() as client, engine.begin() as connection:
    await connection.execute(...)
    await client.submit(agent=..., input=..., connection=connection)""",
    "": """with psycopg.connect(DATABASE_URL) as connection:
    connection.execute("INSERT INTO orders ...")
    client.submit(agent=..., input=..., connection=connection)""",
}
"""What to write with what else people have in hand, by a part of its type's name; the first that fits."""


def _instead(kind: str) -> str:
    return next(lines for part, lines in INSTEAD.items() if part in kind.lower())


def _dates(driver: Connection) -> str | None:
    return driver.info.parameter_status("DateStyle")


def or_later(read: Callable[[], Read]) -> Read | None:
    """What is read, or None while Postgres is away."""
    try:
        return read()
    except (*TRANSIENT, ServerUnavailable):
        return None


def _address(value: object, read: Callable[[object], str], variable: str) -> str:
    try:
        return read(value)
    except ValueError as problem:
        raise SettingsError(variable, str(problem)) from None


def _uuid(value: object, what: str) -> UUID:
    try:
        return value if isinstance(value, UUID) else UUID(_text(value, f"a {what} id"))
    except ValueError:
        raise BadInput(f"{value!r} is no {what} id", "ids look like 01890a5d-ac96-774b-bcce-b302099a8057") from None


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        advice = "json.dumps(...) makes text of it" if isinstance(value, dict | list) else "give a str"
        raise BadInput(f"{what} is text, not {type(value).__name__}", advice)
    return value


def _name(value: object, what: str, advice: str = "") -> str:
    given = _text(value, what)
    if not given or len(given) > NAME_LIMIT or clean_text(given) != given:
        raise BadInput(f"{what} must be 1 to {NAME_LIMIT} characters of clean text", advice)
    return given


def _request_id(value: object) -> str:
    """The caller's, or a new one; a UUID is one too."""
    return str(new_uuid()) if value is None else str(value) if isinstance(value, UUID) else _name(value, "request_id")


def _seq(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{what} must be a number from 0 up", "events are numbered as `brainhands show` lists them")
    return min(value, ALL)


def _limit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_A_PAGE:
        raise BadInput(f"limit must be a number from 1 to {MOST_A_PAGE:,}", "ask for what follows with `after`")
    return value


def _flag(value: object, what: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise BadInput(f"{what} is True, False or None, not {type(value).__name__}")
    return value


def _time(value: object, what: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise BadInput(f"{what} must be a datetime with its time zone", "such as datetime.now(UTC)")
    return value


def _page(found: list[Item], most: int, place: Callable[[Item], tuple[str, ...]]) -> Page[Item]:
    """Of one more than `most` that were looked for: what there is, and whether more follows."""
    more = len(found) > most
    return Page(found[:most], cursor(*place(found[most - 1])) if more else None)


def _place_id(after: object, parts: int) -> UUID:
    text = _text(after, "a place")
    try:
        return UUID(read_cursor(text, parts)[-1])
    except ValueError:
        raise BadCursor(text) from None


def _timed_place(after: object) -> tuple[datetime, UUID]:
    text = _text(after, "a place")
    try:
        at = datetime.fromisoformat(read_cursor(text, 2)[0])
    except ValueError:
        raise BadCursor(text) from None
    if at.tzinfo is None:
        raise BadCursor(text)
    return at, _place_id(text, 2)


def _bound(value: object, what: str) -> int:
    return ALL if value is None else _seq(value, what)


def _input(value: object) -> str:
    given = _text(value, "the input")
    if not given.strip():
        raise BadInput("the input is empty")
    if len(given) > INPUT_LIMIT:
        raise TooLarge("input", f"{len(given):,} characters are more than the limit of {INPUT_LIMIT:,}")
    return clean_text(given)


def _answer(value: object) -> Answer:
    try:
        return Answer(_text(value, "an answer"))
    except ValueError:
        raise BadInput(f"{value!r} is no answer", f"use one of {', '.join(Answer)}") from None


def _remark(value: object, what: str) -> str | None:
    return None if value is None else clean_text(_text(value, what))[:REMARK_LIMIT]


def _seqs(values: object) -> list[int]:
    given = list(values) if isinstance(values, list | tuple | set | frozenset | range) else [values]
    seqs = [each for each in given if isinstance(each, int) and not isinstance(each, bool) and 0 < each <= ALL]
    if not seqs or len(seqs) < len(given):
        wrong = [each for each in given if each not in seqs]
        problem = f"{wrong[0]!r} is no event's seq" if wrong else "no event is named"
        raise BadInput(problem, "name events by their seq, as `brainhands show` lists them")
    return seqs


def _reason(value: object) -> str:
    given = _text(value, "a reason")
    if not given.strip():
        raise BadInput("no reason is given", "say why; it stays in the log")
    return clean_text(given)[:REMARK_LIMIT]


def _signal_name(value: object) -> str:
    if _text(value, "name").startswith(OF_PEOPLE):
        raise BadInput(f"names that begin with {OF_PEOPLE} are for answers of people", "use client.answer")
    return _name(value, "name")


def _signal_key(value: object) -> str:
    key = str(value) if isinstance(value, UUID) else value
    return "" if key == "" else _name(key, "key", "send what tells signals apart as a short key, the rest as payload")


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value < math.inf:
        raise BadInput(f"{value!r} is no number of seconds", "leave it out to wait without end")
    return value


def end_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + _seconds(timeout)


def seconds_until(end: float | None) -> float | None:
    return None if end is None else min(end - time.monotonic(), threading.TIMEOUT_MAX)


def _priority(value: object) -> Priority:
    names = {each.name.lower(): each for each in Priority}
    if isinstance(value, Priority):
        return value
    given = _text(value, "a priority")
    if given not in names:
        raise BadInput(f"priority {given!r} is none of {', '.join(names)}")
    return names[given]


def _pool(value: object) -> str:
    given = _text(value, "a pool")
    if given.partition(".")[0] not in ("brain", "hands") or not given.partition(".")[2]:
        raise BadInput(f"{given!r} is no pool", "name one such as brain.default or hands.default")
    return given


def _mode(value: object) -> Mode:
    try:
        return Mode(_text(value, "a mode"))
    except ValueError:
        raise BadInput(f"mode {value!r} is none of {', '.join(Mode)}") from None
