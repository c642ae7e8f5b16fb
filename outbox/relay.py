"""The relay: keeps each pool's queue topped up to a small window from the hint rows that are due.

A short statement marks a batch as published; then it is sent, outside any transaction. The backlog stays in Postgres. A
broker that is away counts against no row. Any number of relays may run: rows are taken with SKIP LOCKED.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from outbox.publisher import BROKER_AWAY, HINTS_A_MESSAGE, Publisher
from shared.bus.bell import RelayBell
from shared.errors import ServerUnavailable
from shared.runtime.logs import logger
from shared.store import hints, workers
from shared.store.database import TRANSIENT, Database, Row

log = logger(__name__)

POLL_SECONDS = 0.25
OFFERS_SECONDS = 1.0
WINDOW_A_SLOT = 4
BROKER_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A queue with the live workers behind it, and what they offer together."""

    queue: str
    slots: int
    offers: tuple[Row, ...]
    log_format: int
    """The newest that one of them reads; one who does not read a session's passes its hints on."""


class Relay:
    """One relay's loop."""

    def __init__(self, database: Database, publisher: Publisher, bell: RelayBell, stopping: threading.Event) -> None:
        self._database = database
        self._publisher = publisher
        self._bell = bell
        self._stopping = stopping
        self._pools: list[Pool] = []
        self._pools_until = 0.0

    def run(self) -> None:
        """Publish until told to stop; after a wake it goes on until a pass finds nothing."""
        while not self._stopping.is_set():
            try:
                if not self.pass_once():
                    self._bell.wait(POLL_SECONDS, self._stopping)
            except BROKER_AWAY as error:
                log.warning("broker_away", error=type(error).__name__)
                self._stopping.wait(BROKER_PAUSE_SECONDS)
            except (*TRANSIENT, ServerUnavailable) as error:
                log.warning("postgres_away", error=type(error).__name__)
                self._stopping.wait(BROKER_PAUSE_SECONDS)

    def pass_once(self) -> int:
        """Top up every pool once; how many hints were published."""
        pools = self._live_pools()
        waiting = self._publisher.waiting([pool.queue for pool in pools])
        rooms = [(pool, WINDOW_A_SLOT * pool.slots - count) for pool, count in zip(pools, waiting, strict=True)]
        rooms = [(pool, room) for pool, room in rooms if room > 0]
        if not rooms:
            return 0
        taken = self._database.run(*(hints.take_due(pool.offers, room, pool.log_format) for pool, room in rooms))
        batches = [
            (pool.queue, batch)
            for (pool, _), found in zip(rooms, taken, strict=True)
            for batch in _batches(found.rows, pool.slots)
        ]
        self._publish(batches)
        return sum(len(batch) for _, batch in batches)

    def _live_pools(self) -> list[Pool]:
        if time.monotonic() >= self._pools_until:
            self._pools = pools(workers.live(self._database))
            self._pools_until = time.monotonic() + OFFERS_SECONDS
        return self._pools

    def _publish(self, batches: Sequence[tuple[str, Sequence[Row]]]) -> None:
        for place, (queue, batch) in enumerate(batches):
            try:
                self._send(queue, batch)
            except BROKER_AWAY:
                unsent = [row["task_id"] for _, rest in batches[place:] for row in rest]
                self._database.run_patiently(hints.give_back(unsent))
                raise

    def _send(self, queue: str, batch: Sequence[Row]) -> None:
        """Publish a batch; a row that fails alone is set aside and holds up no other."""
        try:
            self._publisher.publish(queue, batch)
        except BROKER_AWAY:
            raise
        except Exception as error:
            if len(batch) > 1:
                for row in batch:
                    self._send(queue, [row])
                return
            reason = f"{hints.UNPUBLISHABLE}: {type(error).__name__}: {error}"[:500]
            log.exception("hint_parked", task=batch[0]["task_id"])
            self._database.run_patiently(hints.park(batch[0]["task_id"], reason))


def pools(live: Sequence[Row]) -> list[Pool]:
    """The pools of live workers, with their slots and offers added up."""
    queues: dict[str, list[Row]] = {}
    for worker in live:
        if worker["offers"]:
            queues.setdefault(worker["pool"], []).append(worker)
    return [
        Pool(
            queue=queue,
            slots=sum(worker["slots"] for worker in behind),
            offers=tuple({str(offer): offer for worker in behind for offer in worker["offers"]}.values()),
            log_format=max(worker["log_format"] for worker in behind),
        )
        for queue, behind in sorted(queues.items())
    ]


def _batches(rows: Sequence[Row], slots: int) -> list[Sequence[Row]]:
    """One message a hint, or under load several hints a message."""
    size = min(HINTS_A_MESSAGE, max(1, len(rows) // (2 * slots)))
    return [rows[start : start + size] for start in range(0, len(rows), size)]
