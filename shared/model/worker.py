"""Workers and what they offer."""

from __future__ import annotations

from dataclasses import dataclass

from brainhands.shared.model.ids import WorkerId


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The versions `low` to `high` of `name` (`agent:notices`, `tool:send_email`) that a worker can run."""

    name: str
    low: int
    high: int
    concurrency: int | None = None
    """How many tasks that require `name` run at a time, over all workers and versions; None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """One process that runs tasks, `slots` at a time, from the queue `pool`.

    Processes forked by one main process have one `host`, and so the same code.
    """

    id: WorkerId
    role: str
    pool: str
    host: str
    pid: int
    parent_pid: int
    slots: int
    environment: str
    offers: tuple[Offer, ...]
    tenant_concurrency: int | None = None
    """How many tasks of one tenant it lets run at a time, counted over all workers; None: no limit."""
