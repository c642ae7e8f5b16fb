"""Events: the immutable facts of a session's log, one payload model for each type.

The log format is the set of types and versions below. A type that this code does not know is kept opaque for
observers (`UnknownPayload`) and refused where a context is built, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict

from brainhands.shared.model.ids import ConversationId, SessionId, TaskId, WorkerId
from brainhands.shared.model.json import Json
from brainhands.shared.model.prices import Prices, Usd

GONE = "null"
"""The payload text of an event that was redacted or erased; no payload is written as this."""

REDACTED = "[redacted]"
"""What people and models are shown in place of content that is gone."""


class Payload(BaseModel):
    """Base of all payloads; `event_type` and `event_version` name it in the log.

    `log_format` is the format of logs that this type and version came with; a session stores the highest in its log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    event_type: ClassVar[str]
    event_version: ClassVar[int] = 1
    log_format: ClassVar[int] = 1
    of_an_end: ClassVar[bool] = False
    """It tells of an end, which must be stored: what of it does not fit is shortened, never refused."""


class SessionCreated(Payload):
    event_type = "session_created"
    agent: str
    tenant: str


class SessionForked(Payload):
    """The first event of a fork: the events up to `at`, whose last one has this hash, are its past."""

    event_type = "session_forked"
    forked_from: str
    at: int
    hash: str


class MovedTask(BaseModel):
    """A task that an `awake` moved: its status before (None: it was made), and what was done."""

    model_config = ConfigDict(frozen=True)
    task: str
    was: str | None
    done: str


class SessionResumed(Payload):
    """Somebody asked for a session to be driven on, and something had to be moved for that."""

    event_type = "session_resumed"
    request_id: str
    moved: list[MovedTask]


class SystemPromptSet(Payload):
    event_type = "system_prompt_set"
    agent: str
    agent_version: int
    instructions: str


class UserMessage(Payload):
    event_type = "user_message"
    text: str
    submission: str


class TaskGiven(Payload):
    """What another agent asks for: the first message of a sub-agent's conversation."""

    event_type = "task_given"
    text: str
    by: str
    """The agent that asks."""


class ToolReference(BaseModel):
    """A tool as offered to the model: one name and version has one schema digest."""

    model_config = ConfigDict(frozen=True)
    name: str
    version: int
    digest: str


class RequestedOutput(BaseModel):
    """The JSON that a request asks for as its answer: its schema as it is sent, and how it is asked for."""

    model_config = ConfigDict(frozen=True)
    by: str
    """`response_format` or `tool`."""
    parameters: dict[str, Any]


class ModelRequest(Payload):
    """Everything a retry needs to send the same request: the context is the log up to `cutoff`."""

    event_type = "model_request"
    agent: str
    agent_version: int
    model: str
    options: dict[str, Any]
    tools: list[ToolReference]
    cutoff: int
    """The last seq that belongs to the context."""
    prices: Prices | None = None
    """What each attempt of this request is charged at."""
    output: RequestedOutput | None = None
    """None asks for text."""
    plain: bool = False
    """Whether it is put in plain words: earlier calls as text, and nothing that is the provider's own."""


class ModelCall(BaseModel):
    """A tool call as the model made it; `arguments` is the raw text, kept byte for byte."""

    model_config = ConfigDict(frozen=True)
    call_id: str
    """Unique in the conversation: the provider's id, renamed where the provider repeated one."""
    provider_id: str
    name: str
    arguments: str
    extra: dict[str, Any] | None = None
    """What the provider put on the call and wants back with it, such as a signature."""


class Usage(BaseModel):
    """Tokens of one model call; `estimated` where the provider did not say."""

    model_config = ConfigDict(frozen=True)
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_reasoning: int = 0
    estimated: bool = False
    cost: Usd | None = None
    """By the prices of then, so that a later change of prices leaves it; None for an agent without prices."""

    def charged(self, prices: Prices | None) -> Usage:
        """The same use with its cost."""
        if prices is None:
            return self
        cost = prices.cost(tokens_in=self.tokens_in, tokens_cached=self.tokens_cached, tokens_out=self.tokens_out)
        return self.model_copy(update={"cost": cost})


class ModelAccepted(Payload):
    """The provider works on a request in the background; from here on only this response is asked about."""

    event_type = "model_accepted"
    response_id: str
    status: str
    """In the provider's words, such as `queued`."""
    request_digest: str
    give_up_at: datetime
    """How long it is waited for."""


class ModelCancelled(Payload):
    """The provider was told to stop a response that nobody waits for any more, or could not be told (`error`)."""

    event_type = "model_cancelled"
    response_id: str
    status: str | None = None
    """In the provider's words, such as `cancelled`, or `completed` where that came first."""
    error: str | None = None


