"""The generation task: one model reply, durably.

    prepare -> request -> (retry: sleeping) | (poll: sleeping) -> tools: waiting -> the next generation, or the answer
       ^          |
       '- waiting: a compaction, once, where the request is too long

`prepare` pins what a retry must send again; it shares the claim's commit. `request` calls the model and commits the
reply together with the calls it plans and the wait for them; where the agent wants it, the provider works in the
background meanwhile and `poll` asks how far it is (brain/background.py). `tools` closes the round: it ends this
generation and hands the next one, prepared, to the same worker in one commit.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from brainhands.brain import answers, background, budgets, compaction, prompt
from brainhands.brain.agent import Agent, Agents, Model, agent_of
from brainhands.brain.counting import count_request
from brainhands.brain.decide import Answer, AskAgain, CallTools, Decision, GiveUp, PlannedCall, Unfit, decide
from brainhands.brain.history import RESULT_TYPES, read_context
from brainhands.brain.models import chat, responses
from brainhands.brain.models.dialects import Dialect, dialect_of, host_of
from brainhands.brain.models.line import endpoint
from brainhands.brain.models.provider import OVERFLOW, estimated_usage
from brainhands.brain.models.reply import REFUSED, Interrupted, ProviderError, Reply
from brainhands.brain.models.strict import strict
from brainhands.brain.subagent import MAX_AGENT_CALLS, is_agent
from brainhands.shared.engine import ends, inbox
from brainhands.shared.engine.definition import Kind, Phase, PhaseResult, deciding_phase
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import Incompatible
from brainhands.shared.model.commit import SubmissionStart
from brainhands.shared.model.event import (
    ModelError,
    ModelInterrupted,
    ModelOutput,
    ModelRequest,
    ModelRequestVoided,
    SystemPromptSet,
    TaskBlocked,
    ToolCallError,
    ToolCallSuccess,
    ToolReference,
)
from brainhands.shared.model.ids import TaskId, new_task_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Done, Fail, Next, Outcome, Requirement, Sleep, Task, Transition, Wait
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.rules import calls, first_work
from brainhands.shared.rules.background import HANDLE
from brainhands.shared.rules.backoff import backoff_seconds
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import reads, workers
from brainhands.shared.store.database import Database

SLACK_SECONDS = 30.0
"""A request ends at its own deadline; its commit needs time too."""
MISSING_TOOL_SECONDS = 3.0
CATALOGUE_SECONDS = 1.0


def generation_kind(agents: Agents) -> Kind:
    """The generation task for these agents."""
    catalogue = Catalogue()
    request = Phase(run=partial(_request, agents, catalogue), seconds=partial(_request_seconds, agents))
    return Kind(
        name=first_work.GENERATION,
        version=first_work.GENERATION_VERSION,
        phases={
            "prepare": deciding_phase(partial(_prepare, agents, catalogue)),
            "request": request,
            "retry": request,
            "poll": Phase(run=partial(_poll, agents, catalogue), seconds=lambda _task: background.PHASE_SECONDS),
            "tools": deciding_phase(partial(_close, agents, catalogue)),
        },
    )


def intake_kind() -> Kind:
    """Admits input that was accepted inside a caller's transaction."""

    def admit(draft: Draft, *, task: Task) -> Transition:
        assert task.conversation_id is not None
        inbox.take_next(draft, task.conversation_id)
        return Done()

    phase = deciding_phase(lambda run: PhaseResult(partial(admit, task=run.task)))
    return Kind(name=first_work.INTAKE, version=first_work.INTAKE_VERSION, phases={"admit": phase})


def _request_seconds(agents: Agents, task: Task) -> float:
    return agent_of(agents, task.requires.name.partition(":")[2], task.requires.version).request_seconds + SLACK_SECONDS


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


def _prepare(agents: Agents, catalogue: Catalogue, run: Run) -> PhaseResult:
    conversation = run.conversation
    agent = agent_of(agents, conversation.agent, conversation.agent_version)
    causes = [run.task.cause]
    if "compaction" in run.task.checkpoint:
        compacted = reads.task(run.database, TaskId(UUID(run.task.checkpoint["compaction"])))
        assert compacted is not None
        if compacted.outcome is not Outcome.SUCCEEDED and "plain" not in run.task.checkpoint:
            return PhaseResult(partial(_stop_too_long, task=run.task, compacted=compacted))
        if compacted.result:
            causes.append(compacted.result["seq"])
    return _prepare_step(
        agent, conversation, catalogue.specs(run.database), task=run.task, causes=causes, steered=run.steered
    )


