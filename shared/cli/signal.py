"""Sending a signal from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.model import wire
from brainhands.shared.model.json import parse


def signal(
    session: Annotated[str, typer.Argument(help="The session that shall be told.")],
    name: Annotated[str, typer.Argument(help="The signal's name.")],
    key: Annotated[str, typer.Option(help="Tells signals of one name apart.")] = "",
    payload: Annotated[str, typer.Option(help="What it says, as JSON.")] = "null",
    request_id: Annotated[str | None, typer.Option(help="The same id and signal is stored once.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Tell a session something, durably, whether or not somebody waits for it yet."""
    said = parse(payload)
    with open_client() as client:
        receipt = client.signal(session, name, said, key=key, request_id=request_id)
    if json:
        say_json(wire.signal_receipt(receipt))
        return
    say(f"{'taken' if receipt.taken else 'stored'}  signal {receipt.signal_id}")
