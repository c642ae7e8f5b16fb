"""A failover as connections see it: those that are open can only read from now on, and a new one may write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from brainhands.shared.local.servers import Postgres
from brainhands.shared.store.database import Connection


@contextmanager
def failed_over(postgres: Postgres, database_url: str) -> Iterator[None]:
    """Connections that are open only read from now on and stay open, as at a fenced primary; new ones may write."""
    name = sql.Identifier(database_url.rpartition("/")[2])
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = off").format(name))
        try:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


def until_it_only_reads(connection: Connection) -> None:
    while connection.execute("SHOW default_transaction_read_only").fetchone() != ("on",):
        pass
