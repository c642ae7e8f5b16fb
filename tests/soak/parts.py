"""The parts of a soak, two of each role: started, started again when they end, and weighed while they live."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil

from tests.instruments.fleet import CELERY, WORKER
from tests.instruments.processes import Child

COMMANDS = {
    "relay": ("-m", "tests.soak.faulty_relay"),
    "brain": (*CELERY, "brainhands.brain.app", "worker", "-Q", "brain.default", "-c", "4", *WORKER),
    "hands": (*CELERY, "brainhands.hands.app", "worker", "-Q", "hands.default", "-c", "3", *WORKER),
}
ROLES = tuple(COMMANDS)
OF_EACH = 2
GROWN_SECONDS = 15.0
"""Age at which a process has its modules, connections and caches."""


@dataclass
class Weight:
    """Resident memory of one process, in MB: when it had grown up, and at last."""

    name: str
    born: float
    grown: float | None = None
    last: float = 0.0
    age: float = 0.0

    def add(self, megabytes: float) -> None:
        self.age, self.last = time.monotonic() - self.born, megabytes
        if self.grown is None and self.age >= GROWN_SECONDS:
            self.grown = megabytes


@dataclass
class Parts:
    """All parts by name, such as `brain-1`."""

    folder: Path
    environment: Mapping[str, str]
    weights: list[Weight] = field(default_factory=list)
    """Of all processes that ever ran a part, in the order of their starts."""
    _running: dict[str, Child] = field(default_factory=dict)
    _weighed: dict[str, Weight] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def start_all(self) -> None:
        for name in (f"{role}-{number}" for role in ROLES for number in range(OF_EACH)):
            self._start(name)

    def _start(self, name: str) -> None:
        role = name.partition("-")[0]
        number = next(self._numbers)
        own = () if role == "relay" else ("-n", f"{name}-{number}@soak")
        self._running[name] = Child(
            (sys.executable, *COMMANDS[role], *own),
            log=self.folder / f"{name}-{number}.log",
            environment=self.environment,
            folder=Path.cwd(),
        )
        self._weighed[name] = Weight(name=name, born=time.monotonic())
        self.weights.append(self._weighed[name])

    def tend(self) -> None:
        """Start again what has ended, and weigh what has not."""
        for name, child in self._running.items():
            if child.returncode is not None:
                child.kill()
                self._start(name)
                return  # the other one comes with the next look, so that starts do not pile up
            try:
                self._weighed[name].add(psutil.Process(child.pid).memory_info().rss / 2**20)
            except psutil.NoSuchProcess:
                continue

    def kill(self, name: str) -> None:
        """Kill a part with all its processes."""
        self._running[name].kill()

    def main_of(self, name: str) -> int | None:
        child = self._running[name]
        return child.pid if child.returncode is None else None

    def child_of(self, name: str, busy: Container[int]) -> int | None:
        """A process of a Hands worker that runs calls, a busy one if there is one; None while there is none."""
        try:
            children = psutil.Process(self._running[name].pid).children()
        except psutil.NoSuchProcess:
            return None
        return max((child.pid for child in children), key=lambda pid: (pid in busy, pid), default=None)

    def kill_all(self) -> None:
        for child in self._running.values():
            child.kill()
