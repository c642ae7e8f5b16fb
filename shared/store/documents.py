"""Reading documents: of each, the last version stored whole at or before the one wanted, and the deltas from there on.

A version belongs to the commit whose last event has its `seq`. So what a session's documents were as of a seq is, of
each, the newest version whose seq is not greater. However long their history is, a read takes a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import (
    CTE,
    BindParameter,
    Column,
    FromClause,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    func,
    select,
    true,
)
from sqlalchemy import cast as sql_cast

from brainhands.shared.errors import Incompatible
from brainhands.shared.model.document import DocumentVersion, StoredDocument
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.json import duplicate
from brainhands.shared.rules.delta import difference, replay
from brainhands.shared.store.database import Call, Database, Row, Statement
from brainhands.shared.store.tables import documents, events

ALL = 2**31 - 1
"""As the greatest seq or version: no bound."""

PAGE = 500
"""Versions of a history that are read at a time."""

PATIENCE = 2.0
"""Seconds for which a read is tried again: the first connection may be one that died while nobody used it."""

_SESSION: BindParameter[Any] = bindparam("session_id")


def _one_name() -> FromClause:
    return select(sql_cast(bindparam("name"), Text).label("name")).subquery("names")


def _all_names() -> CTE:
    """The names of a session's documents, each found from the one before, past all its versions."""
    later = documents.alias("later")
    names = select(func.min(documents.c.name).label("name")).where(documents.c.session_id == _SESSION)
    found = names.cte("names", recursive=True)
    following = select(func.min(later.c.name)).where(later.c.session_id == _SESSION, later.c.name > found.c.name)
    return found.union_all(select(following.scalar_subquery()).where(found.c.name.is_not(None)))


def _chains(names: FromClause, bound: Column[Any]) -> Select[Any]:
    """The rows from which the newest version with `bound` not above its parameter is made, for each of the names."""
    each, whole = documents.alias("each"), documents.alias("whole")
    newest = (
        select(each.c.version)
        .where(each.c.session_id == _SESSION, each.c.name == names.c.name, each.c[bound.name] <= bindparam(bound.name))
        .order_by(each.c[bound.name].desc())
        .limit(1)
        .lateral("newest")
    )
    baseline = (
        select(whole.c.version)
        .where(
            whole.c.session_id == _SESSION,
            whole.c.name == names.c.name,
            whole.c.version <= newest.c.version,
            whole.c.delta.is_(None),
        )
        .order_by(whole.c.version.desc())
        .limit(1)
        .lateral("baseline")
    )
    # Ordered here, so that the planner looks the rows up for each name, whatever it takes their number to be.
    chain = (
        select(documents)
        .where(
            documents.c.session_id == _SESSION,
            documents.c.name == names.c.name,
            documents.c.version >= baseline.c.version,
            documents.c.version <= newest.c.version,
        )
        .order_by(documents.c.version)
        .lateral("chain")
    )
    joined = names.join(newest, true()).join(baseline, true()).join(chain, true())
    return select(chain).select_from(joined).order_by(chain.c.name, chain.c.version)


DOCUMENT = Statement(_chains(_one_name(), documents.c.version))
DOCUMENT_AS_OF = Statement(_chains(_one_name(), documents.c.seq))
SESSION_DOCUMENTS = Statement(_chains(_all_names(), documents.c.seq))
HISTORY = Statement(
    select(documents, events.c.at)
    .outerjoin(events, and_(events.c.session_id == documents.c.session_id, events.c.seq == documents.c.seq))
    .where(
        documents.c.session_id == _SESSION,
        documents.c.name == bindparam("name"),
        documents.c.version > bindparam("after"),
    )
    .order_by(documents.c.version)
    .limit(bindparam("most", type_=Integer))
)


def newest(session_id: SessionId, name: str) -> Call:
    """Asks for the newest version of a document, to be given to `read_one`."""
    return DOCUMENT(session_id=session_id, name=name, version=ALL)


def in_version(database: Database, session_id: SessionId, name: str, version: int) -> StoredDocument | None:
    """A document in this version; None if it has none of that number. Raises Incompatible as `as_of` does."""
    (result,) = database.run_patiently(DOCUMENT(session_id=session_id, name=name, version=version), seconds=PATIENCE)
    found = read_one(result.rows)
    return found if found is not None and found.version == version else None


def one_as_of(database: Database, session_id: SessionId, name: str, seq: int) -> StoredDocument | None:
    """A document's newest version at or before a seq; None if it had none. Raises Incompatible as `as_of` does."""
    (result,) = database.run_patiently(DOCUMENT_AS_OF(session_id=session_id, name=name, seq=seq), seconds=PATIENCE)
    return read_one(result.rows)


def as_of(database: Database, session_id: SessionId, seq: int) -> list[StoredDocument]:
    """Each document's newest version at or before a seq, by name: as the last commit left it that ended by then.

    Raises Incompatible for one that this code cannot put together.
    """
    (result,) = database.run_patiently(SESSION_DOCUMENTS(session_id=session_id, seq=min(seq, ALL)), seconds=PATIENCE)
    return read(result.rows)


def history(database: Database, session_id: SessionId, name: str) -> list[DocumentVersion]:
    """Every version of a document, oldest first, with its change to the one before (the first: to nothing).

    Raises Incompatible as `as_of` does.
    """
    versions: list[DocumentVersion] = []
    value = None
    while True:
        after = versions[-1].version if versions else 0
        (result,) = database.run_patiently(
            HISTORY(session_id=session_id, name=name, after=after, most=PAGE), seconds=PATIENCE
        )
        for row in result.rows:
            change = row["delta"]
            if change is None:
                change = difference(value, row["value"]) if versions else [[[], row["value"]]]
            value = _follow(row, value)
            told = {field: row[field] for field in ("name", "version", "kind", "schema_version", "seq", "at")}
            versions.append(DocumentVersion(**told, change=duplicate(change)))
        if len(result.rows) < PAGE:
            return versions


def read_one(rows: Sequence[Row]) -> StoredDocument | None:
    """The document that the rows of its chain make; None if there are none."""
    found = read(rows)
    return found[0] if found else None


def read(rows: Sequence[Row]) -> list[StoredDocument]:
    """The documents that the rows of their chains make. Raises Incompatible for a change of an unknown form."""
    return [_read_chain(chain) for _, chain in groupby(rows, key=lambda row: row["name"])]


def _read_chain(chain: Iterator[Row]) -> StoredDocument:
    value, deltas = None, -1
    for row in chain:
        value, deltas = _follow(row, value), deltas + 1
    return StoredDocument(**{**row, "value": value}, deltas=deltas)


def _follow(row: Row, value: Any) -> Any:
    """The value of a version, given that of the one before."""
    if row["delta"] is None:
        return row["value"]
    try:
        return replay(value, duplicate(row["delta"]))
    except (LookupError, TypeError, ValueError) as error:
        raise Incompatible(
            f"version {row['version']} of document {row['name']!r} is stored in a way that this code cannot read",
            "use code as new as that which wrote it",
        ) from error
