"""The system under measurement: embedded servers, a model that answers at once, the parts by their command lines."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import redis

from brainhands.shared.local.servers import start_servers
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import migrate
from tests.instruments.fleet import Fleet
from tests.instruments.processes import Children

BRAIN_THREADS = 8
HANDS_PROCESSES = 2
LEASE_SECONDS = 30

LOG_SHOWN = 3000
"""Characters of a part's log that are shown when something went wrong."""

POSTGRES_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
)
REDIS_SETTINGS = ("save", "appendonly", "maxmemory-policy")
PACKAGES = ("celery", "kombu", "openai", "psycopg", "redis", "sqlalchemy")

STORED: LiteralString = """
select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
where relnamespace = 'brainhands'::regnamespace and relkind = 'r'
"""


@dataclass(frozen=True, kw_only=True)
class System:
    """Migrated servers and the model, with no worker yet."""

    folder: Path
    database_url: str
    redis_url: str
    model_url: str

    @contextmanager
    def fleet(self, database_urls: Mapping[str, str] | None = None) -> Iterator[Fleet]:
        """One Brain worker, one Hands worker and one relay, each with the database address of its part."""
        urls = dict.fromkeys(("brain", "hands", "relay"), self.database_url) | dict(database_urls or {})
        with Children(self.folder) as children:
            fleet = Fleet(children, self.folder, database_url=self.database_url, redis_url=self.redis_url, model=None)
            environment = {
                "OPENAI_BASE_URL": f"{self.model_url}/v1",
                "BRAINHANDS_TOOLS": "tests.bench.tools",
                "BRAINHANDS_LEASE_SECONDS": str(LEASE_SECONDS),
            }
            parts = [
                fleet.relay(**environment, DATABASE_URL=urls["relay"]),
                fleet.brain(slots=BRAIN_THREADS, **environment, DATABASE_URL=urls["brain"]),
                fleet.hands(slots=HANDS_PROCESSES, **environment, DATABASE_URL=urls["hands"]),
            ]
            try:
                fleet.wait_for_workers(relay=1, brain=1, hands=HANDS_PROCESSES)
                yield fleet
            except Exception:
                for part in parts:
                    print(f"--- {part.log.name}\n{part.output[-LOG_SHOWN:]}", file=sys.stderr)
                raise
            finally:
                for part in parts:
                    part.send(signal.SIGTERM)
                for part in parts:
                    part.stop()  # in order, so that the next fleet does not take it for a living one
                fleet.client.close()
                fleet.database.close()

    def stored_bytes(self) -> int:
        """What the tables, indexes and overflow tables take up."""
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(STORED).fetchone()
        assert row is not None
        return int(row[0])

    def settings(self) -> dict[str, Any]:
        """What the figures depend on."""
        with psycopg.connect(self.database_url) as connection, redis.Redis.from_url(self.redis_url) as broker:
            postgres = {name: _setting(connection, name) for name in POSTGRES_SETTINGS}
            doorbell: dict[str, Any] = {name: broker.config_get(name)[name] for name in REDIS_SETTINGS}
            doorbell["version"] = broker.info("server")["redis_version"]
        return {
            "postgres": postgres,
            "redis": doorbell,
            "brain": f"1 worker, {BRAIN_THREADS} threads",
            "hands": f"1 worker, {HANDS_PROCESSES} processes",
            "relay": "1 process",
            "lease_seconds": LEASE_SECONDS,
            "log_level": settings().log_level,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        }


@contextmanager
def system() -> Iterator[System]:
    """Start servers on an empty folder below `build`, which is on the same disk as the checkout, and the model."""
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="build") as home:
        folder = Path(home).absolute()
        folder.chmod(0o711)  # the account that runs Postgres must reach its data
        with start_servers(folder / "servers", settings().servers) as servers, Children(folder) as children:
            migrate.upgrade(servers.database_url)
            model = children.start(sys.executable, "-m", "deploy.demo.model_server", name="model")
            yield System(
                folder=folder,
                database_url=servers.database_url,
                redis_url=servers.redis_url,
                model_url=model.wait_for_line("listening on ").split()[-1],
            )


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])