def _prepare_step(
    agent: Agent,
    conversation: Conversation,
    catalogue: Sequence[ToolSpec],
    *,
    task: Task,
    causes: Sequence[int],
    steered: bool,
) -> PhaseResult:
    specs, missing = workers.newest_specs(catalogue, agent.tools)
    if missing:
        return PhaseResult(partial(_wait_for_tools, task_id=task.id, missing=missing))
    pin = partial(_pin, agent=agent, conversation=conversation, specs=specs, task=task, causes=causes, steered=steered)
    return PhaseResult(pin)


def _wait_for_tools(draft: Draft, *, task_id: TaskId, missing: Sequence[str]) -> Transition:
    """Tools that nobody has ever published: visible, and looked for again, but never hidden from the model."""
    task = draft.task(task_id)
    reason = f"no Hands worker has published {', '.join(missing)}"
    if task.checkpoint.get("waits_for") != list(missing):
        draft.event(TaskBlocked(kind=task.kind, reason=reason), causes=[task.cause], task=task)
    checkpoint = {**task.checkpoint, "waits_for": list(missing), "reason": reason}
    return Sleep(MISSING_TOOL_SECONDS, phase="prepare", checkpoint=checkpoint)


def _stop(draft: Draft, *, task: Task, reason: str, code: str, causes: Sequence[int]) -> Transition:
    """Say why, and ask the model no more."""
    seq = draft.event(ModelError(error=reason, code=code), causes=causes, task=draft.task(task.id))
    ends.end_generation(draft, task, Outcome.FAILED, causes=[seq], error=reason)
    return Fail(reason)


def _stop_too_long(draft: Draft, *, task: Task, compacted: Task) -> Transition:
    """The context could not be compacted."""
    reason = f"the context is too long, and could not be compacted: {compacted.error}"
    causes = [task.checkpoint["voided_seq"], *([compacted.result["seq"]] if compacted.result else [])]
    return _stop(draft, task=task, reason=reason, code=OVERFLOW, causes=causes)


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
    # The budget is looked at under the lock, where the use of all earlier calls is added up.
    if reason := budgets.used_up(draft, agent, task.submission_id):
        return _stop(draft, task=task, reason=reason, code=budgets.CODE, causes=[task.cause])
    owned = draft.require(task.id, Requirement(name=task.requires.name, version=agent.version))
    if conversation.agent_version != agent.version:
        draft.write(replace(conversation, agent_version=agent.version))
        payload = SystemPromptSet(agent=agent.name, agent_version=agent.version, instructions=agent.instructions)
        draft.event(payload, causes=causes, task=owned)
    if task.submission_id is not None and task.input["round"] == 1:
        draft.write(SubmissionStart(task.submission_id))
    joined = inbox.take_steering(draft, conversation.id) if steered else []
    causes = [*causes, *(seq for _, seq in joined)]
    model = _first_model(agent, task)
    # The cutoff follows the instructions and the inputs above: what the request shows ends there, on every retry.
    request = ModelRequest(
        agent=agent.name,
        agent_version=agent.version,
        model=model.name,
        options=agent.options,
        tools=[ToolReference(name=spec.name, version=spec.version, digest=spec.digest) for spec in specs],
        cutoff=draft.session.last_seq,
        prices=model.prices,
        output=answers.requested(agent.output, offers_tools=bool(specs), dialect=_dialect(agent)),
        plain=task.checkpoint.get("plain", False),
    )
    seq = draft.event(request, causes=causes, task=owned)
    checkpoint = {
        "request_seq": seq,
        "request": request.model_dump(mode="json"),
        "retries": 0,
        "joined": [*_joined(task), *(str(submission) for submission, _ in joined)],
        **({} if conversation.continues is None else {"continues": str(conversation.continues)}),
        **{name: task.checkpoint[name] for name in ("compaction", "plain") if name in task.checkpoint},
    }
    return Next("request", checkpoint=checkpoint)


