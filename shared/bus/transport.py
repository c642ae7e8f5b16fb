"""How Celery reads Redis: kombu's transport, without its care for messages under way, and deaf to what is no message.

Hints are rows, so nothing is kept in Redis for a message that a worker has taken (`ack_emulation`), which saves two
round trips a message, and nothing is put back when a connection closes: kombu 5.7 tries that on a connection which it
has taken apart already, and Celery takes the error for one of its own and ends the worker. What anybody else puts into
a queue must not end it either.
"""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis

log = logging.getLogger(__name__)

NO_MESSAGE = (ValueError, TypeError, LookupError, AttributeError)
"""What kombu raises over an entry of a queue that is not written as a message."""


class Channel(redis.Channel):
    """A channel that takes messages for good."""

    ack_emulation = False
    do_restore = False
    _publishing: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        """One client for all that is published: kombu makes one for each message, which costs more than sending it."""
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc]
        if self._publishing is None or self._publishing.connection_pool is not self.pool:
            self._publishing = super()._create_client()  # type: ignore[misc]
        return self._publishing

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except ValueError as error:  # the entry is no JSON
            log.warning("entry_dropped error=%s", type(error).__name__)
            return True


class Transport(redis.Transport):
    """The transport of `redis://` and `rediss://` addresses in this process."""

    Channel = Channel

    def _deliver(self, message: Any, queue: str | None) -> None:
        try:
            super()._deliver(message, queue)
        except NO_MESSAGE as error:
            log.warning("entry_dropped queue=%s error=%s", queue, type(error).__name__)


def use() -> None:
    """Let every Celery app of this process connect in this way."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))
