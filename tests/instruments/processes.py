"""Child processes of a test: output in a file, real signals, and none left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

POLL_SECONDS = 0.02
OURS = ("BRAINHANDS_", "OPENAI_", "DATABASE_URL", "REDIS_URL")


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without the product's own variables, and with these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost", **variables}


class Child:
    """A running command line in a session of its own, with both outputs in `log`."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._gone = False

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_for_line(self, text: str, timeout: float = 30.0) -> str:
        """Return the first whole line of output with `text` in it; fails when the child ends or the time is over."""
        give_up = time.monotonic() + timeout
        while True:
            ended = self.returncode is not None  # asked before reading: an ended child writes no more
            for line in self.output.splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line.rstrip("\n")
            if ended or time.monotonic() > give_up:
                state = f"ended with {self.returncode}" if ended else "runs"
                raise AssertionError(f"no line with {text!r}; the child {state} and wrote:\n{self.output[-4000:]}")
            time.sleep(POLL_SECONDS)

    def wait(self, timeout: float = 30.0) -> int:
        """Return the exit status; raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        if self.returncode is None:
            self._process.send_signal(number)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the child and all of its session; after SIGKILL none of them is left."""
        self._signal_members(number)
        if number is signal.SIGKILL:
            while self.members():  # one may have forked meanwhile
                time.sleep(POLL_SECONDS)
                self._signal_members(number)
            self._process.wait()
            self._gone = True

    def _signal_members(self, number: signal.Signals) -> None:
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, grace: float = 20.0) -> int:
        """End the child by SIGTERM, what is left after `grace` seconds by SIGKILL; returns the exit status."""
        self.send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill()
        return self._process.wait()

    def members(self) -> list[int]:
        """Return the living processes of the child's session; a process group would miss those that lead their own.

        Once all were killed there are none, whoever has the session's number by now.
        """
        return [] if self._gone else [pid for pid in _processes() if _session(pid) == self.pid]


class Children:
    """Starts children in a folder and kills all of them at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []

    def start(
        self,
        *command: str,
        name: str = "child",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Child:
        """Start a command line; its output goes to a file of this name and number."""
        log = self._folder / f"{name}-{len(self._children)}.log"
        child = Child(command, log=log, environment=environment or child_environment(), folder=folder or Path.cwd())
        self._children.append(child)
        return child

    def kill_all(self) -> None:
        for child in self._children:
            child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int | None:
    """Return the session of a process, None if it has ended (a zombie has ended)."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else int(session)