def _carried(task: Task) -> dict[str, Json]:
    """What a generation hands on to the next one for the same input."""
    unfit = task.checkpoint.get("unfit", task.input.get("unfit"))
    kept = {"model": task.checkpoint["request"]["model"], "joined": _joined(task), "unfit": unfit}
    return {name: value for name, value in kept.items() if value}


def _first_model(agent: Agent, task: Task) -> Model:
    """The model that was asked last in the work on this input, or the first one where none was, or it is gone."""
    models = agent.models_of(settings().model)
    asked = task.checkpoint.get("model", task.input.get("model"))
    return next((each for each in models if each.name == asked), models[0])


def _next_model(agent: Agent, request: ModelRequest) -> Model | None:
    """The model to ask where that of the request failed."""
    models = agent.models_of(settings().model)
    names = [each.name for each in models]
    place = names.index(request.model) + 1 if request.model in names else len(models)
    return models[place] if place < len(models) else None


def _joined(task: Task) -> list[str]:
    """The submissions whose input has joined the work so far."""
    joined: list[str] = task.checkpoint.get("joined", task.input.get("joined", []))
    return joined


def _request(agents: Agents, catalogue: Catalogue, run: Run, ended: responses.Response | None = None) -> PhaseResult:
    """Call the model with the pinned request, or take a response to it that has ended, and say what to store."""
    task = background.without_handle(run.task)
    request = ModelRequest.model_validate(task.checkpoint["request"])
    agent = agent_of(agents, request.agent, request.agent_version)
    # From here to the call everything is made of the pinned request and of events up to its cutoff, so that another
    # worker that takes the phase over sends the same bytes.
    events = read_context(run.database, task, request.cutoff)
    published = {(spec.name, spec.version): spec for spec in catalogue.specs(run.database)}
    if missing := [tool for tool in request.tools if (tool.name, tool.version) not in published]:
        raise Incompatible(f"the catalogue has no tool {missing[0].name}@{missing[0].version}, which is in the request")
    specs = [published[tool.name, tool.version] for tool in request.tools]
    provider = host_of(settings().openai_base_url)
    offered = [*specs, *answers.final_tools(request.output)]
    extras = prompt.Extras(provider=provider, fields=_dialect(agent).wants_back)
    rendered = strict(prompt.render(events, request, offered, extras))
    in_background = ended is not None or agent.background
    body = responses.request_of(rendered) if in_background else rendered
    digest = prompt.request_digest(body) if ended is None else run.task.checkpoint[HANDLE]["digest"]
    make_room = partial(_make_room, task=task, agent=agent, request=request, digest=digest)
    if ended is None and agent.context_tokens is not None:
        tokens = count_request(rendered, events)
        if tokens > agent.context_tokens:
            limit = f"{agent.context_tokens:,} of context_tokens"
            return PhaseResult(
                partial(make_room, reason=f"the request has about {tokens:,} tokens, more than the {limit}")
            )

    try:
        if ended is None and agent.background:
            answer = responses.create(body, at=endpoint(), timeouts=agent.timeouts, stop=partial(_unwanted, run))
            if answer.pending:
                return background.accepted(answer, task=task, agent=agent, body=body, digest=digest)
            ended = answer
        if ended is not None:
            reply = responses.reply_of(ended, body)
        else:
            stop = partial(_given_up, run)
            reply = chat.send(body, at=endpoint(), timeouts=agent.timeouts, on_text=run.progress, stop=stop)
    except Interrupted as cut:
        if run.cancelled:
            # The commit finds that the task is to be cancelled and ends it; what it returns here is not stored.
            return PhaseResult(lambda _draft: Sleep(0, phase="retry"))
        usage = (cut.usage or estimated_usage(body, cut.text)).charged(request.prices)
        interrupted = ModelInterrupted(text=cut.text, reason=cut.reason, usage=usage)
        if cut.overflow:
            return PhaseResult(partial(make_room, reason=cut.reason, interrupted=interrupted))
        if run.leaving:
            return PhaseResult(partial(_leave, interrupted, task=task))
        lost = ProviderError(f"the reply was cut: {cut.reason}", heals=cut.heals, retry_after=cut.retry_after)
        return PhaseResult(partial(_store_interruption, interrupted, task=task, agent=agent, error=lost, digest=digest))
    except ProviderError as error:
        if error.overflow:
            return PhaseResult(partial(make_room, reason=str(error)))
        if error.refuses_content and "compaction" not in task.checkpoint and _was_refused(run, task):
            reason = f"two requests in a row were refused for good, so the next is put in plain words: {error}"
            return PhaseResult(partial(make_room, reason=reason, plain=True))
        return PhaseResult(partial(_store_error, task=task, agent=agent, error=error, digest=digest))
    reply = replace(reply, usage=reply.usage.charged(request.prices))
    decision = decide(
        reply,
        offered=offered,
        used_ids=None if prompt.newest_compaction(events) else prompt.call_ids(events),
        empty_replies=task.checkpoint.get("empty", 0),
        prefix=f"call_{task.checkpoint['request_seq']}_{task.step}",
    )
    if request.output is not None:
        # What was asked for is judged even where the agent does not ask for it any more.
        output = request.output.parameters if agent.output is None else agent.output
        decision = answers.judge(decision, output, task.input.get("unfit", 0))
    return PhaseResult(partial(_store_reply, task=task, agent=agent, reply=reply, decision=decision, digest=digest))


