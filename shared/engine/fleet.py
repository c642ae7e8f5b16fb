"""How a Celery worker process becomes a worker of a fleet: it learns its pool, loads what it runs, and has a keeper.

The main process loads definitions and publishes tool specs before it forks, and starts no thread before that. With
prefork each child is a worker of one slot; with threads the main process is one worker of many slots. A drain (SIGTERM)
is a row that all processes of the worker read: they finish their present step and give back what they hold. At Ctrl-C
(SIGINT) a model call is not finished, but left to be made again.

Celery goes on after an error in one of its signals' handlers, so here it ends the process, with the reason: one without
a worker would take hints and drop them. What a command line may not ask for is refused for the same reason.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import click
from billiard.common import terminate_handler_fired  # type: ignore[attr-defined]
from celery import Celery, signals
from celery.concurrency import get_implementation
from celery.exceptions import SecurityWarning
from click.core import ParameterSource

from brainhands.shared.bus import transport
from brainhands.shared.bus.topics import read_hints
from brainhands.shared.engine.definition import Registry
from brainhands.shared.engine.worker import Worker
from brainhands.shared.errors import BadInput, BrainhandsError, ServerUnavailable
from brainhands.shared.model.ids import new_uuid, new_worker_id
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.runtime.environment import environment_hash
from brainhands.shared.runtime.logs import configure_logs, logger, logs_are_json
from brainhands.shared.runtime.modules import place
from brainhands.shared.runtime.settings import addresses, settings
from brainhands.shared.store import migrate, workers
from brainhands.shared.store.database import TRANSIENT, Database

log = logger(__name__)

START_PAUSE_SECONDS = 2.0
MEND_SECONDS = 0.25
"""How often a forking worker looks for children that have ended, or hang."""
HANGS_SECONDS = 10.0
"""A child that has not begun after so long is replaced: it waits for no server, so it takes a fraction of a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offering:
    """What a worker of a pool runs, and the tool specs it publishes."""

    registry: Registry
    specs: Sequence[ToolSpec] = ()


