"""`up`: everything on this machine, in one terminal, until Ctrl-C.

Each part is a child in a session of its own, so that Ctrl-C reaches only `up`, which then stops them in order: SIGTERM,
a grace in which they finish their present step, SIGKILL for what is left, and the servers last. A part that dies is
started again; one that refuses to start ends `up`. Where `up` itself dies without a word, a guard beside each part (a
shell waiting for the end of a pipe) ends it.
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import IO, Annotated

import psutil
import typer

from brainhands.shared.cli.env import exports
from brainhands.shared.cli.parts import (
    FLOWER_PORT,
    FLOWER_USER,
    Agents,
    Part,
    Tools,
    brain_part,
    flower_part,
    flower_password_file,
    hands_part,
    relay_part,
    require_agents,
    require_modules,
)
from brainhands.shared.cli.terminal import say, styled
from brainhands.shared.errors import BadInput, BrainhandsError, ServerUnavailable
from brainhands.shared.runtime.address import shown
from brainhands.shared.runtime.lines import json_line, wrap_outputs
from brainhands.shared.runtime.servers import GUARD, is_free, start_servers
from brainhands.shared.runtime.settings import Addresses, embedded_address, settings, sqlalchemy_url
from brainhands.shared.store import migrate, waiting, workers
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

COLOURS = {"brain": "magenta", "hands": "green", "relay": "blue", "flower": "yellow", "up": "cyan"}


def up(
    agents: Agents,
    tools: Tools,
    brain_concurrency: Annotated[int | None, typer.Option(min=1, help="Model calls at a time.")] = None,
    hands_concurrency: Annotated[int | None, typer.Option(min=1, help="Tool calls at a time.")] = None,
    flower: Annotated[bool, typer.Option(help="Run Flower too.")] = True,
    flower_port: Annotated[int, typer.Option(min=1, max=65535, help="Where Flower listens.")] = FLOWER_PORT,
) -> None:
    """Run everything: servers (unless DATABASE_URL and REDIS_URL are set), relay, Brain, Hands, Flower."""
    current = settings()
    if current.log_format == "json":
        wrap_outputs("up")
    require_agents(agents)
    require_modules("tools", tools)
    if flower and not is_free(flower_port):
        raise BadInput(
            f"Flower cannot have port {flower_port}, which is in use",
            "use what runs there, or --flower-port, or --no-flower",
        )
    if current.openai_api_key is None:
        _say("up", "OPENAI_API_KEY is not set, so every input will fail: set it and start again.")
        _say("up", "For another provider set OPENAI_BASE_URL too; if it asks for no key, any will do.")
    stop = _Stop()
    with start_servers(
        current.home, current.servers, database_url=current.database_url, redis_url=current.redis_url
    ) as servers:
        found = Addresses(database_url=sqlalchemy_url(servers.database_url), redis_url=servers.redis_url)
        migrate.upgrade(found.database_url)
        parts = [
            relay_part(found),
            brain_part(found, agents, brain_concurrency, number=os.getpid()),
            hands_part(found, tools, hands_concurrency, number=os.getpid()),
        ]
        if flower:
            parts.append(flower_part(found, flower_port))
        _run(parts, found, partial(_say_ready, found, flower_port if flower else None), stop)


class _Stop:
    """Ctrl-C or SIGTERM: the first asks for a stop, another one for a stop without grace."""

    def __init__(self) -> None:
        self.asked = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1


def _run(parts: Sequence[Part], found: Addresses, say_ready: Callable[[], None], stop: _Stop) -> None:
    """Keeps the parts running until a stop, and says so once all of them have come up."""
    database = Database(found.database_url, size=1)
    running = [_Running(part) for part in parts]
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
                _say("up", f"not ready after {LATE_SECONDS} s, still without {' and '.join(sorted(missing))}")
            time.sleep(LOOK_SECONDS)
        _say("up", "stopping")
    finally:
        _stop_all(running, hurry=lambda: stop.asked > 1, database=database)
        database.close()


class _Running:
    """A part that is kept running."""

    def __init__(self, part: Part) -> None:
        self._part = part
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
                raise _refusal(self._part.name, self._said)
            if time.monotonic() - self._started_at > STEADY_SECONDS:
                self._pause = FIRST_PAUSE_SECONDS
            _say("up", f"{self._part.name} {_ending(self._process.returncode)}, next try in {self._pause:.0f} s")
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
        copy = partial(_copy, self._part.name, self.pid, self._process.stdout, self._said)
        self._log = threading.Thread(target=copy, daemon=True)
        self._log.start()


def _stop_all(running: Sequence[_Running], *, hurry: Callable[[], bool], database: Database) -> None:
    for part in running:
        part.ask_to_stop()
    begun = time.monotonic()
    told = False
    while time.monotonic() < begun + GRACE_SECONDS and not hurry() and not all(part.has_ended() for part in running):
        if not told and time.monotonic() > begun + PATIENT_SECONDS:
            told = True
            _say_what_is_left(database, [part for part in running if not part.has_ended()])
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


def _say_what_is_left(database: Database, left: Sequence[_Running]) -> None:
    """What a stop waits for: tasks, or parts that have only to end."""
    at_work: list[str] = []
    with suppress(*TRANSIENT, ServerUnavailable):
        at_work = waiting.at_work(database, [part.pid for part in left])
    for each in at_work or [f"{part.name} to end" for part in left]:
        _say("up", f"waits for {each}")
    if at_work:
        _say("up", f"Ctrl-C again, or {GRACE_SECONDS} s, ends what is left; a tool call that is cut off may have acted")


def _say_ready(found: Addresses, flower_port: int | None) -> None:
    ready = [f"Postgres {shown(found.database_url)}", f"Redis {shown(found.redis_url)}"]
    if flower_port is not None:
        ready.append(
            f"Flower http://127.0.0.1:{flower_port} (user {FLOWER_USER}, password in {flower_password_file()})"
        )
    _say("up", f"ready: {', '.join(ready)}")
    if not any(embedded_address(settings().home, name) for name in ("database_url", "redis_url")):
        return
    if settings().log_format == "json":
        _say("up", "for programs of your own: `brainhands env`")
    else:
        _say("up", "for programs of your own (`brainhands env` prints it again):")
        say("\n".join(exports(found)))


def _copy(name: str, pid: int, output: IO[bytes], kept: deque[str]) -> None:
    """Shows what a part says; where that cannot be shown any more, all stops, in order."""
    try:
        for line in output:
            if line.strip():
                kept.append(line.decode(errors="replace").rstrip("\n"))
                _say(name, kept[-1], pid=pid)
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


def _say(name: str, line: str, *, pid: int | None = None) -> None:
    """One line of the merged log, of a part or by `up` itself; colours only where a terminal shows them."""
    if settings().log_format == "json":
        say(json_line(line, process=name, pid=pid or os.getpid()))
    else:
        say(styled((f"{name:<6} |", COLOURS[name]), f" {line}"))


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
