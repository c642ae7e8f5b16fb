"""The sweep: finds what stopped or has come due, and settles each session in a commit of its own.

It runs every second in every relay process. Candidates are found without locks; a session that somebody else holds is
left for the next sweep. Every judgement is made again under the session's lock, so a late candidate does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from shared.engine import endings
from shared.engine.draft import Draft, Origin
from shared.engine.ledger import Ledger
from shared.errors import ServerUnavailable, StaleWrite, Unsettled
from shared.kernel import compat, moves
from shared.model.commit import Commit
from shared.model.event import TaskBlocked, TaskUnblocked
from shared.model.ids import ConversationId, SessionId
from shared.model.task import Status, Task
from shared.runtime.logs import logger
from shared.store import due, workers
from shared.store.database import TRANSIENT, Row
from shared.store.due import NO_WORKER, Due
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
        database.run(*due.mend_hints())
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
        kind = Due(row["due"])
        if kind is Due.INPUT:
            draft.take_next_input(ConversationId(row["subject"]))
            return
        task = draft.view.tasks.get(row["subject"])
        if task is None:
            return
        match kind:
            case Due.WAKE if task.status is Status.SLEEPING and task.wake_at is not None and task.wake_at <= draft.now:
                draft.change(moves.wake(task))
            case Due.EXPIRE if not compat.readable(draft.view.session.log_format):
                pass  # What the end of this attempt means depends on phases that are not known here.
            case Due.EXPIRE if task.status is Status.RUNNING and task.lease_until and task.lease_until < draft.now:
                endings.end_attempt(draft, task, _how_it_ended(draft, task), self._restart_limit)
            case Due.READY if _waits_for_tasks(task) and not draft.view.open_dependencies(task.id):
                draft.end_wait(task)
            case Due.MISS if task.signal_name is not None and task.wake_at is not None and task.wake_at <= draft.now:
                draft.miss_signal(task)
            case Due.COMPLETE if task.status is Status.COMPLETING and not draft.view.open_children(task.id):
                assert task.outcome is not None
                draft.finish(task, task.outcome, result=task.result, error=task.error)
            case Due.BLOCK if task.status is Status.PENDING and task.blocked is None:
                reason = row["reason"] or f"{NO_WORKER} {task.requires}"
                draft.event(TaskBlocked(kind=task.kind, reason=reason), causes=task.causes, task=task)
                draft.change(moves.block(task, reason))
            case Due.UNBLOCK if task.status is Status.PENDING and task.blocked is not None:
                draft.event(TaskUnblocked(kind=task.kind), causes=task.causes, task=task)
                draft.change(moves.unblock(task))
            case _:
                pass


def _how_it_ended(draft: Draft, task: Task) -> str:
    if task.deadline is not None and task.deadline <= draft.now:
        return "it ran past its deadline"
    return "its worker died or was cut off"


def _waits_for_tasks(task: Task) -> bool:
    return task.status is Status.WAITING and task.signal_name is None
