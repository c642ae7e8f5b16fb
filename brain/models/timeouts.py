"""How long a call of a model may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds of one call; None leaves it to `whole`."""

    whole: float
    first: float | None = None
    """Until the first piece of the reply; comments that keep the connection alive are none."""
    silence: float | None = None
    """Between two pieces of an answer that has begun."""