def _dialect(agent: Agent) -> Dialect:
    return dialect_of(settings().openai_base_url, agent.dialect or settings().dialect)


def _poll(agents: Agents, catalogue: Catalogue, run: Run) -> PhaseResult:
    """Look at a response that the provider works on; once it has ended, go on as if it had just been said."""
    seen = background.look(run)
    if isinstance(seen, responses.Response):
        return _request(agents, catalogue, run, seen)
    task = background.without_handle(run.task)
    request = ModelRequest.model_validate(task.checkpoint["request"])
    attempt = {
        "task": task,
        "agent": agent_of(agents, request.agent, request.agent_version),
        "digest": run.task.checkpoint[HANDLE]["digest"],
    }

    def give_up(draft: Draft, problem: Interrupted | ProviderError) -> Transition:
        if isinstance(problem, ProviderError):
            return _store_error(draft, error=problem, **attempt)
        interrupted = background.interruption(run.task, problem, request.prices)
        lost = ProviderError(f"the reply was cut: {problem.reason}", heals=True)
        return _store_interruption(interrupted, draft, error=lost, **attempt)

    return PhaseResult(partial(background.go_on, task=run.task, seen=seen, give_up=give_up))


def _make_room(
    draft: Draft,
    *,
    task: Task,
    agent: Agent,
    request: ModelRequest,
    digest: str,
    reason: str,
    plain: bool = False,
    interrupted: ModelInterrupted | None = None,
) -> Transition:
    """The request is too long, or it is refused for what it says: let the context be compacted and another one be
    prepared, once in a generation."""
    causes = [task.checkpoint["request_seq"]]
    if interrupted is not None:
        draft.event(interrupted, causes=causes, task=task)
    if "compaction" in task.checkpoint:
        reason = f"the context is too long, also after it was compacted: {reason}"
        return _stop(draft, task=task, reason=reason, code=OVERFLOW, causes=causes)
    if over := budgets.used_up(draft, agent, task.submission_id):
        return _stop(draft, task=task, reason=over, code=budgets.CODE, causes=causes)
    voided = draft.event(ModelRequestVoided(reason=reason, request_digest=digest), causes=causes, task=task)
    made = draft.spawn(compaction.compaction_task(draft, owner=task, request=request, cause=voided))
    checkpoint = {
        "joined": _joined(task),
        "model": request.model,
        "compaction": str(made.id),
        "voided_seq": voided,
    }
    if plain:
        checkpoint["plain"] = True
    return Wait([made.id], phase="prepare", checkpoint=checkpoint)


def _was_refused(run: Run, task: Task) -> bool:
    """Whether the conversation's request before this one was refused for good too."""
    error = reads.last_error(run.database, task, task.checkpoint["request_seq"])
    return error is not None and error.get("retry_seconds") is None and error.get("status") in REFUSED


def _unwanted(run: Run) -> bool:
    return run.cancelled or run.stopped


def _given_up(run: Run) -> bool:
    """A request whose reply is only waited for can be left too, and made again elsewhere."""
    return _unwanted(run) or run.leaving


