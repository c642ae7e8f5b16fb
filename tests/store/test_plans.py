"""The statements of every turn, pass and sweep find their rows by an index, however much has ended before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import RawCursor
from psycopg.rows import scalar_row

from brainhands.shared.local.servers import Postgres
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import (
    attempts,
    commits,
    derived,
    documents,
    due,
    forks,
    health,
    hints,
    locked,
    past,
    places,
    questions,
    reads,
    redactions,
    slots,
    turns,
    waiting,
    wake,
    workers,
)
from brainhands.shared.store.database import Statement
from tests.conftest import migrated, new_database
from tests.store.filled import fill
from tests.store.stage import stage_of

LARGE = {"tasks", "events", "outbox", "inbox", "waits", "documents", "submissions", "attempts", "sessions"}
SOME = UUID(int=1)
VALUES: dict[str, object] = {
    **dict.fromkeys(("cutoff", "fence", "attempt_fence", "fence_before", "step", "phase_attempts"), 1),
    **dict.fromkeys(("log_format", "last_seq", "requires_version", "after", "before", "up_to"), 1),
    **dict.fromkeys(("version", "seq", "first", "reads", "claims"), 1),
    **dict.fromkeys(("tokens_in", "tokens_out", "cost", "used_tokens_in", "used_tokens_out", "used_cost"), 1),
    **dict.fromkeys(("last_hash", "digest"), b"0"),
    **dict.fromkeys(("progress", "shown", "reason", "status_before", "status", "phase", "error"), "text"),
    **dict.fromkeys(("tenant", "name", "pool", "outcome", "blocked", "text", "request_id"), "text"),
    **dict.fromkeys(("checkpoint", "result", "output"), "null"),
    **dict.fromkeys(("last_at", "phase_deadline", "lease_until", "deadline", "wake_at"), None),
    **dict.fromkeys(("answered_at", "use_by", "used_at", "at"), None),
    **dict.fromkeys(("answer", "answer_before", "answered_by", "comment", "about"), "text"),
    "edited_arguments": "null",
    "ids": [SOME, UUID(int=2)],
    "owners": [SOME],
    "taken": [SOME],
    "seqs": [1, 2],
    "round": 2000,
    "versions": [1],
    "pids": [1],
    "the_pid": 1,
    **dict.fromkeys(("since", "agent", "place_at"), None),
    "open": True,
    "concurrencies": [None],
    "fences": [1, 1],
    "types": ["user_message"],
    "names": ["play"],
    "lows": [1],
    "highs": [1],
    "formats": [1],
    **{name: ["text"] for name in ("hosts", "passed", "refused_by")},
    "most": 500,
    "room": 16,
    "lanes": [0, 1],
    "tenants": ["", ""],
    "of_tenants": ["default"],
    "sessions": [SOME],
    "since_batch": 3,
    "limited": ["play"],
    "limits": [3],
    "tenant_limit": 3,
    "seconds": 30.0,
    **dict.fromkeys(("ended", "cancel_wanted", "fail_fast", "holds_slots"), True),
}
"""A value for each parameter; ids are what is left."""

WHOLE = {"health.BLOCKED": {"outbox"}}
"""It reads hints where something is required that no live worker offers, and counts what that holds up."""

STATEMENTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": statement
    for module in (
        *(attempts, commits, derived, documents, due, forks, hints),
        *(past, places, questions, reads, redactions, slots, turns, locked, waiting, wake, workers),
    )
    for name, statement in vars(module).items()
    if isinstance(statement, Statement) and " VALUES (" not in statement.sql.text
} | {f"health.{name}": getattr(health, name) for name in ("BLOCKED", "FAILED_CALLS", "OFFERED", "PARTS")}


@pytest.fixture(scope="module")
def filled(postgres: Postgres) -> Iterator[RawCursor[Any]]:
    with new_database(postgres, template=migrated(postgres)) as url, stage_of(url) as stage:
        fill(stage)
        with psycopg.connect(libpq_url(url), autocommit=True) as connection:
            yield RawCursor(connection, row_factory=scalar_row)


def plan_for_values(cursor: RawCursor[Any], statement: Statement) -> dict[str, Any]:
    given = {name: VALUES.get(name, SOME) for name in statement.sql.names}
    call = statement(**{**given, **statement().parameters})
    text = f"EXPLAIN (FORMAT JSON) {call.sql.text}"
    found = cursor.execute(text.encode(), [call.parameters[name] for name in call.sql.names]).fetchall()
    return dict(found[0][0]["Plan"])


def plan_for_any_values(cursor: RawCursor[Any], statement: Statement) -> dict[str, Any]:
    """What a connection may come to use once it has prepared the statement."""
    cursor.execute("SET plan_cache_mode = force_generic_plan")
    cursor.execute(b"PREPARE hot AS " + statement.sql.text.encode())
    values = ", ".join("NULL" for _ in statement.sql.names)
    found = cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE hot{f'({values})' if values else ''}".encode()).fetchall()
    cursor.execute("DEALLOCATE hot")
    return dict(found[0][0]["Plan"])


def scans(node: dict[str, Any]) -> Iterator[str]:
    """Large tables that a plan reads from end to end."""
    if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE:
        yield node["Relation Name"]
    for inner in node.get("Plans", []):
        yield from scans(inner)


@pytest.mark.promise("I10", "D5")
@pytest.mark.parametrize("plan", [plan_for_values, plan_for_any_values])
@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_finds_its_rows_by_an_index(
    filled: RawCursor[Any], name: str, plan: Callable[[RawCursor[Any], Statement], dict[str, Any]]
) -> None:
    found = plan(filled, STATEMENTS[name])

    assert set(scans(found)) <= WHOLE.get(name, set()), found


SWEEP = {name: statement for name, statement in STATEMENTS.items() if name.startswith("due.")}
ROWS_OF_A_ROUND = 100


def rows_read(node: dict[str, Any]) -> int:
    """What a plan's scans looked at, the rows that their filters took away among them."""
    inner = sum(map(rows_read, node.get("Plans", [])))
    if "Scan" not in node["Node Type"] or node["Node Type"] in ("CTE Scan", "WorkTable Scan", "Subquery Scan"):
        return inner
    taken_away = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return inner + int((node["Actual Rows"] + taken_away) * node["Actual Loops"])


@pytest.mark.promise("H11", "I10")
@pytest.mark.parametrize("name", sorted(SWEEP))
def test_a_sweep_reads_what_is_due_and_a_round_whatever_waits(filled: RawCursor[Any], name: str) -> None:
    """The store has 10,000 hints, of which most wait, and as many inputs that wait."""
    statement = SWEEP[name]
    known = {"place": UUID(int=0), "last": UUID(int=2**121), "round": ROWS_OF_A_ROUND, "names": ["nobody"]}
    given = {each: known.get(each, VALUES.get(each, SOME)) for each in statement.sql.names}
    call = statement(**{**given, **statement().parameters})
    text = f"EXPLAIN (ANALYZE, FORMAT JSON) {call.sql.text}"
    found = filled.execute(text.encode(), [call.parameters[each] for each in call.sql.names]).fetchall()

    assert rows_read(found[0][0]["Plan"]) < 1_500, found
