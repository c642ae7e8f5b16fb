"""Turns hint rows into Celery messages on a pool's queue."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from shared.bus.bell import connect
from shared.bus.celery_app import celery_app
from shared.bus.topics import BRAIN_QUEUE, BRAIN_TASK, HANDS_TASK, read_hints, write_hints
from shared.model.ids import TaskId
from shared.store.database import Row

BROKER_AWAY = (OperationalError, redis.RedisError, ConnectionError, TimeoutError)
"""Errors that say nothing about the row: the broker did not take the message, or did not say that it had."""

MESSAGES_READ = 20_000
"""Messages of a queue that are looked at, those that come out next; a relay never puts in so many."""


class Publisher:
    """One connection to the broker, for one relay."""

    def __init__(self, redis_url: str) -> None:
        self._app: Celery = celery_app("relay", redis_url=redis_url, queue=BRAIN_QUEUE, pool="solo")
        self._redis = connect(redis_url, timeout=3.0)
        self._connection: Any = None
        self._producer: Any = None

    def waiting(self, queues: Sequence[str]) -> list[int]:
        """How many messages wait in each queue, taken by no worker. Raises one of BROKER_AWAY."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.llen(queue)
            return [int(count) for count in pipeline.execute()]

    def queued(self, queues: Sequence[str]) -> set[TaskId]:
        """The tasks that are hinted in some queue. Raises one of BROKER_AWAY."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.lrange(queue, -MESSAGES_READ, -1)
            messages = [message for found in pipeline.execute() for message in found]
        return {task_id for message in messages for task_id in _hinted(message)}

    def publish(self, queue: str, hints: Sequence[Row]) -> None:
        """Send rows (task_id, session_id, requires_name) as one message. Raises one of BROKER_AWAY."""
        try:
            if self._producer is None:
                self._connection = self._app.connection_for_write()
                self._producer = self._app.amqp.Producer(self._connection)
            self._app.send_task(
                BRAIN_TASK if queue.startswith("brain.") else HANDS_TASK,
                kwargs=write_hints([(hint["task_id"], hint["session_id"]) for hint in hints]),
                kwargsrepr=readable(hints),
                queue=queue,
                producer=self._producer,
                retry=False,
                ignore_result=True,
            )
        except BROKER_AWAY:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection, also of one that is broken; the next publish makes another."""
        if self._connection is not None:
            connection, self._connection, self._producer = self._connection, None, None
            with suppress(*BROKER_AWAY):
                connection.release()


def _hinted(message: bytes) -> list[TaskId]:
    """The tasks that a message in a queue names; none if it is no hint."""
    try:
        _, kwargs, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
        return [task_id for task_id, _ in read_hints(kwargs)]
    except (ValueError, TypeError, LookupError):
        return []


def readable(hints: Sequence[Row]) -> str:
    """What Flower and logs show of a message: agent or tool, and session."""
    first = f"{hints[0]['requires_name'].partition(':')[2]} session={hints[0]['session_id']}"
    return first if len(hints) == 1 else f"{first} and {len(hints) - 1} more"
