"""A soak from start to end: the plan of a seed, the run with its driver, the way to rest, and the summary."""

from __future__ import annotations

import heapq
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
import redis

from brainhands.shared.client import Client
from brainhands.shared.errors import RequestInProgress, ServerUnavailable
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.approval import Question
from brainhands.shared.model.submission import Cancellation, Receipt
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import workers
from brainhands.shared.store.database import TRANSIENT, Database
from deploy.demo import model_server
from tests.instruments.fleet import session_ids, wait_until
from tests.instruments.processes import child_environment
from tests.instruments.proxy import LOOPBACK, Proxy
from tests.instruments.runs import through
from tests.soak.faults import Fault, schedule, strike
from tests.soak.faulty_relay import CALM, SEED
from tests.soak.parts import OF_EACH, ROLES, Parts, Weight
from tests.soak.reckoning import CALL_ENDS, GROWN_AGE_SECONDS, Connections, Ended, counted, grown, problems
from tests.soak.shapes import Input, Shape, shape

LEASE_SECONDS = 2.0
SESSION_EVERY_SECONDS = 1.4
"""About as many as two cores bear beside the faults."""
QUIET_SHARE = 0.12
"""The part of a soak before the first fault, in which connections and memory come to their level."""
LOOK_SECONDS = 0.1
REST_SECONDS = 240.0
PATIENCE_SECONDS = 30.0
"""For one statement, as `doctor` has it."""
BUSY: LiteralString = """
SELECT worker.pid FROM brainhands.tasks task JOIN brainhands.workers worker ON worker.id = task.worker_id
WHERE task.status = 'running' AND task.phase = 'execute'
"""
NOT_NOW = (*TRANSIENT, ServerUnavailable, RequestInProgress, redis.RedisError)
"""What the driver meets while a server is away; it does the same again a little later."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that chance decides, from a seed."""

    seed: int
    seconds: float
    shapes: Sequence[Shape]
    faults: Sequence[Fault]


def plan(seed: int, seconds: float) -> Plan:
    """What happens within so many seconds; equal for an equal seed."""
    chance = random.Random(seed)
    names = count(1)
    shapes = []
    at = 0.0
    while at < seconds:
        shapes.append(shape(chance, f"s{seed}n{next(names)}", at))
        at += chance.uniform(0.2, 1.8) * SESSION_EVERY_SECONDS
    faults = schedule(chance, start=QUIET_SHARE * seconds, end=seconds, lease_seconds=LEASE_SECONDS)
    return Plan(seed=seed, seconds=seconds, shapes=shapes, faults=faults)


class Soak:
    """The run of a plan: one loop that does what is due, looks after the parts and answers what people are asked."""

    def __init__(
        self, plan: Plan, folder: Path, parts: Parts, client: Client, database: Database, proxy: Proxy
    ) -> None:
        self.plan = plan
        self.parts = parts
        self._receipts: dict[str, Receipt] = {}
        self._cancels: dict[str, Cancellation] = {}
        self._effects = folder / "effects"
        self._client = client
        self._database = database
        self._proxy = proxy
        self._calm = folder / "calm"
        self._denied = {call.key: call.denied for shape in plan.shapes for each in shape.inputs for call in each.calls}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._began = time.monotonic()

    def run(self, postgres: Postgres, redis_server: Redis, say: Callable[[str], None]) -> Connections:
        """Everything that is planned, in real time; gives the connections before the first fault."""
        wait_until(self._all_parts_live, 90, "all parts are registered")
        before: list[Connections] = []
        self._began = time.monotonic()
        for each in self.plan.shapes:
            self._at(each.at, partial(self._submit, each, 0))
        self._at(
            QUIET_SHARE * self.plan.seconds,
            lambda: before.append(connections(self._database.url, redis_server)),
        )
        for fault in self.plan.faults:
            self._at(fault.at, partial(self._strike, fault, postgres, redis_server, say))
        while self._due or self._now() < self.plan.seconds:
            self._look()
        say(f"{self._now():6.1f} s  no more faults; all must come to rest")
        return before[0]

    def rest(self) -> None:
        """No more faults: all parts are there, and all work comes to its end."""
        self._calm.touch()
        end = time.monotonic() + REST_SECONDS
        while not self._is_at_rest() and time.monotonic() < end:
            self._look()  # what does not end, the reckoning tells

    def ended(self) -> Ended:
        """All that there is to judge."""
        effects = self._effects.read_text().splitlines() if self._effects.exists() else []
        return Ended(shapes=self.plan.shapes, receipts=self._receipts, cancels=self._cancels, effects=effects)

    def _look(self) -> None:
        while self._due and self._due[0][0] <= self._now():
            _, _, action = heapq.heappop(self._due)
            try:
                action()
            except NOT_NOW:
                self._at(self._now() + 0.5, action)
        self.parts.tend()
        with suppress(*NOT_NOW):
            self._answer_questions()
        time.sleep(LOOK_SECONDS)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (seconds, next(self._order), action))

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _submit(self, shape: Shape, place: int) -> None:
        """Make one submission of a session, and plan what comes of it."""
        each = shape.inputs[place]
        session = self._receipts[shape.inputs[0].key].session_id if place else None
        self._receipts[each.key] = self._client.submit(
            agent="swift",
            input=json.dumps({"script": each.steps}),
            request_id=each.key,
            session=session,
            mode=each.mode,
        )
        now = self._now()
        for key, after in each.signals:
            self._at(now + after, partial(self._signal, each, key))
        for key, after in each.gates:
            self._at(now + after, Path(f"{self._effects}.{key}").touch)
        if each.cancel_after is not None:
            self._at(now + each.cancel_after, partial(self._cancel, each))
        if place == 0:
            for later, more in enumerate(shape.inputs[1:], start=1):
                self._at(now + more.after, partial(self._submit, shape, later))

    def _signal(self, each: Input, key: str) -> None:
        session = self._receipts[each.key].session_id
        self._client.signal(session, "go", key, key=key, request_id=f"go-{key}")

    def _cancel(self, each: Input) -> None:
        self._cancels[each.key] = self._client.cancel(submission=self._receipts[each.key].submission_id)

    def _answer_questions(self) -> None:
        for asked in self._client.approvals():
            if asked.question is Question.APPROVAL:
                self._client.answer(asked.id, "denied" if self._denied[asked.arguments["key"]] else "approved")

    def _strike(self, fault: Fault, postgres: Postgres, redis_server: Redis, say: Callable[[str], None]) -> None:
        say(f"{self._now():6.1f} s  planned {fault}")
        end = strike(fault, self.parts, self._busy(), postgres, redis_server, self._proxy)
        self._at(self._now() + fault.seconds, end)

    def _busy(self) -> set[int]:
        """The processes that run a call."""
        try:
            with self._database.connection() as connection:
                return {pid for (pid,) in connection.execute(BUSY)}
        except NOT_NOW:
            return set()

    def _all_parts_live(self) -> bool:
        live = [row["role"] for row in workers.live(self._database)]
        return all(live.count(role) >= OF_EACH for role in ROLES)

    def _is_at_rest(self) -> bool:
        try:
            with self._database.connection() as connection:
                row = connection.execute("SELECT count(*) FROM brainhands.tasks WHERE status <> 'done'").fetchone()
            return row == (0,) and self._all_parts_live()
        except NOT_NOW:
            return False  # by a connection from before a restart of Postgres


