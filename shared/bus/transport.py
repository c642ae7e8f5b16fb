"""How our processes read Redis through Celery: kombu's transport, without its care for messages under way.

Hints are rows, so nothing is kept in Redis for a message that a worker has taken (`ack_emulation`), which saves two
round trips a message, and nothing is put back when a connection closes: kombu 5.7 tries that on a connection which it
has taken apart already, and Celery takes the error for one of its own and ends the worker.

Whatever anybody else puts into Redis must not end a worker either. An entry of a queue reaches Celery only as it is
written anew from its ids (`own_entry`); what is said to all workers is dropped if kombu or Celery cannot bear it; and
while Redis refuses to read a queue, as it does where the key is no list, the worker asks again once a second.

Any other refusal, such as that of a replica, of a full server or of one that wants a password, is a lost connection to
Celery, which tries to connect until that goes well: until Redis answers and takes a write.
"""

from __future__ import annotations

import time
from functools import lru_cache
from queue import Empty
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import RedisError, ResponseError

from brainhands.shared.bus.topics import own_entry
from brainhands.shared.runtime.logs import logger
from brainhands.shared.runtime.outage import Outage

log = logger("transport")

SCHEME = "hints"
"""The name of this transport in Celery's settings; other Celery apps of the process keep kombu's."""

NO_FAULT_OF_IT: tuple[type[BaseException], ...] = (Empty, *redis.Transport.connection_errors)
"""What taking a broadcast raises when there is none, or no connection."""

URL = "url"
"""The transport's option that holds the address as it was given."""

PROBE = "brainhands:takes-writes"
PROBE_SECONDS = 60

REFUSED_SECONDS = 1.0
"""How long a worker waits after Redis has refused to read its queue."""


OF_ONE_QUEUE = ("WRONGTYPE", "NOPERM", "No permissions")
"""How refusals begin that say nothing of other keys."""


@lru_cache(maxsize=8)
def outage_of(url: str) -> Outage:
    """One for all connections of this process to one Redis."""
    return Outage(log, "broker", url)


def _outage(transport: Any) -> Outage:
    return outage_of(transport.client.transport_options[URL])


class Channel(redis.Channel):
    """A channel that takes messages for good."""

    ack_emulation = False
    do_restore = False
    _publishing: Any = None
    _refused: str | None = None
    _asks_again_at = 0.0

    def _create_client(self, asynchronous: bool = False) -> Any:
        """One client for all that is published: kombu makes one for each message, which costs more than sending it."""
        if asynchronous:
            client = super()._create_client(asynchronous=True)  # type: ignore[misc]
            client.set_response_callback("BRPOP", self._taken)
            return client
        if self._publishing is None or self._publishing.connection_pool is not self.pool:
            self._publishing = super()._create_client()  # type: ignore[misc]
        return self._publishing

    def _brpop_start(self, timeout: float | None = None) -> None:
        if time.monotonic() >= self._asks_again_at:
            super()._brpop_start(timeout)  # type: ignore[misc]

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except ResponseError as error:
            if not str(error).startswith(OF_ONE_QUEUE):
                _outage(self.connection).began(error)
                raise
            self._asks_again_at = time.monotonic() + REFUSED_SECONDS
            if self._refused is None:
                self._refused = ", ".join(self.active_queues)
                log.warning("queue_refused", queue=self._refused, error=error)
            raise Empty from None

    def _taken(self, reply: Any, **_: Any) -> tuple[bytes, str] | None:
        """What BRPOP gave, `(key, entry)` or None, for kombu."""
        if self._refused is not None:
            log.info("queue_read_again", queue=self._refused)
            self._refused = None
        if not reply:
            return None
        key, entry = reply
        queue = key.decode().partition(self.sep)[0]
        own = own_entry(entry, queue)
        if own is None:
            # Workers greet each other by queues of their own, which say nothing that we need.
            log_drop = log.debug if queue.endswith(".pidbox") else log.warning
            log_drop("entry_dropped", queue=queue, bytes=len(entry))
            return None
        return key, own

    def _receive_one(self, client: Any) -> Any:
        """Takes what is said to all workers; one that cannot be read is dropped."""
        try:
            return super()._receive_one(client)  # type: ignore[misc]
        except NO_FAULT_OF_IT:
            raise
        except Exception:
            log.exception("broadcast_dropped")
            raise Empty from None


class Transport(redis.Transport):
    """The transport of our workers and relays."""

    Channel = Channel
    connection_errors = (*redis.Transport.connection_errors, RedisError, OperationalError)

    def establish_connection(self) -> Any:
        outage = _outage(self)
        try:
            connection = super().establish_connection()
            _probe(self)
        except self.connection_errors as error:
            outage.began(error)
            raise
        outage.over()
        return connection

    def _deliver(self, message: Any, queue: str | None) -> None:
        """Hands a message to Celery, which for one that lacks a part ends in a KeyError, as for a lost connection."""
        try:
            super()._deliver(message, queue)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            log.warning("message_dropped", queue=queue, error=type(error).__name__)


def _probe(connected: Any) -> None:
    """Write something, since a server that only answers is of no use."""
    try:
        connected._avail_channels[-1].client.set(PROBE, 1, ex=PROBE_SECONDS)
    except BaseException:
        connected.close_connection(connected)
        raise


def use(app: Celery) -> None:
    """Let the connections of this app be made in this way."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:{Transport.__name__}"
    app.conf.broker_transport = SCHEME
    # Kombu's own form of an address loses the brackets of a number of IPv6.
    app.conf.broker_transport_options[URL] = app.conf.broker_url
