"""The sweep: finds what stopped or has come due, and settles each session in a commit of its own.

It runs every second in every relay process. Candidates are found without locks; a session that somebody else holds is
left for the next sweep. Every judgement is made again under the session's lock, so a late candidate does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from shared.engine.draft import Draft, Origin
from shared.engine.ledger import Ledger
from shared.engine.settling import settle
from shared.errors import ServerUnavailable, StaleWrite, Unsettled
from shared.model.commit import Commit
from shared.model.ids import ConversationId, SessionId
from shared.runtime.logs import logger
from shared.store import due, slots, workers
from shared.store.database import TRANSIENT, Row
from shared.store.due import Due
from shared.store.view import View

log = logger(__name__)

SWEEP_SECONDS = 1.0
FORGET_EVERY = 600


class Sweep:
    """One relay's sweep loop."""

    def __init__(self, ledger: Ledger, origin: Origin, *, restart_limit: int, stopping: threading.Event) -> None:
        self._ledger = ledger
        self._origin = origin
        self._restart_limit = restart_limit
        self._stopping = stopping

    def run(self) -> None:
        """Sweep every second until told to stop; an error costs one sweep."""
        sweeps = 0
        while not self._stopping.wait(SWEEP_SECONDS):
            try:
                self.sweep_once()
                if sweeps % FORGET_EVERY == 0:
                    self._ledger.database.run(workers.forget())
                sweeps += 1
            except (*TRANSIENT, ServerUnavailable) as error:
                log.warning("postgres_away", error=type(error).__name__)

    def sweep_once(self) -> None:
        """Settle everything that is due now and whose session is free."""
        database = self._ledger.database
        live = workers.live(database)
        database.run(*due.mend_hints(), slots.free_abandoned())
        found = sorted(due.find(database, live), key=itemgetter("session_id"))
        for session_id, candidates in groupby(found, key=itemgetter("session_id")):
            self._settle(session_id, list(candidates))

    def _settle(self, session_id: SessionId, candidates: Sequence[Row]) -> None:
        task_ids = [row["subject"] for row in candidates if row["due"] != Due.INPUT]

        def fill(view: View) -> Commit | None:
            draft = Draft(view, self._origin, any_format=True)
            for row in candidates:
                self._judge(draft, row)
            commit = draft.freeze()
            return commit if commit.events or commit.changes or commit.new_tasks else None

        try:
            commit = self._ledger.apply(session_id, task_ids, fill, skip_locked=True, seconds=2.0)
        except (StaleWrite, Unsettled) as error:
            log.info("sweep_put_off", session=session_id, error=type(error).__name__)
            return
        except Exception:
            # A session that cannot be settled must not keep the others from it.
            log.exception("sweep_failed", session=session_id)
            return
        if commit is not None:
            log.info("swept", session=session_id, due=",".join(sorted({row["due"] for row in candidates})))

    def _judge(self, draft: Draft, row: Row) -> None:
        due = Due(row["due"])
        if due is Due.INPUT:
            draft.take_next_input(ConversationId(row["subject"]))
        elif (task := draft.view.tasks.get(row["subject"])) is not None:
            settle(draft, task, due, restart_limit=self._restart_limit, reason=row["reason"])
