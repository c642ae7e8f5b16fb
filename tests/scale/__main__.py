"""Measures a store with millions of rows against an empty one, and writes build/scale.json: `python -m tests.scale`.

Workers, relay and sweep run in this process, one step at a time, so that each is timed alone. What is measured is the
same on both stores; the full one has all else besides.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import redis
from rich.console import Console
from rich.table import Table

from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.outbox.publisher import Publisher
from brainhands.outbox.relay import Relay
from brainhands.shared.bus.bell import RelayBell
from brainhands.shared.cli.doctor import looks_at_postgres
from brainhands.shared.errors import UnknownAgent
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import reads
from brainhands.shared.store.database import Database
from tests.bench.system import System, system
from tests.sample.agents import echo
from tests.scale.fill import Size, fill, size
from tests.store.desk import echo_hands, worker_of
from tests.store.stage import Stage, stage_of

OUTPUT = Path("build/scale.json")
TIMES = 30
DOCTOR_TIMES = 5
ROOM = 16
"""Hints that wait on the empty store too, so that a relay has as much to publish."""
SUB_AGENT_EVENTS = 5
PENDING = "SELECT id FROM brainhands.tasks WHERE session_id = %s AND status = 'pending'"


class Subject:
    """A store with what is measured on it."""

    def __init__(self, servers: System, stage: Stage, database: Database) -> None:
        self.stage = stage
        self.client = stage.client
        self._database = database
        self._redis = redis.Redis.from_url(servers.redis_url)
        self._relay = Relay(database, Publisher(servers.redis_url), RelayBell(servers.redis_url), threading.Event())
        kinds = (generation_kind({(echo.name, echo.version): echo}), intake_kind())
        self._brain = worker_of(stage, "brain", kinds, Offer(name=f"agent:{echo.name}", low=1, high=1))
        self._hands = echo_hands(stage)
        self.ended = self.turn()
        self.long = self.turn()
        self.backlog, _ = stage.session()
        for _ in range(ROOM):
            stage.add(self.backlog)
        self.sub_agent = self._conversation_of_a_sub_agent(self.long)
        self._keep_workers_busy()

    def turn(self) -> SessionId:
        """From submit to the answer, with one tool call."""
        receipt = self.client.submit(agent=echo.name, input="echo good morning")
        for worker in (self._brain, self._hands, self._brain):
            (task,) = self.stage.sql(PENDING, receipt.session_id)
            worker.advance([(task["id"], receipt.session_id)])
        assert self.client.wait(receipt.submission_id, timeout=0).output == "good morning"
        return receipt.session_id

    def claim(self) -> None:
        """A task of the backlog, from its hint to its end."""
        self.stage.advance(self._next)

    def before_claim(self) -> None:
        self._next = self.stage.add(self.backlog)

    def before_pass(self) -> None:
        self._redis.flushall()
        self.stage.sql("UPDATE brainhands.outbox SET published_at = NULL WHERE published_at IS NOT NULL")

    def relay_pass(self) -> None:
        assert self._relay.pass_once() > 0

    def sweep(self) -> None:
        self.stage.sweep.sweep_once()

    def doctor(self) -> None:
        list(looks_at_postgres(self._database))

    def next_wake(self) -> None:
        assert self.client.next_wake(self.stage.first.info.pool).ready

    def sessions(self) -> None:
        self.client.sessions()

    def show(self) -> None:
        self.client.session(self.ended)
        self.client.events(self.ended)

    def context(self) -> None:
        """Of a sub-agent in the long session."""
        found = reads.context(self._database, self.long, self.sub_agent, 2**31 - 1, ())
        assert len(found) >= SUB_AGENT_EVENTS

    def open_tasks(self) -> None:
        """Of the long session."""
        self.client.document(self.long, "live")

    def _conversation_of_a_sub_agent(self, session: SessionId) -> Any:
        """One with a few events of its own."""
        (made,) = self.stage.sql(
            "INSERT INTO brainhands.conversations SELECT (jsonb_populate_record(c, jsonb_build_object('id',"
            " gen_random_uuid()))).* FROM brainhands.conversations c WHERE session_id = %s RETURNING id",
            session,
        )
        self.stage.sql(
            "UPDATE brainhands.events SET conversation_id = %s WHERE session_id = %s AND seq > 1 AND seq <= %s",
            made["id"],
            session,
            SUB_AGENT_EVENTS + 1,
        )
        return made["id"]

    def _keep_workers_busy(self) -> None:
        """As many tasks as the stage's worker has slots run for hours: a backlog that waits its turn is healthy."""
        info = self.stage.first.info
        for _ in range(info.slots):
            task_id = self.stage.add(self.backlog)
            self.stage.sql("DELETE FROM brainhands.outbox WHERE task_id = %s", task_id)
            self.stage.sql(
                "UPDATE brainhands.tasks SET status = 'running', fence = 1, worker_id = %s,"
                " lease_until = now() + interval '1 day', deadline = now() + interval '1 day' WHERE id = %s",
                info.id,
                task_id,
            )


