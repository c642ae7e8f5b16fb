"""Whose hint goes out next: the due hints of a pool, taken in turn by tenant and session, however long the backlog.

One statement steps through an index of what waits to be published (`outbox_waiting_idx`), from requirement to
requirement, from tenant to tenant and from session to session, and reads a few rows of each; so what it reads grows
with the room in the queue and not with the backlog. Where the last pass ended is the caller's to remember (`Place`):
no row is shared between commits for it. Interactive and batch work take their turns apart and are then woven together.

What could not run is not taken: a session has SESSION_HINTS hints on their way at the most, and a tool or a tenant with
a limit as many as it has free slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Integer, literal_column, text

from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.task import Priority
from brainhands.shared.store.database import Call, Statement
from brainhands.shared.store.offers import LIVE, as_text, fits
from brainhands.shared.store.slots import TENANT_SLOT
from brainhands.shared.store.tables import SCHEMA, workers

SESSION_HINTS = 16
"""Hints of one session on their way at a time; commits of a session come one after the other all the same."""

INTERACTIVE_A_BATCH = 3
"""Where both wait, so many hints of interactive work go out for one of batch work."""

_ANY_SESSION = UUID(int=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the turns of a pool stand: after which tenant of each priority, and after which session of a tenant."""

    tenants: Mapping[Priority, str] = field(default_factory=dict)
    sessions: Mapping[str, SessionId] = field(default_factory=dict)
    since_batch: int = 0
    """Hints of interactive work since the last of batch work, at most INTERACTIVE_A_BATCH."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How many tasks may run at a time: for some names of requirements, and of any one tenant (None: as many as)."""

    names: Mapping[str, int] = field(default_factory=dict)
    tenant: int | None = None


NO_LIMITS = Limits()

# Written as text: it is one long walk, and reads as one only in the order in which it goes.
_WAITING = "published_at IS NULL AND parked IS NULL"
_REQUIREMENT = "requires_name, coalesce(requires_version, 0), log_format"
_OF_LANE = f"""
    {_WAITING} AND requires_name = f.name AND coalesce(requires_version, 0) = f.version AND log_format = f.log_format
    AND outbox.priority = t.priority AND not_before <= statement_timestamp()"""
_SOME_TENANT = """
    (SELECT h.tenant FROM fitting f, LATERAL (
        SELECT outbox.tenant FROM {schema}.outbox WHERE {of_lane} {after} ORDER BY outbox.tenant LIMIT 1
     ) h ORDER BY h.tenant LIMIT 1)"""
_SOME_SESSION = """
    (SELECT h.session_id FROM fitting f, LATERAL (
        SELECT outbox.session_id FROM {schema}.outbox WHERE {of_lane} AND outbox.tenant = t.tenant {after}
         ORDER BY outbox.session_id LIMIT 1
     ) h ORDER BY h.session_id LIMIT 1)"""


def _fits_pool(name: str, version: str, log_format: str) -> str:
    return as_text(
        fits(
            literal_column(name),
            literal_column(version, Integer),
            LIVE,
            workers.c.pool == literal_column(":pool"),
            log_format=literal_column(log_format),
        )
    )


def _some(query: str, after: str) -> str:
    return query.format(schema=SCHEMA, of_lane=_OF_LANE, after=after)


