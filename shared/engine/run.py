"""A phase under way: the claimed task, and what its code may use while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Attempt, Task
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import attempts, reads, workers
from brainhands.shared.store.database import TRANSIENT, Database, log_interruption

log = logger("engine")

PROGRESS_SECONDS = 0.3
"""Progress is written no more often than this."""


class Run:
    """What a phase works with. Progress may be lost and decides nothing."""

    def __init__(
        self,
        task: Task,
        database: Database,
        soft_database: Database,
        stopped: Callable[[], bool],
        cancelled: Callable[[], bool],
        leaving: Callable[[], bool],
        look: reads.Look | None = None,
    ) -> None:
        self.task = task
        self._conversation = look.conversation if look else None
        self.steered = look.steered if look else True
        """False where it is known that no input waits to join the present work."""
        self.database = database
        self._soft_database = soft_database
        self._stopped = stopped
        self._cancelled = cancelled
        self._leaving = leaving
        self._shown = ""
        self._written_at = time.monotonic()
        self._later: threading.Timer | None = None

    @property
    def stopped(self) -> bool:
        """True when the claim is lost: nothing that this run still does can be stored."""
        return self._stopped()

    @property
    def cancelled(self) -> bool:
        """True when the task shall end: the phase should return soon, and what it returns is stored if it is an end."""
        return self._cancelled()

    @property
    def leaving(self) -> bool:
        """True when somebody waits for the process to end: what may be begun anew elsewhere should be left."""
        return self._leaving()

    @property
    def shown(self) -> str | None:
        """All progress so far; None if there was none."""
        return self._shown or None

    @property
    def conversation(self) -> Conversation:
        """The conversation of the task, as it was looked at before the claim or is read now."""
        if self._conversation is None:
            assert self.task.conversation_id is not None
            self._conversation = reads.conversation(self.database, self.task.conversation_id)
        return self._conversation

    @property
    def writes_format(self) -> int:
        """The newest log format that every live worker reads.

        A phase that acts and then stores an event of a newer one asks before it acts, and raises OlderWorkers or does
        without: what it has done must be stored.
        """
        (result,) = self.database.run(workers.LOWEST_FORMAT())
        return workers.lowest_format(result)

    def progress(self, text: str) -> None:
        """Show more output of this attempt."""
        self._shown = (self._shown + text)[-attempts.PROGRESS_LIMIT :].replace("\x00", "\ufffd")
        wait = self._written_at + PROGRESS_SECONDS - time.monotonic()
        if wait <= 0:
            self._write()
        elif self._later is None or not self._later.is_alive():
            self._later = threading.Timer(wait, self._write)
            self._later.daemon = True
            self._later.start()

    def end(self) -> None:
        """The phase has returned: what it showed last goes with the commit of its step."""
        if self._later is not None:
            self._later.cancel()

    def earlier_attempts(self) -> list[Attempt]:
        """The claims of this task before the present one, oldest first."""
        return [each for each in attempts.of_task(self.database, self.task.id) if each.fence < self.task.fence]

    def _write(self) -> None:
        self._written_at = time.monotonic()
        try:
            self._soft_database.run(attempts.write_progress(self.task.id, self.task.fence, self._shown))
        except (*TRANSIENT, ServerUnavailable) as error:
            log_interruption(log, "progress_lost", error)
        except Exception:
            log.exception("progress_lost", task=self.task.id)
