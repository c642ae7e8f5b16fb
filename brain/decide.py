"""From a model's whole reply to the next step: pure, and every odd reply has its stated, bounded outcome.

| reply | outcome |
|---|---|
| refusal, content filter | `GiveUp`; no call of it runs |
| cut at the length limit, unknown finish reason | the same, with the text so far |
| neither text nor calls | `AskAgain`, the third time `GiveUp` |
| text, no calls | `Answer` |
| calls | `CallTools`, each call planned with a task or with an error that the model can read |
| a structured answer that does not fit | `Unfit`, the third time `GiveUp` (`brain/answers.py`) |

A call gets an error instead of a task if it is one too many, names no offered tool, or has arguments that are no JSON
object or may be another call's. Whether an object fits the tool is judged by the tool's worker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from brainhands.brain.models.reply import RawCall, Reply
from brainhands.shared.errors import NotStorable
from brainhands.shared.model.event import ModelCall
from brainhands.shared.model.json import parse
from brainhands.shared.model.tool import ToolSpec

MAX_CALLS = 32
"""Calls of one reply that run; the others get an error."""
MAX_EMPTY_REPLIES = 3
WHOLE = frozenset({"stop", "tool_calls"})
"""The finish reasons of a reply that says all it meant to say."""
SHOWN_CHARACTERS = 80
LISTED_CHARACTERS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCall:
    """One call of a reply: either a tool and its arguments, or the error that is its result."""

    call: ModelCall
    spec: ToolSpec | None
    arguments: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The model is done with the input; `planned` is the call by which it gave the answer, where it did so."""

    text: str
    planned: tuple[PlannedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTools:
    """All calls of the reply, in its order."""

    planned: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The reply is kept as a record, and the same context is sent once more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The answer is not what was asked for: the model is told so, and asked again; `planned` is as in `Answer`."""

    problem: str
    planned: tuple[PlannedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The input fails for this reason; `text` is what the model had said until then."""

    reason: str
    text: str | None = None


Decision: TypeAlias = Answer | CallTools | AskAgain | Unfit | GiveUp


def decide(
    reply: Reply, *, offered: Sequence[ToolSpec], used_ids: Collection[str] | None, empty_replies: int, prefix: str
) -> Decision:
    """What follows from a reply.

    `used_ids` are the call ids of the conversation so far, or None where its beginning was not read: then no id of the
    provider's is known to be new. `empty_replies` are the empty replies to this input so far. A call without an id of
    its own gets `{prefix}_{place}`; the prefix must belong to this reply alone.
    """
    if reason := unusable(reply.finish_reason, reply.refusal):
        return GiveUp(reason, reply.text or None if is_cut(reply.finish_reason, reply.refusal) else None)
    if reply.calls:
        return CallTools(_plan(reply, offered, used_ids, prefix))
    if reply.text.strip():
        return Answer(reply.text)
    if empty_replies + 1 < MAX_EMPTY_REPLIES:
        return AskAgain("the model's reply was empty")
    return GiveUp(f"the model's reply was empty {MAX_EMPTY_REPLIES} times")


def unusable(finish_reason: str, refusal: str | None) -> str | None:
    """Why nothing of such a reply may be acted on, or None if it may."""
    if refusal:
        return f"the model refused: {refusal}"
    if finish_reason == "content_filter":
        return "the provider's content filter stopped the reply"
    if finish_reason == "length":
        return "the reply was cut at the length limit"
    if finish_reason not in WHOLE:
        return f"the reply ended for an unknown reason: {finish_reason[:SHOWN_CHARACTERS]}"
    return None


def is_cut(finish_reason: str, refusal: str | None) -> bool:
    """Whether a useless reply is only the beginning of one, and not a text that should not be shown."""
    return not refusal and finish_reason != "content_filter"


def _plan(
    reply: Reply, offered: Sequence[ToolSpec], used_ids: Collection[str] | None, prefix: str
) -> tuple[PlannedCall, ...]:
    specs = {spec.name: spec for spec in offered}
    ids = _ids(reply.calls, used_ids, prefix)
    planned = []
    listed = False
    for place, raw in enumerate(reply.calls):
        call = ModelCall(
            call_id=ids[place], provider_id=raw.provider_id, name=raw.name, arguments=raw.arguments, extra=raw.extra
        )
        spec = specs.get(raw.name)
        arguments, error = None, _surplus(reply, place) if place >= MAX_CALLS else None
        if error is None and spec is None:
            error = f"there is no tool {raw.name[:SHOWN_CHARACTERS]!r}" + ("" if listed else _tools(specs))
            listed = True
        if error is None:
            arguments, error = _arguments(raw)
        planned.append(PlannedCall(call=call, spec=spec, arguments=arguments, error=error))
    return tuple(planned)


def _surplus(reply: Reply, place: int) -> str:
    error = f"not run: only {MAX_CALLS} calls of one reply are run; make this call again if it is still needed"
    if reply.calls_left_out and place == len(reply.calls) - 1:
        error += f". {reply.calls_left_out} more calls of this reply were left out altogether"
    return error


def _tools(specs: Iterable[str]) -> str:
    """The offered tools, named once for all calls of a reply that miss them, and as far as they have room."""
    names = ", ".join(specs) or "none"
    return f"; the tools are: {names if len(names) <= LISTED_CHARACTERS else names[:LISTED_CHARACTERS] + ' ...'}"


def _ids(calls: Sequence[RawCall], used_ids: Collection[str] | None, prefix: str) -> list[str]:
    """The provider's ids where they are given and new in the conversation, made ones elsewhere."""
    taken = set(used_ids or ())
    ids = []
    for place, raw in enumerate(calls):
        call_id = raw.provider_id
        if not call_id or used_ids is None or call_id in taken:
            call_id = f"{prefix}_{place}"
        while call_id in taken:
            call_id += "_"
        taken.add(call_id)
        ids.append(call_id)
    return ids


def _arguments(raw: RawCall) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments object, or why there is none; nothing, null and an empty text count as no arguments."""
    if raw.mixed_up:
        return None, "not run: the arguments of parallel calls arrived mixed up; make one call at a time"
    try:
        value = parse(raw.arguments) if raw.arguments.strip() else {}
    except NotStorable as problem:
        return None, f"not run: the arguments cannot be used: {problem}"
    if value is None or value == "":
        return {}, None
    return (value, None) if isinstance(value, dict) else (None, "not run: the arguments are not a JSON object")
