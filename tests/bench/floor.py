"""The floor under a turn's cost: the same four commits by bare psycopg and Redis lists, with nothing around them.

A turn is submit -> model (asks for one tool call) -> tool -> model (answers). Each arrow is a Redis message that the
writer pushes right after its commit, and an outbox row that the consumer's own transaction deletes; each step is one
statement in autocommit, guarded by the step it expects, so that a doubled message changes nothing. One process thinks,
one acts, and the caller's threads submit and wait, each for its own turn.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import quantiles
from threading import Barrier
from typing import LiteralString, cast

import psycopg
import redis

SILENT_SECONDS = 60
"""Nothing is waited for any longer, so that no worker outlives a caller that was killed."""
STOP = b"stop"

SCHEMA: LiteralString = """
drop schema if exists floor cascade;
create schema floor;
create table floor.session (
    id bigint primary key, step int not null, updated_at timestamptz not null default clock_timestamp());
create table floor.event (
    session bigint, seq int, type text not null, payload jsonb not null,
    at timestamptz not null default clock_timestamp(), primary key (session, seq));
create table floor.intent (session bigint primary key, arguments jsonb not null, executed int not null default 0);
create table floor.outbox (session bigint, step int, primary key (session, step));
"""

SUBMIT: LiteralString = """
with opened as (insert into floor.session (id, step) values (%(session)s, 1) returning id, step),
     hinted as (insert into floor.outbox select id, step from opened)
insert into floor.event (session, seq, type, payload)
select id, step, 'user_message', jsonb_build_object('text', %(text)s::text) from opened
"""

ADVANCE: LiteralString = """
with taken as (delete from floor.outbox where session = %(session)s and step = %(step)s),
     moved as (update floor.session set step = step + 1, updated_at = clock_timestamp()
               where id = %(session)s and step = %(step)s returning id, step)"""

ASK: LiteralString = f"""{ADVANCE},
     intended as (insert into floor.intent (session, arguments)
                  select id, jsonb_build_object('text', %(text)s::text) from moved),
     hinted as (insert into floor.outbox select id, step from moved)
insert into floor.event (session, seq, type, payload)
select id, step, 'model_output', jsonb_build_object('call', %(text)s::text) from moved
"""

ACT: LiteralString = f"""{ADVANCE},
     executed as (update floor.intent set executed = executed + 1
                  from moved where session = moved.id),
     hinted as (insert into floor.outbox select id, step from moved)
insert into floor.event (session, seq, type, payload)
select id, step, 'tool_result', jsonb_build_object('result', %(text)s::text) from moved
"""

ANSWER: LiteralString = f"""{ADVANCE}
insert into floor.event (session, seq, type, payload)
select id, step, 'answer', jsonb_build_object('text', %(text)s::text) from moved
"""

COUNTS: LiteralString = """
select (select count(*) from floor.session where step = 4),
       (select count(*) from floor.event),
       (select count(*) from (select from floor.event group by session having count(*) = 4) whole),
       (select count(*) from floor.intent where executed = 1),
       (select count(*) from floor.intent where executed <> 1),
       (select count(*) from floor.outbox)