class ModelOutput(Payload):
    event_type = "model_output"
    text: str
    calls: list[ModelCall]
    finish_reason: str
    refusal: str | None = None
    model: str
    response_id: str | None = None
    usage: Usage
    request_digest: str
    """SHA-256 of the rendered request that this answers."""
    logprobs: list[tuple[str, float]] | None = None
    """Each token of the text with its log-probability, where asked for (option `logprobs`) and given."""
    provider: str | None = None
    """The host that gave the reply, and that alone gets the extras of it back."""
    extra: dict[str, Any] | None = None
    """What the provider put on the message and wants back with it, such as its reasoning."""
    problem: str | None = None
    """Why the text was not taken as the answer, as the model is told."""
    plain: bool = False
    """Whether its request was pinned to be in plain words, as later requests are that show this reply."""
    request_changed: bool = False
    """True where an earlier attempt of the same request was rendered differently (a deploy came between)."""


class ModelInterrupted(Payload):
    """An attempt that ended without the provider's terminal marker, or is of no use; its text drives nothing."""

    event_type = "model_interrupted"
    of_an_end = True
    text: str
    reason: str
    usage: Usage


class ModelError(Payload):
    """A request that failed; `retry_seconds` is the wait before the next try, None when there is none."""

    event_type = "model_error"
    of_an_end = True
    error: str
    status: int | None = None
    code: str | None = None
    retry_seconds: float | None = None
    request_digest: str | None = None


class ModelRequestVoided(Payload):
    """A request that was too long for the model; another one takes its place when the context is compacted."""

    event_type = "model_request_voided"
    reason: str
    request_digest: str


class ContextCompacted(Payload):
    """From here on the model is shown `summary` in place of all that its conversation held up to `upto`.

    The events themselves stay. `tokens_before` and `tokens_after` judge the context by its length.
    """

    event_type = "context_compacted"
    upto: int
    summary: str
    unanswered: str | None = None
    """What the user had said last, word for word, where the cut lies in the middle of the work on it."""
    tokens_before: int
    tokens_after: int
    model: str
    response_id: str | None = None
    usage: Usage


class ToolEvent(Payload):
    """What all events of one call share. `call_id` is None for a call that a flow made, not the model."""

    call_id: str | None
    tool: str
    version: int | None
    arguments: Json
    operation_id: str | None
    replay: str | None


class ToolCallStart(ToolEvent):
    """The intent, committed before the tool runs; after `acts_until` nothing it sent can still act (None: a flow)."""

    event_type = "tool_call_start"
    acts_until: datetime | None


class ToolCallSuccess(ToolEvent):
    event_type = "tool_call_success"
    of_an_end = True
    result: Json
    source: str = "run"
    """How the result is known: `run`, `lookup` or `late` (stored by an attempt that had lost its lease)."""


class ToolCallError(ToolEvent):
    """A definite failure: nothing happened, or it failed for sure."""

    event_type = "tool_call_error"
    of_an_end = True
    error: str


class ToolCallInterrupted(ToolEvent):
    """An unknown outcome: the effect may have happened."""

    event_type = "tool_call_interrupted"
    of_an_end = True
    partial: str
    error: str


class TaskCreated(Payload):
    """A task that another task owns was made."""

    event_type = "task_created"
    task: str
    kind: str
    kind_version: int


class TaskPhase(Payload):
    """A flow moved to its next phase."""

    event_type = "task_phase"
    kind: str
    phase: str
    next_phase: str
    status: str


class TaskRecovered(Payload):
    """A lease ended without a commit; the task runs again from its stored phase."""

    event_type = "task_recovered"
    of_an_end = True
    kind: str
    phase: str
    reason: str
    attempts: int


class TaskFailed(Payload):
    """The engine ended a task that its own code could not."""

    event_type = "task_failed"
    of_an_end = True
    kind: str
    phase: str
    error: str


class CancelRequested(Payload):
    """Somebody wants work to end: a submission, one task with what it owns, or everything in the session."""

    event_type = "cancel_requested"
    scope: str
    subject: str | None
    reason: str
    who: str | None = None


class TaskCancelled(Payload):
    """A task ended because a cancel was wanted."""

    event_type = "task_cancelled"
    of_an_end = True
    kind: str
    phase: str


class PolicyDecided(ToolEvent):
    """What the rules said of a call: allow, deny or ask, and whose rule it was."""

    event_type = "policy_decided"
    rule: str
    by: str


class HumanApprovalRequested(ToolEvent):
    """A person is asked: may this run, or did this happen."""

    event_type = "human_approval_requested"
    approval: str
    question: str
    about: str
    answer_by: datetime
    default_answer: str


