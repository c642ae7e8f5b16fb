"""The relay process: `python -m brainhands.outbox.app`. It publishes hints and sweeps; run two, so that one may die."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from brainhands.outbox.publisher import Publisher
from brainhands.outbox.relay import Relay
from brainhands.outbox.sweep import Sweep
from brainhands.shared.bus.bell import Bell, RelayBell
from brainhands.shared.engine.draft import Origin
from brainhands.shared.engine.keeper import Keeper
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import BrainhandsError
from brainhands.shared.model.ids import new_worker_id
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.runtime.environment import environment_hash
from brainhands.shared.runtime.logs import configure_logs, logger
from brainhands.shared.runtime.settings import addresses, settings
from brainhands.shared.runtime.threads import indispensable
from brainhands.shared.store import migrate
from brainhands.shared.store.database import Database

log = logger(__name__)


def main() -> None:
    """Run a relay until SIGTERM or SIGINT."""
    configure_logs("relay")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    current, found = settings(), addresses()
    migrate.require_current(found.database_url)
    publisher = Publisher(found.redis_url)
    worker = WorkerInfo(
        id=new_worker_id(),
        role="relay",
        pool="relay",
        host=socket.gethostname(),
        pid=os.getpid(),
        parent_pid=os.getpid(),
        slots=1,
        environment=environment_hash(),
        offers=(),
    )
    database = Database(found.database_url, size=3)
    # Marks that are lost with a crash of Postgres cost a second hint and nothing else.
    soft_database = Database(found.database_url, size=1, durable=False, generic_plans=True)
    keeper = Keeper(found.database_url, worker, lease_seconds=current.lease_seconds, ends_process=False)
    keeper.start()
    origin = Origin(worker_id=worker.id, pool=worker.pool, environment=worker.environment)
    writer = Writer(database, Bell(found.redis_url))
    sweep = Sweep(
        writer,
        origin,
        restart_limit=current.restart_limit,
        blocked_after_seconds=current.blocked_after_seconds,
        stopping=stopping,
    )
    sweeping = indispensable(sweep.run, name="sweep", daemon=False)
    sweeping.start()
    log.info("relay_started", worker=worker.id)
    try:
        Relay(soft_database, publisher, RelayBell(found.redis_url), stopping).run()
    finally:
        stopping.set()
        sweeping.join()
        keeper.stop()
        publisher.close()
        database.close()
        soft_database.close()
        log.info("relay_stopped", worker=worker.id)


if __name__ == "__main__":
    try:
        main()
    except BrainhandsError as error:
        print(f"error: {error}\n{error.next_step}".rstrip(), file=sys.stderr)
        sys.exit(error.exit_code)
