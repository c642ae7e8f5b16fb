"""Keeps the parts of a running system running, until it is asked to stop.

Each part is a child in a session of its own, so that Ctrl-C reaches only its keeper, which then stops them in order:
the signal that the part asks for, a grace in which it finishes its present step, SIGKILL for what is left. A part that
dies is started again; one that refuses to start ends all. Where the keeper itself dies without a word, a guard beside
each part (a shell waiting for the end of a pipe) ends it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import IO, Protocol

import psutil

from brainhands.shared.errors import BrainhandsError, ServerUnavailable
from brainhands.shared.local.parts import Part
from brainhands.shared.local.servers import GUARD
from brainhands.shared.store import waiting, workers
from brainhands.shared.store.database import TRANSIENT, Database

GRACE_SECONDS = 30
"""How long parts may take to stop; Hands and Brain finish the step they are in."""

PATIENT_SECONDS = 1.0
"""A stop that takes longer says what it waits for."""

LOOK_SECONDS = 0.1
LATE_SECONDS = 30
"""A part that has not come up after so long is named."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
LAST_LINES = 20
ROLES = frozenset({"relay", "brain", "hands"})
STEADY_SECONDS = 60
"""A part that has run for so long is started again as if it had never died."""


class Tell(Protocol):
    """Shows a line of a part, or of the keeper itself, which is called `up`."""

    def __call__(self, name: str, line: str, *, pid: int | None = None) -> None: ...


class Stop:
    """Ctrl-C or SIGTERM: the first asks for a stop, another one for a stop without grace."""

    def __init__(self) -> None:
        self.asked = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1


def keep_running(
    parts: Sequence[Part], database_url: str, *, stop: Stop, tell: Tell, say_ready: Callable[[], None]
) -> None:
    """Keeps the parts running until a stop, and says so once all of them have come up.

    Raises BrainhandsError, all of them stopped, for one that refuses to start.
    """
    database = Database(database_url, size=1)
    running = [_Running(part, tell) for part in parts]
    late_at = time.monotonic() + LATE_SECONDS
    missing = ROLES
    try:
        while not stop.asked:
            for part in running:
                part.keep(begun=not missing)
            if missing and not (missing := ROLES - _registered(database, {part.pid for part in running})):
                say_ready()
            if missing and time.monotonic() > late_at:
                late_at = math.inf
                tell("up", f"not ready after {LATE_SECONDS} s, still without {' and '.join(sorted(missing))}")
            time.sleep(LOOK_SECONDS)
        tell("up", "stopping")
    finally:
        _stop_all(running, hurry=lambda: stop.asked > 1, database=database, tell=tell)
        database.close()