def _leave(event: ModelInterrupted, draft: Draft, *, task: Task) -> Transition:
    """The process ends, by no fault of the provider: the same request is made again at once, and counts as no retry."""
    draft.event(event, causes=[task.checkpoint["request_seq"]], task=task)
    return Sleep(0, phase="retry", checkpoint=task.checkpoint)


def _store_interruption(
    event: ModelInterrupted, draft: Draft, *, task: Task, agent: Agent, error: ProviderError, digest: str
) -> Transition:
    """The model was at work, and nothing can be done with what it said; it costs all the same."""
    draft.event(event, causes=[task.checkpoint["request_seq"]], task=task)
    return _store_error(draft, task=task, agent=agent, error=error, digest=digest)


def _store_error(draft: Draft, *, task: Task, agent: Agent, error: ProviderError, digest: str) -> Transition:
    """Try the same request again later, as the provider says, or ask the agent's next model, or end clearly."""
    retries = task.checkpoint["retries"] + 1
    request = ModelRequest.model_validate(task.checkpoint["request"])
    onward = None if error.of_key else _next_model(agent, request)
    over = budgets.used_up(draft, agent, task.submission_id) if error.heals or onward else None
    again = error.heals and retries <= agent.retries and over is None
    seconds = backoff_seconds(retries, at_least=error.retry_after, spread=random.random()) if again else None
    seq = draft.event(
        ModelError(
            error=str(error),
            status=error.status,
            code=error.provider_code,
            retry_seconds=seconds,
            request_digest=digest,
        ),
        causes=[task.checkpoint["request_seq"]],
        task=task,
    )
    if over is not None:
        return _stop(draft, task=task, reason=over, code=budgets.CODE, causes=[seq])
    if seconds is None and onward is not None:
        return _ask_another(draft, task=task, request=request, model=onward, cause=seq)
    if seconds is None:
        reason = str(error) if not error.heals else f"{error} (after {retries} tries)"
        ends.end_generation(draft, task, Outcome.FAILED, causes=[seq], error=reason)
        return Fail(reason)
    first = task.checkpoint.get("digest", digest)
    return Sleep(seconds, phase="retry", checkpoint={**task.checkpoint, "retries": retries, "digest": first})


def _ask_another(draft: Draft, *, task: Task, request: ModelRequest, model: Model, cause: int) -> Transition:
    """Ask another model for the same: a request with a pin of its own, and as many retries as the one before."""
    pinned = request.model_copy(update={"model": model.name, "prices": model.prices})
    seq = draft.event(pinned, causes=[cause], task=task)
    kept = {name: value for name, value in task.checkpoint.items() if name != "digest"}
    checkpoint = {**kept, "request_seq": seq, "request": pinned.model_dump(mode="json"), "retries": 0}
    return Next("request", checkpoint=checkpoint)


def _store_reply(
    draft: Draft,
    *,
    task: Task,
    agent: Agent,
    reply: Reply,
    decision: Decision,
    digest: str,
) -> Transition:
    """The response, the calls it plans and the wait for them are one commit; so are an answer and its submission."""
    output = ModelOutput(
        text=reply.text,
        calls=[each.call for each in decision.planned] if isinstance(decision, Answer | CallTools | Unfit) else [],
        finish_reason=reply.finish_reason,
        refusal=reply.refusal,
        model=reply.model,
        response_id=reply.response_id,
        usage=reply.usage,
        request_digest=digest,
        logprobs=list(reply.logprobs) or None,
        provider=host_of(settings().openai_base_url),
        extra=reply.extra,
        problem=decision.problem if isinstance(decision, Unfit) and not decision.planned else None,
        plain=task.checkpoint["request"].get("plain", False),
        request_changed=task.checkpoint.get("digest", digest) != digest,
    )
    # The output comes before all that it leads to, since each of these events names its seq as their cause.
    seq = draft.event(output, causes=[task.checkpoint["request_seq"]], task=task)
    match decision:
        case Answer(text, planned):
            for each in planned:
                payload = ToolCallSuccess(**_untracked(each), result="taken as the answer")
                draft.event(payload, causes=[seq], task=task)
            ends.end_generation(draft, task, Outcome.SUCCEEDED, causes=[seq], output=text)
            return Done(text)
        case GiveUp(reason, text):
            ends.end_generation(draft, task, Outcome.FAILED, causes=[seq], output=text, error=reason)
            return Fail(reason, text)
        case AskAgain():
            if over := budgets.used_up(draft, agent, task.submission_id):
                return _stop(draft, task=task, reason=over, code=budgets.CODE, causes=[seq])
            return Next("request", checkpoint={**task.checkpoint, "empty": task.checkpoint.get("empty", 0) + 1})
        case Unfit(_, planned):
            if task.input["round"] >= agent.rounds:
                return _stop_at_limit(draft, task, agent, planned, seq)
            for each in planned:
                _refuse_call(draft, task, each, each.error or "", seq)
            unfit = task.input.get("unfit", 0) + 1
            return Wait([], phase="tools", checkpoint={**task.checkpoint, "output_seq": seq, "unfit": unfit})
        case CallTools(planned):
            if task.input["round"] >= agent.rounds:
                return _stop_at_limit(draft, task, agent, planned, seq)
            return _call_tools(draft, task, agent, planned, seq)


