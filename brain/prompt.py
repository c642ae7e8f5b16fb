"""From a conversation's events to the request that the model gets: pure, so that a retry renders the same.

Every call is followed, directly and in call order, by exactly one result. A transcript that a provider would refuse is
never built: a call without a result raises OpenCall, and names and arguments that a provider may refuse to read back
are replayed in a form it takes. What the newest compaction replaces is not shown, whether or not it was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from brainhands.brain.decide import is_cut, unusable
from brainhands.shared.errors import BrainhandsError, Incompatible, NotStorable
from brainhands.shared.model.event import (
    REDACTED,
    ContextCompacted,
    HumanApprovalAnswered,
    HumanApprovalRequested,
    ModelCall,
    ModelOutput,
    ModelRequest,
    Payload,
    RedactedPayload,
    SystemPromptSet,
    TaskGiven,
    ToolCallError,
    ToolCallInterrupted,
    ToolCallSettled,
    ToolCallSuccess,
    UnknownPayload,
    UserMessage,
)
from brainhands.shared.model.json import canonical, digest, parse
from brainhands.shared.model.tool import ToolSpec

Message: TypeAlias = dict[str, Any]
Result: TypeAlias = ToolCallSuccess | ToolCallError | ToolCallInterrupted | ToolCallSettled

ENDS = tuple(each.event_type for each in (ToolCallSuccess, ToolCallError, ToolCallInterrupted))
SPEAKERS = {UserMessage.event_type: "user", TaskGiven.event_type: "user", ModelOutput.event_type: "assistant"}

NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
LONGEST_NAME = 64
UNFIT = "Your answer was not taken; correct it and give it again"
LONGEST_RESULT = 100_000
"""Characters of a call's result that the model is shown, in this request and in each later one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextEvent:
    """An event as far as the model's context depends on it."""

    seq: int
    type: str
    version: int
    payload: Payload


class OpenCall(BrainhandsError):
    """A call of the context has no result, so the request must not be sent."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"call {call_id} has no result yet")
        self.call_id = call_id


class UnreadableEvent(Incompatible):
    """The context has an event that this version does not know; it is never left out."""

    def __init__(self, event: ContextEvent) -> None:
        super().__init__(
            f"event {event.seq} ({event.type} version {event.version}) cannot be read by this version",
            "run a worker of a newer version",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Extras:
    """Who gets what back of what it put on its own messages: the provider's host and the fields that it wants."""

    provider: str
    fields: tuple[str, ...]


def render(
    events: Iterable[ContextEvent], request: ModelRequest, specs: Sequence[ToolSpec], extras: Extras | None = None
) -> dict[str, Any]:
    """The Chat Completions body for the events up to the request's cutoff. Raises OpenCall and UnreadableEvent."""
    context = [event for event in events if event.seq <= request.cutoff]
    plain = _is_plain(context, request)
    messages = _messages(context, None if plain else extras)
    body = {**request.options, "model": request.model, "messages": _plain(messages) if plain else messages}
    if request.output is not None and request.output.by == "response_format":
        wanted = {"name": "answer", "schema": request.output.parameters}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    if specs:
        body["tools"] = [_tool(spec) for spec in specs]
    return body


def _is_plain(events: Sequence[ContextEvent], request: ModelRequest) -> bool:
    """Whether a request is put in plain words: it is pinned so, or it shows a reply that only plain words got.

    What was refused before that reply would be refused again for as long as it is shown.
    """
    newest = newest_compaction(events)
    upto = newest.payload.upto if newest is not None and isinstance(newest.payload, ContextCompacted) else 0
    shown = (event.payload for event in events if event.seq > upto)
    return request.plain or any(isinstance(payload, ModelOutput) and payload.plain for payload in shown)


def newest_compaction(events: Sequence[ContextEvent]) -> ContextEvent | None:
    return next((event for event in reversed(events) if isinstance(event.payload, ContextCompacted)), None)


def is_shown(output: ModelOutput) -> bool:
    """Whether a reply becomes part of the context: it can be used, and says something."""
    return not unusable(output.finish_reason, output.refusal) and bool(output.calls or output.text.strip())


def request_digest(body: dict[str, Any]) -> str:
    """SHA-256 of the body, in hex: equal for equal requests, whatever the order of their keys."""
    return digest(body)


