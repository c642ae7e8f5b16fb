"""The Python door for programs that run on asyncio: the same methods, each to be awaited.

    async with AsyncClient() as client:
        receipt = await client.submit(agent="notices", input="Tell them we open at nine.")
        print((await client.wait(receipt.submission_id)).output)

Waiting and watching hold no thread. The others go through the doors of `Client`, in a few threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar
from uuid import UUID

import psycopg

from brainhands.shared.client import INSTEAD, Client, end_of, or_later, seconds_until
from brainhands.shared.errors import UnfitConnection
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import SessionId, SubmissionId
from brainhands.shared.model.submission import Mode, ModeName, Receipt, Submission, SubmissionStatus
from brainhands.shared.model.task import PriorityName

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

THREADS = 8
"""Calls that one client carries out at a time; the others wait for their turn."""

AsyncCallerConnection: TypeAlias = "psycopg.AsyncConnection[Any] | AsyncConnection"

P = ParamSpec("P")
Value = TypeVar("Value")


def _in_thread(
    method: Callable[Concatenate[Client, P], Value],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Value]]:
    async def call(self: AsyncClient, /, *arguments: P.args, **named: P.kwargs) -> Value:
        return await self._carry_out(lambda: method(self._client, *arguments, **named))

    functools.update_wrapper(call, method)
    return call


class AsyncClient:
    """Submits and observes, for one tenant, in an event loop; its methods mean what those of `Client` do."""

    def __init__(self, database_url: str | None = None, redis_url: str | None = None, tenant: str = "default") -> None:
        self._client = Client(database_url, redis_url, tenant)
        self._threads = ThreadPoolExecutor(THREADS, "brainhands-client")

    @property
    def tenant(self) -> str:
        return self._client.tenant

    def for_tenant(self, tenant: str) -> AsyncClient:
        """A client for another tenant over this one's connections and threads; to close either closes both."""
        other = copy.copy(self)
        other._client = self._client.for_tenant(tenant)
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def submit(
        self,
        *,
        agent: str,
        input: str,
        request_id: str | None = None,
        session: SessionId | UUID | str | None = None,
        mode: ModeName = Mode.FOLLOW_UP,
        priority: PriorityName = "interactive",
        connection: AsyncCallerConnection | None = None,
    ) -> Receipt:
        """As `Client.submit`; `connection` is psycopg's AsyncConnection, or SQLAlchemy's over one."""
        submit = functools.partial(
            self._client.submit,
            agent=agent,
            input=input,
            request_id=request_id,
            session=session,
            mode=mode,
            priority=priority,
        )
        if connection is None:
            return await self._carry_out(submit)
        driver = await _driver(connection)
        async with driver.lock:
            return await self._carry_out(lambda: _submit_within(submit, driver))

    async def watch(self, session: SessionId | UUID | str, after: int = 0) -> AsyncIterator[Event]:
        """Each committed event after a seq, once and in order, then live, for as long as the caller iterates."""
        after, parts = await self._carry_out(lambda: self._client._log(session, after))
        while True:
            for event in await asyncio.wrap_future(self._client._hub.page(parts, after)):
                after = event.seq
                yield event

    async def wait(self, submission: SubmissionId | UUID | str, timeout: float | None = None) -> Submission:
        """The submission when it is done. Raises WaitTimeout, a TimeoutError, after `timeout` seconds."""
        end = end_of(timeout)
        found = await self.submission(submission)
        while found.status is not SubmissionStatus.DONE:
            try:
                async with asyncio.timeout(seconds_until(end)):
                    await asyncio.wrap_future(self._client._hub.ended(found.id, found.session_id))
            except TimeoutError:
                raise await self._carry_out(functools.partial(self._client._wait_timeout, found)) from None
            later = await self._carry_out(lambda: or_later(lambda: self._client.submission(submission)))
            found = found if later is None else later
        return found

    submission = _in_thread(Client.submission)
    waits_for = _in_thread(Client.waits_for)
    session = _in_thread(Client.session)
    sessions = _in_thread(Client.sessions)
    tasks = _in_thread(Client.tasks)
    events = _in_thread(Client.events)
    event = _in_thread(Client.event)
    effects = _in_thread(Client.effects)
    verify = _in_thread(Client.verify)
    documents = _in_thread(Client.documents)
    document = _in_thread(Client.document)
    document_history = _in_thread(Client.document_history)
    cancel = _in_thread(Client.cancel)
    approvals = _in_thread(Client.approvals)
    approval = _in_thread(Client.approval)
    answer = _in_thread(Client.answer)
    settle = _in_thread(Client.settle)
    signal = _in_thread(Client.signal)
    redact = _in_thread(Client.redact)
    erase = _in_thread(Client.erase)
    awake = _in_thread(Client.awake)
    fork = _in_thread(Client.fork)
    next_wake = _in_thread(Client.next_wake)

    async def close(self) -> None:
        """Give back connections and threads; what still waits or watches ends with ClientClosed."""
        await self._carry_out(self._client.close)
        self._threads.shutdown(wait=False)

    async def _carry_out(self, call: Callable[[], Value]) -> Value:
        """What a call comes to in a thread; who is cancelled meanwhile goes when it has ended, so nothing runs on."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, contextvars.copy_context().run, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


async def _driver(connection: AsyncCallerConnection) -> psycopg.AsyncConnection[Any]:
    """The psycopg connection. Raises UnfitConnection for what has none."""
    given: object = connection
    # To import the module of SQLAlchemy's takes greenlet, which those who have such a connection have.
    if (module := sys.modules.get("sqlalchemy.ext.asyncio")) and isinstance(given, module.AsyncConnection):
        if given.closed:
            raise UnfitConnection("the connection is closed")
        await given.exec_driver_sql("SELECT 1")
        given = (await given.get_raw_connection()).driver_connection
    if not isinstance(given, psycopg.AsyncConnection):
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        raise UnfitConnection(f"a {kind} is no psycopg AsyncConnection, nor SQLAlchemy's of one", INSTEAD["async"])
    return given


def _submit_within(submit: Callable[..., Receipt], owner: psycopg.AsyncConnection[Any]) -> Receipt:
    """Submit over the connection of an owner who lets nobody else at it meanwhile, as psycopg's blocking kind."""
    server = owner.pgconn
    handlers = server.notice_handler, server.notify_handler
    lent = psycopg.Connection(server)
    try:
        lent._pool = None  # psycopg warns of one that is dropped and in no pool
        lent.prepare_threshold = None  # the names of its prepared statements would be the owner's
        if server.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            lent.autocommit = owner.autocommit
        return submit(connection=lent)
    finally:
        server.notice_handler, server.notify_handler = handlers
