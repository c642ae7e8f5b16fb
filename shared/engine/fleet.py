"""How a Celery worker process becomes a worker of a fleet: it learns its pool, loads what it runs, and has a keeper.

The main process loads definitions and publishes tool specs before it forks, and starts no thread before that. With
prefork each child is a worker of one slot; with threads the main process is one worker of many slots. A drain (SIGTERM)
is a row that all processes of the worker read: they finish their present step and give back what they hold. At Ctrl-C
(SIGINT) a model call is not finished, but left to be made again.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery, signals

from shared.bus import transport
from shared.bus.topics import read_hints
from shared.engine.definition import Registry
from shared.engine.worker import Worker
from shared.errors import BrainhandsError, ServerUnavailable
from shared.model.ids import new_uuid, new_worker_id
from shared.model.tool import ToolSpec
from shared.model.worker import WorkerInfo
from shared.runtime.environment import environment_hash
from shared.runtime.logs import configure_logs, logger
from shared.runtime.settings import addresses, settings
from shared.store import migrate, workers
from shared.store.database import TRANSIENT, Database

log = logger(__name__)

START_PAUSE_SECONDS = 2.0
MEND_SECONDS = 0.25
"""How often a forking worker looks for children that have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offering:
    """What a worker of a pool runs, and the tool specs it publishes."""

    registry: Registry
    specs: Sequence[ToolSpec] = ()


class Fleet:
    """The worker of this process, for one Celery app."""

    def __init__(
        self, app: Celery, *, role: str, task_name: str, load: Callable[[str], Offering], ends_process: bool
    ) -> None:
        self._role = role
        self._load = load
        self._ends_process = ends_process
        self._pool = ""
        self._host = ""
        self._slots = 1
        self._offering: Offering | None = None
        self._worker: Worker | None = None
        app.task(name=task_name, bind=False)(self.advance)
        signals.celeryd_init.connect(self._begin)
        signals.celeryd_after_setup.connect(self._prepare)
        signals.worker_process_init.connect(self._start_child)
        signals.worker_ready.connect(self._ready)
        signals.worker_shutting_down.connect(self._drain)
        signals.worker_process_shutdown.connect(self._stop)
        signals.worker_shutdown.connect(self._stop)

    def advance(self, **message: Any) -> None:
        """The body of the Celery task: a hint that is none of ours does nothing."""
        if self._worker is not None:
            self._worker.advance(read_hints(message))

    def _begin(self, instance: Any, **_: Any) -> None:
        """In the main process of a worker, before Celery looks at anything."""
        transport.use(instance.app)

    def _prepare(self, instance: Any, **_: Any) -> None:
        """In the main process, before it forks: learn the pool, load definitions, publish specs."""
        configure_logs(self._role)
        queues = list(instance.app.amqp.queues.consume_from)
        if len(queues) != 1:
            _refuse(BrainhandsError(f"a worker reads one queue, not {', '.join(queues)}", "start it with one -Q"))
        self._pool = queues[0]
        # Containers may share a host name and process numbers; a drain must find this worker and its children only.
        self._host = f"{socket.gethostname()}:{new_uuid().hex[-8:]}"
        self._slots = 1 if _forks(instance) else int(instance.concurrency or 1)
        try:
            self._offering = self._load(self._pool)
            _publish(self._offering.specs)
        except BrainhandsError as error:
            _refuse(error)

    def _start_child(self, **_: Any) -> None:
        """In a forked child: it leads a process group of its own, which can be killed with all that it started."""
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        configure_logs(self._role)
        self._start(parent_pid=os.getppid())

    def _ready(self, sender: Any, **_: Any) -> None:
        """In the main process, once it takes messages."""
        if _forks(sender.controller):
            # Celery looks when a child's pipe closes, which may be a moment before the child has ended, and then only
            # every five seconds; meanwhile the child's slot is lost.
            sender.hub.call_repeatedly(MEND_SECONDS, sender.pool.maintain_pool)
        else:
            self._start(parent_pid=os.getpid())

    def _start(self, *, parent_pid: int) -> None:
        assert self._offering is not None
        current, found = settings(), addresses()
        info = WorkerInfo(
            id=new_worker_id(),
            role=self._role,
            pool=self._pool,
            host=self._host,
            pid=os.getpid(),
            parent_pid=parent_pid,
            slots=self._slots,
            environment=environment_hash(),
            offers=self._offering.registry.offers,
            tenant_concurrency=current.tenant_concurrency,
        )
        self._worker = Worker(
            info,
            self._offering.registry,
            database_url=found.database_url,
            redis_url=found.redis_url,
            lease_seconds=current.lease_seconds,
            restart_limit=current.restart_limit,
            ends_process=self._ends_process,
        )
        self._worker.keeper.start()
        log.info("worker_started", worker=info.id, pool=info.pool, slots=info.slots)

    def _drain(self, sig: str, **_: Any) -> None:
        """In the main process's signal handler, so the row is written by a thread. Ctrl-C is SIGINT: somebody waits."""
        if self._worker is not None:
            self._worker.keeper.drain(at_once=sig == "SIGINT")
        threading.Thread(target=_tell_children, args=(self._host,), name="drain", daemon=True).start()

    def _stop(self, **_: Any) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.keeper.stop()


def _forks(worker: Any) -> bool:
    return "prefork" in str(worker.pool_cls.__module__)


def _publish(specs: Sequence[ToolSpec]) -> None:
    """Wait for a database of the right schema, then publish. Raises SchemaNotCurrent, SpecConflict."""
    url = addresses().database_url
    while True:
        database = Database(url, size=1)
        try:
            migrate.require_current(url)
            workers.publish(database, specs)
            return
        except (*TRANSIENT, ServerUnavailable) as error:
            log.warning("waiting_for_postgres", error=type(error).__name__)
            time.sleep(START_PAUSE_SECONDS)
        finally:
            database.close()


def _tell_children(host: str) -> None:
    database = Database(addresses().database_url, size=1)
    try:
        workers.drain(database, host)
    except (*TRANSIENT, ServerUnavailable) as error:
        log.warning("drain_not_recorded", error=type(error).__name__)
    except Exception:
        log.exception("drain_not_recorded")
    finally:
        database.close()


def _refuse(error: BrainhandsError) -> None:
    print(f"error: {error}\n{error.next_step}".rstrip(), file=sys.stderr, flush=True)
    os._exit(error.exit_code)