def _messages(context: Sequence[ContextEvent], extras: Extras | None) -> list[Message]:
    found, redacted = result_texts(context), redacted_results(context)
    newest = newest_compaction(context)
    compacted = newest.payload if newest is not None and isinstance(newest.payload, ContextCompacted) else None
    instructions = ""
    messages: list[Message] = [_summary(compacted)] if compacted else []
    made: set[str] = set()
    turn = max((event.seq for event in context if isinstance(event.payload, UserMessage | TaskGiven)), default=0)
    for event in context:
        match event.payload:
            case UnknownPayload():
                raise UnreadableEvent(event)
            case SystemPromptSet() as prompt:
                instructions = prompt.instructions
            case _ if compacted and event.seq <= compacted.upto:
                pass
            case UserMessage() | TaskGiven() as message:
                messages.append({"role": "user", "content": message.text})
            case ModelOutput() as output:
                said = _turn(output, found, redacted=event.seq in redacted)
                if extras is not None and output.provider == extras.provider:
                    _give_back(said, output, extras.fields if event.seq > turn else ())
                messages.extend(said)
                made.update(call.call_id for call in output.calls)
            case RedactedPayload() if event.type in SPEAKERS:
                # The results of a redacted reply's calls are left out with it: they would answer nothing.
                messages.append({"role": SPEAKERS[event.type], "content": REDACTED})
            case ToolCallSettled(call_id=str() as call_id) as settled if compacted and call_id not in made:
                messages.append(_settled_later(event.seq, settled))
            case _:
                pass  # Not part of the dialogue, or shown with its call.
    return [{"role": "system", "content": instructions}, *messages] if instructions else messages


def _summary(compacted: ContextCompacted) -> Message:
    text = f"A summary of our conversation so far, in place of its messages:\n\n{compacted.summary}"
    if compacted.unanswered:
        text += f"\n\nWhat I asked for last, word for word, and you are still at work on:\n\n{compacted.unanswered}"
    return {"role": "user", "content": text}


def _settled_later(seq: int, settled: ToolCallSettled) -> Message:
    """What became of a call that only the summary tells of."""
    called = f"{settled.tool} with {canonical(settled.arguments)}"
    text = f"About your earlier call of {called}: {_settled_text(settled)}"
    return {"role": "user", "content": _capped(seq, text)}


def result_texts(context: Sequence[ContextEvent]) -> dict[str, str]:
    """What the model is told of each call: its result, and before it what people changed and said on the way."""
    answers = _answers(context)
    texts = {}
    for call_id, (seq, result) in _results(context).items():
        text = _result_text(result)
        texts[call_id] = _capped(seq, "\n".join([*_notes(answers.get(call_id, []), text), text]))
    return texts


def _results(context: Sequence[ContextEvent]) -> dict[str, tuple[int, Result]]:
    """The result of each call with its seq: the first one that is definite, else the interrupted one."""
    found: dict[str, tuple[int, Result]] = {}
    for event in context:
        payload = event.payload
        if not isinstance(payload, Result) or payload.call_id is None:
            continue
        known = found.get(payload.call_id)
        if known is None or isinstance(known[1], ToolCallInterrupted):
            found[payload.call_id] = event.seq, payload
    return found


def _capped(seq: int, text: str) -> str:
    """The text of an event as far as the model is shown it, with word of what is left out."""
    if len(text) <= LONGEST_RESULT:
        return text
    shown = f"the first {LONGEST_RESULT:,} of {len(text):,} characters"
    return f"{text[:LONGEST_RESULT]}\n[cut: {shown}; event {seq} of this session has the whole result]"


def _answers(context: Sequence[ContextEvent]) -> dict[str, list[HumanApprovalAnswered]]:
    """The answers of people to questions about each call."""
    asked: dict[str, str] = {}
    found: dict[str, list[HumanApprovalAnswered]] = {}
    for event in context:
        match event.payload:
            case HumanApprovalRequested(call_id=str() as call_id, approval=approval):
                asked[approval] = call_id
            case HumanApprovalAnswered(approval=approval) as answer if approval in asked and answer.answer != "pending":
                found.setdefault(asked[approval], []).append(answer)
            case _:
                pass  # Nothing that a person said.
    return found


def _notes(answers: Sequence[HumanApprovalAnswered], text: str) -> Iterator[str]:
    """What the result's own text does not say of the answers."""
    for answer in answers:
        who, said = answer.answered_by or "a person", answer.answer.replace("_", " ")
        comment = answer.comment if answer.comment and answer.comment not in text else None
        if answer.edited_arguments is not None:
            said = f"{said} with these arguments instead: {canonical(answer.edited_arguments)}"
        elif comment is None:
            continue
        yield f"note: {who} answered {said}" + (f"; comment: {comment}" if comment else "")


