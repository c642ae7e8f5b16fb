"""The writer: every fact of a session is stored by `apply`, in one transaction, strictly one after the other.

    BEGIN | lock the session | clock | lock the tasks                  one round trip, each its own statement
    fill: decide the write set from what was read under the lock
    write everything, each guarded write on its row, and COMMIT         one round trip

The session row is locked FOR NO KEY UPDATE, which lets foreign keys pass. Lock order: session, task by id, slots, then
hints. Only holders of the session's lock wait for its task rows; leases are renewed, and slots and other sessions'
hints taken, with SKIP LOCKED, so nothing can deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

import psycopg

from brainhands.shared.errors import RequestInProgress, ServerUnavailable, StaleWrite, Unsettled
from brainhands.shared.model.commit import Commit, Guard, Hint, NewAttempt
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Status, Task
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import writes
from brainhands.shared.store.database import TRANSIENT, Call, Database, Pause, Transaction
from brainhands.shared.store.locked import CLOCK, Locked, read_locked

log = logger("store")

Fill: TypeAlias = Callable[[Locked], Commit | None]
"""Decides what to store; None stores nothing. May be called again, with fresh reads, when a try was lost."""


MOST_STALE_TRIES = 3


def apply(
    database: Database,
    session_id: SessionId,
    task_ids: Sequence[TaskId],
    fill: Fill,
    *,
    guard: Guard | None = None,
    seconds: float = 10.0,
    skip_locked: bool = False,
) -> Commit | None:
    """Store what `fill` decides and return it; None if it decided nothing, or if `skip_locked` and the session is held.

    A try that lost its connection is made again for `seconds`; one whose COMMIT had gone through finds itself done.
    Raises StaleWrite if the guard no longer holds, or with `skip_locked` if a row had moved. Who has neither owns
    nothing, and reads again. Raises Unsettled when the time or the tries are used up.
    """
    pause = Pause(seconds)
    stale_tries = 0
    sent: Commit | None = None
    while True:
        try:
            with database.transaction() as transaction:
                locked = read_locked(transaction, session_id, task_ids, skip_locked=skip_locked)
                if locked is None:
                    return None
                if sent is not None and _was_applied(sent, locked, guard):
                    return sent
                if guard is not None:
                    _check(guard, locked)
                commit = fill(locked)
                if commit is None:
                    return None
                # Known before it is sent: a COMMIT whose reply is lost may have been carried out.
                sent = commit
                write(transaction, commit, end=True)
            return commit
        except StaleWrite as error:
            if guard is not None or skip_locked:
                raise
            stale_tries += 1
            if stale_tries == MOST_STALE_TRIES:
                raise Unsettled(
                    f"what a commit of session {session_id} had read moved each time", "ask again"
                ) from error
        except (*TRANSIENT, ServerUnavailable) as error:
            log.debug("commit_retried", session=session_id, error=type(error).__name__)
            if not pause.again():
                raise Unsettled(f"a commit of session {session_id} could not be settled in time") from error


def create(transaction: Transaction, fill: Callable[[datetime], Commit]) -> Commit:
    """Store a new session whole in an open transaction, and leave it open; nothing is locked."""
    (clock,) = transaction.run(CLOCK())
    assert clock.first is not None
    commit = fill(clock.first["now"])
    write(transaction, commit)
    return commit


def write(transaction: Transaction, commit: Commit, *, end: bool = False) -> None:
    """Send the whole write set in one round trip, with COMMIT if it is the `end`.

    Raises StaleWrite, and RequestInProgress where a submission's twin has not been committed yet.
    """
    _send(transaction, *writes.groups(commit), submission=next(iter(commit.of(Submission)), None), end=end)


def queue(transaction: Transaction, submission: Submission, intake: Task) -> None:
    """Insert a submission, its inbox entry and the intake task with its hint; no row of the session is locked.

    Raises as write does.
    """
    _send(
        transaction,
        [
            writes.insert_submission(submission),
            writes.insert_input(submission),
            writes.insert_task(intake),
            writes.insert_hint(Hint(intake), submission.tenant),
        ],
        submission=submission,
    )


def _send(transaction: Transaction, *groups: list[Call], submission: Submission | None, end: bool = False) -> None:
    try:
        transaction.write(*groups, commit=end)
    except psycopg.errors.LockNotAvailable:
        # All other rows that a commit writes are its own by now.
        if submission is None:
            raise
        raise RequestInProgress(submission.request_id) from None


def _was_applied(sent: Commit, locked: Locked, guard: Guard | None) -> bool:
    """Whether a try whose COMMIT lost its reply had gone through: the owner finds its step, a claim its attempt."""
    if guard is not None:
        own = locked.attempt(guard.task_id, guard.fence)
        return own is not None and own["step"] > guard.step
    claims = (new.attempt for new in sent.of(NewAttempt))
    return any(
        (found := locked.attempt(claim.task_id, claim.fence)) is not None and found["worker_id"] == claim.worker_id
        for claim in claims
    )


def _check(guard: Guard, locked: Locked) -> None:
    task = locked.tasks.get(guard.task_id)
    if task is None or (task.status, task.fence, task.step) != (Status.RUNNING, guard.fence, guard.step):
        raise StaleWrite(f"task {guard.task_id} is no longer owned under fence {guard.fence}")
