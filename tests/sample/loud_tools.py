"""Tools that write wherever a process can, a flow that fails, and a first child process that hangs where it is told to.

The file that LOUD_HANGS names is what the one process that hangs makes, and none hangs if it is there.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from brainhands import Flow, phase, tool
from tests.sample.rough_tools import hold_unsafe

__all__ = ["Stumble", "hold_unsafe", "speak"]


@tool(replay="safe")
def speak(text: str) -> str:
    """Say the text in each way that there is."""
    print(f"printed {text}")
    print("not of every terminal: \u2603 \ud800")
    print(f'{{"written by": "the tool", "text": "{text}"}}')
    print(f"to standard error {text}", file=sys.stderr)
    logging.getLogger("shop").info("logged %s", text)
    warnings.warn(f"warned {text}", stacklevel=1)
    subprocess.run(["/bin/sh", "-c", 'echo "by a program $0"', text], check=True)
    os.write(2, f"without Python {text}\n".encode())
    return text


class Stumble(Flow, name="stumble", version=1):
    """Fail in the only phase."""

    @phase
    def start(self, text: str) -> object:
        raise ZeroDivisionError(f"in the middle of a phase: {text}")


def _hang_once() -> None:
    file = os.environ.get("LOUD_HANGS")
    if file and not Path(file).exists():
        Path(file).write_text(str(os.getpid()))
        time.sleep(600)


os.register_at_fork(after_in_child=_hang_once)
