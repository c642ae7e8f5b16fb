"""The way to Postgres: statements built with SQLAlchemy Core, sent by psycopg in pipelines, on pooled connections.

A pipeline carries several statements in one round trip, and each still sees what was committed before it began; this
makes "lock, then read under the lock" one round trip (READ COMMITTED, separate statements). A transaction costs one
round trip for BEGIN and the first statements, one for each further group, and one for COMMIT.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg import RawCursor
from psycopg.abc import PQGen
from psycopg.generators import send
from psycopg.rows import dict_row
from sqlalchemy import ClauseElement, Engine, create_engine
from sqlalchemy import exc as sqlalchemy_errors
from sqlalchemy import text as sqlalchemy_text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.pool import Pool, PoolProxiedConnection
from sqlalchemy.sql.compiler import SQLCompiler

from brainhands.shared.errors import ServerUnavailable, StaleWrite
from brainhands.shared.runtime.faults import told
from brainhands.shared.runtime.logs import EventLogger, logger
from brainhands.shared.runtime.outage import Outage
from brainhands.shared.store import connections

Row: TypeAlias = dict[str, Any]
Connection: TypeAlias = psycopg.Connection[Any]

_DIALECT = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
_NUMBER = re.compile(r"\$(\d+)")
_PLACEHOLDER = re.compile(r"\$(\d+)(::[A-Z]+(?: WITH TIME ZONE)?(?:\[\])?)?")

TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.InFailedSqlTransaction,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.TransactionTimeout,
    sqlalchemy_errors.OperationalError,
    sqlalchemy_errors.InterfaceError,
    sqlalchemy_errors.TimeoutError,
)
"""Errors after which the whole unit may be tried again with fresh reads: lost connections, lock and statement timeouts,
deadlocks, serialisation failures, shutdowns (psycopg derives all of these from OperationalError), a transaction that
was ended while this process stood still, and a server that is a standby for the moment."""


SERVER_LEAVES = (
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.CannotConnectNow,
)
"""Errors that are the server's and not the connection's: it is a standby, or ends (SQLSTATE 25006, 57P01 to 57P03)."""


class Statement:
    """A named SQL statement, compiled once; call it with its parameters to get something that can be run."""

    def __init__(self, construct: ClauseElement) -> None:
        self._construct = construct

    @cached_property
    def sql(self) -> Sql:
        return _compile(self._construct)

    def __call__(self, **parameters: object) -> Call:
        return Call(self, parameters)


@dataclass(frozen=True, slots=True)
class Sql:
    """Statement text with $1, $2 ... and the names of the parameters in that order."""

    text: str
    names: tuple[str, ...]


def _compile(construct: ClauseElement) -> Sql:
    """Values written into a statement stay in its text, so that plans can rely on them (partial indexes)."""
    compiled = construct.compile(dialect=_DIALECT)
    assert isinstance(compiled, SQLCompiler)
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = (compiled.positiontup or [])[int(match[1]) - 1]
        bind = compiled.binds[name]
        if not bind.required:
            return "NULL" if bind.value is None else compiled.render_literal_value(bind.value, bind.type)
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}{match[2] or ''}"

    return Sql(_PLACEHOLDER.sub(place, str(compiled)), tuple(names))


TOGETHER = 16
"""Writes in one statement at the most, to bound what the server must plan at once."""


class Call:
    """A statement with its parameters; `rows` is how many rows it must touch, None where any number is right."""

    __slots__ = ("parameters", "rows", "statement")

    def __init__(self, statement: Statement, parameters: Mapping[str, object], rows: int | None = None) -> None:
        self.statement = statement
        self.parameters = parameters
        self.rows = rows

    @property
    def sql(self) -> Sql:
        return self.statement.sql

    def must_touch(self, rows: int) -> Call:
        return Call(self.statement, self.parameters, rows)


class Result:
    """What one statement gave: its rows (empty for a plain write) and how many it touched."""

    __slots__ = ("count", "rows")

    def __init__(self, rows: list[Row], count: int) -> None:
        self.rows = rows
        self.count = count

    @property
    def first(self) -> Row | None:
        return self.rows[0] if self.rows else None


class Pipeline(psycopg.Pipeline):
    """A pipeline that ends with its Sync.

    Psycopg's own sends a Flush after it, which the server takes for the start of the next command: it stops the timer
    of idle_in_transaction_session_timeout, so that a process frozen there would hold its locks for ever. What has no
    room in the socket at once is sent here, before the answers to it are waited for.
    """

    def _exit_gen(self) -> PQGen[None]:
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        finally:
            yield from send(self.pgconn)
            yield from self._fetch_gen(flush=False)


def run(connection: Connection, *calls: Call | Writes, begin: bool = False) -> list[Result]:
    """Send all calls in one round trip and return their results in order."""
    try:
        if len(calls) == 1 and not begin:
            return [_result(_execute(connection, calls[0]))]
        if connection._pipeline is None:
            connection._pipeline = Pipeline(connection)
        with connection.pipeline():
            if begin:
                connection.execute("BEGIN")
            cursors = [_execute(connection, call) for call in calls]
    except psycopg.DatabaseError as error:
        # What follows a failed statement in its pipeline is skipped, its preparation too, which psycopg takes for done.
        connection._prepared.clear()
        # A connection that is lost while results are read has no SQLSTATE, from which psycopg could tell the class.
        if connection.broken and not isinstance(error, psycopg.OperationalError):
            raise psycopg.OperationalError(str(error)) from error
        raise
    return [_result(cursor) for cursor in cursors]


def _result(cursor: RawCursor[Row]) -> Result:
    gave_rows = cursor.pgresult is not None and cursor.pgresult.nfields > 0
    return Result(cursor.fetchall() if gave_rows else [], cursor.rowcount)


def _execute(connection: Connection, call: Call | Writes) -> RawCursor[Row]:
    sql, parameters = call.sql, call.parameters
    cursor = RawCursor(connection, row_factory=dict_row)
    return cursor.execute(sql.text.encode(), [parameters[name] for name in sql.names])


COMMIT = Statement(sqlalchemy_text("COMMIT"))


class Transaction:
    """An open READ COMMITTED transaction; BEGIN travels with the first statements."""

    def __init__(self, connection: Connection, *, begun: bool = False) -> None:
        self._connection = connection
        self._begun = begun
        self.ended = False

    def run(self, *calls: Call | Writes) -> list[Result]:
        begin, self._begun = not self._begun, True
        return run(self._connection, *calls, begin=begin)

    def write(self, *groups: Sequence[Call], commit: bool = False) -> None:
        """Send groups of writes, one after the other, in one round trip, with COMMIT if asked for.

        The writes of a group must not touch one row twice. Raises StaleWrite where one touches another number of rows
        than it must; nothing after it is carried out, and nothing committed.
        """
        calls = [call for group in groups for call in _together(group)]
        try:
            self.run(*calls, *([COMMIT()] if commit else []))
        except psycopg.errors.DivisionByZero:
            raise StaleWrite("a row was changed by somebody else") from None
        self.ended = commit


def _together(calls: Sequence[Call]) -> list[Writes]:
    return [Writes(calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]


class Writes:
    """Several writes as one statement, since each statement costs more than what it writes.

    Each call becomes a WITH query, its parameters numbered on. A count that is wrong divides by zero, which aborts the
    transaction before the COMMIT that may follow in the same pipeline.
    """

    __slots__ = ("parameters", "sql")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.sql = _combine(tuple((call.statement, call.rows) for call in calls))
        self.parameters = {
            f"{place}.{name}": value for place, call in enumerate(calls) for name, value in call.parameters.items()
        }


@lru_cache(maxsize=1024)
def _combine(shape: tuple[tuple[Statement, int | None], ...]) -> Sql:
    queries: list[str] = []
    checks: list[str] = []
    names: list[str] = []
    for place, (statement, rows) in enumerate(shape):
        before = len(names)
        text = _NUMBER.sub(lambda match, before=before: f"${int(match[1]) + before}", statement.sql.text)  # type: ignore[misc]
        names += [f"{place}.{name}" for name in statement.sql.names]
        queries.append(f"w{place} AS ({text})" if rows is None else f"w{place} AS ({text} RETURNING 1)")
        if rows is not None:
            checks.append(f"(SELECT count(*) FROM w{place}) = {rows}")
    check = f" / (CASE WHEN {' AND '.join(checks)} THEN 1 ELSE 0 END)" if checks else ""
    return Sql(f"WITH {', '.join(queries)} SELECT 1{check} AS written", tuple(names))


class Database:
    """A pool of autocommit connections, made anew in each process that uses it.

    `step_seconds` bounds every statement, every wait for a lock and every idle transaction: it is kept well below a
    lease, so that a process frozen inside a commit frees its rows before others give up. With `generic_plans` a
    statement that is used often is planned once: for statements that take longer to plan than to carry out. With
    `patience` all that `run` does is tried again over lost connections for so many seconds: for those who only read.
    """

    def __init__(
        self,
        url: str,
        *,
        size: int = 4,
        step_seconds: float = 5.0,
        durable: bool = True,
        generic_plans: bool = False,
        patience: float = 0.0,
    ) -> None:
        self.url = url
        self._size = size
        self._step_seconds = step_seconds
        self._durable = durable
        self._generic_plans = generic_plans
        self._patience = patience
        self._outage = outage_of(url)
        self._engine: tuple[int, Engine] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of the pool; a broken one is not put back.

        One whose server takes no writes, or is about to end, answers and is of no use: the address may lead to another
        server by now. It is closed with all others of the pool, so that the next ones are made anew.
        """
        engine = self._pool()
        pool = engine.pool
        try:
            proxied = engine.raw_connection()
        except TRANSIENT as error:
            if not isinstance(error, sqlalchemy_errors.TimeoutError):
                self._outage.began(error)
            raise unavailable(error) from error
        connection = _driver(proxied)
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, SERVER_LEAVES) or connection.closed:
                self._outage.began(error)
                _renew(engine, pool)
            raise
        else:
            if not _takes_no_writes(connection):
                self._outage.over()
        finally:
            if _takes_no_writes(connection):
                _renew(engine, pool)
            if engine.pool is not pool or _is_unfit(connection):
                proxied.invalidate()
            proxied.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        with self.connection() as connection:
            transaction = Transaction(connection)
            try:
                yield transaction
            except BaseException:
                if not transaction.ended and not connection.closed and not connection.broken:
                    connection.execute("ROLLBACK")
                raise
            if not transaction.ended:
                connection.execute("COMMIT")

    def run(self, *calls: Call) -> list[Result]:
        """Send the calls in one round trip outside any transaction block; several are one implicit transaction."""
        return self.run_patiently(*calls, seconds=self._patience)

    def run_patiently(self, *calls: Call, seconds: float = 10.0) -> list[Result]:
        """As run, tried again over lost connections for so long; only for calls that may be applied twice."""
        pause = Pause(seconds)
        while True:
            try:
                with self.connection() as connection:
                    return run(connection, *calls)
            except (*TRANSIENT, ServerUnavailable) as error:
                if pause.again():
                    continue
                if self._patience and not isinstance(error, ServerUnavailable):
                    raise unavailable(error) from error
                raise

    def close(self) -> None:
        if self._engine is not None and self._engine[0] == os.getpid():
            self._engine[1].dispose()
        self._engine = None

    def _pool(self) -> Engine:
        with self._lock:
            if self._engine is None or self._engine[0] != os.getpid():
                self._engine = (os.getpid(), self._connect())
            return self._engine[1]

    def _connect(self) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=self._open,
            isolation_level="AUTOCOMMIT",
            pool_size=self._size,
            max_overflow=self._size,
            pool_timeout=self._step_seconds,
        )

    def _open(self) -> Connection:
        milliseconds = int(self._step_seconds * 1000)
        settings = {
            # Less than the whole, so that a wait for a lock ends as one, and not as a statement that took too long.
            "lock_timeout": milliseconds * 9 // 10,
            "statement_timeout": milliseconds,
            "idle_in_transaction_session_timeout": milliseconds,
            "synchronous_commit": "on" if self._durable else "off",
            # A statement here takes less time than its compilation would.
            "jit": "off",
            "plan_cache_mode": "force_generic_plan" if self._generic_plans else "auto",
        }
        return connections.connect(self.url, settings, tcp_user_timeout=max(1000, milliseconds * 2))