def redacted_results(context: Sequence[ContextEvent]) -> dict[int, int]:
    """The replies of whose calls a result was redacted, by seq, with the seq of the last such result.

    A redacted result does not say which call it was of.
    """
    found: dict[int, int] = {}
    reply: int | None = None
    for event in context:
        if event.type == ModelOutput.event_type:
            reply = event.seq
        elif reply is not None and event.type in ENDS and isinstance(event.payload, RedactedPayload):
            found[reply] = event.seq
    return found


def call_ids(events: Iterable[ContextEvent]) -> set[str]:
    """The ids of the calls that are known from replies, or from results whose reply was redacted."""
    made = {call.call_id for event in events if isinstance(event.payload, ModelOutput) for call in event.payload.calls}
    ended = {event.payload.call_id for event in events if isinstance(event.payload, Result)}
    return made | {each for each in ended if each is not None}


def _turn(output: ModelOutput, results: dict[str, str], *, redacted: bool) -> list[Message]:
    """The assistant's message and the results of its calls; nothing for a reply that said nothing."""
    useless = unusable(output.finish_reason, output.refusal)
    calls = [] if useless else output.calls
    # What the model or a filter refused would be refused again in every later request.
    refused = useless and not is_cut(output.finish_reason, output.refusal)
    text = output.text if output.text.strip() and not refused else None
    if not calls:
        told = [{"role": "user", "content": f"{UNFIT}: {output.problem}"}] if output.problem else []
        return [{"role": "assistant", "content": text}, *told] if text else []
    said = {"role": "assistant", "content": text, "tool_calls": [_call(call) for call in calls]}
    return [said, *(_answer(call, results.get(call.call_id), redacted=redacted) for call in calls)]


def _give_back(said: list[Message], output: ModelOutput, fields: Iterable[str]) -> None:
    """Puts on a turn what its provider wants back: on each call its own, on the message what goes with its calls."""
    calls = said[0].get("tool_calls", []) if said else []
    for sent, call in zip(calls, output.calls, strict=False):
        sent.update(call.extra or {})
    if calls:
        said[0].update({name: value for name, value in (output.extra or {}).items() if name in fields})


def _plain(messages: list[Message]) -> list[Message]:
    """The messages with the calls of earlier turns, and their results, as text."""
    turn = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=0)
    return [*(_as_text(message) for message in messages[:turn]), *messages[turn:]]


def _as_text(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "assistant", "content": f"(result: {message['content']})"}
    if calls := message.get("tool_calls"):
        made = [f"(called {each['function']['name']} with {each['function']['arguments']})" for each in calls]
        return {"role": "assistant", "content": "\n".join(filter(None, [message["content"], *made]))}
    return message


def _call(call: ModelCall) -> Message:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": _name(call.name), "arguments": _arguments(call.arguments)},
    }


def _name(name: str) -> str:
    """The name as providers accept it: a model may have called a tool by a name that no tool can have."""
    taken = NOT_IN_A_NAME.sub("_", name)
    return (taken if taken[:1].isalpha() else f"_{taken}")[:LONGEST_NAME]


def _arguments(text: str) -> str:
    """The raw text where it is a JSON object; providers refuse to read anything else back."""
    try:
        return text if isinstance(parse(text), dict) else "{}"
    except NotStorable:
        return "{}"


def _answer(call: ModelCall, result: str | None, *, redacted: bool) -> Message:
    if result is None and not redacted:
        raise OpenCall(call.call_id)
    return {"role": "tool", "tool_call_id": call.call_id, "content": REDACTED if result is None else result}


def _result_text(result: Result) -> str:
    match result:
        case ToolCallSuccess():
            return result.result if isinstance(result.result, str) else canonical(result.result)
        case ToolCallError():
            return f"error: {result.error}"
        case ToolCallSettled():
            return _settled_text(result)
        case ToolCallInterrupted():
            return _interrupted_text(result)
        case _:
            assert_never(result)


def _settled_text(result: ToolCallSettled) -> str:
    comment = f" ({result.comment})" if result.comment else ""
    if result.answer == "happened":
        return f"a person found out that this call took effect{comment}: {canonical(result.result)}"
    return f"error: a person found out that this call did not take effect{comment}"


def _interrupted_text(result: ToolCallInterrupted) -> str:
    text = (
        f"interrupted: {result.error}\n"
        "The outcome of this call is unknown: its effect may have happened, in full or in part, or not at all. "
        "Assume neither, and do not make the same call again without finding out."
    )
    return f"{text}\nOutput until then:\n{result.partial}" if result.partial else text


def _tool(spec: ToolSpec) -> Message:
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
    }
