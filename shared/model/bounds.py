"""How large the durations and counts may be that definitions, transitions and settings give.

What is beyond a bound is refused where it is given, since it would fail later, inside a commit: the columns for counts
have 32 bits, and a date of the year 10,000 cannot be computed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from brainhands.shared.errors import BadDefinition

MAX_SECONDS = 10 * 365 * 86_400
"""Ten years."""
MAX_COUNT = 2**31 - 1
MAX_TRIES = 1_000
MAX_CONCURRENCY = 10_000
"""A limit has a row for each of its slots."""
MAX_TOKENS = 10**12

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def check_seconds(option: str, given: object, owner: str, *, zero: bool = False) -> float:
    """The duration as a float. Raises BadDefinition unless it is more than zero (or `zero` itself) and at most ten
    years."""
    if (
        isinstance(given, int | float)
        and not isinstance(given, bool)
        and (0 < given <= MAX_SECONDS or (zero and given == 0))
    ):
        return float(given)
    least = "0" if zero else "more than 0"
    raise BadDefinition(
        f"{owner}: {option}={shown(given)} is no duration",
        f"give {option} in seconds, {least} and at most {MAX_SECONDS:,} (ten years)",
    )


def check_count(option: str, given: object, owner: str, *, least: int = 1, most: int = MAX_COUNT) -> int:
    """The count. Raises BadDefinition unless it is a whole number within these bounds."""
    if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
        return given
    raise BadDefinition(
        f"{owner}: {option}={shown(given)} is not possible", f"give a whole number from {least} to {most:,}"
    )


def check_time(option: str, given: object, owner: str, *, now: datetime) -> datetime:
    """The time in UTC. Raises BadDefinition unless it is aware, after 1970, and at most ten years from now."""
    if isinstance(given, datetime) and given.tzinfo is not None:
        # The difference of two aware times cannot overflow, as a conversion to UTC can.
        from_now = given - now
        if EARLIEST - now <= from_now <= timedelta(seconds=MAX_SECONDS):
            return now + from_now
    raise BadDefinition(
        f"{owner}: {option}={shown(given)} is no time to wait for",
        "give an aware time, such as datetime.now(UTC) + timedelta(hours=1), at most ten years from now",
    )


def shown(given: object) -> str:
    """A value as an error shows it, shortened."""
    try:
        text = repr(given)
    except Exception:  # noqa: BLE001 - code of others, or an integer with too many digits for it
        text = f"<{type(given).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
