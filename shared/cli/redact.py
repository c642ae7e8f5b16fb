"""Taking content out of a session from the command line: of single events, or of all."""

from __future__ import annotations

from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client, who
from brainhands.shared.cli.terminal import escaped, say, say_json
from brainhands.shared.doors.redact import TELLING_LENGTH
from brainhands.shared.errors import BadInput
from brainhands.shared.model import wire

Session = Annotated[str, typer.Argument(help="The session's id.")]
Reason = Annotated[str, typer.Option(help="Why; it stays in the log, so it must not repeat the content.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def redact(
    session: Session,
    seqs: Annotated[list[int], typer.Argument(help="The events, by seq.")],
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, for good.")] = False,
    json: AsJson = False,
) -> None:
    """Take the content of events out of the store, for good; the log stays verifiable and says so."""
    if not yes:
        what = f"the content of {len(seqs)} events of session {session}"
        raise BadInput(f"this takes {what} out of the store, for good", "add --yes to do it")
    with open_client() as client:
        done = client.redact(session, seqs, reason=reason, who=who())
    if json:
        say_json(wire.redaction(done))
        return
    if not done.redacted:
        say("nothing to do: their content was gone before")
        return
    say(f"redacted  {_list(done.redacted)}\nhead      {done.head}")
    if done.repeated_in:
        say(f"parts of it are also in {_list(done.repeated_in)}; redact these too if they must go")
    if done.found_in:
        say("its texts also stand in what is not an event of this session:")
        for place in done.found_in:
            say(f"  {place.kind} {escaped(place.id)}, {place.part}, of session {place.session_id}")
        say("redact the events among these in their session; the rest goes when the session is erased")
    if not done.searched:
        say("there is too much to look through all of it; redact fewer events at a time to have them searched for")
    say(f"looked for: texts, lines and words of {TELLING_LENGTH} characters and more")


def erase(
    session: Session,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, all of it, for good.")] = False,
    json: AsJson = False,
) -> None:
    """Take all content of a session out of the store, for good; what stays proves what there was."""
    if not yes:
        raise BadInput(f"this takes all content of session {session} out of the store, for good", "add --yes to do it")
    with open_client() as client:
        done = client.erase(session, reason=reason, who=who())
    if json:
        say_json(wire.erasure(done))
        return
    say(f"erased  {done.erased_at:%Y-%m-%d %H:%M:%S} UTC\nhead    {done.head}")


def _list(seqs: tuple[int, ...]) -> str:
    return ", ".join(map(str, seqs))