TAKE = Statement(
    text(f"""
WITH RECURSIVE
on_their_way AS MATERIALIZED (
    SELECT requires_name, tenant, session_id, count(*) AS hints FROM {SCHEMA}.outbox
     WHERE published_at IS NOT NULL AND parked IS NULL GROUP BY requires_name, tenant, session_id
),
held AS MATERIALIZED (
    SELECT name, count(*) AS slots FROM {SCHEMA}.slots WHERE task_id IS NOT NULL GROUP BY name
),
limited AS MATERIALIZED (
    SELECT l.name, l.most - coalesce((SELECT h.slots FROM held h WHERE h.name = l.name), 0)
           - coalesce((SELECT sum(w.hints) FROM on_their_way w WHERE w.requires_name = l.name), 0) AS free
      FROM unnest(CAST(:limited AS text[]), CAST(:limits AS int[])) AS l(name, most)
),
-- every requirement of which something waits, and of those the ones that can run here
requirement AS (
    (SELECT requires_name AS name, coalesce(requires_version, 0) AS version, log_format FROM {SCHEMA}.outbox
      WHERE {_WAITING} ORDER BY {_REQUIREMENT} LIMIT 1)
    UNION ALL
    SELECT n.* FROM requirement r, LATERAL (
        SELECT requires_name AS name, coalesce(requires_version, 0) AS version, log_format FROM {SCHEMA}.outbox
         WHERE {_WAITING} AND ({_REQUIREMENT}) > (r.name, r.version, r.log_format) ORDER BY {_REQUIREMENT} LIMIT 1
    ) n
),
fitting AS MATERIALIZED (
    SELECT r.name, r.version, r.log_format FROM requirement r
     WHERE {_fits_pool("r.name", "r.version", "r.log_format")}
       AND NOT EXISTS (SELECT FROM limited l WHERE l.name = r.name AND l.free <= 0)
),
-- round the tenants from the last one on, in each lane, until there are as many with something free as there is room
tenant_round AS (
    SELECT lane.priority, 0 AS place, lane.after AS tenant, CAST(NULL AS text) AS first, 0 AS found,
           CAST(NULL AS bigint) AS free
      FROM unnest(CAST(:lanes AS int[]), CAST(:tenants AS text[])) AS lane(priority, after)
    UNION ALL
    SELECT t.priority, t.place + 1, n.tenant, coalesce(t.first, n.tenant),
           t.found + CASE WHEN free.slots <= 0 THEN 0 ELSE 1 END, free.slots
      FROM tenant_round t
     CROSS JOIN LATERAL (
        SELECT coalesce({_some(_SOME_TENANT, "AND outbox.tenant > t.tenant")}, {_some(_SOME_TENANT, "")}) AS tenant
     ) n
     CROSS JOIN LATERAL (
        SELECT CAST(:tenant_limit AS int)
               - coalesce((SELECT h.slots FROM held h WHERE h.name = '{TENANT_SLOT}' || n.tenant), 0)
               - coalesce((SELECT CAST(sum(w.hints) AS bigint) FROM on_their_way w WHERE w.tenant = n.tenant), 0)
               AS slots
     ) free
     WHERE n.tenant IS NOT NULL AND n.tenant IS DISTINCT FROM t.first AND t.found < CAST(:room AS int)
),
tenant_turn AS MATERIALIZED (
    SELECT priority, place, tenant, free,
           CAST(ceil(CAST(:room AS float) / count(*) OVER (PARTITION BY priority)) AS int) AS share
      FROM tenant_round WHERE place > 0 AND (free IS NULL OR free > 0)
),
-- round the sessions of each of them in the same way
session_round AS (
    SELECT t.priority, t.tenant, t.share, 0 AS place, coalesce(s.after, CAST(:any_session AS uuid)) AS session_id,
           CAST(NULL AS uuid) AS first, 0 AS found, CAST({SESSION_HINTS} AS bigint) AS free
      FROM tenant_turn t
      LEFT JOIN unnest(CAST(:of_tenants AS text[]), CAST(:sessions AS uuid[])) AS s(tenant, after) USING (tenant)
    UNION ALL
    SELECT t.priority, t.tenant, t.share, t.place + 1, n.session_id, coalesce(t.first, n.session_id),
           t.found + CASE WHEN free.hints <= 0 THEN 0 ELSE 1 END, free.hints
      FROM session_round t
     CROSS JOIN LATERAL (
        SELECT coalesce({_some(_SOME_SESSION, "AND outbox.session_id > t.session_id")},
                        {_some(_SOME_SESSION, "")}) AS session_id
     ) n
     CROSS JOIN LATERAL (
        SELECT {SESSION_HINTS} - coalesce(
            (SELECT CAST(sum(w.hints) AS bigint) FROM on_their_way w WHERE w.session_id = n.session_id), 0) AS hints
     ) free
     WHERE n.session_id IS NOT NULL AND n.session_id IS DISTINCT FROM t.first AND t.found < t.share
),
session_turn AS MATERIALIZED (
    SELECT priority, tenant, place, session_id, least(
               free, CAST(ceil(CAST(share AS float) / count(*) OVER (PARTITION BY priority, tenant)) AS int)
           ) AS share
      FROM session_round WHERE place > 0 AND free > 0
),
-- a share of each, the oldest hints first
candidate AS (
    SELECT t.priority, t.tenant, t.place AS session_place, c.name, c.task_id,
           row_number() OVER (PARTITION BY t.priority, t.tenant, t.session_id ORDER BY c.not_before, c.task_id) AS nth
      FROM session_turn t
     CROSS JOIN LATERAL (
        SELECT f.name, h.task_id, h.not_before FROM fitting f, LATERAL (
            SELECT outbox.task_id, outbox.not_before FROM {SCHEMA}.outbox
             WHERE {_OF_LANE} AND outbox.tenant = t.tenant AND outbox.session_id = t.session_id
             ORDER BY outbox.not_before, outbox.task_id LIMIT t.share
        ) h ORDER BY h.not_before, h.task_id LIMIT t.share
     ) c
),
by_tenant AS (
    SELECT *, row_number() OVER (PARTITION BY priority, tenant ORDER BY nth, session_place) AS nth_of_tenant
      FROM candidate
),
by_lane AS (
    SELECT b.*, t.free, row_number() OVER (PARTITION BY b.priority ORDER BY b.nth_of_tenant, t.place) AS nth_of_lane
      FROM by_tenant b JOIN tenant_turn t ON t.priority = b.priority AND t.tenant = b.tenant
),
woven AS (
    SELECT *, row_number() OVER (ORDER BY CASE priority
               WHEN {Priority.INTERACTIVE:d} THEN nth_of_lane + CAST(:since_batch AS int)
               ELSE nth_of_lane * {INTERACTIVE_A_BATCH} + 0.5 END) AS place
      FROM by_lane
),
chosen AS MATERIALIZED (
    SELECT task_id, place FROM (
        SELECT w.task_id, w.place, w.free,
               row_number() OVER (PARTITION BY w.tenant ORDER BY w.place) AS of_tenant,
               row_number() OVER (PARTITION BY w.name ORDER BY w.place) AS of_name, l.free AS free_of_name
          FROM woven w LEFT JOIN limited l ON l.name = w.name
    ) counted
     WHERE (free IS NULL OR of_tenant <= free) AND (free_of_name IS NULL OR of_name <= free_of_name)
     ORDER BY place LIMIT CAST(:room AS int)
),
-- another relay may be at the same hints: each goes out once
taken AS (
    SELECT task_id FROM {SCHEMA}.outbox
     WHERE task_id = ANY (ARRAY(SELECT chosen.task_id FROM chosen)) AND {_WAITING}
       FOR UPDATE SKIP LOCKED
)
UPDATE {SCHEMA}.outbox SET published_at = clock_timestamp(), attempts = attempts + 1, awaits = NULL
  FROM chosen
 WHERE outbox.task_id = ANY (ARRAY(SELECT taken.task_id FROM taken)) AND chosen.task_id = outbox.task_id
RETURNING outbox.task_id, outbox.session_id, outbox.tenant, outbox.priority, outbox.requires_name, outbox.attempts,
          chosen.place
""")
)

