"""Task events for Flower, sent in batches.

Celery flushes its buffer of task events at every turn of its loop, which costs a worker's main process more than taking
the messages does. Twice a second is soon enough for those who look on.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

FLUSH_SECONDS = 0.5


class BatchedEvents(bootsteps.StartStopStep):
    """A step of Celery's consumer, made anew with each connection to the broker."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        dispatcher = consumer.event_dispatcher
        if consumer.hub is None or not dispatcher.enabled:
            return
        dispatcher.on_send_buffered = None
        self._timer = consumer.hub.call_repeatedly(FLUSH_SECONDS, dispatcher.flush)

    def stop(self, _consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
