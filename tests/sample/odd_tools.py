"""Tools that end in every way there is, for tests of what is made of it. Effects are lines, as in tests.sample.tools.

A tool that `holds` acts and then works until somebody ends it, in its first attempt only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import psycopg
from pydantic import BaseModel, Field

from brainhands import NotFound, Retry, ToolContext, ToolError, Unknown, tool
from brainhands.shared.model.tool import Replay
from brainhands.shared.runtime.settings import libpq_url
from tests.sample.tools import act, effects

LONG = 600.0
FIND_START = "SELECT payload::text FROM brainhands.events WHERE task_id = %s AND type = 'tool_call_start'"
ACCEPT_LATE = """
import pathlib, sys, time
file, to, line = sys.argv[1:]
end = time.monotonic() + 60
while not pathlib.Path(f"{file}.{to}").exists() and time.monotonic() < end:
    time.sleep(0.02)
with open(file, "a") as effects:
    effects.write(line)
"""


def hold(ctx: ToolContext) -> None:
    """Work until the end of the process, in the first attempt."""
    if ctx.attempt == 1:
        time.sleep(LONG)


def effects_file() -> str:
    """Where effects are written; the gates are files beside it."""
    return os.environ["SAMPLE_EFFECTS"]


def wait_for_gate(name: str) -> None:
    """Work until the test makes the file of this name, or half a minute has passed."""
    gate = Path(f"{effects_file()}.{name}")
    end = time.monotonic() + 30
    while not gate.exists() and time.monotonic() < end:
        time.sleep(0.02)


@tool
def witness(ctx: ToolContext, text: str, times: int = 2) -> object:
    """Say what is committed of this very call while it runs."""
    with psycopg.connect(libpq_url(os.environ["DATABASE_URL"])) as connection:
        found = connection.execute(FIND_START, [ctx.task_id]).fetchall()
    return {"starts": [json.loads(row[0]) for row in found], "operation_id": ctx.operation_id, "text": text * times}


@tool(timeout=3)
def hold_unsafe(ctx: ToolContext, name: str) -> str:
    """Act, and never come back."""
    ctx.progress(f"step one of {name}\n")
    act(f"hold_unsafe {name} {ctx.operation_id}")
    time.sleep(0.35)
    ctx.progress(f"step two of {name}\n")
    act(f"shown {name}")
    time.sleep(LONG)
    return name


@tool(replay="safe", timeout=20)
def hold_safe(ctx: ToolContext, name: str) -> str:
    """Act; come back at the second attempt."""
    act(f"hold_safe {name} {ctx.operation_id}")
    hold(ctx)
    return f"attempt {ctx.attempt} of {name}"


@tool(replay="reconcile", timeout=20, operation=lambda arguments: arguments.name)
def hold_reconcile(ctx: ToolContext, name: str, sent: bool = True) -> str:
    """Act, or hold before that; the service can be asked, and its word is in the name."""
    if sent or ctx.attempt > 1:
        act(f"hold_reconcile {ctx.operation_id}")
    act(f"holding {name}")
    hold(ctx)
    return f"attempt {ctx.attempt} of {name}"


@hold_reconcile.lookup(dedupes=True)
def find_held(ctx: ToolContext) -> object:
    """Look for the effect; some names are a mystery for a while, some for ever."""
    asked = effects().count(f"asked {ctx.operation_id}")
    act(f"asked {ctx.operation_id}")
    if ctx.operation_id.endswith("mystery"):
        return Unknown
    if ctx.operation_id.endswith("riddle") and asked < 2:
        if asked == 0:
            raise ConnectionError("the service cannot be reached")
        return Unknown()
    return f"found {ctx.operation_id}" if f"hold_reconcile {ctx.operation_id}" in effects() else NotFound


@tool(replay="reconcile", timeout=3, settle=27)
def send_late(ctx: ToolContext, to: str) -> str:
    """Ask a service that accepts when the gate is open, whoever is still there, and twice if asked twice."""
    line = f"late {to} {ctx.operation_id}\n"
    subprocess.Popen([sys.executable, "-c", ACCEPT_LATE, effects_file(), to, line], start_new_session=True)
    act(f"asked for {to}")
    time.sleep(LONG)
    return to


@send_late.lookup()
def find_late(ctx: ToolContext) -> object:
    """Say what the service knows by now."""
    found = any(line.startswith("late ") and line.endswith(ctx.operation_id) for line in effects())
    act(f"late look-up {'found' if found else 'not found'}")
    return "it was late" if found else NotFound


@tool(replay="reconcile", timeout=1, settle=0.5)
def send_lost(ctx: ToolContext, to: str) -> str:
    """Lose the first request on its way."""
    act(f"lost {to} {ctx.attempt}")
    if ctx.attempt == 1:
        raise ConnectionError("cut")
    return f"attempt {ctx.attempt}"


@send_lost.lookup()
def find_lost(ctx: ToolContext) -> object:
    """Never find it."""
    act(f"looked for {ctx.operation_id}")
    return NotFound


@tool(timeout=30)
def slow_unsafe(ctx: ToolContext, name: str) -> str:
    """Act, and come back when the gate of this name is open."""
    act(f"slow_unsafe {name} {ctx.operation_id}")
    wait_for_gate(name)
    return f"came back for {name}"


@tool(timeout=1)
def spin(name: str) -> None:
    """Hold the processor for ever."""
    act(f"spin {name} {os.getpid()}")
    while True:
        pass


@tool(replay="safe", timeout=1)
def spin_safe(name: str) -> None:
    """Hold the processor for ever, as often as one likes."""
    act(f"spin_safe {name}")
    while True:
        pass


@tool
def leave(how: Literal["exit", "interrupt", "boom", "misuse"]) -> None:
    """Act, and try to take the process along."""
    act(f"leave {how}")
    if how == "misuse":
        order.validate({"items": []})
        order.validate({})
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "boom": ValueError("boom")}[how]


@tool(timeout=2)
def vanish() -> None:
    """Act, and end the process without a word."""
    act("vanish")
    os._exit(0)


@tool(replay="safe", retries=2)
def shaky(ctx: ToolContext, name: str, until: int) -> str:
    """Lose the connection until the attempt of this number."""
    act(f"shaky {name} {ctx.attempt}")
    if ctx.attempt < until:
        raise OSError("connection reset")
    return f"held at attempt {ctx.attempt}"


@tool
def not_before(ctx: ToolContext, name: str) -> str:
    """Say at first that it may be tried again in an hour."""
    act(f"not_before {name} {ctx.attempt}")
    if ctx.attempt == 1:
        raise Retry("come back later", after=3600)
    return f"attempt {ctx.attempt}"


@tool(output_limit=1000)
def talk(characters: int) -> str:
    """Give back a long text."""
    return "é" * characters


@tool
def chatter(ctx: ToolContext, megabytes: int) -> None:
    """Show far more than anybody wants to keep, and fail."""
    for _ in range(megabytes * 16):
        ctx.progress("x" * 65_536)
    ctx.progress("the last words")
    raise RuntimeError("too much said")


class Item(BaseModel):
    """Something to order."""

    sku: str
    quantity: int = Field(ge=1)


@tool
async def order(items: list[Item], express: bool = False) -> dict[str, object]:
    """Order items; a tool may be a coroutine."""
    act(f"order {len(items)}")
    return {"quantities": {item.sku: item.quantity for item in items}, "express": express}


@tool(timeout=5, replay=Replay(os.environ.get("SAMPLE_TURNING", "safe")), pool="hands.turning")
def turning(name: str) -> str:
    """Act, and never come back; its author changes the mind on whether it may be repeated."""
    act(f"turning {name}")
    time.sleep(LONG)
    return name


@tool(replay="safe", timeout=30)
def gated(name: str) -> str:
    """Come back when the gate of this name is open."""
    act(f"gated {name}")
    wait_for_gate(name)
    return f"through {name}"


@tool(replay="safe")
def ping() -> str:
    """Take no arguments."""
    return "pong"


@tool
def definite(text: str) -> None:
    """Fail for sure."""
    raise ToolError(text)


@tool(pool="hands.later")
def from_later(text: str) -> str:
    """Belong to a pool that a test starts when it likes."""
    act(f"from_later {text}")
    return f"later: {text}"
