"""Any number of observers of one process: how they hear, what they cost, and the door for programs on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from sqlalchemy.ext.asyncio import create_async_engine

from brainhands import AsyncClient, Client
from brainhands.shared.errors import ClientClosed, UnfitConnection, UnknownSession, WaitTimeout
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import SessionId
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import reads
from tests.instruments.fleet import wait_until
from tests.instruments.proxy import Proxy
from tests.store.stage import AGENT, NO_REDIS, Stage, finish

MANY = 1_000
FEW = 50


@pytest.fixture
def client(shared_stage: Stage, redis_url: str) -> Iterator[Client]:
    with Client(shared_stage.database_url, redis_url) as made:
        yield made


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the events after a seq were read."""
    counted: Counter[int] = Counter()
    read = reads.event_page

    def count(database: Any, parts: Any, after: int, most: int = 500) -> list[Event]:
        counted[after] += 1
        return read(database, parts, after, most)

    monkeypatch.setattr(reads, "event_page", count)
    return counted


@pytest.fixture
def proxy(shared_stage: Stage) -> Iterator[Proxy]:
    with proxy_to(shared_stage.database_url) as made:
        yield made


def proxy_to(url: str) -> Proxy:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return Proxy(address.hostname, address.port)


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")


def subscribers(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as looking:
        clients: Any = looking.client_list()
        return sum(int(each["sub"]) > 0 for each in clients)


def channels(redis_url: str) -> int:
    with redis.Redis.from_url(redis_url) as looking:
        found: Any = looking.pubsub_channels("brainhands:session:*")
        return len(found)


def runs(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 50))


# -- what observers cost ---------------------------------------------------------------------------------------------


@pytest.mark.promise("I5")
def test_a_thousand_watchers_of_a_session_cost_one_read_a_commit_one_connection_and_no_thread_each(
    shared_stage: Stage, redis_url: str, pages: Counter[int]
) -> None:
    receipt = shared_stage.submit()
    begun = len(shared_stage.client.events(receipt.session_id))
    before = subscribers(redis_url)
    threads = threading.active_count()
    pages.clear()

    async def observe() -> None:
        async with AsyncClient(shared_stage.database_url, redis_url) as client:
            seen: list[list[int]] = [[] for _ in range(MANY)]

            async def watch(place: int) -> None:
                async for event in client.watch(receipt.session_id):
                    seen[place].append(event.seq)
                    if event.type == "submission_done":
                        return

            watchers = [asyncio.create_task(watch(place)) for place in range(MANY)]
            await until(lambda: all(len(each) == begun for each in seen) and channels(redis_url) > 0)
            assert subscribers(redis_url) == before + 1
            assert threading.active_count() < threads + 20
            pages.clear()
            await client.signal(receipt.session_id, "news")
            await until(lambda: all(len(each) == begun + 1 for each in seen))
            await client.cancel(session=receipt.session_id)
            await asyncio.gather(*watchers)
            last = len(await client.events(receipt.session_id))
        assert seen == [list(range(1, seen[0][-1] + 1))] * MANY
        assert seen[0][-1] <= last
        # Behind the bell's ring each look of half a second may read once more, and finds nothing.
        assert pages[begun] <= 4

    runs(observe)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # of other tasks, whose rows and lists it looks at
        await asyncio.sleep(0.01)


@pytest.mark.promise("A5")
def test_a_thousand_waits_hold_one_connection_and_no_thread_each(shared_stage: Stage, redis_url: str) -> None:
    receipts = [shared_stage.submit(str(place)) for place in range(FEW)]
    before, threads = subscribers(redis_url), threading.active_count()

    async def observe() -> None:
        async with AsyncClient(shared_stage.database_url, redis_url) as client:
            waits = [asyncio.create_task(client.wait(receipts[place % FEW].submission_id)) for place in range(MANY)]
            await until(lambda: channels(redis_url) >= FEW)
            assert subscribers(redis_url) == before + 1
            assert threading.active_count() < threads + 20
            for receipt in receipts:
                await client.cancel(session=receipt.session_id)
            done = await asyncio.gather(*waits)
        assert {each.status for each in done} == {"done"}
        assert len({each.id for each in done}) == FEW

    runs(observe)


def test_a_session_that_nobody_watches_any_more_is_let_go_of(client: Client, redis_url: str) -> None:
    receipt = client.submit(agent=AGENT, input="hello")
    before = channels(redis_url)
    next(client.watch(receipt.session_id))
    wait_until(lambda: channels(redis_url) == before + 1, 20, "the subscription")

    wait_until(lambda: channels(redis_url) == before, 20, "its end")


# -- what observers hear ---------------------------------------------------------------------------------------------