class _Running:
    """A part that is kept running."""

    def __init__(self, part: Part, tell: Tell) -> None:
        self._part = part
        self._tell = tell
        self._pause = FIRST_PAUSE_SECONDS
        self._start_at: float | None = None
        self._left: list[psutil.Process] = []
        self._said: deque[str] = deque(maxlen=LAST_LINES)
        self._start()

    @property
    def name(self) -> str:
        return self._part.name

    @property
    def pid(self) -> int:
        return self._process.pid

    def keep(self, *, begun: bool) -> None:
        """Notices that the part died, and starts it again after a pause that grows while it keeps dying.

        Raises BrainhandsError for one that refuses to start before all parts have `begun`.
        """
        if self._start_at is not None:
            if time.monotonic() >= self._start_at:
                self._start()
        elif self._process.poll() is not None:
            # Identified now: later its session's number may be another's. Their tasks may still end well.
            self._left += _session(self.pid)
            if not begun and self._process.returncode > 0:
                self._log.join(FIRST_PAUSE_SECONDS)
                raise _refusal(self.name, self._said)
            if time.monotonic() - self._started_at > STEADY_SECONDS:
                self._pause = FIRST_PAUSE_SECONDS
            self._tell("up", f"{self.name} {_ending(self._process.returncode)}, next try in {self._pause:.0f} s")
            self._start_at = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
            self._guard.kill()
            self._guard.wait()

    def ask_to_stop(self) -> None:
        self._left += _session(self.pid)
        if self._start_at is None and self._process.poll() is None:
            self._process.send_signal(self._part.stop_by)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Kills what is left of the part, and whatever it started."""
        if not self.has_ended():
            self._left += _session(self.pid)
        for process in self._left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(self._left, timeout=GRACE_SECONDS)
        self._guard.kill()
        self._guard.wait()
        self._log.join(GRACE_SECONDS)

    def _start(self) -> None:
        self._start_at = None
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            self._part.command,
            env=dict(self._part.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # The servers go too then, so a part could only try in vain to finish what it is at.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "KILL", str(self.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        copy = partial(_copy, partial(self._tell, self.name, pid=self.pid), self._process.stdout, self._said)
        self._log = threading.Thread(target=copy, daemon=True)
        self._log.start()


def _stop_all(running: Sequence[_Running], *, hurry: Callable[[], bool], database: Database, tell: Tell) -> None:
    for part in running:
        part.ask_to_stop()
    begun = time.monotonic()
    told = False
    while time.monotonic() < begun + GRACE_SECONDS and not hurry() and not all(part.has_ended() for part in running):
        if not told and time.monotonic() > begun + PATIENT_SECONDS:
            told = True
            for what in _left(database, [part for part in running if not part.has_ended()]):
                tell("up", what)
        time.sleep(LOOK_SECONDS)
    for part in running:
        part.end()


def _session(number: int) -> list[psutil.Process]:
    """The living processes of a session; a process group would miss those that lead their own."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(pid) == number:
                members.append(psutil.Process(pid))
    return members


def _registered(database: Database, pids: set[int]) -> set[str]:
    """The roles of which one of these processes is on the register."""
    try:
        rows = workers.live(database)
    except (*TRANSIENT, ServerUnavailable):
        return set()
    return {row["role"] for row in rows if {row["pid"], row["parent_pid"]} & pids}


def _left(database: Database, left: Sequence[_Running]) -> Iterator[str]:
    """What a stop waits for: tasks, or parts that have only to end."""
    at_work: list[str] = []
    with suppress(*TRANSIENT, ServerUnavailable):
        at_work = waiting.at_work(database, [part.pid for part in left])
    for each in at_work or [f"{part.name} to end" for part in left]:
        yield f"waits for {each}"
    if at_work:
        yield f"Ctrl-C again, or {GRACE_SECONDS} s, ends what is left; a tool call that is cut off may have acted"


def _copy(tell: Callable[[str], None], output: IO[bytes], kept: deque[str]) -> None:
    """Shows what a part says; where that cannot be shown any more, all stops, in order."""
    try:
        for line in output:
            if line.strip():
                kept.append(line.decode(errors="replace").rstrip("\n"))
                tell(kept[-1])
    except BaseException:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in output:
            pass  # A part whose output nobody reads could not even end.
        raise


def _refusal(name: str, said: Iterable[str]) -> BrainhandsError:
    """Why a part does not start, as it told: an error with what to do, or else its last line."""
    words = [each for line in said for each in _words(line)] or ["it said nothing"]
    errors = [place for place, line in enumerate(words) if line.startswith("error: ")]
    if not errors:
        return BrainhandsError(f"{name} cannot start: {words[-1]}", "mend that first")
    problem, *advice = words[errors[-1] :]
    return BrainhandsError(f"{name} cannot start: {problem.removeprefix('error: ')}", " ".join(advice))


def _words(line: str) -> list[str]:
    """The lines that a line of a part's output would be without JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    match found:
        case {"event": "refused", "reason": reason, "next_step": next_step}:
            return [f"error: {reason}", str(next_step)]
        case {"event": event}:
            return [str(event)]
    return [line]


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
