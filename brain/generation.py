"""The generation task: one model reply, durably.

    prepare -> request -> (retry: sleeping) -> tools: waiting -> the next generation, or the answer

`prepare` pins what a retry must send again; it shares the claim's commit. `request` calls the model and commits the
reply together with the calls it plans and the wait for them. `tools` closes the round: it ends this generation and
hands the next one, prepared, to the same worker in one commit.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from brain import prompt
from brain.agent import Agent
from brain.decide import Answer, AskAgain, CallTools, GiveUp, PlannedCall, decide
from brain.models import chat
from brain.models.reply import Interrupted, ProviderError, Reply
from shared.engine import endings
from shared.engine.definition import Kind, Phase, Step, pinned_phase
from shared.engine.draft import Draft
from shared.engine.run import Run
from shared.kernel import calls, intake
from shared.kernel.backoff import backoff_seconds
from shared.model.event import (
    PAYLOADS,
    ModelError,
    ModelInterrupted,
    ModelOutput,
    ModelRequest,
    SystemPromptSet,
    TaskBlocked,
    ToolCallError,
    ToolReference,
    read_payload,
)
from shared.model.ids import TaskId, new_task_id
from shared.model.session import Conversation
from shared.model.task import Done, Fail, Next, Outcome, Requirement, Sleep, Task, Transition, Wait
from shared.model.tool import ToolSpec
from shared.runtime.settings import settings
from shared.store import reads, workers
from shared.store.database import Database

RESULT_TYPES = ("tool_call_success", "tool_call_error", "tool_call_interrupted")
CONTEXT_TYPES = ("system_prompt_set", "user_message", "model_output", "tool_call_settled", *RESULT_TYPES)
NOT_IN_CONTEXT = sorted({type for type, _ in PAYLOADS} - set(CONTEXT_TYPES))
"""Types of which it is known that the model's context does not depend on them."""

SLACK_SECONDS = 90.0
"""A request may notice its own deadline late, after the provider's longest silence; its commit needs time too."""
MISSING_TOOL_SECONDS = 3.0
CATALOGUE_SECONDS = 1.0
REPLY_CHARACTERS = 1_000_000

Agents = Mapping[tuple[str, int], Agent]


def generation_kind(agents: Agents) -> Kind:
    """The generation task for these agents."""
    catalogue = Catalogue()
    request = Phase(run=partial(_request, agents, catalogue), seconds=partial(_request_seconds, agents))
    return Kind(
        name=intake.GENERATION,
        version=intake.GENERATION_VERSION,
        first="prepare",
        phases={
            "prepare": pinned_phase(partial(_prepare, agents, catalogue)),
            "request": request,
            "retry": request,
            "tools": pinned_phase(partial(_close, agents, catalogue)),
        },
    )


def intake_kind() -> Kind:
    """Admits input that was accepted inside a caller's transaction."""

    def admit(draft: Draft, *, task: Task) -> Transition:
        assert task.conversation_id is not None
        draft.take_next_input(task.conversation_id)
        return Done()

    phase = pinned_phase(lambda run: Step(partial(admit, task=run.task)))
    return Kind(name=intake.INTAKE, version=intake.INTAKE_VERSION, first="admit", phases={"admit": phase})


def _request_seconds(agents: Agents, task: Task) -> float:
    return _agent(agents, task.requires.name.partition(":")[2], task.requires.version).request_seconds + SLACK_SECONDS


def _agent(agents: Agents, name: str, version: int | None) -> Agent:
    """The agent in a version, or the oldest that goes on with that one; the newest where none is pinned yet."""
    versions = sorted((each for each in agents.values() if each.name == name), key=lambda each: each.version)
    if version is None:
        return versions[-1]
    return agents.get((name, version)) or next(each for each in versions if each.oldest <= version <= each.version)


class Catalogue:
    """The published tools, read again when they are a second old."""

    def __init__(self) -> None:
        self._specs: Sequence[ToolSpec] = ()
        self._read_at = -math.inf

    def specs(self, database: Database) -> Sequence[ToolSpec]:
        if time.monotonic() - self._read_at >= CATALOGUE_SECONDS:
            self._specs = workers.read_catalogue(database)
            self._read_at = time.monotonic()
        return self._specs


