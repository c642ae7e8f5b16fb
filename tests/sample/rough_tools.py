"""Tools that go wrong with their whole process. Effects are lines in the file that SAMPLE_EFFECTS names."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

from brainhands import Retry, ToolContext, tool
from tests.sample.tools import act


@tool(replay="safe", timeout=60)
def poison(text: str) -> str:
    """Kill the process that runs it, each time."""
    act(f"poison {text} {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)
    return text


@tool(replay="safe", timeout=60)
def hold(ctx: ToolContext, text: str, seconds: float = 2.0) -> str:
    """Begin, and on the first attempt act only after a while; later attempts act at once."""
    act(f"hold {text} began {os.getpid()}")
    if ctx.attempt == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
    act(f"hold {text} acted {os.getpid()}")
    return text


@tool(timeout=30)
def hold_unsafe(text: str, seconds: float = 2.0) -> str:
    """Begin, and act after a while."""
    act(f"hold {text} began {os.getpid()}")
    time.sleep(seconds)
    act(f"hold {text} acted {os.getpid()}")
    return text


@tool(replay="safe", timeout=60)
def spin(ctx: ToolContext, text: str) -> str:
    """On the first attempt, hold the GIL in C code for longer than anybody waits."""
    act(f"spin {text} began {os.getpid()}")
    if ctx.attempt == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    act(f"spin {text} acted {os.getpid()}")
    return text


@tool(replay="safe", timeout=60)
def start_program(ctx: ToolContext, text: str, seconds: float) -> str:
    """On the first attempt, start a program that acts after some seconds and goes on acting, and wait for it."""
    act(f"program {text} began {os.getpid()}")
    if ctx.attempt == 1:
        script = 'sleep "$1"; while :; do echo "program $2 acts" >> "$0"; sleep 0.05; done'
        subprocess.run(["/bin/sh", "-c", script, os.environ["SAMPLE_EFFECTS"], str(seconds), text], check=False)
    act(f"program {text} ended {os.getpid()}")
    return text


@tool(replay="safe", retries=3)
def later(ctx: ToolContext, seconds: float) -> str:
    """Ask to be run again once, after some seconds."""
    if ctx.attempt == 1:
        raise Retry("not yet", after=seconds)
    act("later acted")
    return "done"
