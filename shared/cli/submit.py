"""Giving input to an agent, and following a session live."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.terminal import escaped, say, say_json
from brainhands.shared.cli.timeline import lines, span
from brainhands.shared.client import Client
from brainhands.shared.errors import ServerUnavailable, UnknownAgent
from brainhands.shared.model import wire
from brainhands.shared.model.event import Event
from brainhands.shared.model.submission import Mode, Receipt, Submission, SubmissionStatus
from brainhands.shared.model.task import Outcome
from brainhands.shared.store.database import TRANSIENT

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def submit(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    text: Annotated[str, typer.Argument(help="The input.")],
    session: Annotated[str | None, typer.Option(help="The session to go on with; else a new one.")] = None,
    request_id: Annotated[str | None, typer.Option(help="The same id and input is accepted once.")] = None,
    mode: Annotated[Mode, typer.Option(help="When input for a busy session joins it.")] = Mode.FOLLOW_UP,
    batch: Annotated[bool, typer.Option("--batch", help="Let interactive work go first.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show what happens until it is done.")] = False,
    json: AsJson = False,
) -> None:
    """Give an agent input, durably; returns once it is accepted, or with --follow once it is done."""
    with open_client() as client:
        before = client.session(session).session.last_seq if session is not None else 0
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UnknownAgent)
            receipt = client.submit(
                agent=agent,
                input=text,
                request_id=request_id,
                session=session,
                mode=mode,
                priority="batch" if batch else "interactive",
            )
        for each in warned:
            say(escaped(f"warning: {each.message}; the input is accepted and waits for one"), error=True)
        if not follow:
            _print_receipt(receipt, json)
            return
        _print_events(_until_done(client, receipt, before), json)
        done = client.submission(receipt.submission_id)
    _print_submission(done, json)
    if done.outcome is not Outcome.SUCCEEDED:
        raise typer.Exit(1)


def watch(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    after: Annotated[int, typer.Option(min=0, help="Show events after this seq.")] = 0,
    json: AsJson = False,
) -> None:
    """Show a session's events, then each new one as it is committed, until Ctrl-C."""
    with open_client() as client:
        _print_events(client.watch(session, after), json)


def _until_done(client: Client, receipt: Receipt, after: int) -> Iterator[Event]:
    """The session's events after a seq, up to the end of the submission; what it waits for is told beside them."""
    if receipt.status is SubmissionStatus.DONE:
        return
    for event in client.watch(receipt.session_id, after, on_silence=_Waiting(client, receipt).tell):
        yield event
        if event.type != "submission_done":
            continue
        payload = wire.payload(event)
        # One that was redacted meanwhile does not say whose end it is.
        if payload is None and client.submission(receipt.submission_id).status is SubmissionStatus.DONE:
            return
        if payload is not None and payload["submission"] == str(receipt.submission_id):
            return


class _Waiting:
    """Tells what a submission waits for, each time that it is something else."""

    def __init__(self, client: Client, receipt: Receipt) -> None:
        self._client = client
        self._submission = receipt.submission_id
        self._told: list[str] = []

    def tell(self) -> None:
        try:
            reasons = self._client.waits_for(self._submission)
        except (*TRANSIENT, ServerUnavailable):
            reasons = ["Postgres"]
        for reason in reasons:
            if reason not in self._told:
                say(escaped(f"waits for {reason}"), error=True)
        self._told = reasons


def _print_events(events: Iterator[Event], json: bool) -> None:
    if json:
        for event in events:
            say_json(wire.event(event))
        return
    for line in lines(events):
        say(line)


def _print_receipt(receipt: Receipt, json: bool) -> None:
    if json:
        say_json(wire.receipt(receipt))
        return
    say(f"{receipt.status}  submission {receipt.submission_id}\nsession   {receipt.session_id}")
    if receipt.head is not None:
        say(f"head      {receipt.head}")
    say(f"follow it with `brainhands watch {receipt.session_id}`")


def _print_submission(done: Submission, json: bool) -> None:
    if json:
        say_json(wire.submission(done))
        return
    assert done.done_at is not None
    say(f"\n{done.outcome} in {span(done.done_at - done.created_at)}, session {done.session_id}")
    for told in (done.error, done.output):
        if told is not None:
            say(told)
