"""A store as it is after a long while, made of copies of what really happened in one session."""

from __future__ import annotations

import psycopg

from brainhands.shared.engine import documents
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.task import Done, Task, Transition, Wait
from brainhands.shared.runtime.settings import libpq_url
from tests.store.stage import Stage, answer, decide

SESSIONS = 1000

FILL = """
CREATE TEMPORARY TABLE copies AS
SELECT gen_random_uuid() AS session_id, gen_random_uuid() AS conversation_id FROM generate_series(1, {sessions});

INSERT INTO brainhands.sessions
SELECT (jsonb_populate_record(s, jsonb_build_object('id', c.session_id))).*
  FROM brainhands.sessions s, copies c;

INSERT INTO brainhands.conversations
SELECT (jsonb_populate_record(t, jsonb_build_object('id', c.conversation_id, 'session_id', c.session_id))).*
  FROM brainhands.conversations t, copies c;

INSERT INTO brainhands.events
SELECT (jsonb_populate_record(e, to_jsonb(c) || jsonb_build_object('seq', n))).*
  FROM brainhands.events e, copies c, generate_series(1, 10) AS n WHERE e.seq = 2;

INSERT INTO brainhands.tasks
SELECT (jsonb_populate_record(t, to_jsonb(c) || jsonb_build_object('id', gen_random_uuid(), 'owner_id',
       gen_random_uuid()))).*
  FROM brainhands.tasks t, copies c, generate_series(1, 10) WHERE t.kind = 'play' AND t.status = 'done';

INSERT INTO brainhands.attempts
SELECT (jsonb_populate_record(a, jsonb_build_object('task_id', t.id))).*
  FROM brainhands.attempts a, brainhands.tasks t WHERE a.ended_at = (SELECT min(ended_at) FROM brainhands.attempts)
    ON CONFLICT DO NOTHING;

INSERT INTO brainhands.documents
SELECT (jsonb_populate_record(d, to_jsonb(c) || jsonb_build_object('version', n))).*
  FROM brainhands.documents d, copies c, generate_series(1, 4) AS n;

INSERT INTO brainhands.submissions
SELECT (jsonb_populate_record(s, to_jsonb(c) || jsonb_build_object('id', gen_random_uuid(), 'request_digest',
       sha256((c.session_id || '-' || n)::bytea)))).*
  FROM brainhands.submissions s, copies c, generate_series(1, 4) AS n ON CONFLICT DO NOTHING;

UPDATE brainhands.tasks
   SET outcome = NULL, status = (ARRAY['pending', 'waiting', 'sleeping', 'running'])[1 + n % 4],
       wake_at = CASE WHEN n % 4 = 2 THEN now() + interval '1 hour' END,
       worker_id = CASE WHEN n % 4 = 3 THEN gen_random_uuid() END,
       lease_until = CASE WHEN n % 4 = 3 THEN now() + interval '1 hour' END,
       deadline = CASE WHEN n % 4 = 3 THEN now() + interval '1 hour' END
  FROM (SELECT id, row_number() OVER () AS n FROM brainhands.tasks WHERE kind = 'play') AS numbered
 WHERE tasks.id = numbered.id AND n <= 400;

INSERT INTO brainhands.waits
SELECT (jsonb_populate_record(w, jsonb_build_object('waiter_id', waiter.id, 'dependency_id', dependency.id))).*
  FROM brainhands.waits w,
       (SELECT id, lead(id) OVER (ORDER BY session_id) AS next FROM brainhands.tasks WHERE kind = 'play') AS waiter
       JOIN brainhands.tasks dependency ON dependency.id = waiter.next ON CONFLICT DO NOTHING;

INSERT INTO brainhands.outbox
SELECT (jsonb_populate_record(o, jsonb_build_object('task_id', t.id, 'session_id', t.session_id, 'requires_name',
       'play', 'not_before', now() + n * interval '1 s', 'published_at', CASE WHEN n > 9900 THEN now() END))).*
  FROM brainhands.outbox o,
       (SELECT *, row_number() OVER () AS n FROM brainhands.tasks WHERE kind = 'play') AS t ON CONFLICT DO NOTHING;

INSERT INTO brainhands.inbox OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(i, jsonb_build_object('position', 100 + row_number() OVER (), 'submission_id', s.id,
       'session_id', s.session_id, 'conversation_id', s.conversation_id))).*
  FROM brainhands.inbox i, brainhands.submissions s ON CONFLICT DO NOTHING;
"""


def fill(stage: Stage) -> None:
    """Put thousands of rows into each large table: tasks mostly done, a long backlog of hints, a long inbox."""
    session_id, generation = stage.session()
    stage.submit("more", session=session_id)

    def write_plan(draft: Draft, _task: Task) -> Transition:
        documents.change(draft, "plan", "plan", 1, lambda _stored: {})
        return Done()

    stage.advance(stage.add(session_id), decide(write_plan))
    stage.advance(stage.add(session_id), answer(Wait([generation], phase="second")))
    with psycopg.connect(libpq_url(stage.database_url), autocommit=True) as connection:
        connection.execute(FILL.format(sessions=SESSIONS).encode())
        connection.execute("ANALYZE")


LENGTHEN = """
CREATE TEMPORARY TABLE turns AS
SELECT n, gen_random_uuid() AS submission_id FROM generate_series(1, %(turns)s) AS n;

INSERT INTO brainhands.events
SELECT (jsonb_populate_record(e, jsonb_build_object('seq', e.seq + n * s.last_seq))).*
  FROM brainhands.events e JOIN brainhands.sessions s ON s.id = e.session_id, turns
 WHERE e.session_id = %(session)s;

INSERT INTO brainhands.submissions
SELECT (jsonb_populate_record(s, jsonb_build_object('id', submission_id, 'request_digest',
       sha256(submission_id::text::bytea)))).*
  FROM brainhands.submissions s, turns WHERE session_id = %(session)s;

INSERT INTO brainhands.tasks
SELECT (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid(), 'submission_id', turns.submission_id))).*
  FROM brainhands.tasks t, turns WHERE session_id = %(session)s;

UPDATE brainhands.sessions SET last_seq = last_seq * (%(turns)s + 1) WHERE id = %(session)s;
"""


def lengthen(database_url: str, session_id: SessionId, turns: int) -> None:
    """Let the one turn of a session have happened so many times more."""
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        psycopg.ClientCursor(connection).execute(LENGTHEN, {"session": session_id, "turns": turns})
        connection.execute("ANALYZE")
