"""What the demo shows: the story as it happens, then the mails and the session's timeline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from brainhands.shared.cli import timeline
from brainhands.shared.cli.terminal import escaped, say, styled
from brainhands.shared.model.event import Event

Mail = dict[str, Any]


class Story:
    """Tells, line by line, what happens; lines may come from several threads."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def tell(self, who: str, what: str, style: str = "") -> None:
        """One line: seconds since the start, who acts, and what happened."""
        say(styled((f"{time.monotonic() - self._began:6.1f}s  ", "dim"), (f"{who:<8} ", "bold"), (what, style)))

    def tell_event(self, event: Event) -> None:
        """A committed event, if it moves the story on."""
        if told := _told(event.type, json.loads(event.payload_text)):
            self.tell(*told)


def _told(type: str, payload: dict[str, Any]) -> tuple[str, str, str] | None:
    match type:
        case "model_output" if payload["calls"]:
            return "brain", f"the model asks for {', '.join(call['name'] for call in payload['calls'])}", ""
        case "model_output":
            return "brain", f"the model answers: {payload['text']}", ""
        case "tool_call_start" if payload["tool"] == "send_email":
            return "hands", f"{payload['arguments']['to']}: the intent to send is stored", "dim"
        case "task_phase" if payload["status"] == "waiting":
            return "hands", "the plan is stored, with one owned task for each mail", ""
        case "tool_call_success" if payload["tool"] == "send_email":
            to = payload["arguments"]["to"]
            if payload["source"] == "run":
                return "hands", f"{to}: sent, and recorded", "green"
            return "hands", f"{to}: found by its operation id ({payload['source']}), and not sent again", "bold green"
        case "tool_call_error" | "tool_call_interrupted":
            return "hands", f"{payload['tool']}: {payload['error']}", "red"
        case "model_error":
            return "brain", f"the model failed: {payload['error']}", "red"
        case "task_recovered":
            return "relay", f"{payload['kind']} is free again: {payload['reason']}", "yellow"
        case "submission_done":
            return "brain", f"the submission {payload['outcome']}", "bold"
        case _:
            return None


def print_mails(mails: Sequence[Mail]) -> None:
    """The mailbox, in the order in which it accepted."""
    table = Table("#", "to", "accepted", "operation", title="the mailbox", title_justify="left", title_style="bold")
    for number, mail in enumerate(mails, start=1):
        accepted = time.strftime("%H:%M:%S", time.localtime(mail["accepted_at"]))
        table.add_row(str(number), escaped(mail["to"]), accepted, mail["operation_id"])
    say(table)


def print_timeline(events: Sequence[Event]) -> None:
    """Every event of the session with the events that caused it."""
    title = "the session: number, time since the start, time since its latest cause, event, causes"
    say()
    say(styled((title, "bold")))
    for line in timeline.lines(events):
        say(line)