@pytest.mark.promise("I5")
@pytest.mark.parametrize("server", ["redis", "postgres"])
def test_watch_and_wait_go_on_over_a_server_that_was_away(
    shared_stage: Stage, redis_url: str, server: str, proxy: Proxy
) -> None:
    database_url = shared_stage.database_url
    with proxy_to(redis_url) as to_redis, ThreadPoolExecutor() as threads:
        addresses = through(proxy, database_url), through(to_redis, redis_url)
        away = to_redis if server == "redis" else proxy
        with Client(*addresses) as client, Client(database_url, redis_url) as other:
            receipt = other.submit(agent=AGENT, input="hello")
            watching = client.watch(receipt.session_id)
            begun = [next(watching) for _ in client.events(receipt.session_id)]
            waiting = threads.submit(client.wait, receipt.submission_id)
            follows = threads.submit(lambda: list(islice(watching, 3)))

            away.refuse()
            away.cut()
            other.cancel(session=receipt.session_id)
            away.accept()

            assert waiting.result(30).status == "done"
            news = follows.result(30)
    assert [each.seq for each in (*begun, *news)] == list(range(1, len(begun) + 4))


@pytest.mark.promise("I5")
def test_without_bells_and_with_them_each_watcher_gets_each_event_once_at_its_own_pace(
    shared_stage: Stage, redis_url: str
) -> None:
    session, _ = shared_stage.session()
    slow, quick = [Client(shared_stage.database_url, url) for url in (redis_url, NO_REDIS)]
    with slow, quick, ThreadPoolExecutor() as threads:
        signals = 30

        def follow(client: Client, begins: threading.Event) -> list[str]:
            names = []
            for event in client.watch(session):
                begins.wait(20)
                if event.type == "signal_received":
                    names.append(json.loads(event.payload_text)["name"])
                    if len(names) == signals:
                        break
            return names

        sent, now = threading.Event(), threading.Event()
        now.set()
        followers = [
            threads.submit(follow, client, begins) for client, begins in ((slow, sent), (quick, now), (slow, now))
        ]
        for place in range(signals):
            slow.signal(session, f"news {place}")
        sent.set()

        expected = [f"news {place}" for place in range(signals)]
        assert [each.result(30) for each in followers] == [expected] * 3


@pytest.mark.promise("I5")
def test_who_begins_to_watch_after_a_redaction_sees_nothing_of_it(client: Client, shared_stage: Stage) -> None:
    receipt = client.submit(agent=AGENT, input="a secret of mine")
    shared_stage.advance(shared_stage.open_generation(receipt.session_id), finish("done"))
    watching = client.watch(receipt.session_id)
    texts = [str(next(watching).payload_text) for _ in client.events(receipt.session_id)]
    assert any("a secret of mine" in text for text in texts)

    said = next(seq for seq, text in enumerate(texts, 1) if "a secret of mine" in text)
    client.redact(receipt.session_id, [said], reason="a secret")
    next(watching)

    anew = [str(event.payload_text) for event in islice(client.watch(receipt.session_id), len(texts) + 1)]
    assert not any("a secret of mine" in text for text in anew)


@pytest.mark.promise("A5")
def test_a_process_that_was_forked_listens_for_itself(client: Client) -> None:
    receipt = client.submit(agent=AGENT, input="hello")
    first = next(client.watch(receipt.session_id))
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(next(client.watch(receipt.session_id)).seq).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)

    assert os.read(read, 10) == str(first.seq).encode()
    os.close(read)


def test_a_client_that_is_closed_ends_what_observes_with_it_and_can_be_used_again(
    shared_stage: Stage, redis_url: str
) -> None:
    client = Client(shared_stage.database_url, redis_url)
    receipt = client.submit(agent=AGENT, input="hello")
    watching = client.watch(receipt.session_id)
    for _ in client.events(receipt.session_id):
        next(watching)
    with ThreadPoolExecutor() as threads:
        ends: list[Future[Any]] = [threads.submit(client.wait, receipt.submission_id), threads.submit(next, watching)]
        wait_until(lambda: observers(client) == 2, 20, "both observe")

        client.close()

        for each in ends:
            with pytest.raises(ClientClosed):
                each.result(20)
    with client:
        assert next(client.watch(receipt.session_id)).seq == 1


def observers(client: Client) -> int:
    """Of the one session that is followed."""
    life = client._hub._life
    return 0 if life is None else sum(each.observers for each in life[1]._followed.values())


def test_a_wait_in_vain_leaves_nothing_behind(client: Client) -> None:
    receipt = client.submit(agent=AGENT, input="hello")

    for timeout in (0, 0.05):
        with pytest.raises(WaitTimeout, match="is still"):
            client.wait(receipt.submission_id, timeout)

    wait_until(lambda: observers(client) == 0, 20, "nobody observes")


# -- one pool for many tenants -----------------------------------------------------------------------------------------


def test_clients_for_tenants_share_connections_and_nothing_else(client: Client) -> None:
    own = client.submit(agent=AGENT, input="hello", request_id="tenants-1")
    tenants = [client.for_tenant(f"tenant {place}") for place in range(FEW)]

    receipts = [each.submit(agent=AGENT, input="hello", request_id="tenants-1") for each in tenants]

    assert len({own.session_id, *(each.session_id for each in receipts)}) == FEW + 1
    assert [each.tenant for each in tenants] == [f"tenant {place}" for place in range(FEW)]
    assert {id(each._database) for each in tenants} == {id(client._database)}
    for tenant, receipt in zip(tenants, receipts, strict=True):
        assert tenant.session(receipt.session_id).session.tenant == tenant.tenant
        with pytest.raises(UnknownSession):
            tenant.session(own.session_id)
        with pytest.raises(UnknownSession):
            next(tenant.watch(own.session_id))


