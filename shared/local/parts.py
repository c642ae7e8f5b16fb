"""The parts of a running system, by their command lines: Brain and Hands workers, relay, Flower; none is imported."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from brainhands.shared.bus.topics import BRAIN_QUEUE, HANDS_QUEUE
from brainhands.shared.runtime.settings import Addresses, settings

FLOWER_USER = "operator"
FLOWER_PORT = 5555


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command line with what it needs in its environment."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    stop_by: signal.Signals = signal.SIGTERM
    """What has it finish its present step and end."""


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
