"""A whole fleet for a test: relay, Brain and Hands as real processes, on a database, Redis and model of its own."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from brainhands.shared.client import Client
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.page import every
from brainhands.shared.model.submission import Receipt, Submission
from brainhands.shared.store import waiting, workers
from brainhands.shared.store.database import Database
from deploy.demo import model_server
from deploy.demo.web import ThreadedServer
from tests.instruments.processes import Child, Children, child_environment

CELERY = ("-m", "celery", "-A")
WORKER = ("--loglevel=INFO", "--without-gossip", "--without-mingle")


class Fleet:
    """Starts parts and waits until they are registered; all of them end with the test."""

    def __init__(
        self, children: Children, folder: Path, *, database_url: str, redis_url: str, model: ThreadedServer | None
    ) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self.model = model
        self.client = Client(database_url, redis_url)
        self.database = Database(database_url)
        self.effects_file = folder / "effects"
        self.environment = child_environment(
            DATABASE_URL=database_url,
            REDIS_URL=redis_url,
            OPENAI_API_KEY="sk-test",
            OPENAI_BASE_URL=f"{model.url}/v1" if model else "http://127.0.0.1:9/v1",
            BRAINHANDS_AGENTS="tests.sample.agents",
            BRAINHANDS_TOOLS="tests.sample.tools",
            BRAINHANDS_LEASE_SECONDS="3",
            BRAINHANDS_BLOCKED_AFTER_SECONDS="0",
            BRAINHANDS_MODEL="test-model",
            SAMPLE_EFFECTS=str(self.effects_file),
        )
        self.folder = Path.cwd()
        """Where parts are started: they run the source that is there."""
        self._children = children
        self._started = 0

    def relay(self, **environment: str) -> Child:
        """Start a relay."""
        return self._start("relay", "-m", "brainhands.outbox.app", environment=environment)

    def brain(self, *, slots: int = 4, queue: str = "brain.default", **environment: str) -> Child:
        """Start a Brain worker."""
        command = (*CELERY, "brainhands.brain.app", "worker", "-Q", queue, "-c", str(slots), *WORKER)
        return self._start("brain", *command, "-n", self._name("brain"), environment=environment)

    def hands(self, *, slots: int = 1, queue: str = "hands.default", **environment: str) -> Child:
        """Start a Hands worker."""
        command = (*CELERY, "brainhands.hands.app", "worker", "-Q", queue, "-c", str(slots), *WORKER)
        return self._start("hands", *command, "-n", self._name("hands"), environment=environment)

    def everything(self) -> None:
        """One relay, one Brain, one Hands; back when all are registered."""
        self.relay(), self.brain(), self.hands()
        self.wait_for_workers(brain=1, hands=1, relay=1)

    def wait_for_workers(self, timeout: float = 30.0, **roles: int) -> None:
        """Until so many live workers of each role are registered."""

        def registered() -> bool:
            live = [row["role"] for row in workers.live(self.database)]
            return all(live.count(role) >= count for role, count in roles.items())

        wait_until(registered, timeout, f"workers {roles}")

    def wait_for_agent(self, agent: str) -> None:
        """Until a Brain worker has offered it, so that nobody who submits to it is warned."""
        wait_until(lambda: waiting.strangers(self.database, agent) is None, 30.0, f"a Brain with {agent}")

    def submit(self, text: str, *, agent: str = "worker", **options: Any) -> Receipt:
        return self.client.submit(agent=agent, input=text, **options)

    def script(self, *steps: dict[str, Any], **options: Any) -> Receipt:
        """Submit an input that makes the model play these steps."""
        return self.submit(json.dumps({"script": list(steps)}), **options)

    def wait(self, receipt: Receipt, timeout: float = 40.0) -> Submission:
        return self.client.wait(receipt.submission_id, timeout=timeout)

    def types(self, session: UUID) -> list[str]:
        """The types of a session's events, in order."""
        return [event.type for event in self.client.events(session)]

    def payloads(self, session: UUID, *types: str) -> list[dict[str, Any]]:
        """The payloads of a session's events of these types, in order."""
        return [json.loads(event.payload_text) for event in self.client.events(session) if event.type in types]

    def wait_for_event(self, session: UUID, type: str, timeout: float = 30.0) -> None:
        wait_until(lambda: type in self.types(session), timeout, f"event {type}")

    def effects(self) -> list[str]:
        """What the sample tools did, one line an effect."""
        return self.effects_file.read_text().splitlines() if self.effects_file.exists() else []

    def wait_for_effect(self, start: str, timeout: float = 30.0) -> None:
        wait_until(lambda: any(line.startswith(start) for line in self.effects()), timeout, f"effect {start}")

    def model_requests(self) -> list[dict[str, Any]]:
        """The bodies of all requests that the model server got."""
        assert self.model is not None
        with urllib.request.urlopen(f"{self.model.url}/requests") as answer:
            return [request["body"] for request in json.load(answer)["requests"]]

    def _name(self, role: str) -> str:
        self._started += 1
        return f"{role}{self._started}@{os.getpid()}"

    def _start(self, name: str, *command: str, environment: dict[str, str]) -> Child:
        return self._children.start(
            sys.executable,
            *command,
            name=name,
            environment={**self.environment, **environment},
            folder=self.folder,
        )


@contextmanager
def fleet_of(folder: Path, *, database_url: str, redis_url: str) -> Iterator[Fleet]:
    """A fleet with a model server of its own and nothing started yet."""
    with Children(folder) as children, model_server.start() as model:
        fleet = Fleet(children, folder, database_url=database_url, redis_url=redis_url, model=model)
        try:
            yield fleet
        finally:
            fleet.client.close()
            fleet.database.close()


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Look at rows or files until the condition holds; fails when the time is over."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.05)


def session_ids(client: Client) -> list[SessionId]:
    """All sessions of the tenant, the newest first."""
    return [each.id for each in every(lambda after: client.sessions(after=after, limit=1000))]
