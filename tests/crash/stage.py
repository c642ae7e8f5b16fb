"""The stage of the crash tests: a whole system whose processes are struck, watched, and started again.

It stands for many runs. Each run is a new session with a notice of its own, so that one database, one mailbox and the
processes that a run does not strike serve all of them; after each run the whole store must hold its invariants.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

from deploy.demo import mailbox
from deploy.demo.mailbox import Switches
from deploy.demo.model_scripts import CUSTOMERS
from shared.model.submission import Submission, SubmissionStatus
from shared.model.task import Outcome
from shared.store import health
from tests.crash.launch import FOLDER
from tests.crash.plugin import Folder, Plan, Point
from tests.instruments import invariants
from tests.instruments.fleet import CELERY, WORKER, Fleet, fleet_of
from tests.instruments.processes import Child, Children

LAUNCH = ("-m", "tests.crash.launch")
RUN_SECONDS = 60.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the stage is set for; `slots` are the calls that Hands run at a time."""

    switches: Switches = field(default_factory=Switches)
    slots: int = 1
    lease_seconds: float = 2.0
    settings: tuple[tuple[str, str], ...] = ()


class Stage:
    """A running system; `fit` until a run ends badly."""

    def __init__(self, fleet: Fleet, children: Children, folder: Path, mailbox_url: str, play: Play) -> None:
        self.fleet = fleet
        self.fit = True
        self._folder = Folder(folder)
        self._folder.begin(None)
        self._mailbox_url = mailbox_url
        self._children = children
        self._numbers = count(1)
        fleet.environment.update(
            {FOLDER: str(folder), "BRAINHANDS_AGENTS": "deploy.demo.agents", "BRAINHANDS_TOOLS": "deploy.demo.tools"},
            BRAINHANDS_LEASE_SECONDS=str(play.lease_seconds),
            MAILBOX_URL=mailbox_url,
            **dict(play.settings),
        )
        hands = (*CELERY[1:], "hands.app", "worker", "-Q", "hands.default", "-c", str(play.slots), *WORKER)
        brain = (*CELERY[1:], "brain.app", "worker", "-Q", "brain.default", "-c", "2", *WORKER)
        self._commands = {"relay": ("outbox.app",), "brain": brain, "hands": hands}
        self._running = {role: self._start(role) for role in self._commands}
        fleet.wait_for_workers(relay=1, brain=1, hands=play.slots)

    def rehearse(self) -> list[Point]:
        """The points of a run in which nothing is struck; what comes in one such run and not in another is left out."""
        self._run(None)
        once, again = (self._rehearsal() for _ in range(2))
        return [point for point in once if point in again]

    def _rehearsal(self) -> list[Point]:
        self._run(None)
        return self._folder.points()

    def strike(self, plan: Plan) -> None:
        """A run with one strike: five mails arrive all the same, one for each customer, and the store is sound.

        A point that this run did not reach (hints may travel in fewer messages) gets two more runs.
        """
        for _ in range(3):
            self._run(plan)
            if self._folder.struck() is not None:
                return
        raise AssertionError(f"three runs did not reach the point: {plan}")

    def _run(self, plan: Plan | None) -> None:
        self.fit = False
        number = next(self._numbers)
        body = f"Notice {number} of process {os.getpid()}."
        self._folder.begin(plan)
        submission = self._submit(f"notice-{number}", f'Send this notice to {", ".join(CUSTOMERS)}: "{body}"')
        done = self._watch(submission, self._wake(plan))
        assert done.outcome is Outcome.SUCCEEDED, self._account(done)
        mails = sorted((mail["to"], mail["operation_id"]) for mail in self._mails() if mail["body"] == body)
        assert [to for to, _ in mails] == sorted(CUSTOMERS), f"arrived: {mails}"
        assert len({operation for _, operation in mails}) == len(CUSTOMERS), f"arrived: {mails}"
        (plan_of_mails,) = self.fleet.client.session(done.session_id).documents
        outcomes = {mail["to"]: mail["outcome"] for mail in plan_of_mails.value["mails"]}
        assert outcomes == dict.fromkeys(CUSTOMERS, "sent"), f"planned: {outcomes}"
        invariants.check(self.fleet.database_url, at_rest=True)
        stuck = health.without_mover(self.fleet.database)
        assert not stuck, stuck
        self.fit = True

    def _submit(self, request_id: str, text: str) -> UUID:
        """As a backend that dies and asks again with the same request_id until it has its receipt."""
        for _ in range(3):
            command = (sys.executable, *LAUNCH, "client", "tests.crash.submitter", request_id, text)
            asked = subprocess.run(command, env=self.fleet.environment, capture_output=True, text=True, timeout=30)
            if asked.returncode == 0:
                return UUID(asked.stdout.strip())
            assert asked.returncode == -signal.SIGKILL, asked.stderr
        raise AssertionError("the client was struck more than once")

    def _watch(self, submission: UUID, wake: Callable[[], None]) -> Submission:
        """Start again what has died, until the submission is done."""
        give_up = time.monotonic() + RUN_SECONDS
        while True:
            for role, child in self._running.items():
                if child.returncode is not None:
                    child.kill()
                    self._running[role] = self._start(role)
            wake()
            found = self.fleet.client.submission(submission)
            if found.status is SubmissionStatus.DONE:
                return found
            assert time.monotonic() < give_up, self._account(found)
            time.sleep(LOOK_SECONDS)

    def _wake(self, plan: Plan | None) -> Callable[[], None]:
        """What lets a stopped process go on, once its lease was ended and its work given back."""
        if plan is None or plan.how != "stop":
            return lambda: None
        before = self._recovered()

        def wake() -> None:
            stopped = self._folder.struck()
            if stopped is not None and self._recovered() > before:
                try:
                    os.kill(stopped, signal.SIGCONT)
                except ProcessLookupError:
                    return

        return wake

    def _recovered(self) -> int:
        """How many claims have ended without a commit, ever."""
        with self.fleet.database.connection() as connection:
            row = connection.execute("SELECT count(*) FROM brainhands.events WHERE type = 'task_recovered'").fetchone()
        assert row is not None
        return int(row[0])

    def _account(self, found: Submission) -> str:
        view = self.fleet.client.session(found.session_id)
        tasks = [f"{task.kind} {task.status} {task.phase} tried {task.phase_attempts}" for task in view.tasks]
        head = f"{found.status} {found.outcome} {found.error}"
        return "\n".join((head, *tasks, *map(str, self._folder.points()[-20:])))

    def _mails(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self._mailbox_url}/mails", timeout=30) as answer:
            mails: list[dict[str, Any]] = json.load(answer)["mails"]
        return mails

    def _start(self, role: str) -> Child:
        name = ("-n", f"{role}-{next(self._numbers)}@{os.getpid()}") if role != "relay" else ()
        command = (sys.executable, *LAUNCH, role, *self._commands[role], *name)
        return self._children.start(*command, name=role, environment=self.fleet.environment)


@contextmanager
def stage_of(folder: Path, play: Play, *, database_url: str, redis_url: str) -> Iterator[Stage]:
    """A stage in an empty folder, with its mailbox and model; all of it ends with the context."""
    with ExitStack() as running:
        fleet = running.enter_context(fleet_of(folder, database_url=database_url, redis_url=redis_url))
        children = running.enter_context(Children(folder))
        box = running.enter_context(mailbox.start(folder / "mailbox", play.switches))
        shared = folder / "points"
        shared.mkdir()
        yield Stage(fleet, children, shared, box.url, play)
