"""Lines of JSON: one form for what a process logs, and for what it, its children or a library write without logging.

Run as a program, with the name and number of a process, it copies standard input to standard output and makes JSON of
each line that is none. It stands alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TextIO

LONGEST_LINE = 16 * 1024
"""Bytes; what is longer becomes several lines."""


def json_line(line: str, *, process: str, pid: int) -> str:
    """A line of output as one JSON object; an object stays as it is."""
    if line.startswith("{"):
        try:
            if isinstance(json.loads(line), dict):
                return line
        except (ValueError, RecursionError):
            pass
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = {"time": time, "level": "INFO", "process": process, "pid": pid, "logger": "output"}
    return json.dumps({**head, "event": line})


def wrap_outputs(process: str) -> TextIO:
    """Send both outputs of this process, and of whatever it starts, through such a program.

    Gives what was standard error, for lines that are JSON already: these reach it however this process ends. The
    program ends when nobody can write to it any more, and takes no part in signals to a terminal's group.
    """
    straight = os.dup(2)
    writer = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, process, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=straight,
        stderr=straight,
        start_new_session=True,
    )
    assert writer.stdin is not None
    sys.stdout.flush()
    for output in (1, 2):
        os.dup2(writer.stdin.fileno(), output)
    writer.stdin.close()
    return os.fdopen(straight, "w", encoding="utf-8", buffering=1)


def main() -> None:
    """Copy until the input ends."""
    _, process, pid = sys.argv
    for read in iter(lambda: sys.stdin.buffer.readline(LONGEST_LINE), b""):
        if line := read.decode(errors="replace").rstrip():
            os.write(1, f"{json_line(line, process=process, pid=int(pid))}\n".encode())


if __name__ == "__main__":
    main()
