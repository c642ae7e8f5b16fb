"""What a migration does to a table while workers work on it, in small steps that may be cut off and made again.

Each step is a transaction of its own, so a revision that uses these has nothing else in it: what it did before it was
cut off is done again from the start.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import Connection, TextClause, text

from brainhands.shared.store.migrate import LOCK_SECONDS
from brainhands.shared.store.tables import SCHEMA

BATCH = 1_000
"""Rows of one update: held for some milliseconds, which is what a lease's renewal may have to wait."""


def create_index(name: str, table: str, columns: list[Any], **options: Any) -> None:
    """Build an index while the table is written to; what a try that was cut off has left is removed first."""
    with op.get_context().autocommit_block():
        # It waits for transactions that began before it, and nobody waits for it.
        op.execute("SET lock_timeout = 0")
        op.drop_index(name, table, schema=SCHEMA, if_exists=True, postgresql_concurrently=True)
        op.create_index(name, table, columns, schema=SCHEMA, postgresql_concurrently=True, **options)
        op.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")


def update(table: str, changes: str, *, where: str, key: str = "id") -> None:
    """Make `changes` (SQL behind SET) in all rows that are so, some at a time, in the order of a unique key.

    A change that is made twice must come to the same.
    """
    with op.get_context().autocommit_block():
        connection = op.get_bind()
        behind = f"WHERE {key} > CAST(:last AS {_type_of(connection, table, key)})"
        first, following = (_batch(table, changes, where, key, place) for place in ("", behind))
        last = connection.execute(first).scalar()
        while last is not None:
            last = connection.execute(following, {"last": last}).scalar()


def _batch(table: str, changes: str, where: str, key: str, place: str) -> TextClause:
    """Changes the next rows, and gives the key of the last one that was looked at."""
    return text(
        f"""
        WITH batch AS MATERIALIZED (SELECT {key} FROM {SCHEMA}.{table} {place} ORDER BY {key} LIMIT {BATCH}),
        changed AS (UPDATE {SCHEMA}.{table} t SET {changes} FROM batch WHERE t.{key} = batch.{key} AND ({where}))
        SELECT CAST({key} AS text) FROM batch ORDER BY {key} DESC LIMIT 1
        """
    )


def _type_of(connection: Connection, table: str, column: str) -> str:
    found = text(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = CAST(:table AS regclass)"
        " AND attname = :column"
    )
    return str(connection.execute(found, {"table": f"{SCHEMA}.{table}", "column": column}).scalar_one())