def _prepare(agents: Agents, catalogue: Catalogue, run: Run) -> Step:
    conversation = run.conversation
    agent = _agent(agents, conversation.agent, conversation.agent_version)
    return _prepare_step(
        agent,
        conversation,
        catalogue.specs(run.database),
        task=run.task,
        causes=[run.task.cause],
        steered=run.steered,
        used_tokens=_used_tokens(agent, run),
    )


def _used_tokens(agent: Agent, run: Run) -> int:
    """The tokens of the session so far, estimated ones too; only an agent with a budget asks for them."""
    if agent.session_tokens is None:
        return 0
    tokens_in, tokens_out = reads.usage(run.database, run.task.session_id)
    return tokens_in + tokens_out


def _prepare_step(
    agent: Agent,
    conversation: Conversation,
    catalogue: Sequence[ToolSpec],
    *,
    task: Task,
    causes: Sequence[int],
    steered: bool,
    used_tokens: int,
) -> Step:
    if agent.session_tokens is not None and used_tokens >= agent.session_tokens:
        return Step(partial(_stop_at_budget, task=task, agent=agent, used=used_tokens))
    specs, missing = workers.newest_specs(catalogue, agent.tools)
    if missing:
        return Step(partial(_wait_for_tools, task_id=task.id, missing=missing))
    pin = partial(_pin, agent=agent, conversation=conversation, specs=specs, task=task, causes=causes, steered=steered)
    return Step(pin)


def _wait_for_tools(draft: Draft, *, task_id: TaskId, missing: Sequence[str]) -> Transition:
    """Tools that nobody has ever published: visible, and looked for again, but never hidden from the model."""
    task = draft.task(task_id)
    reason = f"no Hands worker has published {', '.join(missing)}"
    if task.checkpoint.get("waits_for") != list(missing):
        draft.event(TaskBlocked(kind=task.kind, reason=reason), causes=[task.cause], task=task)
    return Sleep(MISSING_TOOL_SECONDS, phase="prepare", checkpoint={"waits_for": list(missing), "reason": reason})


def _stop_at_budget(draft: Draft, *, task: Task, agent: Agent, used: int) -> Transition:
    """The session has used its tokens up: say so, and ask the model no more."""
    if task.submission_id is not None and task.input["round"] == 1:
        draft.start_submission(task.submission_id)
    reason = f"the budget of {agent.session_tokens:,} tokens is used up: {used:,} were used in this session"
    error = ModelError(error=reason, code="budget")
    seq = draft.event(error, causes=[task.cause], task=draft.task(task.id))
    endings.end_generation(draft, task, Outcome.FAILED, causes=[seq], error=reason)
    return Fail(reason)


def _pin(
    draft: Draft,
    *,
    agent: Agent,
    conversation: Conversation,
    specs: Sequence[ToolSpec],
    task: Task,
    causes: Sequence[int],
    steered: bool,
) -> Transition:
    """Pin agent version, model, options, tools and cutoff; from here on a retry sends the same."""
    owned = draft.require(task.id, Requirement(name=task.requires.name, version=agent.version))
    if conversation.agent_version != agent.version:
        draft.pin_agent(conversation, agent.version)
        payload = SystemPromptSet(agent=agent.name, agent_version=agent.version, instructions=agent.instructions)
        draft.event(payload, causes=causes, task=owned)
    if task.submission_id is not None and task.input["round"] == 1:
        draft.start_submission(task.submission_id)
    joined = draft.take_steering(conversation.id) if steered else []
    causes = [*causes, *(seq for _, seq in joined)]
    request = ModelRequest(
        agent=agent.name,
        agent_version=agent.version,
        model=agent.model or settings().model,
        options=agent.options,
        tools=[ToolReference(name=spec.name, version=spec.version, digest=spec.digest) for spec in specs],
        cutoff=draft.session.last_seq,
    )
    seq = draft.event(request, causes=causes, task=owned)
    checkpoint = {
        "request_seq": seq,
        "request": request.model_dump(mode="json"),
        "retries": 0,
        "joined": [*task.input.get("joined", []), *(str(submission) for submission, _ in joined)],
    }
    return Next("request", checkpoint=checkpoint)


