"""Ending work from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client, who
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.model import wire


def cancel(
    submission: Annotated[str | None, typer.Argument(help="The submission to end.")] = None,
    session: Annotated[str | None, typer.Option(help="End everything that this session has open.")] = None,
    task: Annotated[str | None, typer.Option(help="End this task and all it owns.")] = None,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "asked for on the command line",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Cancel work, durably, and say what won: cancelled, ending (what runs is told), or too late."""
    with open_client() as client:
        done = client.cancel(submission=submission, session=session, task=task, reason=reason, who=who())
    if json:
        say_json(wire.cancellation(done))
        return
    how = f" ({done.outcome})" if done.outcome is not None else ""
    say(f"{done.state.replace('_', ' ')}{how}, session {done.session_id}")
