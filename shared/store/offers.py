"""Who can run what: the one rule by which what a worker offers fits what a task requires.

The claim asks it of one worker, the relay of a pool, and whoever looks for work that nobody can run of all that live.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, literal_column, or_, select, text
from sqlalchemy.dialects import postgresql

from brainhands.shared.store.tables import offers, sessions, tasks, workers

LIVE_SECONDS = 15
"""A worker not seen for so long is taken for dead: no hint is sent to its pool on its account."""

SEEN_LATELY = workers.c.seen_at > func.clock_timestamp() - text(f"interval '{LIVE_SECONDS} seconds'")
LIVE = and_(SEEN_LATELY, workers.c.draining.is_(False))
"""Workers that were seen lately and do not drain."""

_ANY: ColumnElement[int] = literal_column("0")


def fits(
    name: ColumnElement[str],
    version: ColumnElement[int],
    *who: ColumnElement[bool],
    log_format: ColumnElement[int] | None = None,
    refused_by: ColumnElement[list[str]] | None = None,
) -> ColumnElement[bool]:
    """Whether a worker `who` is so offers `name` in `version`, of which NULL and 0 mean any.

    It reads `log_format`, and is of none of the hosts that have `refused_by` noted that they cannot go on.
    """
    conditions = [
        offers.c.name == name,
        or_(func.coalesce(version, _ANY) == _ANY, version.between(offers.c.low, offers.c.high)),
        *who,
    ]
    if log_format is not None:
        conditions.append(workers.c.log_format >= log_format)
    if refused_by is not None:
        conditions.append(or_(refused_by.is_(None), workers.c.host != func.all(refused_by)))
    found = select(offers.c.name).join(workers, workers.c.id == offers.c.worker_id).where(*conditions)
    return found.correlate_except(offers, workers).exists()


SESSION_FORMAT = (
    select(sessions.c.log_format).where(sessions.c.id == tasks.c.session_id).correlate(tasks).scalar_subquery()
)
FITS_TASK = fits(
    tasks.c.requires_name, tasks.c.requires_version, LIVE, log_format=SESSION_FORMAT, refused_by=tasks.c.refused_by
)
"""Whether some live worker can run a task."""


def as_text(rule: ColumnElement[bool]) -> str:
    """The rule for a statement that is written as text."""
    return str(rule.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