def _request(agents: Agents, catalogue: Catalogue, run: Run) -> Step:
    """Call the model with the pinned request, and say what to store."""
    task = run.task
    request = ModelRequest.model_validate(task.checkpoint["request"])
    agent = _agent(agents, request.agent, request.agent_version)
    events = _read_context(run, request)
    published = {(spec.name, spec.version): spec for spec in catalogue.specs(run.database)}
    specs = [published[tool.name, tool.version] for tool in request.tools]
    body = prompt.render(events, request, specs)
    digest = prompt.request_digest(body)
    key = settings().openai_api_key
    try:
        if key is None or not key.get_secret_value():
            raise ProviderError("OPENAI_API_KEY is not set for this Brain worker", heals=False)
        reply = chat.send(
            body,
            api_key=key.get_secret_value(),
            base_url=settings().openai_base_url,
            seconds=agent.request_seconds,
            on_text=run.progress,
            stop=lambda: run.cancelled or run.stopped,
        )
    except Interrupted as cut:
        if run.cancelled:
            return Step(lambda _draft: Sleep(0, phase="retry"))
        interrupted = ModelInterrupted(text=cut.text, reason=cut.reason, usage=chat.estimated_usage(body, cut.text))
        return Step(partial(_store_interruption, task=task, agent=agent, event=interrupted, digest=digest))
    except ProviderError as error:
        return Step(partial(_store_error, task=task, agent=agent, error=error, digest=digest))
    if sum(len(text) for text in (reply.text, *(call.arguments for call in reply.calls))) > REPLY_CHARACTERS:
        too_large = ProviderError(f"the reply has more than {REPLY_CHARACTERS:,} characters", heals=False)
        return Step(partial(_store_error, task=task, agent=agent, error=too_large, digest=digest))
    used = {call.call_id for event in events if isinstance(event.payload, ModelOutput) for call in event.payload.calls}
    decision = decide(
        reply,
        offered=specs,
        used_ids=used,
        empty_replies=task.checkpoint.get("empty", 0),
        prefix=f"call_{task.checkpoint['request_seq']}_{task.step}",
    )
    return Step(partial(_store_reply, task=task, agent=agent, reply=reply, decision=decision, digest=digest))


def _read_context(run: Run, request: ModelRequest) -> list[prompt.ContextEvent]:
    assert run.task.conversation_id is not None
    found = reads.context(run.database, run.task.session_id, run.task.conversation_id, request.cutoff, NOT_IN_CONTEXT)
    return [
        prompt.ContextEvent(
            seq=row["seq"],
            type=row["type"],
            version=row["version"],
            payload=read_payload(row["type"], row["version"], row["payload"]),
        )
        for row in found
    ]


def _store_interruption(draft: Draft, *, task: Task, agent: Agent, event: ModelInterrupted, digest: str) -> Transition:
    draft.event(
        event,
        causes=[task.checkpoint["request_seq"]],
        task=task,
        tokens_in=event.usage.tokens_in,
        tokens_out=event.usage.tokens_out,
    )
    error = ProviderError(f"the reply was cut: {event.reason}", heals=True)
    return _store_error(draft, task=task, agent=agent, error=error, digest=digest)


def _store_error(draft: Draft, *, task: Task, agent: Agent, error: ProviderError, digest: str) -> Transition:
    """Try the same request again later, as the provider says, or end clearly."""
    retries = task.checkpoint["retries"] + 1
    again = error.heals and retries <= agent.retries
    seconds = backoff_seconds(retries, asked_for=error.retry_after, spread=random.random()) if again else None
    seq = draft.event(
        ModelError(
            error=str(error),
            status=error.status,
            code=error.code,
            retry_seconds=seconds,
            request_digest=digest,
        ),
        causes=[task.checkpoint["request_seq"]],
        task=task,
    )
    if seconds is None:
        reason = str(error) if not error.heals else f"{error} (after {retries} tries)"
        endings.end_generation(draft, task, Outcome.FAILED, causes=[seq], error=reason)
        return Fail(reason)
    first = task.checkpoint.get("digest", digest)
    return Sleep(seconds, phase="retry", checkpoint={**task.checkpoint, "retries": retries, "digest": first})


