"""Budgets: what the model calls of a session and of one input may use before no further request is made."""

from __future__ import annotations

from brainhands.brain.agent import Agent
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.ids import SubmissionId
from brainhands.shared.model.prices import dollars

CODE = "budget"
"""What the event of a stop has as its code."""


def used_up(draft: Draft, agent: Agent, submission_id: SubmissionId | None) -> str | None:
    """Which budget of the agent is used up, in words, or None. The totals are those under the session's lock."""
    session = draft.session
    tokens = session.tokens_in + session.tokens_out
    if agent.session_tokens is not None and tokens >= agent.session_tokens:
        return f"the session's budget of {agent.session_tokens:,} tokens is used up: {tokens:,} were used"
    if agent.session_cost is not None and session.cost >= agent.session_cost:
        spent = dollars(session.cost)
        return f"the session's budget of {dollars(agent.session_cost)} USD is used up: {spent} USD were spent"
    if submission_id is None or (agent.submission_tokens, agent.submission_cost) == (None, None):
        return None
    used = draft.used_for(submission_id)
    tokens = used.tokens_in + used.tokens_out
    if agent.submission_tokens is not None and tokens >= agent.submission_tokens:
        return f"the input's budget of {agent.submission_tokens:,} tokens is used up: {tokens:,} were used"
    if agent.submission_cost is not None and used.cost >= agent.submission_cost:
        spent = dollars(used.cost)
        return f"the input's budget of {dollars(agent.submission_cost)} USD is used up: {spent} USD were spent"
    return None