@lru_cache(maxsize=64)
def outage_of(url: str) -> Outage:
    """One for all pools of this process that lead to one server."""
    return Outage(logger("store"), "postgres", url)


def log_interruption(log: EventLogger, event: str, error: BaseException) -> None:
    """Say that an error of TRANSIENT cost some work, unless Postgres is away, of which the log has a line already."""
    if not isinstance(error, (ServerUnavailable, *SERVER_LEAVES)) and getattr(error, "sqlstate", None):
        log.warning(event, error=type(error).__name__)


class Pause:
    """Waits between tries, growing with jitter, until its time is used up."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._next = 0.05

    def again(self) -> bool:
        """Wait before the next try; False when there is no time left for one."""
        pause = self._next * random.uniform(0.5, 1.0)
        if time.monotonic() + pause >= self._end:
            return False
        time.sleep(pause)
        self._next = min(self._next * 2, 1.0)
        return True


def _driver(proxied: PoolProxiedConnection) -> Connection:
    connection = proxied.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection


def _takes_no_writes(connection: Connection) -> bool:
    """Whether the server says of itself that it only reads; it tells of a change with its next answer."""
    if connection.closed:
        return False
    return "on" in map(connection.info.parameter_status, ("default_transaction_read_only", "in_hot_standby"))


def _renew(engine: Engine, pool: Pool) -> None:
    """Let go of all connections of a pool, if nobody has done so yet; those in use are closed when they come back."""
    if engine.pool is pool:
        engine.dispose()


def _is_unfit(connection: Connection) -> bool:
    idle = psycopg.pq.TransactionStatus.IDLE
    return connection.closed or connection.broken or connection.info.transaction_status != idle


def unavailable(error: BaseException) -> ServerUnavailable:
    """That Postgres does not answer, in words of ours."""
    problem = told(error).removeprefix("OperationalError: ")
    return ServerUnavailable("Postgres", problem, "check DATABASE_URL and that the server runs")