"""


@dataclass(frozen=True, kw_only=True)
class FloorResult:
    p50_ms: float
    p95_ms: float
    turns_per_s: float


def run(database_url: str, redis_url: str, in_flight: int, turns: int, warm_up: int) -> FloorResult:
    """Make `turns` turns, `in_flight` at a time; raises RuntimeError if one of them was lost or doubled.

    Each thread makes `warm_up` turns before the clock starts: connections, prepared statements, plans.
    Uses the schema `floor` and Redis keys beginning with `floor:`, and removes both.
    """
    with _database(database_url) as database, _redis(redis_url) as broker:
        database.execute(SCHEMA)
        _forget(broker)
        try:
            with _workers(database_url, redis_url, broker):
                seconds, elapsed = _turns(database_url, redis_url, in_flight, turns, warm_up)
            _check(database, in_flight * warm_up + turns)
        finally:
            database.execute("drop schema floor cascade")
            _forget(broker)
    percentiles = quantiles(seconds, n=20, method="inclusive")
    return FloorResult(
        p50_ms=round(percentiles[9] * 1000, 3),
        p95_ms=round(percentiles[18] * 1000, 3),
        turns_per_s=round(turns / elapsed, 1),
    )


@contextmanager
def _workers(database_url: str, redis_url: str, broker: redis.Redis) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    roles = {"brain": _think, "hands": _act}
    workers = [
        spawn.Process(target=_work, args=(role, work, database_url, redis_url), daemon=True)
        for role, work in roles.items()
    ]
    for worker in workers:
        worker.start()
    try:
        yield
        for role in roles:
            broker.lpush(f"floor:{role}", STOP)
        for worker in workers:
            worker.join(SILENT_SECONDS)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


PhaseResult = Callable[[psycopg.Connection, int, int], str | None]


def _work(role: str, step_of: PhaseResult, database_url: str, redis_url: str) -> None:
    """Take messages until told to stop; a step names the list that hears of it, or nothing was moved."""
    with _database(database_url) as database, _redis(redis_url) as broker:
        while (message := _take(broker, f"floor:{role}")) != STOP:
            session, step = map(int, message.split())
            if heard := step_of(database, session, step):
                broker.lpush(heard, f"{session} {step + 1}")


def _think(database: psycopg.Connection, session: int, step: int) -> str | None:
    if step == 1:
        return "floor:hands" if _moved(database, ASK, session, step) else None
    return f"floor:done:{session}" if _moved(database, ANSWER, session, step) else None


def _act(database: psycopg.Connection, session: int, step: int) -> str | None:
    return "floor:brain" if _moved(database, ACT, session, step) else None


def _moved(database: psycopg.Connection, statement: LiteralString, session: int, step: int) -> bool:
    values = {"session": session, "step": step, "text": f"echo {session}"}
    return database.execute(statement, values, prepare=True).rowcount == 1


def _turns(database_url: str, redis_url: str, in_flight: int, turns: int, warm_up: int) -> tuple[list[float], float]:
    """Return the seconds that each turn took, and all of them; the clock starts when every thread is warm."""
    warm = in_flight * warm_up
    gate = Barrier(in_flight, timeout=SILENT_SECONDS)

    def line(first: int) -> tuple[list[float], float, float]:
        with _database(database_url) as database, _redis(redis_url) as broker:
            for session in range(warm)[first::in_flight]:
                _turn(database, broker, session)
            gate.wait()
            started = time.perf_counter()
            seconds = [_turn(database, broker, session) for session in range(warm, warm + turns)[first::in_flight]]
            return seconds, started, time.perf_counter()

    with ThreadPoolExecutor(in_flight) as threads:
        lines = list(threads.map(line, range(in_flight)))
    elapsed = max(ended for _, _, ended in lines) - min(started for _, started, _ in lines)
    return [turn for seconds, _, _ in lines for turn in seconds], elapsed


def _turn(database: psycopg.Connection, broker: redis.Redis, session: int) -> float:
    started = time.perf_counter()
    database.execute(SUBMIT, {"session": session, "text": f"echo {session}"}, prepare=True)
    broker.lpush("floor:brain", f"{session} 1")
    _take(broker, f"floor:done:{session}")
    return time.perf_counter() - started


def _take(broker: redis.Redis, key: str) -> bytes:
    taken = cast("tuple[bytes, bytes] | None", broker.brpop([key], timeout=SILENT_SECONDS))
    if taken is None:
        raise RuntimeError(f"nothing came to {key} within {SILENT_SECONDS} seconds")
    return taken[1]


def _check(database: psycopg.Connection, turns: int) -> None:
    counted = database.execute(COUNTS).fetchone()
    expected = (turns, 4 * turns, turns, turns, 0, 0)
    if counted != expected:
        raise RuntimeError(f"the floor lost or doubled something: {counted}, not {expected}")


def _database(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True, options="-c synchronous_commit=on")


def _redis(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=None)


def _forget(broker: redis.Redis) -> None:
    for key in broker.scan_iter("floor:*"):
        broker.delete(key)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.floor", description="Measure the floor once.")
    parser.add_argument("database_url")
    parser.add_argument("redis_url")
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=10)
    print(asdict(run(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
