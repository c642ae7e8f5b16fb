"""Who reads which queue: what the workers themselves say when they are asked by way of Redis.

The register in Postgres says who can commit, this says who takes hints. Who is in only one of the two is broken.
"""

from __future__ import annotations

from celery import Celery
from celery.exceptions import CeleryError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from brainhands.shared.bus.health import unavailable

ANSWER_SECONDS = 1.5
"""A worker that can answer does so within a few milliseconds, also when all its slots are busy."""


def readers(redis_url: str) -> dict[str, set[str]]:
    """The Celery nodes that read each queue. Raises ServerUnavailable."""
    app = Celery("census", broker=redis_url, set_as_current=False)
    app.conf.update(broker_transport_options={"socket_timeout": 3, "socket_connect_timeout": 3, "max_retries": 0})
    found: dict[str, set[str]] = {}
    try:
        answers = app.control.inspect(timeout=ANSWER_SECONDS).active_queues() or {}
    except (CeleryError, OperationalError, RedisError, OSError) as error:
        raise unavailable(error) from error
    finally:
        app.close()
    for node, queues in answers.items():
        for name in _names(queues):
            found.setdefault(name, set()).add(str(node))
    return found


def _names(queues: object) -> list[str]:
    """The queues of an answer, which anybody who can write to Redis may have given."""
    listed = queues if isinstance(queues, list) else []
    return [queue["name"] for queue in listed if isinstance(queue, dict) and isinstance(queue.get("name"), str)]
