"""What a look at Redis finds wrong: one finding a cause, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import redis
from redis import exceptions

from brainhands.shared.bus import bell
from brainhands.shared.bus.topics import BRAIN_QUEUE, HANDS_QUEUE, RELAY_BELL
from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.runtime.tls import tls_fault
from brainhands.shared.store.health import Finding

OLDEST_REDIS = (6, 2)
PATIENCE_SECONDS = 3.0
ALMOST_FULL = 0.9
"""The part of its maxmemory from which on Redis is said to be almost full."""

PROBE = "brainhands:probe"
PROBE_MILLISECONDS = 1_000

REFUSALS = {
    "READONLY": (
        "it is a read-only replica of {master}, so no hint can be published",
        "name the primary in REDIS_URL, or make this one the primary: REPLICAOF NO ONE",
    ),
    "OOM": (
        "it is at its maxmemory ({used} of {limit} bytes) and takes no writes",
        "raise maxmemory, or remove what fills it: nothing but brainhands belongs into its database",
    ),
    "MISCONF": (
        "it takes no writes, since it cannot save its data to disk (MISCONF)",
        "see its log and free its disk, or let it go on: CONFIG SET stop-writes-on-bgsave-error no",
    ),
    "NOPERM": (
        "the user in REDIS_URL may not write (NOPERM)",
        "give that user the right to read and write all keys and channels: ACL SETUSER NAME ~* &* +@all",
    ),
}
"""By the first word of Redis' answer to a write: what is wrong, and what to do."""

FIRST_WORDS = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.NoPermissionError: "NOPERM",
}
"""What redis-py cuts off the answers for which it has errors of their own."""

KINDS = {b"list", b"none"}
"""What may be at the key of a queue."""


def findings(address: str, shown: str, pools: Iterable[str]) -> Iterator[Finding]:
    """What is wrong with the Redis at an address, which is `shown` so, for these pools. Raises ServerUnavailable."""
    try:
        with bell.connect(address, timeout=PATIENCE_SECONDS) as client:
            for problem, next_step in _problems(client, {BRAIN_QUEUE, HANDS_QUEUE, RELAY_BELL, *pools}):
                yield Finding(check="redis", subject=shown, problem=problem, next_step=next_step)
    except redis.AuthenticationError as error:
        next_step = "write its user and password into REDIS_URL: redis://USER:PASSWORD@HOST:PORT/0"
        raise ServerUnavailable("Redis", f"it refuses the password ({error})", next_step) from error
    except redis.RedisError as error:
        raise unavailable(error) from error


def unavailable(error: Exception) -> ServerUnavailable:
    """Redis is not reachable, by an error of redis-py or kombu."""
    if fault := tls_fault(error):
        return ServerUnavailable("Redis", fault.problem, fault.next_step)
    next_step = "check REDIS_URL (rediss:// where Redis speaks TLS, else redis://) and that the server runs"
    return ServerUnavailable("Redis", str(error), next_step)


def _problems(client: redis.Redis, keys: set[str]) -> Iterator[tuple[str, str]]:
    info: dict[str, Any] = client.info()
    if tuple(int(number) for number in str(info["redis_version"]).split(".")[:2]) < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        yield f"it is version {info['redis_version']}, {oldest} or newer is needed", f"use Redis {oldest} or newer"
    if info["maxmemory_policy"] != "noeviction":
        yield (
            f"its maxmemory-policy is {info['maxmemory_policy']}: it may drop queues and messages",
            "set maxmemory-policy to noeviction",
        )
    used, limit = int(info["used_memory"]), int(info["maxmemory"])
    if (refusal := _refusal(client)) is not None:
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        problem, next_step = REFUSALS.get(refusal.split()[0], (f"it refuses to write: {refusal}", "see its log"))
        yield problem.format(master=master, used=f"{used:,}", limit=f"{limit:,}"), next_step
    elif limit and used > ALMOST_FULL * limit:
        yield f"it is almost full: {used:,} of {limit:,} bytes", REFUSALS["OOM"][1]
    for key in sorted(keys):
        kind: Any = client.type(key)
        if kind not in KINDS:
            yield (
                f"its key {key} is a {kind.decode()} and no queue, so no hint gets through there",
                f"find out who wrote it, and remove it: redis-cli DEL {key}; hints come again by themselves",
            )


def _refusal(client: redis.Redis) -> str | None:
    """What Redis answers to a write, None where it takes one; only a write tells."""
    try:
        client.set(PROBE, b"", px=PROBE_MILLISECONDS)
    except redis.ResponseError as error:
        return f"{FIRST_WORDS.get(type(error), '')} {error}".strip()
    return None
