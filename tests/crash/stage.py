"""The stage of the crash tests: a whole system whose processes are struck, watched, and started again.

It stands for many runs, of any scenario of its house. Each run has a name of its own in whatever it leaves, so that one
database, one outside world and the processes that a run does not strike serve all of them; after each run the whole
store must hold its invariants.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from brainhands.shared.model.submission import Submission
from brainhands.shared.store import health
from deploy.demo import mailbox
from tests.crash.launch import FOLDER
from tests.crash.plugin import Folder, Plan, Point
from tests.crash.scenario import House, Run, Scenario
from tests.instruments import invariants
from tests.instruments.builds import RELEASE, build
from tests.instruments.fleet import CELERY, WORKER, Fleet, fleet_of, wait_until
from tests.instruments.processes import Child, Children

LAUNCH = (sys.executable, "-m", "tests.crash.launch")
START_SECONDS = 90.0
RUN_SECONDS = 120.0
LOOK_SECONDS = 0.05
DOCTOR_SECONDS = 30.0
TRIES = 3
LOG_SHOWN = 2000
"""Characters of each part's log that are shown when a run does not end."""


class Stage:
    """A running system; `fit` until a run ends badly."""

    def __init__(self, fleet: Fleet, children: Children, folder: Path, mailbox_url: str, house: House) -> None:
        self.fleet = fleet
        self.fit = True
        self._house = house
        self._folder = Folder(folder)
        self._folder.begin(None)
        self._log = (folder / "client.log").open("ab")
        self._mailbox_url = mailbox_url
        self._children = children
        self._numbers = count(1)
        fleet.environment.update(
            {FOLDER: str(folder), "BRAINHANDS_AGENTS": house.agents, "BRAINHANDS_TOOLS": house.tools},
            BRAINHANDS_LEASE_SECONDS=str(house.lease_seconds),
            BRAINHANDS_BLOCKED_AFTER_SECONDS="0",
            MAILBOX_URL=mailbox_url,
            **dict(house.settings),
        )
        self._builds = _next_release(folder / "next", fleet, house.next_release)
        hands = (*CELERY[1:], "brainhands.hands.app", "worker", "-Q", "hands.default", "-c", str(house.slots), *WORKER)
        brain = (*CELERY[1:], "brainhands.brain.app", "worker", "-Q", "brain.default", "-c", "2", *WORKER)
        self._commands = {"relay": ("brainhands.outbox.app",), "brain": brain, "hands": hands}
        self._running = {role: self._start(role) for role in self._commands}
        fleet.wait_for_workers(START_SECONDS, relay=1, brain=1, hands=house.slots)

    def rehearse(self, scenario: Scenario, times: int) -> list[Point]:
        """The points that every one of so many undisturbed runs reaches."""
        runs = [self._rehearsal(scenario) for _ in range(times)]
        return [point for point in runs[0] if all(point in other for other in runs[1:])]

    def _rehearsal(self, scenario: Scenario) -> list[Point]:
        self._run(scenario, None)
        return self._folder.points()

    def strike(self, scenario: Scenario, plan: Plan) -> bool:
        """A run with one strike; False if several runs did not reach its point, since hints travelled otherwise."""
        for _ in range(TRIES):
            self._run(scenario, plan)
            if self._folder.struck() is not None:
                return True
        return False

    def _run(self, scenario: Scenario, plan: Plan | None) -> None:
        self.fit = False
        name = f"{scenario.name}-{next(self._numbers)}-{os.getpid()}".replace(" ", "-")
        self._folder.begin(plan)
        submissions = self._play(scenario, name, self._awake(plan))
        sessions = list(dict.fromkeys(submission.session_id for submission in submissions))
        invariants.check(self.fleet.database_url, at_rest=True)
        wait_until(lambda: not self._findings(), DOCTOR_SECONDS, "doctor finds nothing")
        flaws = [flaw for session in sessions if (flaw := self.fleet.client.verify(session)) is not None]
        assert not flaws, flaws
        struck = plan if self._folder.struck() is not None else None
        scenario.check(Run(name=name, fleet=self.fleet, submissions=submissions, mails=self._mails(), plan=struck))
        self.fit = True

    def _play(self, scenario: Scenario, name: str, awake: Callable[[], bool]) -> list[Submission]:
        """Let the client play, start again what has died, and come back with its submissions when all is at rest."""
        client = self._start_client(scenario, name)
        give_up = time.monotonic() + RUN_SECONDS
        try:
            while not (awake() and client.poll() == 0 and self._nothing_is_open()):
                assert time.monotonic() < give_up, self._account(name)
                self._start_what_died()
                if client.returncode == -signal.SIGKILL:
                    client = self._start_client(scenario, name)
                assert not client.returncode, self._account(name)
                time.sleep(LOOK_SECONDS)
        finally:
            client.kill()
            played, _ = client.communicate()
        return [self.fleet.client.submission(each) for each in json.loads(played)]

    def _start_client(self, scenario: Scenario, name: str) -> subprocess.Popen[str]:
        play = (scenario.play.__module__, scenario.play.__name__)
        command = (*LAUNCH, "client", "tests.crash.driver", *play, name)
        return subprocess.Popen(
            command, env=self.fleet.environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def _nothing_is_open(self) -> bool:
        return not self._count("SELECT count(*) FROM brainhands.tasks WHERE status <> 'done'")

    def _start_what_died(self) -> None:
        for role, child in self._running.items():
            if child.returncode is not None:
                child.kill()
                self._running[role] = self._start(role)

    def _awake(self, plan: Plan | None) -> Callable[[], bool]:
        """Lets a stopped process go on, once a claim was taken back or none can be its any more; False until then."""
        if plan is None or plan.how != "stop":
            return lambda: True
        before = self._recovered()
        latest: float | None = None

        def awake() -> bool:
            nonlocal latest
            if (stopped := self._folder.struck()) is None:
                return True
            latest = latest or time.monotonic() + 3 * self._house.lease_seconds
            over = self._recovered() > before or time.monotonic() > latest
            if over:
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
            return over

        return awake

    def _recovered(self) -> int:
        """How many claims have ended without a commit, ever."""
        return self._count("SELECT count(*) FROM brainhands.events WHERE type = 'task_recovered'")

    def _count(self, statement: Any) -> int:
        with self.fleet.database.connection() as connection:
            row = connection.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    def _findings(self) -> list[health.Finding]:
        """What `doctor` asks of the store."""
        database = self.fleet.database
        return [*health.missing_roles(database), *health.blocked(database), *health.without_mover(database)]

    def _account(self, name: str) -> str:
        """What can be said of a run that does not end."""
        with self.fleet.database.connection() as connection:
            tasks = connection.execute(
                "SELECT kind, status, phase, phase_attempts, blocked FROM brainhands.tasks WHERE status <> 'done'"
            ).fetchall()
        said = {role: child.output for role, child in self._running.items()}
        said["client"] = Path(self._log.name).read_text(errors="replace")
        logs = (f"--- {role}\n{text[-LOG_SHOWN:]}" for role, text in said.items())
        points = map(str, self._folder.points()[-20:])
        return "\n".join((f"{name} does not end:", *map(str, tasks), *points, *logs))

    def _mails(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self._mailbox_url}/mails", timeout=30) as answer:
            mails: list[dict[str, Any]] = json.load(answer)["mails"]
        return mails

    def _start(self, role: str) -> Child:
        name = ("-n", f"{role}-{next(self._numbers)}@{os.getpid()}") if role != "relay" else ()
        command = (*LAUNCH, role, *self._commands[role], *name)
        folder = self._builds.get(role)
        return self._children.start(*command, name=role, environment=self.fleet.environment, folder=folder)

    def close(self) -> None:
        self._log.close()


def _next_release(folder: Path, fleet: Fleet, roles: Sequence[str]) -> dict[str, Path]:
    """The folder of each role that runs the next release, whose schema is there before anything runs."""
    if not roles:
        return {}
    newer = build(folder, RELEASE)
    migrating = (sys.executable, "-m", "brainhands.shared.cli.main", "migrate")
    subprocess.run(migrating, cwd=newer, env=fleet.environment, stdout=subprocess.DEVNULL, check=True)
    return dict.fromkeys(roles, newer)


@contextmanager
def stage_of(folder: Path, house: House, *, database_url: str, redis_url: str) -> Iterator[Stage]:
    """A stage in an empty folder, with its mailbox and model; all of it ends with the context."""
    with ExitStack() as running:
        fleet = running.enter_context(fleet_of(folder, database_url=database_url, redis_url=redis_url))
        children = running.enter_context(Children(folder))
        box = running.enter_context(mailbox.start(folder / "mailbox", house.switches))
        shared = folder / "points"
        shared.mkdir()
        stage = Stage(fleet, children, shared, box.url, house)
        running.callback(stage.close)
        yield stage
