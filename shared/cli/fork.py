"""Forking a session from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.model import wire


def fork(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    at: Annotated[int, typer.Option(help="The event whose commit is the last that both share, or the one before.")],
    request_id: Annotated[str | None, typer.Option(help="The same id makes one fork.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Make a session that goes on from the last commit complete at an event; no effect before it is repeated."""
    with open_client() as client:
        receipt = client.fork(session, at, request_id)
    if json:
        say_json(wire.fork_receipt(receipt))
        return
    say(f"session   {receipt.session_id}\nforked    from {receipt.forked_from} at event {receipt.at}")
    if receipt.head is not None:
        say(f"head      {receipt.head}")
