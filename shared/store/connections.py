"""How each connection to Postgres begins: read by libpq, with what we count on pinned, whoever set up the database.

Roles, databases, PGOPTIONS and the other variables of libpq may set anything; what matters to us is set on the session
once it is there, and by nobody's leave. What cannot be set is looked at by `require_fit`, and refused by name.

Behind a pooler that gives each transaction another server (PgBouncer in transaction mode) nothing that is set on a
session holds, and it would change the sessions of others: it is told by the process that answers, which is another one
than greeted, and by two connections that share what was set on one of them. There nothing is pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict

from brainhands.shared.errors import UnfitDatabase
from brainhands.shared.runtime.address import postgres_address
from brainhands.shared.store.adaptation import ADAPTATION

OLDEST_POSTGRES = 14

PINNED = {
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO, MDY",
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "IntervalStyle": "postgres",
    "lock_timeout": "0",
    # All names of ours say their schema; no function or operator of others can take the place of a built-in one.
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "synchronous_commit": "on",
    "TimeZone": "UTC",
    "transaction_timeout": "0",
    "transform_null_equals": "off",
}
NEWER = {"transaction_timeout": 170000}
"""Settings that older servers do not have, with the first version that has them."""

DEFAULTS: dict[str, Any] = {
    "application_name": "brainhands",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""What holds where the address says nothing else."""

_PIN = b"""
SELECT pg_backend_pid() = $1 AS direct,
       (SELECT count(CASE WHEN pg_backend_pid() = $1 OR $2 THEN set_config(name, value, false) END)
          FROM unnest($3::text[], $4::text[]) AS pinned (name, value))
"""
_MARK = "brainhands.session"


def connect(address: str, settings: Mapping[str, str | int] | None = None, **defaults: Any) -> psycopg.Connection[Any]:
    """A connection in autocommit, with what is pinned and these settings of the session.

    Raises UnfitDatabase behind a pooler that does not keep a session.
    """
    given = DEFAULTS | defaults | conninfo_to_dict(postgres_address(address)) | {"client_encoding": "UTF8"}
    connection = psycopg.connect(autocommit=True, context=ADAPTATION, **given)
    try:
        pinned = {name: str(value) for name, value in {**PINNED, **(settings or {})}.items()}
        for name, version in NEWER.items():
            if connection.info.server_version < version:
                del pinned[name]
        if not _pin(connection, pinned, anyway=False):
            with psycopg.connect(autocommit=True, **given) as other:
                _require_own_session(connection, other)
            _pin(connection, pinned, anyway=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _pin(connection: psycopg.Connection[Any], pinned: Mapping[str, str], *, anyway: bool) -> bool:
    """Set all on the session if the server that greeted is the one that answers; whether it is."""
    values = [connection.info.backend_pid, anyway, list(pinned), list(pinned.values())]
    (direct, _) = psycopg.RawCursor(connection).execute(_PIN, values).fetchone() or (False, 0)
    return bool(direct)


def _require_own_session(connection: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
    """Raises UnfitDatabase if what is set on one connection is there on another one."""
    mark = uuid4().hex
    connection.execute("SELECT set_config(%s, %s, false)", [_MARK, mark])
    # More than once: where others are busy on the same pooler, the first answer may come from another server.
    for asked in (other, connection) * 5:
        found = asked.execute("SELECT current_setting(%s, true)", [_MARK]).fetchone()
        if (found == (mark,)) is (asked is other):
            raise UnfitDatabase(
                "a pooler that gives each transaction another session is in between (such as PgBouncer with"
                " pool_mode = transaction)",
                "connect to Postgres itself, or to a pool with pool_mode = session",
            )


ENCODING = "UTF8"
_FIT = """
SELECT current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS standby,
       current_setting('default_transaction_read_only') AS read_only,
       current_setting('session_replication_role') AS replication_role,
       current_user AS role, current_database() AS name
"""


def require_fit(connection: psycopg.Connection[Any]) -> None:
    """Raises UnfitDatabase for a database in which the store cannot work, however it is set up."""
    row = connection.execute(_FIT).fetchone()
    assert row is not None
    encoding, standby, read_only, replication_role, role, name = row
    if encoding != ENCODING:
        raise UnfitDatabase(
            f"database {name} has the encoding {encoding}, and any text must fit into it",
            f"make one with CREATE DATABASE ... ENCODING '{ENCODING}' TEMPLATE template0",
        )
    if standby:
        raise UnfitDatabase(
            f"the server of database {name} is a standby, which takes no writes",
            "name the primary, or all servers and ?target_session_attrs=read-write",
        )
    if read_only == "on":
        raise UnfitDatabase(
            f"default_transaction_read_only is on for {role} in database {name}",
            "somebody meant this (a full disk, maintenance): ask, then ALTER ROLE or ALTER DATABASE ... RESET it",
        )
    if replication_role != "origin":
        raise UnfitDatabase(
            f"session_replication_role is {replication_role} for {role} in database {name}, so nothing is checked",
            "ALTER ROLE or ALTER DATABASE ... RESET session_replication_role",
        )