class Fleet:
    """The worker of this process, for one Celery app."""

    def __init__(
        self,
        app: Celery,
        *,
        role: Literal["brain", "hands"],
        task_name: str,
        load: Callable[[str], Offering],
        ends_process: bool,
    ) -> None:
        self._role = role
        self._load = load
        self._ends_process = ends_process
        self._pool = ""
        self._host = ""
        self._slots = 1
        self._outlives_terminal = False
        self._unbegun: dict[int, float] = {}
        self._offering: Offering | None = None
        self._worker: Worker | None = None
        app.task(name=task_name, bind=False)(self.advance)
        signals.celeryd_init.connect(self._begin)
        signals.setup_logging.connect(_logs_are_set_up)
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
        if terminate_handler_fired():
            # Celery ends this process. What a tool did until then is stored, so it can go.
            raise SystemExit

    def _begin(self, instance: Any, options: dict[str, Any], **_: Any) -> None:
        """In the main process, before Celery looks at anything."""
        with refusing():
            configure_logs(self._role)
            instance.quiet = instance.quiet or settings().log_format == "json"
            # Celery warns of accounts with many rights, or without a name, for the sake of messages that are code.
            warnings.filterwarnings("ignore", category=SecurityWarning)
            self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            transport.use(instance.app)
            name, _at, host = instance.hostname.partition("@")
            if name == "celery":  # nobody gave it one
                instance.hostname = f"{self._role}-{os.getpid()}@{host}"
            self._check_options(instance.app, options)

    def _prepare(self, instance: Any, **_: Any) -> None:
        """In the main process, before it forks: learn the pool, load definitions, publish specs."""
        with refusing():
            self._pool = self._only_queue(list(instance.app.amqp.queues.consume_from))
            # Containers may share a host name and process numbers; a drain must find this worker and its children only.
            self._host = f"{socket.gethostname()}:{new_uuid().hex[-8:]}"
            self._slots = 1 if _forks(instance) else int(instance.concurrency or 1)
            self._offering = self._load(self._pool)
            environment_hash()  # for the children too
            _publish(self._offering.specs)

    def _check_options(self, app: Celery, options: dict[str, Any]) -> None:
        """Raises BadInput for options of Celery's with which a worker of this role cannot do its work."""
        pool_class = get_implementation(app.either("worker_pool", options.get("pool"))).__module__.rpartition(".")[2]
        if pool_class != ("prefork" if self._role == "hands" else "thread"):
            why = "a call that is timed out ends its process" if self._role == "hands" else "model calls are threads"
            raise BadInput(
                f"a {self._role} worker cannot run with Celery's pool {pool_class!r}: {why}", "leave out -P or --pool"
            )
        if options.get("pool_start_method") == "spawn":
            raise BadInput("a worker's processes are forked from what it has loaded", "leave out --pool-start-method")
        if options.get("concurrency") is None and _is_given("concurrency"):
            raise BadInput("a worker has at least one slot, not 0", "write -c 1 or more, or leave it out")
        if options.get("time_limit") or options.get("soft_time_limit"):
            raise BadInput(
                "Celery's time limits would end calls whose own time is not over",
                "leave out --time-limit and --soft-time-limit, and give tools a timeout",
            )

    def _only_queue(self, queues: Sequence[str]) -> str:
        """The queue of a pool of this role. Raises BadInput for another one, or several."""
        if len(queues) == 1 and queues[0].startswith(f"{self._role}.") and queues[0] != f"{self._role}.":
            return queues[0]
        raise BadInput(
            f"a {self._role} worker reads one queue, named {self._role}.POOL, not {' and '.join(queues) or 'none'}",
            f"write -Q {self._role}.default, or the queue of another pool of {self._role}, once",
        )

    def _start_child(self, **_: Any) -> None:
        """In a forked child: it leads a process group of its own, which can be killed with all that it started."""
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            # Celery's children may have none of their own; those of a tool are in the process group, and end with it.
            multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
            self._start(parent_pid=os.getppid())
        except BaseException:
            log.exception("child_not_started")
            # Its place is filled at once, so that without a pause it would be for as long as the error lasts.
            time.sleep(START_PAUSE_SECONDS)
            os._exit(1)

    def _ready(self, sender: Any, **_: Any) -> None:
        """In the main process, once it takes messages."""
        with refusing():
            # Celery's own handler starts the command line again, without a drain and not always the same one.
            signal.signal(signal.SIGHUP, signal.SIG_IGN if self._outlives_terminal else _stop_on_hang_up)
            if _forks(sender.controller):
                # Celery looks when a child's pipe closes, which may be a moment before the child has ended, and then
                # only every five seconds; meanwhile the child's slot is lost.
                sender.hub.call_repeatedly(MEND_SECONDS, self._mend, sender.pool)
            else:
                self._start(parent_pid=os.getpid())

    def _mend(self, pool: Any) -> None:
        """Ends children that hang at their start, and fills the places of those that have ended.

        Celery notices only some of the first, and those after a minute.
        """
        now = time.monotonic()
        self._unbegun = {pid: self._unbegun.get(pid, now) for pid in pool.info["processes"] if not _has_begun(pid)}
        for pid, since in self._unbegun.items():
            if now - since > HANGS_SECONDS:
                log.error("child_hangs", child=pid, seconds=HANGS_SECONDS)
                os.kill(pid, signal.SIGKILL)
        pool.maintain_pool()

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


def _has_begun(child: int) -> bool:
    """Whether a child leads its process group, which is the first thing that it does, or is gone already."""
    try:
        return os.getpgid(child) == child
    except ProcessLookupError:
        return True


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


@contextmanager
def refusing() -> Iterator[None]:
    """Ends the process, with the reason in a line and with what to do, on any error of what is inside."""
    try:
        yield
    except BrainhandsError as error:
        _refuse(error)
    except BaseException as error:
        log.exception("not_started")
        _refuse(BrainhandsError(f"{place(error)}{type(error).__name__}: {error}"))


def _refuse(error: BrainhandsError) -> NoReturn:
    problem = " ".join(str(error).split())
    if logs_are_json():
        log.error("refused", reason=problem, next_step=error.next_step)
    else:
        print(f"error: {problem}\n{error.next_step}".rstrip(), file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def _is_given(option: str) -> bool:
    """Whether the command line names an option; Celery takes a zero for none."""
    line = click.get_current_context(silent=True)
    return line is not None and line.get_parameter_source(option) is ParameterSource.COMMANDLINE


def _logs_are_set_up(**_: Any) -> None:
    """That somebody answers this signal keeps Celery from setting up logs, and from taking outputs for logs."""


def _stop_on_hang_up(_number: int, _frame: object) -> None:
    """The terminal has gone, or somebody means to have the worker started again: it stops as on SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)
