"""The keeper: a thread in each worker process that renews leases and says that the process lives.

It renews at a third of the lease, on a connection of its own, never past the deadline of a phase. In a process that
must not act after its lease (Hands), it also arms a kernel timer: SIGALRM with its default action ends the process at
the end of the lease, even while it holds the GIL, is cut off from Postgres, or was stopped and goes on. A guard beside
the process kills what the process started, and itself while it is stopped.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from brainhands.shared.engine.guard import Guard
from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.runtime.logs import logger
from brainhands.shared.runtime.threads import indispensable
from brainhands.shared.store import attempts, workers
from brainhands.shared.store.database import TRANSIENT, Database, log_interruption

log = logger("keeper")

LOOK_SECONDS = 1.0
"""How often a process that holds claims looks whether they still stand, and whether they are to be cancelled."""

CANCEL_SECONDS = 2.0
"""How long a phase may go on after it was told to end; then its lease is over."""

SEEN_SECONDS = 4.0
"""How often a process says that it lives."""


@dataclass(slots=True)
class Held:
    """A claim of this process; `until` is monotonic time, counted from before the claim was sent."""

    fence: int
    until: float
    lost: bool = False
    cancelled: bool = False


class Keeper:
    """Holds the claims of one process."""

    def __init__(self, database_url: str, worker: WorkerInfo, *, lease_seconds: float, ends_process: bool) -> None:
        step_seconds = max(0.5, min(4.0, lease_seconds / 4))
        self._database = Database(database_url, size=1, step_seconds=step_seconds)
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._renew_below = lease_seconds * 2 / 3
        self._look_seconds = min(LOOK_SECONDS, lease_seconds / 3)
        self._seen_seconds = min(SEEN_SECONDS, lease_seconds / 3)
        self._ends_process = ends_process
        self._guard: Guard | None = None
        self._held: dict[TaskId, Held] = {}
        self._guests_until = math.inf
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._draining = False
        self._leaving = False
        self._look_at = 0.0
        self._thread = indispensable(self._keep, name="keeper")

    def start(self) -> None:
        if self._ends_process and os.getpgrp() == os.getpid():
            self._guard = Guard()
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing and take the process off the register."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        try:
            self._database.run(workers.leave(self._worker.id))
        except (*TRANSIENT, ServerUnavailable) as error:
            log.info("leave_not_recorded", error=type(error).__name__)

    @property
    def draining(self) -> bool:
        """True when the process shall take no new work and go no further than its present step."""
        return self._draining

    @property
    def leaving(self) -> bool:
        """True when the process shall not even finish what can be done again elsewhere without harm."""
        return self._leaving

    def drain(self, *, at_once: bool = False) -> None:
        self._draining = True
        self._leaving = at_once

    def hold(self, task_id: TaskId, fence: int, *, until: float) -> None:
        """Keep a claim alive; `until` is the monotonic time at which its lease ends."""
        with self._lock:
            self._held[task_id] = Held(fence, until)
            self._arm()
            # It may be at rest as long as a process that holds nothing.
            self._look_at = min(self._look_at, time.monotonic() + self._look_seconds)
        self._wake.set()

    def drop(self, task_id: TaskId, fence: int) -> None:
        """The claim is over: given back, or lost, and its code has returned."""
        with self._lock:
            held = self._held.get(task_id)
            if held is not None and held.fence == fence:
                del self._held[task_id]
            self._arm()

    def lost(self, task_id: TaskId, fence: int) -> bool:
        """True if the claim is known to be somebody else's, or its lease is over."""
        with self._lock:
            held = self._held.get(task_id)
            return held is None or held.fence != fence or held.lost or time.monotonic() >= held.until

    def cancelled(self, task_id: TaskId, fence: int) -> bool:
        """True if the task shall end; the phase has a moment left to end it by itself."""
        with self._lock:
            held = self._held.get(task_id)
            return held is not None and held.fence == fence and held.cancelled

    def seconds_left(self, task_id: TaskId, fence: int) -> float:
        """Until the lease ends as it stands now; 0 for a claim that is not held."""
        with self._lock:
            held = self._held.get(task_id)
            return 0.0 if held is None or held.fence != fence else held.until - time.monotonic()

    @contextmanager
    def guests(self, seconds: float = math.inf) -> Iterator[None]:
        """While code of others runs: where the process ends with its leases, it ends after so many seconds too.

        Such code may use SIGALRM for itself. Meanwhile the guard alone ends the process; here the timer is taken back.
        """
        with self._lock:
            self._guests_until = time.monotonic() + seconds
            self._arm()
        try:
            yield
        finally:
            if self._ends_process and threading.current_thread() is threading.main_thread():
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
            with self._lock:
                self._guests_until = math.inf
                self._arm()

    def _arm(self) -> None:
        if not self._ends_process:
            return
        until = min((held.until for held in self._held.values()), default=math.inf)
        until = min(until, self._guests_until)
        if self._guard is None or signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._set_timer(until)
        self._tell_guard(until)

    def _set_timer(self, until: float) -> None:
        seconds = until - time.monotonic()
        if seconds <= 0:
            signal.raise_signal(signal.SIGALRM)  # the lease ended before this process came to arm its timer
        signal.setitimer(signal.ITIMER_REAL, 0.0 if until == math.inf else max(0.001, seconds))

    def _tell_guard(self, until: float) -> None:
        if self._guard is None:
            return
        try:
            if self._guard.has_ended():
                log.warning("guard_ended")
                self._guard = Guard()
            self._guard.allow(until)
        except OSError as error:
            log.warning("guard_does_not_listen", error=type(error).__name__)

    def _keep(self) -> None:
        while not self._stopping:
            again = False
            try:
                self._say_alive()
                again = self._renew()
            except (*TRANSIENT, ServerUnavailable) as error:
                log_interruption(log, "keeper_interrupted", error)
            except Exception:
                # Without its keeper the process would take hints and hold no lease.
                log.exception("keeper_failed")
            if not again:
                self._rest()

    def _rest(self) -> None:
        """Until the next look, which comes sooner once a claim is held."""
        with self._lock:
            seconds = self._look_seconds if self._held else self._seen_seconds
            self._look_at = time.monotonic() + seconds
        while not self._stopping and (left := self._look_at - time.monotonic()) > 0:
            self._wake.wait(left)
            self._wake.clear()

    def _say_alive(self) -> None:
        result, _ = self._database.run(*workers.see(self._worker))
        if result.first is not None and result.first["draining"]:
            self._draining = True

    def _renew(self) -> bool:
        """Renew what is due; True if some claim is to be cancelled from now on, whose lease must be shortened."""
        found_cancel = False
        with self._lock:
            mine = {task_id: held.fence for task_id, held in self._held.items() if not held.lost}
            due = [task_id for task_id in mine if self._held[task_id].until - time.monotonic() < self._renew_below]
            cancelled = [task_id for task_id in mine if self._held[task_id].cancelled]
        if not mine:
            return False
        sent_at = time.monotonic()
        renewed, owned, _ = self._database.run(
            attempts.renew(due, [mine[task_id] for task_id in due], self._lease_seconds),
            attempts.owned(list(mine), list(mine.values())),
            attempts.shorten(cancelled, [mine[task_id] for task_id in cancelled], CANCEL_SECONDS),
        )
        still_owned = {(row["id"], row["fence"]): row["cancel_wanted"] for row in owned.rows}
        with self._lock:
            for row in renewed.rows:
                held = self._held.get(row["id"])
                if held is not None and held.fence == row["fence"]:
                    held.until = max(held.until, sent_at + float(row["seconds_left"]))
            for task_id, fence in mine.items():
                held = self._held.get(task_id)
                if held is None or held.fence != fence:
                    continue
                if (task_id, fence) not in still_owned:
                    held.lost = True
                    log.info("lease_lost", task=task_id, fence=fence)
                elif still_owned[task_id, fence] and not held.cancelled:
                    held.cancelled = True
                    held.until = min(held.until, time.monotonic() + CANCEL_SECONDS)
                    found_cancel = True
                    log.info("cancel_wanted", task=task_id, fence=fence)
            self._arm()
        return found_cancel
