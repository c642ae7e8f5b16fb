"""Proving from the command line that a session's log is as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.client import MOST_A_PAGE, Client
from brainhands.shared.errors import BadInput
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.page import every


def _all(client: Client) -> Iterator[SessionId]:
    return (each.id for each in every(lambda after: client.sessions(after=after, limit=MOST_A_PAGE)))


def verify(
    session: Annotated[str | None, typer.Argument(help="The session; or use --all.")] = None,
    head: Annotated[str | None, typer.Option(help="What the log was known to say, as SEQ:HASH.")] = None,
    all_sessions: Annotated[bool, typer.Option("--all", help="Check every session of the tenant.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Check the hash chain of a session's log; names the first event that does not fit and exits 1."""
    if (session is None) is not all_sessions or (head is not None and all_sessions):
        raise BadInput("name one session, or use --all without --head")
    with open_client() as client:
        checked, found = 0, []
        for each in _all(client) if session is None else [client.session(session).session.id]:
            checked += 1
            if (flaw := client.verify(each, head)) is not None:
                found.append((each, flaw))
    if json:
        listed = [{"session": str(each), "seq": flaw.seq, "problem": flaw.problem} for each, flaw in found]
        say_json({"ok": not found, "checked": checked, "flaws": listed})
    else:
        for each, flaw in found:
            say(f"session {each}, event {flaw.seq}: {flaw.problem}")
        say(f"{checked - len(found)} of {checked} logs are as they were written")
    if found:
        raise typer.Exit(1)