class HumanApprovalAnswered(Payload):
    """A question was answered, or its time ran out.

    `pending`: approved with other arguments, which the call's worker has yet to take. If it does, the answer follows as
    a further event; if not, the question is put again.
    """

    event_type = "human_approval_answered"
    approval: str
    question: str
    answer: str
    answered_by: str | None = None
    comment: str | None = None
    edited_arguments: Json = None
    result: Json = None


class ToolCallSettled(ToolEvent):
    """A person found out what became of a call that had ended as unknown."""

    event_type = "tool_call_settled"
    approval: str
    answer: str
    result: Json = None
    comment: str | None = None


class SignalReceived(Payload):
    event_type = "signal_received"
    signal: str
    name: str
    key: str
    content: Json


class SignalTaken(Payload):
    """A task went on with a signal."""

    event_type = "signal_taken"
    signal: str
    name: str
    key: str


class SignalMissed(Payload):
    """A task went on without the signal that it had waited for until its deadline."""

    event_type = "signal_missed"
    of_an_end = True
    name: str
    key: str


class TaskBlocked(Payload):
    event_type = "task_blocked"
    of_an_end = True
    kind: str
    reason: str


class TaskUnblocked(Payload):
    event_type = "task_unblocked"
    kind: str


class DocumentsChanged(Payload):
    """Documents were written by a commit that has no other event to tell of it; `documents` are their names."""

    event_type = "documents_changed"
    documents: list[str]


class SubmissionDone(Payload):
    event_type = "submission_done"
    of_an_end = True
    submission: str
    outcome: str
    output: Json = None
    error: str | None = None


class EventsRedacted(Payload):
    """The content of these events was taken out of the store; their digests and hashes stay."""

    event_type = "events_redacted"
    seqs: list[int]
    reason: str
    who: str | None = None


class SessionErased(Payload):
    """The content of all that the session itself stored was taken out: of its events up to `through`, and beside them.

    The past of a fork is not its own.
    """

    event_type = "session_erased"
    through: int
    reason: str
    who: str | None = None


class RedactedPayload(Payload):
    """In place of a payload that was redacted or erased."""

    event_type = "redacted"


class UnknownPayload(Payload):
    """A type or version newer than this code, shown as it is stored."""

    event_type = "unknown"
    content: Json


PAYLOADS: dict[tuple[str, int], type[Payload]] = {
    (payload.event_type, payload.event_version): payload
    for payload in (
        SessionCreated,
        SessionForked,
        SessionResumed,
        SystemPromptSet,
        UserMessage,
        TaskGiven,
        ModelRequest,
        ModelAccepted,
        ModelCancelled,
        ModelOutput,
        ModelInterrupted,
        ModelError,
        ModelRequestVoided,
        ContextCompacted,
        ToolCallStart,
        ToolCallSuccess,
        ToolCallError,
        ToolCallInterrupted,
        TaskCreated,
        TaskPhase,
        TaskRecovered,
        TaskFailed,
        PolicyDecided,
        HumanApprovalRequested,
        HumanApprovalAnswered,
        ToolCallSettled,
        SignalReceived,
        SignalTaken,
        SignalMissed,
        CancelRequested,
        TaskCancelled,
        TaskBlocked,
        TaskUnblocked,
        DocumentsChanged,
        SubmissionDone,
        EventsRedacted,
        SessionErased,
    )
}

LOG_FORMAT = max(payload.log_format for payload in PAYLOADS.values())
"""The newest log format that this code reads."""

UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""For a type in a version that is read as the next one: the next version's content, made of this one's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A fact in the log of one session, at `seq` (gapless from 1)."""

    session_id: SessionId
    seq: int
    type: str
    version: int
    at: datetime
    causes: tuple[int, ...]
    payload_text: str
    conversation_id: ConversationId | None
    task_id: TaskId | None
    fence: int | None
    worker_id: WorkerId | None
    pool: str | None
    environment: str | None
    tokens_in: int | None
    tokens_out: int | None
    salt: bytes
    payload_digest: bytes
    prev_hash: bytes
    hash: bytes
    redacted_at: datetime | None = None
    """Since when its content is gone: then the payload text is GONE and the salt empty."""


ModelUse: TypeAlias = ModelOutput | ModelInterrupted | ContextCompacted
"""What says that a model call was made, and what it used."""


def read_payload(type: str, version: int, content: Json) -> Payload:
    """The payload as its newest model; of unknown types and versions an UnknownPayload, of redacted ones their own."""
    if content is None:
        return RedactedPayload()
    while (upcast := UPCASTS.get((type, version))) is not None:
        content, version = upcast(content), version + 1
    model = PAYLOADS.get((type, version))
    return UnknownPayload(content=content) if model is None else model.model_validate(content)
