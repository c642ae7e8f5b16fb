"""Background responses: the provider works while nobody waits, and only the stored handle is asked about.

    request -> poll: sleeping -> ... -> as after any reply, or as after an attempt that was interrupted

`request` has the provider begin, and the commit that stores the handle puts the generation to sleep. `poll` looks, and
sleeps again or takes the response. What goes wrong with a look only postpones the next one. A response is given up when
the agent's `request_seconds` are over since it was accepted, when the provider does not know it, look after look, or
refuses to show it for a reason that will not pass. Then it is cancelled at the provider, and counts as an attempt.

| what a look shows | what follows |
|---|---|
| queued, in progress, or a status that nobody knows here | the next look, later |
| completed, or cut at a limit | what follows from a reply |
| failed, expired | an attempt that was interrupted: the request is sent again, as often as the agent allows |
| cancelled by somebody else | the input fails |
| 429, 5xx, no answer, nonsense | the next look, when the provider asks for it or later |
| 404 | the next look; the third time in a row the provider has forgotten it, which counts as interrupted |
| another refusal, such as that of the key | the input fails |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from brainhands.brain.agent import Agent
from brainhands.brain.models import responses
from brainhands.brain.models.line import endpoint
from brainhands.brain.models.provider import estimated_usage
from brainhands.brain.models.reply import Interrupted, ProviderError
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.engine import ends
from brainhands.shared.engine.definition import Kind, Phase, PhaseResult
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.model.event import ModelAccepted, ModelCancelled, ModelInterrupted, Usage
from brainhands.shared.model.prices import Prices
from brainhands.shared.model.task import Done, Fail, Sleep, Task, Transition
from brainhands.shared.rules.background import HANDLE, RESPONSE_CANCEL, RESPONSE_CANCEL_VERSION, handle, with_handle_of
from brainhands.shared.rules.backoff import backoff_seconds
from brainhands.shared.rules.times import later
from brainhands.shared.runtime.logs import logger

log = logger("brain")

FIRST_LOOK_SECONDS = 1.0
GROWTH = 1.5
LONGEST_LOOK_SECONDS = 30.0
"""Between two looks, unless the provider asks for more."""

LOOKS_UNTIL_FORGOTTEN = 3
"""A provider of several servers may not know everywhere at once what one of them has accepted."""

CALL_TIMEOUTS = Timeouts(whole=30.0)
"""How long a look or a cancel may take."""
PHASE_SECONDS = 60.0

CANCEL_TRIES = 8
NOTHING_TO_CANCEL = frozenset({400, 404, 409, 410})
"""How providers that refuse it say that the response has ended or is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Later:
    """A look that did not show the end: why, and how many seconds the provider asks for until the next one."""

    problem: str | None = None
    retry_after: float | None = None
    unknown: bool = False


Seen: TypeAlias = responses.Response | Later | Interrupted | ProviderError
GiveUp: TypeAlias = Callable[[Draft, Interrupted | ProviderError], Transition]


def without_handle(task: Task) -> Task:
    """The task as it goes on after its response."""
    return replace(task, checkpoint={name: value for name, value in task.checkpoint.items() if name != HANDLE})


def accepted(answer: responses.Response, *, task: Task, agent: Agent, body: dict[str, Any], digest: str) -> PhaseResult:
    """Store the handle of a response that the provider has begun, and sleep until the first look.

    Should the claim be lost by now, or the task cancelled, the provider is told to stop.
    """
    known = {
        "response_id": answer.response_id,
        "digest": digest,
        "tokens_in": estimated_usage(body, "").tokens_in,
        "looks": 0,
    }

    def store(draft: Draft) -> Transition:
        give_up_at = later(draft.now, agent.request_seconds)
        payload = ModelAccepted(
            response_id=answer.response_id, status=answer.status, request_digest=digest, give_up_at=give_up_at
        )
        draft.event(payload, causes=[task.checkpoint["request_seq"]], task=task)
        checkpoint = {
            **task.checkpoint,
            "digest": task.checkpoint.get("digest", digest),
            HANDLE: {**known, "give_up_at": give_up_at.isoformat()},
        }
        return _sleep(draft, checkpoint, answer.retry_after)

    orphan = with_handle_of(task, {HANDLE: known})
    return PhaseResult(store, left_behind=lambda draft: ends.give_up_response(draft, orphan))


