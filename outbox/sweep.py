"""The sweep: finds what stopped or has come due, and settles each session in a commit of its own.

It runs every second in every relay process. Candidates are found without locks, sort by sort and page by page; a
session that somebody else holds is left for the next sweep. Every judgement is made again under the session's lock, so
a late candidate does nothing. Whatever fails is alone in that: where a session's candidates fail together they are
tried one by one, and one that cannot be settled rests for a while, longer each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from uuid import UUID

from brainhands.shared.engine import inbox
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import Draft, Origin
from brainhands.shared.engine.due import judge
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import ServerUnavailable, StaleWrite, Unsettled
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import ConversationId, SessionId
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import due, slots, workers
from brainhands.shared.store.database import TRANSIENT, Row, log_interruption
from brainhands.shared.store.due import Due, Mend, Needed
from brainhands.shared.store.locked import Locked

log = logger(__name__)

SWEEP_SECONDS = 1.0
SORT_SECONDS = 2.0
"""How long a sweep stays with one sort; the next one goes on from there."""

FORGET_EVERY = 600

LONGEST_REST_SECONDS = 60.0
MOST_AT_REST = 10_000
"""How many candidates that failed are known; one that is forgotten is tried again sooner."""

INTERRUPTED = (*TRANSIENT, ServerUnavailable, Unsettled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """How long a candidate that could not be settled is left alone, in monotonic time."""

    until: float
    seconds: float


class Sweep:
    """One relay's sweep loop."""

    def __init__(
        self,
        writer: Writer,
        origin: Origin,
        *,
        restart_limit: int,
        blocked_after_seconds: float,
        stopping: threading.Event,
    ) -> None:
        self._writer = writer
        self._database = writer.database
        self._origin = origin
        self._restart_limit = restart_limit
        self._blocked_after_seconds = blocked_after_seconds
        self._stopping = stopping
        self._places: dict[Due | Mend, UUID] = {}
        """Where to go on with a sort that has more candidates than a sweep gets through, or more rows than a round."""
        self._turns = cycle(due.ON_ROUNDS)
        """Whose round it is, of those that take more than one."""
        self._unoffered_since: dict[Needed, float] = {}
        """Since when, in monotonic time, no live worker offers what hints require: a fleet may be starting anew."""
        self._resting: dict[tuple[Due, UUID], Rest] = {}

    def run(self) -> None:
        """Sweep every second until told to stop, whatever goes wrong."""
        sweeps = 0
        while not self._stopping.wait(SWEEP_SECONDS):
            self._survive(self.sweep_once)
            if sweeps % FORGET_EVERY == 0:
                self._survive(self._forget)
            sweeps += 1

    def sweep_once(self) -> None:
        """Settle everything that is due now and whose session is free; an error costs the work that met it."""
        turn = next(self._turns)
        for mend in Mend:
            self._survive(partial(self._mend, mend, turn))
        self._survive(self._free_slots)
        known = due.circumstances(self._database, self._long_unoffered())
        for sort in Due:
            if sort not in due.ON_ROUNDS or self._has_its_round(sort, turn):
                self._survive(partial(self._settle_sort, sort, known))

    def _survive(self, work: Callable[[], None]) -> None:
        try:
            work()
        except INTERRUPTED as error:
            log_interruption(log, "sweep_interrupted", error)
        except Exception:
            log.exception("sweep_failed")

    def _free_slots(self) -> None:
        self._database.run(slots.free_abandoned())

    def _has_its_round(self, name: Due | Mend, turn: Due | Mend) -> bool:
        """A round that sees all there is is made in each sweep; of longer ones there is one in a sweep."""
        return name == turn or name not in self._places

    def _mend(self, mend: Mend, turn: Due | Mend) -> None:
        if not self._has_its_round(mend, turn):
            return
        place = due.mend_hints(self._database, mend, self._places.pop(mend, due.FIRST_PAGE))
        if place is not None:
            self._places[mend] = place

    def _long_unoffered(self) -> list[Needed]:
        now = time.monotonic()
        since = self._unoffered_since
        self._unoffered_since = {needed: since.get(needed, now) for needed in due.unoffered(self._database)}
        return [each for each, began in self._unoffered_since.items() if now - began >= self._blocked_after_seconds]

    def _forget(self) -> None:
        self._database.run(workers.forget())

    def _settle_sort(self, sort: Due, known: Row) -> None:
        """Settle all candidates of a sort, or go on with them in the next sweep when the time is over."""
        end = time.monotonic() + SORT_SECONDS
        while True:
            page, place = due.find(self._database, sort, known, self._places.pop(sort, due.FIRST_PAGE))
            for session_id, candidates in _by_session(page).items():
                self._settle(session_id, sort, candidates)
                if time.monotonic() >= end:
                    self._places[sort] = candidates[0]["subject"]
                    return
            if place is None:
                return
            self._places[sort] = place
            if len(page) < due.PAGE:
                return  # The round goes on in the next sweep.

    def _settle(self, session_id: SessionId, sort: Due, candidates: Sequence[Row]) -> None:
        """Settle the candidates of a session in one commit; one by one where that fails."""
        now = time.monotonic()
        rested = [row for row in candidates if not self._rests(sort, row, now)]
        if not rested:
            return
        try:
            commit = self._commit(session_id, sort, rested)
        except INTERRUPTED as error:
            if not isinstance(error, Unsettled) or isinstance(error.__cause__, ServerUnavailable):
                raise  # Postgres is away, which is nothing of the candidates'.
            log.info("sweep_put_off", session=session_id, due=sort, error=type(error).__name__)
            for row in rested:
                self._let_rest(sort, row)
        except Exception as error:
            if len(rested) > 1:
                for row in rested:
                    self._settle(session_id, sort, [row])
                return
            if isinstance(error, StaleWrite):
                log.info("sweep_put_off", session=session_id, due=sort, error=type(error).__name__)
            else:
                log.exception("sweep_failed", session=session_id, due=sort, subject=rested[0]["subject"])
            self._let_rest(sort, rested[0])
        else:
            for row in rested:
                self._resting.pop((sort, row["subject"]), None)
            if commit is not None:
                log.info("swept", session=session_id, due=sort, count=len(rested))

    def _commit(self, session_id: SessionId, sort: Due, candidates: Sequence[Row]) -> Commit | None:
        task_ids = [row["subject"] for row in candidates if sort is not Due.INPUT]

        def fill(locked: Locked) -> Commit | None:
            draft = Draft(locked, self._origin, any_format=True)
            for row in candidates:
                self._judge(draft, sort, row)
            commit = freeze(draft)
            return commit if commit.tasks or commit.of(Event) else None

        return self._writer.apply(session_id, task_ids, fill, skip_locked=True, seconds=2.0)

    def _judge(self, draft: Draft, sort: Due, row: Row) -> None:
        if sort is Due.INPUT:
            inbox.take_next(draft, ConversationId(row["subject"]))
        elif (task := draft.locked.tasks.get(row["subject"])) is not None:
            judge(draft, task, sort, restart_limit=self._restart_limit, reason=row["reason"])

    def _rests(self, sort: Due, row: Row, now: float) -> bool:
        rest = self._resting.get((sort, row["subject"]))
        return rest is not None and now < rest.until

    def _let_rest(self, sort: Due, row: Row) -> None:
        before = self._resting.pop((sort, row["subject"]), None)
        seconds = SWEEP_SECONDS if before is None else min(LONGEST_REST_SECONDS, 2 * before.seconds)
        self._resting[sort, row["subject"]] = Rest(until=time.monotonic() + seconds, seconds=seconds)
        if len(self._resting) > MOST_AT_REST:
            del self._resting[next(iter(self._resting))]


def _by_session(page: Sequence[Row]) -> dict[SessionId, list[Row]]:
    """The candidates of each session, the sessions in the order of their first ones."""
    sessions: dict[SessionId, list[Row]] = {}
    for row in page:
        sessions.setdefault(row["session_id"], []).append(row)
    return sessions
