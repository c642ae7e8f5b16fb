"""What a step reads of a very long session does not grow with it: rows read are counted, not nodes of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import RawCursor
from psycopg.rows import scalar_row

from brainhands.brain.history import NOT_IN_CONTEXT, RESULT_TYPES
from brainhands.shared.local.servers import Postgres
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import locked, reads, redactions
from brainhands.shared.store.database import Call
from tests.conftest import migrated, new_database
from tests.store.stage import stage_of

EVENTS = 20_000
OF_A_SUB_AGENT = 5
TASKS = 5_000
ATTEMPTS = 500
MOST_READ = 40
MOST_BUFFERS = 120
"""An index that is walked through from end to end counts no rows, but its pages."""

FILL = f"""
INSERT INTO brainhands.events
SELECT (jsonb_populate_record(e, jsonb_build_object('seq', 1 + n))).*
  FROM brainhands.events e, generate_series(2, {EVENTS}) AS n WHERE e.seq = 2;

INSERT INTO brainhands.conversations
SELECT (jsonb_populate_record(c, jsonb_build_object('id', %(sub_agent)s))).* FROM brainhands.conversations c;

UPDATE brainhands.events SET conversation_id = %(sub_agent)s
 WHERE seq IN (SELECT 100 + n * {EVENTS // OF_A_SUB_AGENT - 100} FROM generate_series(0, {OF_A_SUB_AGENT} - 1) n);

INSERT INTO brainhands.tasks
SELECT (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), 'status', 'done', 'outcome',
       CASE WHEN n %% 10 = 0 THEN 'interrupted' ELSE 'succeeded' END, 'kind', 'tool:other'))).*
  FROM brainhands.tasks t, generate_series(1, {TASKS}) AS n;

INSERT INTO brainhands.sessions
SELECT (jsonb_populate_record(s, jsonb_build_object('id', %(elsewhere)s))).* FROM brainhands.sessions s;

INSERT INTO brainhands.tasks
SELECT (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), 'session_id', %(elsewhere)s, 'kind',
       'tool:other'))).*
  FROM brainhands.tasks t, generate_series(1, {TASKS}) WHERE t.status <> 'done';

INSERT INTO brainhands.attempts (task_id, fence, worker_id, phase, started_at, deadline, ended_at)
SELECT t.id, n, gen_random_uuid(), 'nap', now(), now(), now()
  FROM brainhands.tasks t, generate_series(1, {ATTEMPTS}) AS n WHERE t.id = %(task)s;
"""


@dataclass(frozen=True)
class Long:
    """A session of one long conversation and a short one of a sub-agent, with one open task."""

    cursor: RawCursor[Any]
    session: UUID
    sub_agent: UUID
    task: UUID


@pytest.fixture(scope="module")
def long(postgres: Postgres) -> Iterator[Long]:
    with new_database(postgres, template=migrated(postgres)) as url, stage_of(url) as stage:
        receipt = stage.submit("hello")
        (task,) = stage.client.session(receipt.session_id).tasks
        sub_agent = uuid4()
        made = {"sub_agent": str(sub_agent), "elsewhere": str(uuid4()), "task": str(task.id)}
        with psycopg.connect(libpq_url(url), autocommit=True) as connection:
            psycopg.ClientCursor(connection).execute(FILL.encode(), made)
            connection.execute("VACUUM ANALYZE")
            cursor = RawCursor(connection, row_factory=scalar_row)
            yield Long(cursor, receipt.session_id, sub_agent, task.id)


def plan_of(cursor: RawCursor[Any], call: Call, plans: str) -> dict[str, Any]:
    """The plan by which it was run, with what that read."""
    cursor.execute(f"SET plan_cache_mode = {plans}".encode())
    text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call.sql.text}"
    values = [call.parameters[name] for name in call.sql.names]
    found = cursor.execute(text.encode(), values, prepare=True).fetchall()
    return dict(found[0][0]["Plan"])


def rows_read(node: dict[str, Any]) -> Iterator[int]:
    """Rows that each scan returned or threw away."""
    if "Scan" in node["Node Type"] and "Relation Name" in node:
        removed = sum(value for name, value in node.items() if name.startswith("Rows Removed by"))
        yield int((node["Actual Rows"] + removed) * node["Actual Loops"])
    for inner in node.get("Plans", []):
        yield from rows_read(inner)


STATEMENTS: dict[str, Callable[[Long], Call]] = {
    "the context of a sub-agent": lambda long: reads.CONTEXT(
        session_id=long.session, conversation_id=long.sub_agent, cutoff=EVENTS, types=NOT_IN_CONTEXT
    ),
    "the size of a sub-agent's context": lambda long: locked.CONTEXT_SIZE(
        session_id=long.session, conversation_id=long.sub_agent, cutoff=EVENTS
    ),
    "the last answer to a sub-agent": lambda long: reads.LAST_ANSWER(
        session_id=long.session, conversation_id=long.sub_agent, before=EVENTS
    ),
    "the results of a round": lambda long: reads.RESULTS_AFTER(
        session_id=long.session, conversation_id=long.sub_agent, after=3, types=list(RESULT_TYPES)
    ),
    "the open tasks": lambda long: locked.LOCK_OPEN_TASKS(session_id=long.session),
    "an earlier awake": lambda long: locked.RESUMED(session_id=long.session, request_id="none"),
    "what was taken out": lambda long: reads.TAKEN_OUT(session_id=long.session, after=0),
    "ends that an event led to": lambda long: redactions.ENDS_CAUSED(session_id=long.session, seqs=[2], first=2),
    "the last attempt": lambda long: locked.LAST_ATTEMPT(task_id=long.task),
}


@pytest.mark.promise("I10")
@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_what_is_read_of_a_long_session_does_not_grow_with_it(long: Long, name: str, plans: str) -> None:
    plan = plan_of(long.cursor, STATEMENTS[name](long), plans)

    assert sum(rows_read(plan)) <= MOST_READ, plan
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= MOST_BUFFERS, plan
