"""Where texts still stand in a session and in its forks: every column that can hold content, page by page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, Text, bindparam, select, tuple_
from sqlalchemy import cast as sql_cast

from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.redaction import Place
from brainhands.shared.store.database import TRANSIENT, Database, Row, Statement
from brainhands.shared.store.tables import approvals, attempts, documents, events, sessions, signals, submissions, tasks

PAGE = 100
MOST_SESSIONS = 100
MOST_PLACES = 200
SEARCH_SECONDS = 10.0


def find(database: Database, session_id: SessionId, texts: Iterable[str]) -> tuple[tuple[Place, ...], bool]:
    """Where these texts stand, and whether all was looked through: it takes no more than about SEARCH_SECONDS."""
    forms = {form for text in texts for form in _stored_forms(text)}
    end = time.monotonic() + SEARCH_SECONDS
    found: list[Place] = []
    whole = True
    if forms:
        try:
            for place, text in _texts(database, session_id):
                if time.monotonic() > end or len(found) == MOST_PLACES:
                    raise _TooMuch
                if any(form in text for form in forms):
                    found.append(place)
        except (_TooMuch, *TRANSIENT, ServerUnavailable):
            # What was taken out is gone by now: a search that ends early is no error.
            whole = False
    return tuple(found), whole


class _TooMuch(Exception):
    """More than a search takes on."""


def _texts(database: Database, session_id: SessionId) -> Iterator[tuple[Place, str]]:
    """Every text of content in a session and its forks. Raises _TooMuch for the forks beyond MOST_SESSIONS."""
    (family,) = database.run(FAMILY(session_id=session_id))
    for row in family.rows[:MOST_SESSIONS]:
        for kind, statement in PAGES.items():
            for at, parts in _rows(database, statement, row["id"]):
                for name, text in parts.items():
                    yield Place(session_id=row["id"], kind=kind, id=at, part=name), text or ""
    if len(family.rows) > MOST_SESSIONS:
        raise _TooMuch


def _stored_forms(text: str) -> set[str]:
    """A text as it stands in a column of text, in JSON, and in JSON that is itself a text of JSON."""
    inner = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return inner | {json.dumps(each, ensure_ascii=False)[1:-1] for each in inner}


def _rows(database: Database, statement: Statement, session_id: SessionId) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a session: its name, and the texts of its columns."""
    after: dict[str, Any] = {name: first for name, first in FIRST.items() if name in statement.sql.names}
    while True:
        (page,) = database.run(statement(session_id=session_id, **after))
        for row in page.rows:
            yield "@".join(str(row[name]) for name in after), _without(row, after)
        if len(page.rows) < PAGE:
            return
        after = {name: page.rows[-1][name] for name in after}


def _without(row: Row, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


FIRST: dict[str, Any] = {
    "after_id": UUID(int=0),
    "after_seq": 0,
    "after_name": "",
    "after_version": 0,
    "after_fence": -1,
}
"""Less than any key."""


def _pages(table: Table, keys: list[str], parts: list[str], of_session: ColumnElement[bool] | None = None) -> Statement:
    """A page of a session's rows by their keys, each key under the name that it has as the end of the page before."""
    columns: list[Column[Any]] = [table.c[key] for key in keys]
    names = [f"after_{'id' if key == 'task_id' else key}" for key in keys]
    after = [bindparam(name, type_=column.type) for name, column in zip(names, columns, strict=True)]
    return Statement(
        select(
            *(column.label(name) for name, column in zip(names, columns, strict=True)),
            *(sql_cast(table.c[part], Text).label(part) for part in parts),
        )
        .where(
            table.c.session_id == bindparam("session_id") if of_session is None else of_session,
            tuple_(*columns) > tuple_(*after),
        )
        .order_by(*columns)
        .limit(PAGE)
    )


PAGES = {
    "event": _pages(events, ["seq"], ["payload"]),
    "document": _pages(documents, ["name", "version"], ["value", "delta"]),
    "task": _pages(tasks, ["id"], ["input", "checkpoint", "result", "error"]),
    "attempt": _pages(
        attempts,
        ["task_id", "fence"],
        ["progress", "late_result"],
        attempts.c.task_id.in_(select(tasks.c.id).where(tasks.c.session_id == bindparam("session_id"))),
    ),
    "submission": _pages(submissions, ["id"], ["request_id", "input", "output", "error"]),
    "question": _pages(
        approvals,
        ["id"],
        ["arguments", "about", "comment", "edited_arguments", "result", "operation_id", "answered_by"],
    ),
    "signal": _pages(signals, ["id"], ["payload", "key"]),
}
"""What can hold content, by the word for a row of it."""

_FAMILY = select(sessions.c.id).where(sessions.c.id == bindparam("session_id")).cte("family", recursive=True)
_FAMILY = _FAMILY.union(
    select(sessions.c.id).join(_FAMILY, sessions.c.forked_from == _FAMILY.c.id).where(sessions.c.erased_at.is_(None))
)
FAMILY = Statement(select(_FAMILY.c.id).limit(MOST_SESSIONS + 1))
