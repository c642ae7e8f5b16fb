"""Turns as callers see them: each caller submits, waits for the answer, and submits again."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from statistics import median, quantiles
from threading import Barrier
from typing import Any
from uuid import UUID

from brainhands.shared.client import Client
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome

AGENT = "echo"
TURN_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Turns that were made at one number in flight; all of them gave the right answer."""

    p50_ms: float
    p95_ms: float
    turns_per_s: float
    sessions: tuple[UUID, ...]
    """The session of each turn that counted; with one in flight in the order in which they were made."""


@dataclass(frozen=True, kw_only=True)
class HandOff:
    """What lies between the fleets, in milliseconds: from a commit (the time of its event) to the next act."""

    commit_to_tool_ms: float
    result_to_request_ms: float


def run(database_url: str, redis_url: str, in_flight: int, turns: int, warm_up: int) -> Turns:
    """Make `turns` turns, each in a session of its own, `in_flight` at a time. Raises RuntimeError for a wrong answer.

    Each caller makes `warm_up` turns before the clock starts: its connections, prepared statements, plans.
    """
    gate = Barrier(in_flight, timeout=TURN_SECONDS)

    def caller(first: int) -> tuple[list[tuple[float, UUID]], float, float]:
        client = Client(database_url, redis_url)
        try:
            for number in range(warm_up):
                make_turn(client, f"warm {first} {number}")
            gate.wait()
            started = time.perf_counter()
            made = [_timed(client, number) for number in range(turns)[first::in_flight]]
            return made, started, time.perf_counter()
        finally:
            client.close()

    with ThreadPoolExecutor(in_flight) as threads:
        callers = list(threads.map(caller, range(in_flight)))
    elapsed = max(ended for _, _, ended in callers) - min(started for _, started, _ in callers)
    made = [turn for turns_of_one, _, _ in callers for turn in turns_of_one]
    percentiles = quantiles([seconds for seconds, _ in made], n=20, method="inclusive")
    return Turns(
        p50_ms=round(percentiles[9] * 1000, 3),
        p95_ms=round(percentiles[18] * 1000, 3),
        turns_per_s=round(turns / elapsed, 1),
        sessions=tuple(session for _, session in made),
    )


def make_turn(client: Client, text: str, session: UUID | None = None) -> Receipt:
    """Submit and wait; the answer is the tool's result. Raises RuntimeError for another one."""
    receipt = client.submit(agent=AGENT, input=f"echo {text}", session=session)
    finish_turn(client, receipt, text)
    return receipt


def finish_turn(client: Client, receipt: Receipt, text: str) -> None:
    done = client.wait(receipt.submission_id, timeout=TURN_SECONDS)
    if done.outcome is not Outcome.SUCCEEDED or not str(done.output).endswith(f" {text}"):
        raise RuntimeError(f"turn {text!r} ended {done.outcome} with {done.output!r} {done.error or ''}")


def _timed(client: Client, number: int) -> tuple[float, UUID]:
    started = time.perf_counter()
    receipt = make_turn(client, f"turn {number}")
    return time.perf_counter() - started, receipt.session_id


def hand_offs(client: Client, sessions: Sequence[UUID], arrivals: Sequence[float]) -> HandOff:
    """The medians over turns made one after the other; `arrivals` has the two model requests of each, as times."""
    if len(arrivals) != 2 * len(sessions):
        raise RuntimeError(f"{len(sessions)} turns made {len(arrivals)} model requests")
    to_tool, to_request = [], []
    for session, second_request in zip(sessions, arrivals[1::2], strict=True):
        events = client.events(session)
        asked = next(event for event in events if event.type == "model_output")
        acted = next(event for event in events if event.type == "tool_call_success")
        ran_at = float(json.loads(acted.payload_text)["result"].split()[0])
        to_tool.append(ran_at - _seconds(asked.at))
        to_request.append(second_request - _seconds(acted.at))
    return HandOff(
        commit_to_tool_ms=round(median(to_tool) * 1000, 3), result_to_request_ms=round(median(to_request) * 1000, 3)
    )


def arrivals(model_url: str) -> list[float]:
    """When each request arrived at the model since it was last told to forget them."""
    with urllib.request.urlopen(f"{model_url}/requests") as answer:
        requests: Iterable[dict[str, Any]] = json.load(answer)["requests"]
    return [request["at"] for request in requests]


def forget_arrivals(model_url: str) -> None:
    urllib.request.urlopen(f"{model_url}/reset", data=b"").close()


def _seconds(at: datetime) -> float:
    return at.timestamp()