def _call_tools(draft: Draft, task: Task, agent: Agent, planned: Sequence[PlannedCall], output_seq: int) -> Transition:
    # Each planned call gets a task or a result at once: providers refuse a history with a call that has neither.
    made = []
    agents_called = 0
    for each in planned:
        if each.error is not None or each.spec is None:
            _refuse_call(draft, task, each, each.error or "unknown tool", output_seq)
            continue
        agents_called += is_agent(each.spec)
        if is_agent(each.spec) and agents_called > MAX_AGENT_CALLS:
            error = f"not run: no more than {MAX_AGENT_CALLS} agents are called by one reply"
            _refuse_call(draft, task, each, error, output_seq)
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
    checkpoint = {**task.checkpoint, "output_seq": output_seq}
    return Wait(made, phase="tools", checkpoint=checkpoint, fail_fast=agent.fail_fast)


def _stop_at_limit(
    draft: Draft, task: Task, agent: Agent, planned: Sequence[PlannedCall], output_seq: int
) -> Transition:
    reason = f"stopped after {agent.rounds} model calls for one input"
    for each in planned:
        _refuse_call(draft, task, each, f"not run: {reason}", output_seq)
    ends.end_generation(draft, task, Outcome.FAILED, causes=[output_seq], error=reason)
    return Fail(reason)


def _refuse_call(draft: Draft, task: Task, planned: PlannedCall, error: str, output_seq: int) -> None:
    """Close a call that gets no task, so that every call has its result."""
    draft.event(ToolCallError(**_untracked(planned), error=error), causes=[output_seq], task=task)


def _untracked(planned: PlannedCall) -> dict[str, Json]:
    """What the result of a call without a task says of it."""
    return {
        "call_id": planned.call.call_id,
        "tool": planned.call.name,
        "version": planned.spec.version if planned.spec else None,
        "arguments": planned.arguments if planned.arguments is not None else planned.call.arguments,
        "operation_id": None,
        "replay": None,
    }


def _close(agents: Agents, catalogue: Catalogue, run: Run) -> PhaseResult:
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
    causes = [row["seq"] for row in results.rows] or [task.checkpoint["output_seq"]]
    agent = agent_of(agents, conversation.agent, conversation.agent_version)
    onward = first_work.generation_task(
        new_task_id(),
        conversation,
        submission_id=task.submission_id,
        cause=max(causes),
        round_number=task.input["round"] + 1,
        carried=_carried(task),
        priority=task.priority,
        now=task.created_at,
    )
    first_step = _prepare_step(
        agent, conversation, catalogue.specs(run.database), task=onward, causes=causes, steered=run.steered
    )

    def close(draft: Draft) -> Transition:
        # The next generation is made in the commit that ends this one, so the conversation is never free in between
        # and no waiting input slips in.
        draft.hand_on(replace(onward, created_at=draft.now), first_step.decide)
        if conversation.owner_id is not None:
            # Who called this agent waits for its last generation, whichever that will be.
            draft.wait_also(conversation.owner_id, onward.id)
        return Done()

    return PhaseResult(close)
