"""How observers hear of commits: any number of them on one thread, one Redis connection and one look each half second.

A bell makes news of a session, and so does a look at Postgres behind the bells, which may be lost or away. Who follows
the session then asks for the page after what it has, and those who ask for the same page share one read. All state is
touched in the hub's own thread only; observers wait for its coroutines, from threads of theirs or from other loops.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import redis
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from brainhands.shared.bus.bell import ENDED
from brainhands.shared.bus.topics import session_of_topic, session_topic
from brainhands.shared.errors import ClientClosed, ServerUnavailable
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import SessionId, SubmissionId
from brainhands.shared.runtime.logs import logger
from brainhands.shared.runtime.outage import Outage
from brainhands.shared.store import reads
from brainhands.shared.store.database import TRANSIENT, Database
from brainhands.shared.store.past import LogPart

log = logger("watch")

POLL_SECONDS = 0.5
"""How often the hub looks at Postgres, for all observers at once, when no bell rings."""

READERS = 4
"""Threads, and so connections, that read pages."""

PAGE = 500

CONNECT_SECONDS = 3.0

AWAY = (*TRANSIENT, ServerUnavailable)

Value = TypeVar("Value")


class Hub:
    """Where the observers of one client, and of those made from it, listen; it begins with the first of them."""

    def __init__(self, database: Database, redis_url: str) -> None:
        self._database = database
        self._redis_url = redis_url
        self._lock = threading.Lock()
        self._life: tuple[int, _Life] | None = None

    def page(self, parts: Sequence[LogPart], after: int) -> Future[list[Event]]:
        """The events of a log after a seq, in order, as soon as there are any; `parts` is the log's way back."""
        return self._begin(lambda life: life.page(parts, after))

    def ended(self, submission: SubmissionId, session: SessionId) -> Future[None]:
        """Done when the submission is."""
        return self._begin(lambda life: life.ended(submission, session))

    def close(self) -> None:
        """End all observers, with ClientClosed."""
        with self._lock:
            if self._life is not None and self._life[0] == os.getpid():
                self._life[1].end()
            self._life = None

    def _begin(self, observe: Callable[[_Life], Coroutine[Any, Any, Value]]) -> Future[Value]:
        with self._lock:
            # A process that was forked has none of its parent's threads.
            if self._life is None or self._life[0] != os.getpid():
                self._life = (os.getpid(), _Life(self._database, self._redis_url))
            life = self._life[1]
            return life.begin(observe(life))


def result(future: Future[Value], timeout: float | None = None) -> Value:
    """What a future of the hub comes to, for a caller that blocks; who does not wait on leaves nothing behind."""
    try:
        return future.result(timeout)
    finally:
        future.cancel()


class _Followed:
    """A session that somebody observes. What was read lasts until the next ring, so a redacted event is not kept."""

    def __init__(self) -> None:
        self.observers = 0
        self.idle = False
        self.rung = asyncio.Event()
        self.end: int | None = None
        """Up to where the log was read since the last ring, if it was."""
        self.latest: list[Event] = []
        self.reading: dict[int, asyncio.Task[list[Event]]] = {}

    def ring(self) -> None:
        rung, self.rung = self.rung, asyncio.Event()
        self.end, self.latest, self.reading = None, [], {}
        rung.set()


