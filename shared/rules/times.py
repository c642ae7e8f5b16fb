"""Times that are counted from now by seconds that somebody else gave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LAST_TIME = datetime(9999, 1, 1, tzinfo=UTC)
"""No stored time is later, so that all of Python and Postgres can read it, in any zone."""


def later(now: datetime, seconds: float) -> datetime:
    """So many seconds after now; of any number of seconds, also endless ones, a time from now to LAST_TIME."""
    if not seconds < (LAST_TIME - now).total_seconds():
        return LAST_TIME
    return now + timedelta(seconds=max(0.0, seconds))
