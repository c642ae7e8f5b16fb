"""The relay: keeps each pool's queue topped up to a small window from the hint rows that are due.

A statement chooses, fairly by tenant, session and priority, and marks what it chose as published; then that is sent,
outside any transaction. The backlog stays in Postgres, where it can be ordered. A hint that was sent and has left its
queue without being claimed is lost, and goes out again; one that still lies there does not. A broker that is away
counts against no row. Any number of relays may run: rows are taken with SKIP LOCKED, and each relay takes its turns by
itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from brainhands.outbox.publisher import BROKER_AWAY, Publisher
from brainhands.outbox.rotation import Rotation
from brainhands.shared.bus.bell import RelayBell
from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.model.ids import TaskId
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import hints, turns, workers
from brainhands.shared.store.database import TRANSIENT, Database, Row, log_interruption
from brainhands.shared.store.turns import Limits

log = logger(__name__)

POLL_SECONDS = 0.25
OFFERS_SECONDS = 1.0
LOST_SECONDS = 0.5
"""How often a relay looks for hints that were lost."""
WINDOW_A_SLOT = 4
PAUSE_SECONDS = 0.5
"""After a pass that failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A queue with the slots of the live workers behind it."""

    queue: str
    slots: int
    limits: Limits = turns.NO_LIMITS


class Relay:
    """One relay's loop."""

    def __init__(self, database: Database, publisher: Publisher, bell: RelayBell, stopping: threading.Event) -> None:
        self._database = database
        self._publisher = publisher
        self._bell = bell
        self._stopping = stopping
        self._pools: list[Pool] = []
        self._pools_until = 0.0
        self._lost_looked_at = 0.0
        self._missing: set[TaskId] = set()
        self._rotations: dict[str, Rotation] = {}

    def run(self) -> None:
        """Publish until told to stop, whatever goes wrong; after a wake it goes on until a pass finds nothing."""
        while not self._stopping.is_set():
            try:
                published = self.pass_once()
                self._publisher.outage.over()
                if not published:
                    self._bell.wait(POLL_SECONDS, self._stopping)
            except BROKER_AWAY as error:
                self._publisher.outage.began(error)
                self._stopping.wait(PAUSE_SECONDS)
            except (*TRANSIENT, ServerUnavailable) as error:
                log_interruption(log, "pass_interrupted", error)
                self._stopping.wait(PAUSE_SECONDS)
            except Exception:
                log.exception("pass_failed")
                self._stopping.wait(PAUSE_SECONDS)

    def pass_once(self) -> int:
        """Top up every pool once; how many hints were published."""
        pools = self._live_pools()
        waiting = self._publisher.waiting([pool.queue for pool in pools])
        rooms = [(pool, WINDOW_A_SLOT * pool.slots - count) for pool, count in zip(pools, waiting, strict=True)]
        rooms = [(pool, room) for pool, room in rooms if room > 0]
        if not rooms:
            return 0
        self._find_lost(pools)
        chosen = [
            (pool.queue, row) for pool, taken in self._take(rooms) for row in self._rotation(pool).moved_on(taken)
        ]
        self._publish(chosen)
        return len(chosen)

    def _take(self, rooms: Sequence[tuple[Pool, int]]) -> Iterator[tuple[Pool, Sequence[Row]]]:
        """Mark what goes out; only where not all that waits can go out at once is there a choice to make."""
        quick = self._database.run(*(turns.take_few(pool.queue, room, pool.limits) for pool, room in rooms))
        for (pool, room), found in zip(rooms, quick, strict=True):
            taken = [row for row in found.rows if row["task_id"] is not None]
            if not taken and found.rows[0]["waiting"]:
                place = self._rotation(pool).place(room)
                (chosen,) = self._database.run(turns.take(pool.queue, room, place, pool.limits))
                taken = chosen.rows
            yield pool, taken

    def _find_lost(self, pools: Sequence[Pool]) -> None:
        """Let hints go out again that were sent a while ago, were not claimed, and are in no queue any more."""
        if time.monotonic() < self._lost_looked_at + LOST_SECONDS:
            return
        self._lost_looked_at = time.monotonic()
        (overdue,) = self._database.run(hints.overdue())
        if overdue.rows:
            queued = self._publisher.queued([pool.queue for pool in pools])
            missing = {row["task_id"] for row in overdue.rows} - queued
            # What was missed before too is lost; a worker may have taken the rest this moment, and be about to claim.
            lost, self._missing = missing & self._missing, missing - self._missing
            self._database.run(hints.lose(sorted(lost)))
        else:
            self._missing = set()

    def _rotation(self, pool: Pool) -> Rotation:
        return self._rotations.setdefault(pool.queue, Rotation())

    def _live_pools(self) -> list[Pool]:
        if time.monotonic() >= self._pools_until:
            self._pools = pools(workers.live(self._database))
            self._pools_until = time.monotonic() + OFFERS_SECONDS
        return self._pools

    def _publish(self, chosen: Sequence[tuple[str, Row]]) -> None:
        """Send each hint as a message of its own: behind another one it would wait for all that this one leads to."""
        for place, (queue, row) in enumerate(chosen):
            try:
                self._publisher.publish(queue, [row])
            except BROKER_AWAY:
                self._database.run_patiently(hints.give_back([unsent["task_id"] for _, unsent in chosen[place:]]))
                raise
            except Exception as error:
                # It fails alone, and is set aside so that it holds up no other.
                reason = f"{hints.UNPUBLISHABLE}: {type(error).__name__}: {error}"[:500]
                log.exception("hint_parked", task=row["task_id"])
                self._database.run_patiently(hints.park(row["task_id"], reason))


def pools(live: Sequence[Row]) -> list[Pool]:
    """The pools of live workers, with their slots added up."""
    slots: dict[str, int] = {}
    for worker in live:
        if worker["offers"]:
            slots[worker["pool"]] = slots.get(worker["pool"], 0) + worker["slots"]
    limits = limits_of(live)
    return [Pool(queue=queue, slots=count, limits=limits) for queue, count in sorted(slots.items())]


def limits_of(live: Sequence[Row]) -> Limits:
    """The limits that live workers heed; where they differ, the worker that was started last has the newest code."""
    names: dict[str, int | None] = {}
    tenant: int | None = None
    for worker in sorted((each for each in live if each["offers"]), key=itemgetter("started_at")):
        tenant = worker["tenant_concurrency"]
        names |= {offer["name"]: offer["concurrency"] for offer in worker["offers"]}
    return Limits(names={name: most for name, most in names.items() if most is not None}, tenant=tenant)
