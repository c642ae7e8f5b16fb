"""Tools for tests. Effects are lines in the file that SAMPLE_EFFECTS names, so that every attempt can be counted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from brainhands import (
    Ask,
    Document,
    Done,
    Fail,
    Flow,
    Next,
    NotFound,
    Retry,
    Rule,
    ToolContext,
    ToolError,
    Unknown,
    Wait,
    WaitSignal,
    phase,
    tool,
)
from brainhands.shared.model.ids import TaskId


def effects() -> list[str]:
    """The effects so far, one line each."""
    file = Path(os.environ["SAMPLE_EFFECTS"])
    return file.read_text().splitlines() if file.exists() else []


def act(line: str) -> None:
    """Take effect once."""
    with Path(os.environ["SAMPLE_EFFECTS"]).open("a") as file:
        file.write(line + "\n")


@tool(replay="safe")
def echo(text: str) -> str:
    """Give back a text."""
    return text


@tool
def note(text: str) -> str:
    """Write a line; `error`, `retry` and `crash` in it fail in their own ways."""
    act(f"note {text}")
    if text.startswith("error"):
        raise ToolError(text)
    if text.startswith("retry"):
        raise Retry(text, after=0.1)
    if text.startswith("boom"):
        raise RuntimeError(text)
    return f"noted {text}"


@tool(timeout=30)
def send_unsafe(ctx: ToolContext, to: str, seconds: float = 0.0) -> str:
    """Send without any way back."""
    ctx.progress(f"sending to {to}\n")
    act(f"unsafe {to} {ctx.operation_id}")
    time.sleep(seconds)
    return f"sent to {to}"


@tool(replay="safe", timeout=30)
def send_safe(ctx: ToolContext, to: str, seconds: float = 0.0) -> str:
    """Send as often as need be."""
    act(f"safe {to} {ctx.operation_id}")
    time.sleep(seconds)
    return f"sent to {to}"


@tool(replay="reconcile", timeout=30, operation=lambda arguments: arguments.to)
def send_reconcile(ctx: ToolContext, to: str, seconds: float = 0.0, mode: str = "") -> str:
    """Send, and be able to find out whether it was sent."""
    if mode == "cut before":
        raise ConnectionError("cut before it was sent")
    act(f"reconcile {to} {ctx.operation_id}")
    if mode == "cut after":
        raise ConnectionError("cut after it was sent")
    time.sleep(seconds)
    return f"sent to {to}"


@send_reconcile.lookup(dedupes=True)
def find_sent(ctx: ToolContext) -> object:
    """Look for the effect of an operation."""
    if ctx.operation_id.endswith("mystery"):
        return Unknown
    sent = [line for line in effects() if line.endswith(f" {ctx.operation_id}")]
    return f"found {ctx.operation_id}" if sent else NotFound


@tool(replay="safe", retries=5)
def flaky(ctx: ToolContext, until: int) -> int:
    """Fail until the attempt of this number."""
    act(f"flaky {ctx.attempt}")
    if ctx.attempt < until:
        raise Retry("not yet", after=0.1)
    return ctx.attempt


@tool(replay="safe", timeout=60)
def slow(seconds: float) -> float:
    """Take time."""
    time.sleep(seconds)
    return seconds


@tool(replay="safe", timeout=60)
def timed(text: str, seconds: float) -> str:
    """Take time, and write down when it began and when it ended."""
    act(f"begin {text} {os.getpid()}")
    time.sleep(seconds)
    act(f"end {text} {os.getpid()}")
    return text


narrow = tool(name="narrow", replay="safe", timeout=60, concurrency=2)(timed.function)


class Tally(Document, kind="tally"):
    """What a batch has counted."""

    counted: tuple[str, ...] = ()


class Batch(Flow, name="batch", version=1):
    """Run several notes, one child each, and count them."""

    @phase
    def start(self, texts: list[str]) -> object:
        children = [self.spawn(note, {"text": text}) for text in texts]
        self.update(Tally, lambda tally: Tally(counted=(*(tally.counted if tally else ()), "started")))
        return Wait(children, phase="finish", checkpoint={"children": [str(child) for child in children]})

    @phase
    def finish(self) -> object:
        return Next("report")

    @phase
    def report(self) -> object:
        tally = self.document(Tally)
        if tally is None:
            return Fail("the tally is missing")
        return Done({"counted": list(tally.counted), "children": self.checkpoint["children"]})


class Race(Flow, name="race", version=1):
    """Start a slow child and one that fails, and wait for both, failing fast."""

    @phase
    def start(self, seconds: float) -> object:
        slow = self.spawn("slow", {"seconds": seconds})
        failing = self.spawn(note, {"text": "error at once"})
        return Wait([slow, failing], phase="tell", checkpoint=[str(slow), str(failing)], fail_fast=True)

    @phase
    def tell(self) -> object:
        slow, failing = (self.result(TaskId(UUID(child))).outcome for child in self.checkpoint)
        return Done({"slow": slow, "failing": failing})


class Payment(Flow, name="payment", version=1):
    """Wait until somebody says that an order was paid."""

    @phase
    def start(self, order: str, seconds: float) -> object:
        return WaitSignal("paid", phase="tell", seconds=seconds, key=order)

    @phase
    def tell(self) -> object:
        return Done(self.signal)


def _pay_rule(arguments: Any) -> Rule:
    """Small amounts run, large ones are refused, the rest is asked about."""
    if arguments.amount < 10:
        return "allow"
    return "deny" if arguments.amount > 1_000 else Ask(answer_seconds=60, use_seconds=60)


@tool(policy=_pay_rule)
def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    act(f"pay {to} {amount}")
    return f"paid {amount} to {to}"


@tool(policy=Ask(answer_seconds=1, use_seconds=60))
def pay_soon(to: str) -> str:
    """Pay if somebody agrees within a second."""
    act(f"pay_soon {to}")
    return "paid"


@tool(policy=Ask(answer_seconds=60, use_seconds=1))
def pay_now(to: str) -> str:
    """Pay, but only within a second of the approval."""
    act(f"pay_now {to}")
    return "paid"


@tool(unknown="review")
def wire_money(to: str) -> str:
    """Send money without a way to find out, so that a person is asked when it is unknown."""
    act(f"wire {to}")
    raise ConnectionError("cut")


@tool(replay="safe", pool="hands.slow", timeout=60)
def apart_slow(seconds: float) -> str:
    """Take time, in a pool of its own."""
    time.sleep(seconds)
    return "slow"
