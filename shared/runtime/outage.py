"""What a log says of a server that is away: a line when it goes and one when it is back, none for the tries between."""

from __future__ import annotations

import threading
import time

from brainhands.shared.runtime.address import shown
from brainhands.shared.runtime.logs import EventLogger
from brainhands.shared.runtime.tls import tls_fault


class Outage:
    """The state of a server as one part of a process knows it; logs `NAME_away` and `NAME_back`."""

    def __init__(self, log: EventLogger, name: str, url: str) -> None:
        self._log = log
        self._name = name
        self._address = shown(url)
        self._since: float | None = None
        self._lock = threading.Lock()

    def began(self, error: BaseException) -> None:
        """A try failed."""
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        reason: dict[str, object] = {"error": type(error).__name__}
        if fault := tls_fault(error):
            reason |= {"problem": fault.problem, "next_step": fault.next_step}
        self._log.warning(f"{self._name}_away", address=self._address, **reason)

    def over(self) -> None:
        """A try went through."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            seconds = round(time.monotonic() - since, 1)
            self._log.warning(f"{self._name}_back", address=self._address, seconds=seconds)
