"""The relay process: `python -m outbox.app`. It publishes hints and sweeps; run two, so that one may die."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from outbox.publisher import Publisher
from outbox.relay import Relay
from outbox.sweep import Sweep
from shared.bus.bell import Bell, RelayBell
from shared.engine.draft import Origin
from shared.engine.keeper import Keeper
from shared.engine.ledger import Ledger
from shared.errors import BrainhandsError
from shared.model.ids import new_worker_id
from shared.model.worker import WorkerInfo
from shared.runtime.environment import environment_hash
from shared.runtime.logs import configure_logs, logger
from shared.runtime.settings import addresses, settings
from shared.runtime.threads import indispensable
from shared.store import migrate
from shared.store.database import Database

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
    ledger = Ledger(database, Bell(found.redis_url))
    sweep = Sweep(ledger, origin, restart_limit=current.restart_limit, stopping=stopping)
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
