"""A session's events for people: one line each, with when, how long it took, what it is, and its causes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from rich.text import Text

from brainhands.shared.cli.terminal import escaped, one_line, say, styled, width
from brainhands.shared.model import wire
from brainhands.shared.model.event import REDACTED, Event, RedactedPayload, UnknownPayload, read_payload
from brainhands.shared.model.json import Json

TYPE_WIDTH = 24

STYLES = {
    "tool_call_success": "green",
    "tool_call_error": "red",
    "tool_call_interrupted": "yellow",
    "model_error": "red",
    "model_interrupted": "yellow",
    "model_cancelled": "yellow",
    "model_request_voided": "yellow",
    "task_recovered": "yellow",
    "task_failed": "red",
    "task_blocked": "yellow",
    "task_cancelled": "yellow",
    "human_approval_requested": "magenta",
    "human_approval_answered": "magenta",
    "submission_done": "bold",
    "events_redacted": "magenta",
    "session_erased": "magenta",
}


def lines(events: Iterable[Event]) -> Iterator[Text]:
    """A line for each event as it comes: seq, time of day, time since the first one and since its latest cause, what it
    is, as much of what it says as fits, and its causes.
    """
    times: dict[int, datetime] = {}
    for event in events:
        times[event.seq] = event.at
        since = event.at - times[min(times)]
        cause = max((seq for seq in event.causes if seq in times), default=None)
        took = "" if cause is None else span(event.at - times[cause])
        head = f"{event.seq:>5} {event.at.astimezone():%H:%M:%S} {'+' + span(since):>8} {took:>7}  "
        causes = f"  <- {','.join(map(str, event.causes))}" if event.causes else ""
        room = max(10, width() - len(head) - TYPE_WIDTH - 1 - len(causes))
        yield styled((head, "dim"), _type(event), one_line(told(event), room), (causes, "dim"))


def say_whole(event: Event) -> None:
    """Print all of an event; what it says as JSON on lines of its own."""
    say(styled((f"event {event.seq}  ", "bold"), _type(event), (f"version {event.version}", "dim")))
    facts = {
        "at": moment(event.at, "microseconds"),
        "causes": ", ".join(map(str, event.causes)),
        "conversation": event.conversation_id,
        "task": event.task_id,
        "fence": event.fence,
        "worker": event.worker_id,
        "pool": event.pool,
        "environment": event.environment,
        "tokens in": event.tokens_in,
        "tokens out": event.tokens_out,
        "hash": event.hash.hex(),
        "redacted": None if event.redacted_at is None else moment(event.redacted_at),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            say(f"  {name:<13}{escaped(str(value))}")
    stored = wire.payload(event)
    say(REDACTED if stored is None else json.dumps(stored, ensure_ascii=False, indent=2))


def _type(event: Event) -> tuple[str, str]:
    return f"{event.type:<{TYPE_WIDTH}} ", STYLES.get(event.type, "")


def told(event: Event) -> str:
    """What an event says; one that this code does not read is shown as it is stored."""
    stored = wire.payload(event)
    try:
        payload = read_payload(event.type, event.version, stored)
    except ValueError:
        payload = UnknownPayload(content=stored)
    if isinstance(payload, RedactedPayload):
        return REDACTED
    if isinstance(payload, UnknownPayload):
        return f"(version {event.version}, not known here) {_compact(stored)}"
    return summary(event.type, payload.model_dump(mode="json"))


def summary(type: str, payload: dict[str, Any]) -> str:
    """What an event says, in a few words."""
    match type:
        case "user_message" | "task_given":
            return str(payload["text"])
        case "session_created" | "system_prompt_set":
            return str(payload["agent"])
        case "session_forked":
            return f"from event {payload['at']} of session {payload['forked_from']}"
        case "session_resumed":
            return ", ".join(each["done"].replace("_", " ") for each in payload["moved"])
        case "model_request":
            return f"{payload['model']}, context up to {payload['cutoff']}"
        case "model_accepted":
            return f"{payload['response_id']} is {payload['status']} at the provider"
        case "model_cancelled":
            return f"{payload['response_id']}: {payload['error'] or payload['status']}"
        case "model_output":
            called = [call["name"] for call in payload["calls"]]
            said = payload["refusal"] or payload["text"]
            refused = f"(not taken: {payload['problem']})" if payload.get("problem") else ""
            return " ".join(filter(None, (said, refused, f"calls {', '.join(called)}" if called else "")))
        case "model_interrupted":
            return f"{payload['reason']}: {payload['text']}"
        case "context_compacted":
            return f"up to {payload['upto']}, about {payload['tokens_before']} tokens are {payload['tokens_after']}"
        case "tool_call_start":
            return f"{payload['tool']} {_compact(payload['arguments'])}"
        case "tool_call_success":
            found = "" if payload["source"] == "run" else f" (by {payload['source']})"
            return f"{payload['tool']}{found} = {_compact(payload['result'])}"
        case "tool_call_error" | "tool_call_interrupted":
            return f"{payload['tool']}: {payload['error']}"
        case "policy_decided":
            return f"{payload['rule']}, says the {payload['by']}: {payload['tool']} {_compact(payload['arguments'])}"
        case "human_approval_requested":
            return f"{payload['question']} of {payload['tool']} {_compact(payload['arguments'])}"
        case "human_approval_answered" | "tool_call_settled":
            changed = payload.get("edited_arguments")
            others = None if changed is None else f"with {_compact(changed)} instead"
            answered = (payload["answer"], others, payload.get("answered_by"), payload["comment"])
            return ", ".join(str(each) for each in answered if each)
        case "signal_received" | "signal_taken" | "signal_missed":
            return " ".join(filter(None, (payload["name"], payload["key"], _compact(payload.get("content", "")))))
        case "events_redacted":
            return f"{_list(payload['seqs'])}: {payload['reason']}{_by(payload['who'])}"
        case "session_erased":
            return f"all up to {payload['through']}: {payload['reason']}{_by(payload['who'])}"
        case "cancel_requested":
            return f"{payload['scope']}: {payload['reason']}{_by(payload['who'])}"
        case "documents_changed":
            return ", ".join(payload["documents"])
        case "submission_done":
            return f"{payload['outcome']}: {payload['error'] or _compact(payload['output'])}"
        case _:
            told = ("kind", "phase", "next_phase", "reason", "error", "retry_seconds")
            return " ".join(str(payload[name]) for name in told if payload.get(name) is not None)


def moment(time: datetime, precision: str = "seconds") -> str:
    """A time as the clock on the wall here shows it, with the distance of its zone from UTC."""
    return time.astimezone().isoformat(sep=" ", timespec=precision)


def span(time: timedelta) -> str:
    """A length of time: `0.123s`, `12.3s`, `4m05s`, `3h20m`, `2d04h`."""
    seconds = time.total_seconds()
    if seconds < 10:
        return f"{seconds:.3f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"


def _list(seqs: list[int]) -> str:
    return ", ".join(map(str, seqs))


def _by(who: str | None) -> str:
    return "" if who is None else f" (by {who})"


def _compact(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
