"""`up`: everything on this machine, in one terminal, until Ctrl-C; servers start first and stop last."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from brainhands.shared.cli.env import exports
from brainhands.shared.cli.parts import Agents, Tools, require_agents, require_modules
from brainhands.shared.cli.terminal import say, styled
from brainhands.shared.errors import BadInput
from brainhands.shared.local.parts import (
    FLOWER_PORT,
    FLOWER_USER,
    brain_part,
    flower_part,
    flower_password_file,
    hands_part,
    relay_part,
)
from brainhands.shared.local.servers import is_free, start_servers
from brainhands.shared.local.supervisor import Stop, keep_running
from brainhands.shared.runtime.address import shown
from brainhands.shared.runtime.lines import json_line, wrap_outputs
from brainhands.shared.runtime.settings import Addresses, embedded_address, settings, sqlalchemy_url
from brainhands.shared.store import migrate

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
    stop = Stop()
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
        ready = partial(_say_ready, found, flower_port if flower else None)
        keep_running(parts, found.database_url, stop=stop, tell=_say, say_ready=ready)


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


def _say(name: str, line: str, *, pid: int | None = None) -> None:
    """One line of the merged log, of a part or by `up` itself; colours only where a terminal shows them."""
    if settings().log_format == "json":
        say(json_line(line, process=name, pid=pid or os.getpid()))
    else:
        say(styled((f"{name:<6} |", COLOURS[name]), f" {line}"))