def soak(
    plan: Plan, folder: Path, *, database_url: str, postgres: Postgres, redis_server: Redis, say: Callable[[str], None]
) -> list[str]:
    """Run a plan on these servers and an empty, migrated database; gives what is wrong in the end, a line each."""
    with ExitStack() as running:
        model = running.enter_context(model_server.start())
        port = urlsplit(redis_server.url).port
        assert port is not None
        proxy = running.enter_context(Proxy(LOOPBACK, port))
        redis_url = through(proxy, redis_server.url)
        environment = child_environment(
            DATABASE_URL=database_url,
            REDIS_URL=redis_url,
            OPENAI_API_KEY="sk-test",
            OPENAI_BASE_URL=f"{model.url}/v1",
            BRAINHANDS_AGENTS="tests.sample.swift_agents",
            BRAINHANDS_TOOLS="tests.sample.swift_tools",
            BRAINHANDS_LEASE_SECONDS=str(LEASE_SECONDS),
            # A crash is nobody's fault here, so none may end a task.
            BRAINHANDS_RESTART_LIMIT="100",
            BRAINHANDS_MODEL="test-model",
            SAMPLE_EFFECTS=str(folder / "effects"),
            **{SEED: str(plan.seed), CALM: str(folder / "calm")},
        )
        parts = Parts(folder, environment)
        running.callback(parts.kill_all)
        parts.start_all()
        database = running.enter_context(closing(Database(database_url)))
        client = running.enter_context(closing(Client(database_url, redis_url)))
        run = Soak(plan, folder, parts, client, database, proxy)
        before = run.run(postgres, redis_server, say)
        run.rest()
        return _reckon(run, before, database_url, redis_server, say)


def _reckon(
    run: Soak, before: Connections, database_url: str, redis_server: Redis, say: Callable[[str], None]
) -> list[str]:
    """Judge and sum up, by connections that no restart of a server has touched."""
    after = connections(database_url, redis_server)
    patient = Database(database_url, step_seconds=PATIENCE_SECONDS)
    with closing(Client(database_url, redis_server.url)) as client, closing(patient) as database:
        ended = run.ended()
        found = [*problems(ended, client, database), *grown(run.parts.weights, before, after)]
        for line in summary(ended, run.plan, run.parts.weights, before, after, client):
            say(line)
    return found


def connections(database_url: str, redis_server: Redis) -> Connections:
    """How many connections there are now, without the ones that count them."""
    with psycopg.connect(libpq_url(database_url)) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None
    with redis.Redis.from_url(redis_server.url) as broker:
        return Connections(postgres=row[0], redis=int(broker.info("clients")["connected_clients"]) - 1)


def summary(
    ended: Ended, plan: Plan, weights: Sequence[Weight], before: Connections, after: Connections, client: Client
) -> Iterator[str]:
    """What a soak was, in a few lines."""
    submissions = [client.submission(receipt.submission_id) for receipt in ended.receipts.values()]
    events = [event.type for session in session_ids(client) for event in client.events(session)]
    yield f"sessions     {len(plan.shapes)}: {counted(shape.twist for shape in plan.shapes)}"
    yield f"submissions  {len(submissions)}: {counted(submission.outcome for submission in submissions)}"
    yield f"calls        {counted(type for type in events if type in CALL_ENDS)}"
    yield f"effects      {len(ended.effects)}: {counted(line.split()[0] for line in ended.effects)}"
    yield f"events       {len(events)}, claims taken back {events.count('task_recovered')}"
    yield f"faults       {len(plan.faults)}: {counted(fault.kind for fault in plan.faults)}"
    yield f"processes    {len(weights)} started"
    for each in weights:
        if each.grown is not None and each.age >= GROWN_AGE_SECONDS:
            yield f"  {each.name:<9} {each.grown:5.0f} MB, {each.last:5.0f} MB after {each.age:.0f} s"
    yield f"connections  Postgres {before.postgres}, then {after.postgres}; Redis {before.redis}, then {after.redis}"
