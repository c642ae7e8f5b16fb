"""Counts the messages that are put on the queues, as Redis itself tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from uuid import uuid4

import redis

from brainhands.shared.bus.topics import BRAIN_QUEUE, HANDS_QUEUE

WAIT_SECONDS = 10


class Messages:
    """Hears every command (MONITOR) for as long as `counting` lasts."""

    def __init__(self, broker: redis.Redis) -> None:
        self._broker = broker
        self._count = 0
        self._heard = ""
        self._changed = Condition()

    def so_far(self) -> int:
        """How many messages were put on the queues before this call."""
        mark = f"ECHO {uuid4()}"
        self._broker.execute_command(*mark.split())  # type: ignore[no-untyped-call]
        with self._changed:
            if not self._changed.wait_for(lambda: self._heard == mark, WAIT_SECONDS):
                raise RuntimeError("Redis does not tell its commands")
            return self._count

    def hear(self, command: str) -> bool:
        """Note a command; false once the counting has ended."""
        with self._changed:
            if command.startswith((f"LPUSH {BRAIN_QUEUE}", f"LPUSH {HANDS_QUEUE}")):
                self._count += 1
            elif command.startswith("ECHO "):
                self._heard = command
                self._changed.notify_all()
        return command != "ECHO end"


@contextmanager
def counting(redis_url: str) -> Iterator[Messages]:
    """Count messages; every command costs the server a little more meanwhile."""
    with redis.Redis.from_url(redis_url, socket_timeout=None) as broker, broker.monitor() as monitor:
        messages = Messages(broker)

        def listen() -> None:
            while messages.hear(monitor.next_command()["command"]):
                pass

        listening = Thread(target=listen, name="messages", daemon=True)
        listening.start()
        try:
            yield messages
        finally:
            broker.execute_command("ECHO", "end")
            listening.join()
