"""What must be true when a soak has come to rest: nothing lost, nothing doubled, nothing stuck, nothing grown."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brainhands.shared.client import Client
from brainhands.shared.model.submission import Cancellation, CancelState, Receipt, Submission
from brainhands.shared.model.task import Outcome
from brainhands.shared.store import health
from brainhands.shared.store.database import Database
from tests.instruments import invariants
from tests.instruments.fleet import session_ids
from tests.soak.parts import Weight
from tests.soak.shapes import ONCE, POSTS, Call, Input, Shape

CALL_ENDS = SUCCESS, ERROR, INTERRUPTED = "tool_call_success", "tool_call_error", "tool_call_interrupted"

WEIGHT_FACTOR, WEIGHT_SLACK = 1.5, 25.0
CONNECTION_FACTOR, CONNECTION_SLACK = 1.5, 10
GROWN_AGE_SECONDS = 45.0
"""Only a process that lived so long is judged by its weight."""


@dataclass(frozen=True, kw_only=True)
class Connections:
    """How many there are to each server."""

    postgres: int
    redis: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """All that a soak has left to judge."""

    shapes: Sequence[Shape]
    receipts: Mapping[str, Receipt]
    """By the key of the input."""
    cancels: Mapping[str, Cancellation]
    """What the client was told, by the key of the input."""
    effects: Sequence[str]


def problems(ended: Ended, client: Client, database: Database) -> Iterator[str]:
    """A line for each thing that is wrong with sessions and store."""
    yield from invariants.violations(database.url, at_rest=True)
    for finding in (*health.missing_roles(database), *health.blocked(database), *health.without_mover(database)):
        yield f"doctor: {finding.subject}: {finding.problem}"
    for session_id in session_ids(client):
        if (flaw := client.verify(session_id)) is not None:
            yield f"verify: session {session_id}, event {flaw.seq}: {flaw.problem}"
    posts = _posts(ended.effects)
    yield from _doubled(posts, ended.shapes)
    for shape in ended.shapes:
        if any(each.key not in ended.receipts for each in shape.inputs):
            yield f"lost: {shape.inputs[0].key} or what follows was never accepted"
            continue
        ends = _call_ends(client, ended.receipts[shape.inputs[0].key])
        submissions = {each.key: client.submission(ended.receipts[each.key].submission_id) for each in shape.inputs}
        for each in shape.inputs:
            yield from _unlike_its_script(each, shape, submissions[each.key], ended.cancels.get(each.key))
            if shape.twist != "steer" and submissions[each.key].outcome is Outcome.SUCCEEDED:
                for call in each.calls:
                    yield from _lost(call, ends[call.key], len(posts[call.tool, call.key]))


def _posts(effects: Iterable[str]) -> Mapping[tuple[str, str], list[str]]:
    """The operation ids of all effects, by tool and key."""
    posts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in effects:
        tool, key, operation = line.split()
        posts[tool, key].append(operation)
    return posts


def _doubled(posts: Mapping[tuple[str, str], list[str]], shapes: Iterable[Shape]) -> Iterator[str]:
    asked = {(call.tool, call.key) for shape in shapes for each in shape.inputs for call in each.calls}
    for (tool, key), operations in posts.items():
        if tool in ONCE and len(operations) > 1:
            yield f"doubled: {tool} {key} took effect {len(operations)} times"
        if len(set(operations)) > 1:
            yield f"doubled: {tool} {key} took effect under operations {sorted(set(operations))}"
        if (tool, key) not in asked:
            yield f"out of nowhere: {tool} {key}"


def _call_ends(client: Client, receipt: Receipt) -> Mapping[str, list[str]]:
    """How each call of a session ended, by its key."""
    ends: dict[str, list[str]] = defaultdict(list)
    for event in client.events(receipt.session_id):
        if event.type in CALL_ENDS:
            payload: dict[str, Any] = json.loads(event.payload_text)
            if payload["tool"] not in ("linger", "refuse"):  # of a flow, whose key they share
                ends[payload["arguments"]["key"]].append(event.type)
    return ends


def _unlike_its_script(each: Input, shape: Shape, found: Submission, told: Cancellation | None) -> Iterator[str]:
    """A submission ends as its script allows, and as a cancelling client was told."""
    answers = [other.answer for other in shape.inputs] if shape.twist == "steer" else [each.answer]
    allowed = {Outcome.SUCCEEDED} if each.cancel_after is None else {Outcome.SUCCEEDED, Outcome.CANCELLED}
    if found.outcome not in allowed:
        yield f"lost: {each.key} ended as {found.outcome}: {found.error}"
    elif found.outcome is Outcome.SUCCEEDED and found.output not in answers:
        yield f"lost: {each.key} said {found.output!r}"
    if told is not None and told.state is not CancelState.ENDING and told.outcome != found.outcome:
        yield f"told wrong: {each.key} was {told.state} with {told.outcome}, and ended as {found.outcome}"


def _lost(call: Call, ends: Sequence[str], posts: int) -> Iterator[str]:
    """A call of work that succeeded has ended once, as its tool allows, and a success took effect."""
    if call.denied:
        allowed: tuple[str, ...] = (ERROR,)
    elif call.tool in ("post_once", "post_if_allowed"):
        allowed = (SUCCESS, INTERRUPTED)
    else:
        allowed = (SUCCESS,)
    if len(ends) != 1 or ends[0] not in allowed:
        yield f"lost: {call.tool} {call.key} ended as {list(ends)}"
    elif call.tool in POSTS and ends[0] == SUCCESS and posts == 0:
        yield f"lost: {call.tool} {call.key} succeeded without effect"
    elif call.denied and posts:
        yield f"doubled: {call.tool} {call.key} was denied and took effect"


def grown(weights: Iterable[Weight], before: Connections, after: Connections) -> Iterator[str]:
    """Processes that are far heavier than when they had grown up, and servers with far more connections."""
    for each in weights:
        if each.grown and each.age >= GROWN_AGE_SECONDS and each.last > WEIGHT_FACTOR * each.grown + WEIGHT_SLACK:
            yield f"grown: {each.name} went from {each.grown:.0f} to {each.last:.0f} MB in {each.age:.0f} s"
    for server, early, late in (
        ("Postgres", before.postgres, after.postgres),
        ("Redis", before.redis, after.redis),
    ):
        if late > CONNECTION_FACTOR * early + CONNECTION_SLACK:
            yield f"grown: connections to {server} went from {early} to {late}"


def counted(values: Iterable[Any]) -> str:
    """How often each value occurs, the most frequent first."""
    return ", ".join(f"{value} {number}" for value, number in Counter(map(str, values)).most_common())