TAKE_FEW = Statement(
    text(f"""
WITH few AS MATERIALIZED (
    SELECT task_id, tenant, session_id, priority, requires_name, requires_version, log_format, not_before
      FROM {SCHEMA}.outbox
     WHERE {_WAITING} AND not_before <= statement_timestamp()
     LIMIT CAST(:room AS int) + 1
),
known AS (
    SELECT count(*) AS waiting, coalesce(bool_or(requires_name = ANY (CAST(:limited AS text[]))), false) AS limited
      FROM few
),
under_way AS (
    SELECT count(*) AS hints FROM (
        SELECT FROM {SCHEMA}.outbox WHERE published_at IS NOT NULL LIMIT {SESSION_HINTS}
    ) sent
),
chosen AS MATERIALIZED (
    SELECT task_id, row_number() OVER (ORDER BY priority, not_before, task_id) AS place FROM few, known, under_way
     WHERE known.waiting <= CAST(:room AS int) AND known.waiting + under_way.hints <= {SESSION_HINTS}
       AND NOT known.limited AND {_fits_pool("few.requires_name", "few.requires_version", "few.log_format")}
),
taken AS (
    SELECT task_id FROM {SCHEMA}.outbox
     WHERE task_id = ANY (ARRAY(SELECT chosen.task_id FROM chosen)) AND {_WAITING}
       FOR UPDATE SKIP LOCKED
),
marked AS (
    UPDATE {SCHEMA}.outbox SET published_at = clock_timestamp(), attempts = attempts + 1, awaits = NULL
      FROM chosen
     WHERE outbox.task_id = ANY (ARRAY(SELECT taken.task_id FROM taken)) AND chosen.task_id = outbox.task_id
 RETURNING outbox.task_id, outbox.session_id, outbox.tenant, outbox.priority, outbox.requires_name, outbox.attempts,
           chosen.place
)
SELECT marked.*, known.waiting FROM known LEFT JOIN marked ON true
""")
)


def take_few(pool: str, room: int, limits: Limits = NO_LIMITS) -> Call:
    """As take, where nobody has to wait for anybody: when all that is due has room, and no limit could apply.

    There is always a row, and `waiting` in it; without a `task_id` nothing was taken.
    """
    return TAKE_FEW(pool=pool, room=room if limits.tenant is None else 0, limited=list(limits.names))


def take(pool: str, room: int, place: Place | None = None, limits: Limits = NO_LIMITS) -> Call:
    """Marks up to `room` due hints that a live worker of the pool fits as published, and gives them, each with its
    `place` in the order in which they shall go out."""
    place = place or Place()
    return TAKE(
        pool=pool,
        room=room,
        lanes=list(Priority),
        tenants=[place.tenants.get(lane, "") for lane in Priority],
        of_tenants=list(place.sessions),
        sessions=list(place.sessions.values()),
        any_session=_ANY_SESSION,
        since_batch=place.since_batch,
        limited=list(limits.names),
        limits=list(limits.names.values()),
        tenant_limit=limits.tenant,
    )