def measures(subject: Subject) -> dict[str, float]:
    """Medians in milliseconds."""
    nothing = lambda: None  # noqa: E731
    steps: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
        "turn": (nothing, subject.turn, TIMES),
        "claim": (subject.before_claim, subject.claim, TIMES),
        "relay pass": (subject.before_pass, subject.relay_pass, TIMES),
        "sweep pass": (nothing, subject.sweep, TIMES),
        "doctor": (nothing, subject.doctor, DOCTOR_TIMES),
        "next wake": (nothing, subject.next_wake, TIMES),
        "sessions": (nothing, subject.sessions, TIMES),
        "show": (nothing, subject.show, TIMES),
        "context of a sub-agent": (nothing, subject.context, TIMES),
        "open tasks": (nothing, subject.open_tasks, TIMES),
    }
    return {name: _median_of(*each) for name, each in steps.items()}


def _median_of(before: Callable[[], object], step: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times + 3):  # the first few open connections and make plans
        before()
        start = time.perf_counter()
        step()
        taken.append((time.perf_counter() - start) * 1000)
    return round(median(taken[3:]), 2)


@contextmanager
def subject() -> Iterator[tuple[System, Subject]]:
    with ExitStack() as running:
        servers = running.enter_context(system())
        os.environ |= {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{servers.model_url}/v1"}
        settings.cache_clear()
        stage = running.enter_context(stage_of(servers.database_url, lease_seconds=600.0))
        database = Database(servers.database_url)
        running.callback(database.close)
        yield servers, Subject(servers, stage, database)


def measure(how_large: Size, console: Console) -> dict[str, Any]:
    with subject() as (servers, on_it):
        empty = measures(on_it)
        begun = time.monotonic()
        before = servers.stored_bytes()
        for step in fill(servers.database_url, how_large, ended=on_it.ended, backlog=on_it.backlog, long=on_it.long):
            console.print(f"{time.monotonic() - begun:5.0f} s  {step}")
        stored = servers.stored_bytes() - before
        full = measures(on_it)
        return {
            "rows": {name: getattr(how_large, name) for name in Size.__slots__},
            "stored_bytes": stored,
            "milliseconds": {
                name: {"empty": empty[name], "full": full[name], "ratio": round(full[name] / empty[name], 2)}
                for name in full
            },
            "settings": servers.settings(),
        }


def show(figures: dict[str, Any], console: Console) -> None:
    table = Table("", "empty, ms", "full, ms", "ratio")
    for name, each in figures["milliseconds"].items():
        table.add_row(name, *(f"{each[column]:,}" for column in ("empty", "full", "ratio")))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description="Measure a large store.")
    parser.add_argument(
        "--part", type=float, default=0.1, help="of 10 million events, a million tasks and 200,000 hints that wait"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the figures go")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UnknownAgent)  # the stage plays an agent that no Brain offers
    console = Console(soft_wrap=True)
    how_large = size(arguments.part)
    console.print(f"a store of {how_large.events:,} events takes {how_large.disk_gigabytes:.1f} GB of disk below build")
    figures = measure(how_large, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures, console)
    console.print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
