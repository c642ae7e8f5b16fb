"""Tools whose module changes what its process shares with the engine, and that use what the engine uses itself."""

from __future__ import annotations

import asyncio
import decimal
import json
import locale
import logging.config
import os
import random
import signal
import socket
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.types.json import set_json_dumps, set_json_loads

from brainhands import ToolContext, tool
from tests.sample.odd_tools import wait_for_gate
from tests.sample.tools import act


class Shout(Loader):
    """Loads any value as one text."""

    def load(self, data: Any) -> str:  # noqa: ARG002
        return "CHANGED"


def change_globals() -> None:
    """What careless modules do at their import, all of it at once."""
    set_json_loads(lambda _: "CHANGED")
    set_json_dumps(lambda _: '"CHANGED"')
    for name in ("text", "uuid", "int4", "int8", "bool", "timestamptz", "json", "numeric"):
        psycopg.adapters.register_loader(name, Shout)
    json.loads = partial(json.loads, parse_float=decimal.Decimal)
    json.dumps = partial(json.dumps, indent=2)
    decimal.getcontext().prec = 2
    decimal.DefaultContext.prec = 2
    locale.setlocale(locale.LC_ALL, "C")
    random.seed(7)
    socket.setdefaulttimeout(0.5)
    warnings.simplefilter("error")
    logging.config.dictConfig({"version": 1})
    logging.disable(logging.CRITICAL)


if os.environ.get("SAMPLE_RUDE"):
    change_globals()

TURN = asyncio.Lock()


@tool(timeout=20)
async def take_turns(name: str) -> str:
    """Wait for a lock that the module keeps, as clients and pools do."""
    async with TURN:
        waiter = asyncio.create_task(TURN.acquire())
        await asyncio.sleep(0)
        waiter.cancel()
    return f"{name} had its turn in {os.getpid()}"


def square(number: int) -> int:
    """Work for another process."""
    return number * number


@tool(timeout=20)
def share_work(numbers: list[int]) -> list[int]:
    """Let other processes work."""
    with ProcessPoolExecutor(2) as others:
        return list(others.map(square, numbers))


class Late(Exception):
    """The alarm of a tool's own."""


def ring(*_: object) -> None:
    raise Late


@tool(timeout=30)
def own_alarm() -> str:
    """Bound its work by an alarm of its own, which comes later than the engine looks after its timer."""
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 2.5)
    try:
        time.sleep(25)
    except Late:
        return "its own alarm"
    return "no alarm"


@tool(timeout=2)
def deaf(ctx: ToolContext) -> str:
    """Take the timer away and never come back."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    act(f"deaf {os.getpid()}")
    time.sleep(600)
    return ctx.operation_id


@tool(timeout=60)
def told_to_end() -> str:
    """Work until somebody ends the process."""
    act(f"told_to_end {os.getpid()}")
    wait_for_gate("never")
    return "nobody came"


TOOLS = (take_turns, share_work, own_alarm, deaf, told_to_end)
