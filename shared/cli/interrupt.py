"""Ctrl-C ends each command, wherever it meets it.

It raises KeyboardInterrupt in whatever runs. Where that is a `__del__` or another callback whose errors Python ignores,
nobody hears of it, and the command would go on; so an alarm ends the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 5
"""What a command has to end in order after Ctrl-C."""

EXIT_STATUS = 130
"""That of a command which Ctrl-C ended."""


@contextmanager
def heard() -> Iterator[None]:
    """Within, Ctrl-C also ends the process after `GRACE_SECONDS`; not where it is ignored, as in the background."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(EXIT_STATUS) from None
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:  # `up` has a handler of its own
            signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # It stays set while the process ends, which bounds that too.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(EXIT_STATUS))
    signal.alarm(GRACE_SECONDS)
    signal.default_int_handler(number, frame)
