"""Waits between tries of one step; the count is task state, so a restart goes on counting."""

from __future__ import annotations

LONGEST_SECONDS = 120.0


def backoff_seconds(
    tries: int, *, asked_for: float | None = None, at_least: float | None = None, spread: float
) -> float:
    """Seconds before the next try after `tries` failed ones: 1, 2, 4 ... 120, or what a tool asked for in its place.

    What a provider asks for is `at_least`: it may lengthen the wait and never shorten it.

    `spread` in 0..1 adds up to a quarter, so that many tasks that failed together do not return together.
    """
    seconds = asked_for if asked_for is not None else min(LONGEST_SECONDS, 2.0 ** (min(tries, 10) - 1))
    return max(seconds, at_least or 0.0) * (1 + spread / 4)
