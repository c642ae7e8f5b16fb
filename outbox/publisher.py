"""Turns hint rows into Celery messages on a pool's queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis.client import Pipeline

from brainhands.shared.bus import transport
from brainhands.shared.bus.bell import connect
from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.bus.topics import BRAIN_QUEUE, read_entry, task_name, write_hints
from brainhands.shared.model.ids import TaskId
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store.database import Row

log = logger("publisher")

BROKER_AWAY = (OperationalError, redis.RedisError, ConnectionError, TimeoutError)
"""Errors that say nothing about the row: the broker did not take the message, or did not say that it had."""

MESSAGES_READ = 20_000
"""Messages of a queue that are looked at, those that come out next; a relay never puts in so many."""

UNREADABLE = 2**31
"""So many messages seem to wait in a queue that Redis does not read: it takes no more."""


class Publisher:
    """One connection to the broker, for one relay."""

    def __init__(self, redis_url: str) -> None:
        self._app: Celery = celery_app("relay", redis_url=redis_url, queue=BRAIN_QUEUE, pool="solo")
        transport.use(self._app)
        self._redis = connect(redis_url, timeout=3.0)
        self._refused: set[str] = set()
        self.outage = transport.outage_of(redis_url)
        self._connection: Any = None
        self._producer: Any = None

    def waiting(self, queues: Sequence[str]) -> list[int]:
        """How many messages wait in each queue, taken by no worker: UNREADABLE for one that is no list.

        Raises one of BROKER_AWAY.
        """
        counts = self._ask(queues, Pipeline.llen)
        return [UNREADABLE if count is None else int(count) for count in counts]

    def queued(self, queues: Sequence[str]) -> set[TaskId]:
        """The tasks that are hinted in some queue. Raises one of BROKER_AWAY."""
        entries = self._ask(queues, partial(Pipeline.lrange, start=-MESSAGES_READ, end=-1))
        return {task_id for found in entries for entry in found or () for task_id, _ in read_entry(entry)}

    def _ask(self, queues: Sequence[str], command: Callable[[Pipeline, str], object]) -> list[Any]:
        """Redis' answer for each queue; None where it refuses, which is the fault of that queue's key alone."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                command(pipeline, queue)
            answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, redis.RedisError) and not isinstance(answer, redis.ResponseError):
                raise answer
        refused = {
            queue: answer
            for queue, answer in zip(queues, answers, strict=True)
            if isinstance(answer, redis.ResponseError)
        }
        for queue in refused.keys() - self._refused:
            log.warning("queue_refused", queue=queue, error=refused[queue])
        for queue in self._refused - refused.keys():
            log.info("queue_read_again", queue=queue)
        self._refused = set(refused)
        return [None if queue in refused else answer for queue, answer in zip(queues, answers, strict=True)]

    def publish(self, queue: str, hints: Sequence[Row]) -> None:
        """Send rows (task_id, session_id, requires_name) as one message. Raises one of BROKER_AWAY."""
        try:
            if self._producer is None:
                self._connection = self._app.connection_for_write()
                self._producer = self._app.amqp.Producer(self._connection)
            self._app.send_task(
                task_name(queue),
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
            with suppress(Exception):  # whatever a broken connection says as it is closed
                connection.release()


def readable(hints: Sequence[Row]) -> str:
    """What Flower and logs show of a message: agent or tool, and session."""
    first = f"{hints[0]['requires_name'].partition(':')[2]} session={hints[0]['session_id']}"
    return first if len(hints) == 1 else f"{first} and {len(hints) - 1} more"