def _store_reply(
    draft: Draft,
    *,
    task: Task,
    agent: Agent,
    reply: Reply,
    decision: Answer | CallTools | AskAgain | GiveUp,
    digest: str,
) -> Transition:
    """The response, the calls it plans and the wait for them are one commit; so are an answer and its submission."""
    output = ModelOutput(
        text=reply.text,
        calls=[planned.call for planned in decision.planned] if isinstance(decision, CallTools) else [],
        finish_reason=reply.finish_reason,
        refusal=reply.refusal,
        model=reply.model,
        response_id=reply.response_id,
        usage=reply.usage,
        request_digest=digest,
        logprobs=list(reply.logprobs) or None,
        request_changed=task.checkpoint.get("digest", digest) != digest,
    )
    seq = draft.event(
        output,
        causes=[task.checkpoint["request_seq"]],
        task=task,
        tokens_in=reply.usage.tokens_in,
        tokens_out=reply.usage.tokens_out,
    )
    match decision:
        case Answer(text):
            endings.end_generation(draft, task, Outcome.SUCCEEDED, causes=[seq], output=text)
            return Done(text)
        case GiveUp(reason):
            endings.end_generation(draft, task, Outcome.FAILED, causes=[seq], error=reason)
            return Fail(reason)
        case AskAgain():
            return Next("request", checkpoint={**task.checkpoint, "empty": task.checkpoint.get("empty", 0) + 1})
        case CallTools(planned):
            if task.input["round"] >= agent.rounds:
                return _stop_at_limit(draft, task, agent, planned, seq)
            return _call_tools(draft, task, agent, planned, seq)


def _call_tools(draft: Draft, task: Task, agent: Agent, planned: Sequence[PlannedCall], output_seq: int) -> Transition:
    made = []
    for each in planned:
        if each.error is not None or each.spec is None:
            _refuse_call(draft, task, each, each.error or "unknown tool", output_seq)
            continue
        called = calls.call_task(
            new_task_id(),
            owner=task,
            kind=each.spec.kind,
            version=each.spec.version,
            call_id=each.call.call_id,
            arguments=each.arguments,
            cause=output_seq,
            now=draft.now,
            rule=agent.rules.get(each.spec.name),
        )
        draft.add(called)
        made.append(called.id)
    return Wait(made, phase="tools", checkpoint={**task.checkpoint, "output_seq": output_seq})


def _stop_at_limit(
    draft: Draft, task: Task, agent: Agent, planned: Sequence[PlannedCall], output_seq: int
) -> Transition:
    reason = f"stopped after {agent.rounds} model calls for one input"
    for each in planned:
        _refuse_call(draft, task, each, f"not run: {reason}", output_seq)
    endings.end_generation(draft, task, Outcome.FAILED, causes=[output_seq], error=reason)
    return Fail(reason)


def _refuse_call(draft: Draft, task: Task, planned: PlannedCall, error: str, output_seq: int) -> None:
    """Close a call that gets no task, so that every call has its result."""
    payload = ToolCallError(
        call_id=planned.call.call_id,
        tool=planned.call.name,
        version=planned.spec.version if planned.spec else None,
        arguments=planned.arguments if planned.arguments is not None else planned.call.arguments,
        operation_id=None,
        replay=None,
        error=error,
    )
    draft.event(payload, causes=[output_seq], task=task)


def _close(agents: Agents, catalogue: Catalogue, run: Run) -> Step:
    """All results are in: end this round and prepare the next request."""
    task = run.task
    conversation = run.conversation
    (results,) = run.database.run(
        reads.RESULTS_AFTER(
            session_id=task.session_id,
            conversation_id=task.conversation_id,
            after=task.checkpoint["output_seq"],
            types=list(RESULT_TYPES),
        )
    )
    causes = [row["seq"] for row in results.rows]
    agent = _agent(agents, conversation.agent, conversation.agent_version)
    onward = intake.generation_task(
        new_task_id(),
        conversation,
        submission_id=task.submission_id,
        cause=max(causes),
        round_number=task.input["round"] + 1,
        joined=task.checkpoint.get("joined", []),
        now=task.created_at,
    )
    first_step = _prepare_step(
        agent,
        conversation,
        catalogue.specs(run.database),
        task=onward,
        causes=causes,
        steered=run.steered,
        used_tokens=_used_tokens(agent, run),
    )

    def close(draft: Draft) -> Transition:
        draft.hand_on(replace(onward, created_at=draft.now), first_step)
        return Done()

    return Step(close)
