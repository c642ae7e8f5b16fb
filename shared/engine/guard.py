"""The guard: a process beside a worker process that kills it, with all that it started, when its lease ends or it dies.

The kernel timer ends only the process that armed it, and a stopped one only when it goes on. What a tool started would
act on. So each Hands process leads a process group and tells its guard, by a pipe, until when the group may live: eight
bytes, a double of monotonic time, infinite while no lease is held. The end of the pipe is the death of the process.
"""

from __future__ import annotations

import math
import os
import select
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress


class Guard:
    """The guard of this process, which must lead its own process group."""

    def __init__(self) -> None:
        # In a session of its own, so that a signal to all of the worker's processes does not stop their guard.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpgrp())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        # A guard that does not read must not hold up the keeper; what it then misses, the kernel timer sees to.
        os.set_blocking(self._pipe, False)

    def has_ended(self) -> bool:
        """Whether the guard died, so that somebody must start another."""
        return self._process.poll() is not None

    def allow(self, until: float) -> None:
        """Let the group live until then, in monotonic time. Raises OSError if the guard does not listen."""
        os.write(self._pipe, struct.pack("d", until))


def watch(group: int, pipe: int) -> None:
    """Kill the group at the time that the pipe says, or at the pipe's end."""
    until = math.inf
    while True:
        seconds = None if until == math.inf else max(0.0, until - time.monotonic())
        ready, _, _ = select.select([pipe], [], [], seconds)
        said = os.read(pipe, 8) if ready else b""
        if not said:
            break
        (until,) = struct.unpack("d", said)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.stdin.fileno())
