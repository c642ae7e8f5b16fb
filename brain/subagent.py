"""An agent as another agent's tool: its own conversation in the same session, owned by the call.

    call -> (answered: waiting for a person) -> collect: waiting for the conversation -> done

`call` stores the intent, the conversation with what is asked, and its first generation, which the call owns. Each
generation that hands on to the next lets the call wait for that one too, so the call goes on once the sub-agent has
answered or failed, and its answer is the call's result. Cancelling the call cancels what it owns.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from brainhands.brain.agent import Agent
from brainhands.shared.engine import approvals, ends
from brainhands.shared.engine.definition import Kind, PhaseResult, deciding_phase
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.model.event import SystemPromptSet, TaskGiven, ToolCallStart, ToolCallSuccess
from brainhands.shared.model.ids import new_conversation_id, new_task_id
from brainhands.shared.model.json import Json
from brainhands.shared.model.session import Conversation
from brainhands.shared.model.task import Done, Outcome, Task, Transition, Wait
from brainhands.shared.model.tool import ToolSpec
from brainhands.shared.rules import first_work
from brainhands.shared.store import reads

MAX_DEPTH = 4
"""How many agents may stand above each other, the first one not counted."""
MAX_AGENT_CALLS = 8
"""Calls of other agents in one reply that run; the others get an error."""

PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "description": "What it shall do, with all it must know: it sees nothing of this conversation.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


def agent_specs(agents: Iterable[Agent]) -> list[ToolSpec]:
    """The agents that others may call, as they are published among the tools."""
    return [
        ToolSpec(
            kind=_kind(agent),
            name=agent.name,
            version=agent.version,
            description=agent.description,
            parameters=PARAMETERS,
            pool="brain.default",
        )
        for agent in agents
        if agent.description is not None
    ]


def is_agent(spec: ToolSpec) -> bool:
    """Whether a published tool is an agent."""
    return spec.kind.startswith("agent:")


def agent_kind(agent: Agent) -> Kind:
    """The task kind that runs calls of this agent."""
    return Kind(
        name=_kind(agent),
        version=agent.version,
        oldest=agent.oldest,
        phases={
            "call": deciding_phase(partial(_call, agent)),
            "answered": deciding_phase(partial(_answered, agent)),
            "collect": deciding_phase(_collect),
        },
    )


def _kind(agent: Agent) -> str:
    return f"agent:{agent.name}"


def _call(agent: Agent, run: Run) -> PhaseResult:
    """Validate what is asked, heed the calling agent's rule, and let the conversation begin."""
    if reads.calls_above(run.database, run.task.id, "agent:") >= MAX_DEPTH:
        error = f"not run: agents call each other no deeper than {MAX_DEPTH}"
        return PhaseResult(partial(ends.refuse_call, task=run.task, error=error))
    return approvals.begin(run, partial(_validated, agent, run.task), _start_of(agent, run), lambda _: {})


def _answered(agent: Agent, run: Run) -> PhaseResult:
    """Go on with a person's answer."""
    return approvals.go_on(run, partial(_validated, agent, run.task), _start_of(agent, run))


def _start_of(agent: Agent, run: Run) -> approvals.Start:
    return partial(_start, agent=agent, task=run.task, caller=run.conversation.agent)


def _validated(agent: Agent, task: Task, raw: Json) -> dict[str, Json] | str:
    """The call with its final arguments, or why it cannot run."""
    if not isinstance(raw, dict) or raw.keys() != {"task"} or not isinstance(raw["task"], str):
        return 'the arguments do not fit: give {"task": "..."} and nothing else'
    if not raw["task"].strip():
        return "the arguments do not fit: the task is empty"
    call = {"call_id": task.input["call_id"], "arguments": raw, "operation_id": str(task.id), "replay": None}
    return {**call, "tool": agent.name, "version": agent.version}


def _start(
    draft: Draft, call: dict[str, Json], causes: list[int], *, agent: Agent, task: Task, caller: str
) -> Transition:
    """Intent, conversation, its first generation and the wait for it are one commit."""
    owned = draft.task(task.id)
    start = draft.event(ToolCallStart(**call, acts_until=None), causes=causes, task=owned)
    conversation = Conversation(
        id=new_conversation_id(),
        session_id=task.session_id,
        owner_id=task.id,
        agent=agent.name,
        agent_version=agent.version,
    )
    draft.write(conversation)
    prompt = SystemPromptSet(agent=agent.name, agent_version=agent.version, instructions=agent.instructions)
    draft.event(prompt, causes=[start], task=owned, conversation_id=conversation.id)
    given = TaskGiven(text=call["arguments"]["task"], by=caller)
    seq = draft.event(given, causes=[start], task=owned, conversation_id=conversation.id)
    generation = first_work.generation_task(
        new_task_id(),
        conversation,
        submission_id=task.submission_id,
        cause=seq,
        round_number=1,
        priority=task.priority,
        now=draft.now,
    )
    draft.add(generation)
    kept = {name: call[name] for name in ("call_id", "arguments", "operation_id", "replay")}
    return Wait([generation.id], phase="collect", checkpoint={"call": kept, "start_seq": start})


def _collect(run: Run) -> PhaseResult:
    """The conversation has ended: its answer, or why there is none, is the result of the call."""
    task = run.task
    last = reads.last_generation(run.database, task.id)
    if last.outcome is not Outcome.SUCCEEDED:
        error = f"the agent has no answer: {last.error or last.outcome}"
        return PhaseResult(partial(ends.refuse_call, task=task, error=error))

    def succeed(draft: Draft) -> Transition:
        payload = ToolCallSuccess(**ends.call_fields(task), result=last.result)
        draft.event(payload, causes=[last.checkpoint.get("request_seq", last.cause)], task=task)
        return Done(last.result)

    return PhaseResult(succeed)