def look(run: Run) -> Seen:
    """Ask the provider how the response stands: its end, or that it must be looked at later, or that it is lost.

    A cancel ends the look at once: the generation ends by it, and the response is cancelled at the provider.
    """
    known = handle(run.task)
    assert known is not None
    try:
        answer = responses.retrieve(
            known["response_id"],
            at=endpoint(),
            timeouts=CALL_TIMEOUTS,
            stop=lambda: run.cancelled or run.stopped,
        )
    except Interrupted as lost:
        return Later(problem=lost.reason)
    except ProviderError as error:
        if error.status == 404:
            forgotten = known.get("unknown", 0) + 1 >= LOOKS_UNTIL_FORGOTTEN
            reason = "the provider does not know the response any more"
            return Interrupted("", reason) if forgotten else Later(problem=str(error), unknown=True)
        return Later(problem=str(error), retry_after=error.retry_after) if error.heals else error
    return Later(retry_after=answer.retry_after) if answer.pending else answer


def go_on(draft: Draft, *, task: Task, seen: Later | Interrupted | ProviderError, give_up: GiveUp) -> Transition:
    """Sleep until the next look, or give the response up; `give_up` says what becomes of the generation then."""
    known = task.checkpoint[HANDLE]
    if isinstance(seen, Later) and draft.now >= datetime.fromisoformat(known["give_up_at"]):
        trouble = f"; the last look: {seen.problem}" if seen.problem else ""
        seen = Interrupted("", f"the response did not end in time{trouble}")
    if not isinstance(seen, Later):
        ends.give_up_response(draft, task)
        return give_up(draft, seen)
    if seen.problem:
        log.info("look_postponed", task=task.id, problem=seen.problem[:200])
    now_known = {**known, "looks": known["looks"] + 1, "unknown": known.get("unknown", 0) + 1 if seen.unknown else 0}
    return _sleep(draft, {**task.checkpoint, HANDLE: now_known}, seen.retry_after)


def interruption(task: Task, cut: Interrupted, prices: Prices | None) -> ModelInterrupted:
    """The record of a response that is given up; its tokens are an estimate."""
    usage = Usage(tokens_in=task.checkpoint[HANDLE]["tokens_in"], estimated=True)
    return ModelInterrupted(text=cut.text, reason=cut.reason, usage=usage.charged(prices))


def look_seconds(looks: int, *, asked_for: float | None, spread: float) -> float:
    """Seconds until the next look after so many: 1, 1.5, 2.25 ... 30, or what the provider asks for, if that is more.

    `spread` in 0..1 adds up to a quarter.
    """
    seconds = min(LONGEST_LOOK_SECONDS, FIRST_LOOK_SECONDS * GROWTH ** min(looks, 50))
    return max(seconds if asked_for is None else asked_for, FIRST_LOOK_SECONDS) * (1 + spread / 4)


def _sleep(draft: Draft, checkpoint: dict[str, Any], asked_for: float | None) -> Sleep:
    """The last look is made when the time is over, so that what has ended by then still counts."""
    known = checkpoint[HANDLE]
    seconds = look_seconds(known["looks"], asked_for=asked_for, spread=random.random())
    until = min(later(draft.now, seconds), datetime.fromisoformat(known["give_up_at"]))
    return Sleep(0, phase="poll", checkpoint=checkpoint, until=until)


def response_cancel_kind() -> Kind:
    """The task that has the provider stop a response that nobody waits for."""
    phase = Phase(run=_cancel, seconds=lambda _task: PHASE_SECONDS)
    return Kind(name=RESPONSE_CANCEL, version=RESPONSE_CANCEL_VERSION, phases={"cancel": phase})


def _cancel(run: Run) -> PhaseResult:
    task = run.task
    status, error, told = None, None, True
    try:
        answer = responses.cancel(
            task.input["response_id"],
            at=endpoint(),
            timeouts=CALL_TIMEOUTS,
            stop=lambda: run.stopped,
        )
        status = answer.status
    except (Interrupted, ProviderError) as problem:
        error = str(problem)
        refusal = problem.status if isinstance(problem, ProviderError) else None
        told = refusal in NOTHING_TO_CANCEL
        tries = task.checkpoint.get("tries", 0) + 1
        if not told and problem.heals and tries < CANCEL_TRIES:
            seconds = backoff_seconds(tries, at_least=problem.retry_after, spread=random.random())
            return PhaseResult(lambda _draft: Sleep(seconds, phase="cancel", checkpoint={"tries": tries}))
    payload = ModelCancelled(response_id=task.input["response_id"], status=status, error=error)
    return PhaseResult(partial(_store_cancel, task=task, payload=payload, told=told))


def _store_cancel(draft: Draft, *, task: Task, payload: ModelCancelled, told: bool) -> Transition:
    draft.event(payload, causes=[task.cause], task=task)
    if told:
        return Done({"status": payload.status})
    return Fail(f"the provider could not be told to stop: {payload.error}")
