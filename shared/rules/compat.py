"""Why a task cannot go on with the workers that there are: the stated reasons, and which of them pass by themselves.

| the reason begins with | it passes when |
|---|---|
| `NO_WORKER` | a live worker offers what the task requires, reads its session's log, and has not found it unreadable |
| `OLDER_WORKERS` | every live worker reads the log format that the task would write |
"""

from __future__ import annotations

from brainhands.shared.errors import Incompatible, OlderWorkers
from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.model.json import clean_text

NO_WORKER = "no live worker"
OLDER_WORKERS = "older workers are still live"
UNREADABLE = f"{NO_WORKER} that tried can go on with it"
UNREAD_LOG = f"{NO_WORKER} reads log format "
"""Followed by the number of the session's log format."""

REASON_CHARACTERS = 500


def newest_readable() -> int:
    """The newest log format of which this code reads every event."""
    return LOG_FORMAT


def readable(log_format: int) -> bool:
    """Whether this code reads every event of a session of that log format."""
    return log_format <= newest_readable()


def reason(problem: Incompatible) -> str:
    """Why a task is blocked whose phase met such a problem."""
    if isinstance(problem, OlderWorkers):
        return older_workers(problem.log_format)
    return clean_text(f"{UNREADABLE}: {problem}")[:REASON_CHARACTERS]


def older_workers(log_format: int) -> str:
    return f"{OLDER_WORKERS}: {OlderWorkers(log_format)}"


def passed(lowest: int) -> list[str]:
    """The reasons that hold no more when the oldest live worker reads log format `lowest`."""
    return [older_workers(log_format) for log_format in range(1, lowest + 1)]
