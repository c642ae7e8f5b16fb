"""The commands that become a part (exec), so that signals and exit status are the part's own; and `migrate`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Annotated, NoReturn

import typer

from brainhands.shared.cli.door import current_addresses
from brainhands.shared.cli.terminal import say
from brainhands.shared.errors import BadInput
from brainhands.shared.local.parts import FLOWER_PORT, Part, brain_part, flower_part, hands_part, relay_part
from brainhands.shared.runtime.lines import wrap_outputs
from brainhands.shared.runtime.modules import is_path
from brainhands.shared.runtime.settings import addresses, settings
from brainhands.shared.store import migrate as schema

Agents = Annotated[
    str, typer.Option(help="Modules, YAML files or folders with agents, by comma.", envvar="BRAINHANDS_AGENTS")
]
Tools = Annotated[str, typer.Option(help="Modules with tools and flows, by comma.", envvar="BRAINHANDS_TOOLS")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="How many tasks it runs at a time.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Where Flower listens, on this machine only.")]


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


def _become(part: Part) -> NoReturn:
    sys.stdout.flush()
    if part.name == "flower" and settings().log_format == "json":
        wrap_outputs(part.name)  # the other parts do so themselves
    os.execve(part.command[0], list(part.command), dict(part.environment))
