"""The Celery app of a fleet: JSON hints on named direct queues, taken once, never retried or restored by Celery.

A crash costs the hint and nothing else: its row is still in the outbox. So there is no result backend, no ETA, no
requeue and no time limit; the lease's timer ends work that must end.
"""

from __future__ import annotations

from celery import Celery
from kombu import Queue
from kombu.utils.url import parse_url

from brainhands.shared.bus.bell import require_trust
from brainhands.shared.bus.events import BatchedEvents


def celery_app(name: str, *, redis_url: str, queue: str, pool: str) -> Celery:
    """A Celery app that reads `queue`, with worker pool `pool`: prefork or threads.

    Connections are kombu's own, which Flower needs, until `transport.use` says otherwise. Raises ServerUnavailable for
    a Redis whose certificate nobody vouches for.
    """
    require_trust(redis_url)
    app = Celery(name, broker=redis_url, set_as_current=False)
    app.conf.update(
        broker_transport_options={
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 5,
            "max_retries": 2,
            "interval_start": 0,
            "interval_step": 0.2,
            "interval_max": 0.5,
            "priority_steps": [0],
        },
        # Flower's view of the queues reads this and nothing of an address.
        broker_use_ssl=parse_url(redis_url).get("ssl", False),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        result_backend=None,
        accept_content=["json"],
        task_serializer="json",
        task_acks_late=True,
        task_acks_on_failure_or_timeout=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_queues=[Queue(queue)],
        task_default_queue=queue,
        task_create_missing_queues=True,
        worker_pool=pool,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_proc_alive_timeout=60,
        worker_max_tasks_per_child=1000,
        worker_send_task_events=True,
        worker_eta_task_limit=100,
        enable_utc=True,
        timezone="UTC",
    )
    app.steps["consumer"].add(BatchedEvents)
    return app
