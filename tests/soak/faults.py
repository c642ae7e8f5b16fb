"""What goes wrong in a soak: a seeded schedule of faults of processes and servers, and how each is done."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass

import redis

from brainhands.shared.local.servers import Postgres, Redis
from tests.instruments.proxy import Proxy
from tests.soak.parts import OF_EACH, Parts

WEIGHTS = {
    "kill": 24,
    "kill a child": 24,
    "stop": 14,
    "stop a child": 10,
    "drain": 8,
    "empty Redis": 12,
    "freeze Redis": 7,
    "restart Redis": 6,
    "cut Redis off": 6,
    "restart Postgres": 5,
    "crash Postgres": 3,
}
ROLES = {"relay": 1, "brain": 1, "hands": 2}
"""How often each is met."""
OF_PARTS = ("kill", "kill a child", "stop", "stop a child", "drain")
LASTING = ("stop", "stop a child", "freeze Redis")
GAP_SECONDS = (0.5, 3.0)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`part` for those that meet a part (`brain-1`), `seconds` for those that last."""

    at: float
    kind: str
    part: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:6.1f} s  {self.kind} {self.part}{lasts}".rstrip()


def schedule(chance: random.Random, *, start: float, end: float, lease_seconds: float) -> list[Fault]:
    """Faults from `start` to `end`; in the second half one part of each role is spared death, so that leaks show."""
    faults = []
    at = start
    while (at := at + chance.uniform(*GAP_SECONDS)) < end:
        (kind,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        spared = 1 if at > (start + end) / 2 and kind in ("kill", "drain") else 0
        (role,) = ("hands",) if "child" in kind else chance.choices(list(ROLES), list(ROLES.values()))
        number = chance.randrange(spared, OF_EACH)
        part = f"{role}-{number}" if kind in OF_PARTS else ""
        seconds = chance.uniform(1.3, 2.5) * lease_seconds if kind in LASTING else 0.0
        faults.append(Fault(at=at, kind=kind, part=part, seconds=seconds))
    return faults


def strike(
    fault: Fault, parts: Parts, busy: Container[int], postgres: Postgres, redis_server: Redis, proxy: Proxy
) -> Callable[[], None]:
    """Let it happen; what is given ends it, `fault.seconds` later. Of children a `busy` one is met, if there is one."""
    match fault.kind:
        case "kill":
            parts.kill(fault.part)
        case "kill a child":
            _signal(parts.child_of(fault.part, busy), signal.SIGKILL)
        case "stop":
            return _stop(parts.main_of(fault.part))
        case "stop a child":
            return _stop(parts.child_of(fault.part, busy))
        case "drain":
            _signal(parts.main_of(fault.part), signal.SIGTERM)
        case "empty Redis":
            with suppress(redis.RedisError), redis.Redis.from_url(redis_server.url, socket_timeout=1) as client:
                client.flushall()
        case "freeze Redis":
            return _stop(redis_server.pid)
        case "restart Redis":
            redis_server.kill()
            redis_server.start()
        case "cut Redis off":
            proxy.cut()
        case "restart Postgres":
            postgres.restart()
        case "crash Postgres":
            postgres.restart(crash=True)
    return lambda: None


def _stop(pid: int | None) -> Callable[[], None]:
    _signal(pid, signal.SIGSTOP)
    return lambda: _signal(pid, signal.SIGCONT)


def _signal(pid: int | None, number: signal.Signals) -> None:
    """Send a signal, if the process is still there."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