class _Life:
    """The thread of a hub, with its loop, its connection, and what its observers wait for."""

    def __init__(self, database: Database, redis_url: str) -> None:
        self._database = database
        self._redis_url = redis_url
        self._outage = Outage(log, "observers", redis_url)
        self._loop = asyncio.new_event_loop()
        self._readers = ThreadPoolExecutor(READERS, "brainhands-watch")
        self._followed: dict[SessionId, _Followed] = {}
        self._awaited: dict[asyncio.Event, SubmissionId] = {}
        self._changed = asyncio.Event()
        """Set where sessions came to be followed or no longer are."""
        self._some_ended = asyncio.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="brainhands-watch", daemon=True)
        self._thread.start()

    def begin(self, observing: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(self._until_the_end(observing), self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._readers.shutdown()

    # --- what follows runs in the hub's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        parts = [self._loop.create_task(part()) for part in (self._listen, self._look)]
        self._loop.run_forever()
        self._ending = True
        # Redis' client takes a cancel that comes while it connects for its own, so it is told until it has ended.
        while open_tasks := asyncio.all_tasks(self._loop):
            for task in open_tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(open_tasks, timeout=0.1))
        del parts
        self._loop.close()

    async def _until_the_end(self, observing: Coroutine[Any, Any, Value]) -> Value:
        try:
            return await observing
        except asyncio.CancelledError:
            if self._ending:
                raise ClientClosed from None
            raise

    async def page(self, parts: Sequence[LogPart], after: int) -> list[Event]:
        with self._observing(parts[-1].session_id) as followed:
            while True:
                rung = followed.rung  # noted before the read, so that what comes during it is news
                if page := await self._page(followed, parts, after):
                    return page
                await rung.wait()

    async def ended(self, submission: SubmissionId, session: SessionId) -> None:
        ended = asyncio.Event()
        self._awaited[ended] = submission
        try:
            with self._observing(session):
                await ended.wait()
        finally:
            del self._awaited[ended]

    @contextmanager
    def _observing(self, session: SessionId) -> Iterator[_Followed]:
        followed = self._followed.get(session)
        if followed is None:
            followed = self._followed[session] = _Followed()
            self._changed.set()
        followed.observers += 1
        try:
            yield followed
        finally:
            followed.observers -= 1

    async def _page(self, followed: _Followed, parts: Sequence[LogPart], after: int) -> list[Event]:
        if followed.end is not None and after >= followed.end:
            return []
        if followed.latest and followed.latest[0].seq <= after + 1 <= followed.latest[-1].seq:
            return [event for event in followed.latest if event.seq > after]
        if after not in followed.reading:
            followed.reading[after] = self._loop.create_task(self._read(followed, followed.rung, parts, after))
        # Who no longer waits leaves the read to the others.
        return await asyncio.shield(followed.reading[after])

    async def _read(
        self, followed: _Followed, rung: asyncio.Event, parts: Sequence[LogPart], after: int
    ) -> list[Event]:
        try:
            page = await self._in_thread(reads.event_page, self._database, parts, after, PAGE)
        except AWAY:
            return []  # a later look rings, since nothing says that the log was read up to its end
        finally:
            if rung is followed.rung:
                del followed.reading[after]
        if rung is followed.rung and len(page) < PAGE:
            followed.end = page[-1].seq if page else after
            followed.latest = page
        return page

    async def _look(self) -> None:
        """Finds the ends that a bell told of, and each half second all that none did."""
        due = self._loop.time() + POLL_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._some_ended.wait()
            self._some_ended.clear()
            polls = self._loop.time() >= due
            if polls:
                due = self._loop.time() + POLL_SECONDS
                self._let_go()
            try:
                await self._find(set(self._followed) if polls else set(), set(self._awaited.values()))
            except AWAY:
                continue
            except Exception:
                log.exception("look_failed")

    async def _find(self, watched: set[SessionId], awaited: set[SubmissionId]) -> None:
        if not watched and not awaited:
            return
        last_seqs, ended = await self._in_thread(reads.observed, self._database, watched, awaited)
        for session, last_seq in last_seqs.items():
            if session in self._followed and self._followed[session].end != last_seq:
                self._followed[session].ring()
        for event, submission in self._awaited.items():
            if submission in ended:
                event.set()

    def _let_go(self) -> None:
        """Of the sessions that nobody has observed since the last look: a watch asks anew after each page."""
        for session, followed in list(self._followed.items()):
            if followed.observers:
                followed.idle = False
            elif not followed.idle:
                followed.idle = True
            else:
                del self._followed[session]
                self._changed.set()

    async def _listen(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self._hear()
            except redis.RedisError as error:
                self._outage.began(error)
            except Exception:
                log.exception("bell_failed")
            await asyncio.sleep(POLL_SECONDS)

    async def _hear(self) -> None:
        # No timeout of the socket: silence is what it mostly hears.
        client: Redis = Redis.from_url(
            self._redis_url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        async with client, client.pubsub() as pubsub:
            await pubsub.connect()
            subscribing = self._loop.create_task(self._keep_subscribed(pubsub))
            try:
                while True:
                    message = await pubsub.get_message(timeout=None)
                    self._outage.over()
                    if message is not None:
                        self._heard(message)
            finally:
                subscribing.cancel()
                await asyncio.gather(subscribing, return_exceptions=True)

    async def _keep_subscribed(self, pubsub: PubSub) -> None:
        subscribed: set[SessionId] = set()
        while True:
            self._changed.clear()
            followed = set(self._followed)
            if new := followed - subscribed:
                await pubsub.subscribe(*map(session_topic, new))
            if old := subscribed - followed:
                await pubsub.unsubscribe(*map(session_topic, old))
            subscribed = followed
            await self._changed.wait()

    def _heard(self, message: dict[str, Any]) -> None:
        session = session_of_topic(message["channel"])
        # What was committed before the subscription rang nobody.
        begins = message["type"] == "subscribe"
        if session in self._followed and (begins or message["type"] == "message"):
            self._followed[session].ring()
            if begins or message["data"] == ENDED:
                self._some_ended.set()

    async def _in_thread(self, read: Callable[..., Value], *arguments: object) -> Value:
        return await self._loop.run_in_executor(self._readers, read, *arguments)
