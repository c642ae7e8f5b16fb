"""Driving a session on from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.model import wire


def awake(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    request_id: Annotated[str | None, typer.Option(help="The same id again gets the first receipt.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Drive a session on from its last commit, at once; harmless at any time, and says what it had to move."""
    with open_client() as client:
        receipt = client.awake(session, request_id)
    if json:
        say_json(wire.awake_receipt(receipt))
        return
    for each in receipt.moved:
        was = "" if each.was is None else f", was {each.was}"
        say(f"{each.done.replace('_', ' ')}  task {each.task}{was}")
    if not receipt.moved:
        say("nothing had to be moved")
