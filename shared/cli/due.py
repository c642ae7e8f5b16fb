"""When a pool is next needed, for who starts and stops its workers."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.submit import AsJson
from brainhands.shared.cli.terminal import say, say_json


def due(
    pool: Annotated[str, typer.Argument(help="The pool, such as hands.default.")],
    json: AsJson = False,
) -> None:
    """Say whether work is ready for a pool, and when the next is due."""
    with open_client() as client:
        found = client.next_wake(pool)
    if json:
        at = None if found.at is None else found.at.isoformat(timespec="microseconds")
        say_json({"pool": pool, "ready": found.ready, "at": at})
    elif found.ready:
        say("work is ready")
    elif found.at is not None:
        say(f"nothing before {found.at.astimezone():%Y-%m-%d %H:%M:%S}")
    else:
        say("nothing is foreseen")