# -- the door for asyncio ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def async_client(stage: Stage) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stage.database_url, NO_REDIS) as client:
        yield client


def test_the_async_client_has_each_method_of_the_client_with_its_parameters() -> None:
    def parameters(method: Callable[..., Any]) -> list[str]:
        return list(inspect.signature(method).parameters)

    methods = {name: each for name, each in inspect.getmembers(Client, inspect.isfunction) if name[0] != "_"}

    for name, method in methods.items():
        assert parameters(getattr(AsyncClient, name)) == [
            each for each in parameters(method) if each != "on_silence"
        ], name


def accepted(stage: Stage, request_id: str) -> bool:
    return bool(stage.sql("SELECT FROM brainhands.submissions WHERE request_id = %s", request_id))


@pytest.mark.promise("A7")
@pytest.mark.parametrize("commits", [True, False])
def test_an_async_submission_within_a_callers_transaction_lives_or_dies_with_it(
    shared_stage: Stage, commits: bool
) -> None:
    """Statements that the caller's connection has prepared, and what it is told by the server, stay its own."""
    request_id = f"async-{commits}"
    notices: list[str] = []

    async def order() -> None:
        async with async_client(shared_stage) as client:
            connection = await psycopg.AsyncConnection.connect(libpq_url(shared_stage.database_url))
            connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
            async with connection:
                for number in range(3):
                    await connection.execute("SELECT %s::int", [number], prepare=True)
                for _ in range(7):  # more than what psycopg prepares a statement after
                    await client.submit(agent=AGENT, input="hello", request_id=request_id, connection=connection)
                await connection.execute("SELECT %s::int", [7], prepare=True)
                await connection.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
                if not commits:
                    await connection.rollback()

    runs(order)

    assert accepted(shared_stage, request_id) == commits
    assert notices == ["heard"]


@pytest.mark.promise("A7")
def test_an_async_connection_of_sqlalchemy_is_taken_too(shared_stage: Stage) -> None:
    async def order() -> None:
        url = libpq_url(shared_stage.database_url).replace("postgresql://", "postgresql+psycopg://")
        engine = create_async_engine(url)
        async with async_client(shared_stage) as client:
            async with engine.begin() as connection:
                await client.submit(agent=AGENT, input="hello", request_id="alchemy-1", connection=connection)
            async with engine.connect() as connection:
                await client.submit(agent=AGENT, input="hello", request_id="alchemy-2", connection=connection)
                await connection.rollback()
            with pytest.raises(UnfitConnection, match="closed"):
                await client.submit(agent=AGENT, input="hello", connection=connection)
        await engine.dispose()

    runs(order)

    assert (accepted(shared_stage, "alchemy-1"), accepted(shared_stage, "alchemy-2")) == (True, False)


@pytest.mark.promise("A7")
def test_an_async_connection_that_could_not_carry_a_submission_is_refused(shared_stage: Stage) -> None:
    async def order() -> None:
        async with async_client(shared_stage) as client:
            address = libpq_url(shared_stage.database_url)
            async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                with pytest.raises(UnfitConnection, match="autocommit"):
                    await client.submit(agent=AGENT, input="hello", connection=connection)
            with pytest.raises(UnfitConnection, match="closed"):
                await client.submit(agent=AGENT, input="hello", connection=connection)
            with pytest.raises(UnfitConnection, match="no psycopg AsyncConnection"):
                await client.submit(agent=AGENT, input="hello", connection=object())  # type: ignore[arg-type]

    runs(order)


def test_who_is_cancelled_within_a_call_goes_when_the_call_has_ended(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leaves = threading.Event(), threading.Event()

    def read(*_arguments: object) -> None:
        entered.set()
        leaves.wait(20)

    monkeypatch.setattr(reads, "submission", read)

    async def call() -> None:
        async with async_client(shared_stage) as client:
            session: SessionId = shared_stage.session()[0]
            asking = asyncio.create_task(client.submission(session))
            await asyncio.to_thread(entered.wait, 20)
            asking.cancel()
            await asyncio.sleep(0)
            assert not asking.done()
            leaves.set()
            with pytest.raises(asyncio.CancelledError):
                await asking

    runs(call)


def test_an_async_wait_ends_in_time_and_a_closed_client_ends_what_observes_with_it(shared_stage: Stage) -> None:
    receipt = shared_stage.submit()

    async def observe() -> None:
        async with async_client(shared_stage) as client:
            with pytest.raises(WaitTimeout, match="is still"):
                await client.wait(receipt.submission_id, timeout=0.05)
            other = client.for_tenant("other")
            with pytest.raises(UnknownSession):
                await anext(other.watch(receipt.session_id))
            waiting = asyncio.create_task(client.wait(receipt.submission_id))
            await until(lambda: observers(client._client) == 1)
        with pytest.raises(ClientClosed):
            await waiting

    runs(observe)
