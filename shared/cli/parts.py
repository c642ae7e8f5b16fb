"""The parts of a running system, each by its command line: Brain and Hands workers, relay, Flower, and the schema.

A command becomes its part (exec), so that signals and exit status are the part's own. No part is imported here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from brainhands.shared.bus.topics import BRAIN_QUEUE, HANDS_QUEUE
from brainhands.shared.cli.door import current_addresses
from brainhands.shared.cli.terminal import say
from brainhands.shared.errors import BadInput
from brainhands.shared.runtime.lines import wrap_outputs
from brainhands.shared.runtime.modules import is_path
from brainhands.shared.runtime.settings import Addresses, addresses, settings
from brainhands.shared.store import migrate as schema

FLOWER_USER = "operator"
FLOWER_PORT = 5555

Agents = Annotated[
    str, typer.Option(help="Modules, YAML files or folders with agents, by comma.", envvar="BRAINHANDS_AGENTS")
]
Tools = Annotated[str, typer.Option(help="Modules with tools and flows, by comma.", envvar="BRAINHANDS_TOOLS")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="How many tasks it runs at a time.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Where Flower listens, on this machine only.")]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command line with what it needs in its environment."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    stop_by: signal.Signals = signal.SIGTERM
    """What has it finish its present step and end."""


def brain(agents: Agents, concurrency: Concurrency = None) -> None:
    """Run a Brain worker."""
    require_agents(agents)
    _become(brain_part(current_addresses(), agents, concurrency, number=os.getpid()))


def hands(tools: Tools, concurrency: Concurrency = None) -> None:
    """Run a Hands worker."""
    require_modules("tools", tools)
    _become(hands_part(current_addresses(), tools, concurrency, number=os.getpid()))


def relay() -> None:
    """Run a relay: it publishes hints, keeps time and finds what stopped."""
    _become(relay_part(current_addresses()))


def flower(port: Port = FLOWER_PORT) -> None:
    """Run Flower, read-only and behind a password, to look at both fleets."""
    _become(flower_part(addresses(), port))


def migrate() -> None:
    """Bring the database schema to what this code needs."""
    done = schema.upgrade(addresses().database_url)
    if done.after != schema.newest():
        say(f"schema {done.after}: newer than this code, which works with it; nothing to do")
    elif done.before == done.after:
        say(f"schema {done.after}: nothing to do")
    else:
        say(f"schema {done.after}: migrated from {done.before or 'nothing'}")


def require_agents(names: str) -> None:
    """As require_modules, and has YAML files checked by the part that reads them; it names what is wrong itself."""
    entries = _named("agents", names)
    _require(entry for entry in entries if not is_path(entry))
    if paths := [entry for entry in entries if is_path(entry)]:
        checked = subprocess.run([sys.executable, "-m", "brainhands.brain.agent_files", *paths], check=False)
        if checked.returncode:
            raise typer.Exit(BadInput.exit_code)


def require_modules(what: str, names: str) -> None:
    """Raises BadInput for modules that do not exist, which a worker could only log later; none of them is run here."""
    _require(_named(what, names))


def _named(what: str, names: str) -> list[str]:
    entries = [name.strip() for name in names.split(",") if name.strip()]
    if not entries:
        raise BadInput(f"no module with {what} is named", f"name one with --{what}")
    return entries


def _require(modules: Iterable[str]) -> None:
    sys.path.insert(0, os.getcwd())
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise BadInput(f"there is no module {name!r}", "name modules of the working folder or installed ones")


def brain_part(found: Addresses, agents: str, concurrency: int | None, *, number: int) -> Part:
    """A Brain worker for agents of modules and YAML files; `number` tells it from others in Flower."""
    command = _worker("brain", BRAIN_QUEUE, concurrency, number)
    environment = _environment(found, asks_the_model=True, BRAINHANDS_AGENTS=agents)
    # Who presses Ctrl-C does not wait for a model.
    return Part(name="brain", command=command, environment=environment, stop_by=signal.SIGINT)


def hands_part(found: Addresses, tools: str, concurrency: int | None, *, number: int) -> Part:
    """A Hands worker for tools and flows in dotted modules, named as a Brain worker is."""
    command = _worker("hands", HANDS_QUEUE, concurrency, number)
    environment = _environment(found, BRAINHANDS_TOOLS=tools)
    return Part(name="hands", command=command, environment=environment)


def relay_part(found: Addresses) -> Part:
    return Part(name="relay", command=[sys.executable, "-m", "brainhands.outbox.app"], environment=_environment(found))


def flower_part(found: Addresses, port: int) -> Part:
    """Flower on the loopback address; its secrets travel by environment, which other accounts cannot read."""
    password = flower_password_file().read_text() if flower_password_file().exists() else _new_flower_password()
    cookies = hashlib.sha256(f"cookies of flower {password}".encode()).hexdigest()
    return Part(
        name="flower",
        command=[
            *(sys.executable, "-m", "celery", "-A", "brainhands.brain.app", "flower"),
            *("--address=127.0.0.1", f"--port={port}", "--read_only=true", "--logging=warning"),
            "--tasks_columns=kwargs,state,received,runtime,worker,name,uuid",
        ],
        environment=_environment(found, FLOWER_BASIC_AUTH=f"{FLOWER_USER}:{password}", FLOWER_COOKIE_SECRET=cookies),
    )


def flower_password_file() -> Path:
    return settings().home.absolute() / "flower-password"


def _new_flower_password() -> str:
    file = flower_password_file()
    file.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    password = secrets.token_urlsafe(24)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(password)
    return password


def _worker(role: Literal["brain", "hands"], queue: str, concurrency: int | None, number: int) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "--quiet", "-A", f"brainhands.{role}.app", "worker"),
        *("-Q", queue, "-n", f"{role}-{number}@%h", f"--loglevel={settings().log_level}"),
        *("--without-gossip", "--without-mingle"),
        *(() if concurrency is None else ("-c", str(concurrency))),
    ]


def _environment(found: Addresses, *, asks_the_model: bool = False, **more: str) -> dict[str, str]:
    """This environment with the addresses; what is for the model's provider (`OPENAI_...`) goes to Brain only."""
    kept = {name: value for name, value in os.environ.items() if asks_the_model or not name.startswith("OPENAI_")}
    return {**kept, "DATABASE_URL": found.database_url, "REDIS_URL": found.redis_url, **more}


def _become(part: Part) -> NoReturn:
    sys.stdout.flush()
    if part.name == "flower" and settings().log_format == "json":
        wrap_outputs(part.name)  # the other parts do so themselves
    os.execve(part.command[0], list(part.command), dict(part.environment))
