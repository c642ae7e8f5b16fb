"""No thread dies alone: one that a process cannot do without takes the process along, by an error that it let through.

Such a thread goes on after each error that it can survive. What gets this far is logged with its trace first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from brainhands.shared.runtime.logs import logger

log = logger("threads")

EXIT_STATUS = 70
"""Of a process that lost a thread: EX_SOFTWARE of sysexits.h."""


def indispensable(run: Callable[[], None], *, name: str, daemon: bool = True) -> threading.Thread:
    """A thread, not started yet, whose process ends at once when `run` raises anything."""

    def guarded() -> None:
        try:
            run()
        except BaseException:
            log.exception("thread_ended_its_process", thread=name)
            os._exit(EXIT_STATUS)

    return threading.Thread(target=guarded, name=name, daemon=daemon)
