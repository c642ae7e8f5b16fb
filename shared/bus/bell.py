"""The bells: tiny Redis signals that wake the relay or an observer sooner than its poll. They carry no facts.

The relay's bell is a list of at most one element that it takes with BLPOP, so a ring before it listens is not missed.
Observers of a session subscribe to a channel and poll behind it (`doors/watch.py`).
"""

from __future__ import annotations

import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from brainhands.shared.bus.topics import RELAY_BELL, session_topic
from brainhands.shared.errors import ServerUnavailable
from brainhands.shared.model.ids import SessionId
from brainhands.shared.runtime.logs import logger
from brainhands.shared.runtime.outage import Outage
from brainhands.shared.runtime.tls import tls_fault

log = logger("bell")

ENDED = b"ended"
GOING_ON = b"going on"
"""What a ring says to observers: a submission of the session has ended, or something else was committed."""

REST_SECONDS = 2.0
"""After a ring that failed none is tried for so long: a broker that is away must not slow commits."""

TRUST_SECONDS = 3.0


def connect(url: str, *, timeout: float) -> redis.Redis:
    """A Redis client whose every call ends within about `timeout` seconds; nothing is sent before the first use."""
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )


def require_trust(url: str) -> None:
    """Raises ServerUnavailable where nobody vouches for the certificate of the Redis at a `rediss://` address.

    A Redis that is away is none of that: it may come back.
    """
    if not url.startswith("rediss://"):
        return
    try:
        with connect(url, timeout=TRUST_SECONDS) as client:
            client.ping()
    except redis.RedisError as error:
        if (fault := tls_fault(error)) and fault.of_certificate:
            raise ServerUnavailable("Redis", fault.problem, fault.next_step) from error


class Bell:
    """Rings after commits; silent while Redis does not answer."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url, timeout=0.3)
        self._outage = Outage(log, "bell", url)
        self._rest_until = 0.0

    def ring(self, session_id: SessionId, *, hints: bool, ended: bool) -> None:
        """Tell observers of the session, and whether a submission ended; and the relay if there are new hints.

        Nothing that goes wrong here is an error: what it tells of is committed.
        """
        if time.monotonic() < self._rest_until:
            return
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                if hints:
                    pipeline.lpush(RELAY_BELL, 1)
                    pipeline.ltrim(RELAY_BELL, 0, 0)
                pipeline.publish(session_topic(session_id), ENDED if ended else GOING_ON)
                pipeline.execute()
            self._outage.over()
        except redis.RedisError as error:
            self._rest_until = time.monotonic() + REST_SECONDS
            self._outage.began(error)
        except Exception:
            self._rest_until = time.monotonic() + REST_SECONDS
            log.exception("bell_failed")

    def close(self) -> None:
        self._redis.close()


class RelayBell:
    """The relay's end: waits for a ring, or for the poll's time."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url, timeout=3.0)

    def wait(self, seconds: float, stopping: threading.Event) -> bool:
        """True if it rang within `seconds`; while Redis is away it just waits."""
        try:
            return self._redis.blpop([RELAY_BELL], timeout=seconds) is not None
        except redis.RedisError:
            stopping.wait(seconds)
        except Exception:
            log.exception("bell_failed")
            stopping.wait(seconds)
        return False
