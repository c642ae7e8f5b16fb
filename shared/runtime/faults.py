"""What may be said of an error in logs and events: what kind it is, and never what it quotes of somebody's content."""

from __future__ import annotations

import psycopg
import pydantic
import sqlalchemy.exc

from brainhands.shared.model import edge

QUOTES_CONTENT = ("22", "23", "P0")
"""Classes of SQLSTATE whose messages quote values: bad data, broken constraints, errors that functions raise."""


def told(error: BaseException) -> str:
    """The error in one line. Of Postgres' errors DETAIL, HINT and CONTEXT are left out, since they quote rows."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return told(error.orig)
    name = type(error).__name__
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        kind = ", ".join(filter(None, (error.sqlstate, error.diag.table_name, error.diag.constraint_name)))
        if error.sqlstate.startswith(QUOTES_CONTENT):
            return f"{name} ({kind})"
        return f"{name} ({kind}): {error.diag.message_primary or ''}".rstrip(": ")
    if isinstance(error, pydantic.ValidationError):
        return f"{name}: {error.error_count()} in {error.title}"
    return " ".join(edge.told(error).split()).removesuffix(":")
