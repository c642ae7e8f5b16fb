"""From a model's whole reply to the next step: pure, and every odd reply has its stated, bounded outcome.

| reply | outcome |
|---|---|
| refusal, content filter | `GiveUp`; no call of it runs |
| cut at the length limit, unknown finish reason | the same, with the text so far |
| neither text nor calls | `AskAgain`, the third time `GiveUp` |
| text, no calls | `Answer` |
| calls | `CallTools`, each call planned with a task or with an error that the model can read |

A call gets an error instead of a task if it is one too many, names no offered tool, or has arguments that are no JSON
object. Whether an object fits the tool is judged by the tool's worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from brain.models.reply import RawCall, Reply
from shared.errors import NotStorable
from shared.model.event import ModelCall
from shared.model.json import parse
from shared.model.tool import ToolSpec

MAX_CALLS = 32
"""Calls of one reply that run; the others get an error."""
MAX_EMPTY_REPLIES = 3
WHOLE = frozenset({"stop", "tool_calls"})
"""The finish reasons of a reply that says all it meant to say."""
SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Answer:
    """The model is done with the input."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCall:
    """One call of a reply: either a tool and its arguments, or the error that is its result."""

    call: ModelCall
    spec: ToolSpec | None
    arguments: dict[str, Any] | None
    error: str | None


@dataclass(frozen=True, slots=True)
class CallTools:
    """All calls of the reply, in its order."""

    planned: tuple[PlannedCall, ...]


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The reply is kept as a record, and the same context is sent once more."""

    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The input fails for this reason; `text` is what the model had said until then."""

    reason: str
    text: str | None = None


Decision: TypeAlias = Answer | CallTools | AskAgain | GiveUp


def decide(
    reply: Reply, *, offered: Sequence[ToolSpec], used_ids: Collection[str] | None, empty_replies: int, prefix: str
) -> Decision:
    """What follows from a reply.

    `used_ids` are the call ids of the conversation so far, or None where its beginning was not read: then no id of the
    provider's is known to be new. `empty_replies` are the empty replies to this input so far. A call without an id of
    its own gets `{prefix}_{place}`; the prefix must belong to this reply alone.
    """
    if reason := unusable(reply.finish_reason, reply.refusal):
        return GiveUp(reason, reply.text or None if _is_cut(reply) else None)
    if reply.calls:
        return CallTools(_plan(reply.calls, offered, used_ids, prefix))
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


def _is_cut(reply: Reply) -> bool:
    """Whether a useless reply is only the beginning of one, and not a text that should not be shown."""
    return not reply.refusal and reply.finish_reason != "content_filter"


def _plan(
    calls: Sequence[RawCall], offered: Sequence[ToolSpec], used_ids: Collection[str] | None, prefix: str
) -> tuple[PlannedCall, ...]:
    specs = {spec.name: spec for spec in offered}
    ids = _ids(calls, used_ids, prefix)
    return tuple(_planned(place, raw, ids[place], specs) for place, raw in enumerate(calls))


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


def _planned(place: int, raw: RawCall, call_id: str, specs: dict[str, ToolSpec]) -> PlannedCall:
    call = ModelCall(call_id=call_id, provider_id=raw.provider_id, name=raw.name, arguments=raw.arguments)
    spec = specs.get(raw.name)
    if place >= MAX_CALLS:
        error = f"not run: only {MAX_CALLS} calls of one reply are run; make this call again if it is still needed"
        return PlannedCall(call=call, spec=spec, arguments=None, error=error)
    if spec is None:
        error = f"there is no tool {raw.name[:SHOWN_CHARACTERS]!r}; the tools are: {', '.join(specs) or 'none'}"
        return PlannedCall(call=call, spec=None, arguments=None, error=error)
    try:
        arguments = _arguments(raw.arguments)
    except NotStorable as problem:
        error = f"not run: the arguments cannot be used: {problem}"
        return PlannedCall(call=call, spec=spec, arguments=None, error=error)
    if arguments is None:
        error = "not run: the arguments are not a JSON object"
        return PlannedCall(call=call, spec=spec, arguments=None, error=error)
    return PlannedCall(call=call, spec=spec, arguments=arguments, error=None)


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments object, None for JSON that is none; nothing, null and an empty text count as no arguments."""
    value = parse(text) if text.strip() else {}
    if value is None or value == "":
        return {}
    return value if isinstance(value, dict) else None
