"""What becomes of a claim that ended without a commit: another attempt of its phase, or the end at a limit."""

from __future__ import annotations

from brainhands.shared.model.task import Task
from brainhands.shared.rules.background import RESPONSE_CANCEL
from brainhands.shared.rules.first_work import GENERATION, INTAKE

COMPACTION = "compaction"
"""The kind of a task that shortens the context of its owner, a generation."""

EFFECT_PHASES = frozenset({"execute", "reconcile"})
"""Phases of a tool call in which its intent is committed, so that its effect may have happened."""

REVIEWED = "reviewed"
"""The phase in which a call goes on with what a person found out: about itself, or before its intent about another."""

REQUEST_PHASES = frozenset({"request", "retry"})
"""Phases of a generation or a compaction in which the model may have been called."""


def may_run_again(task: Task, restart_limit: int) -> bool:
    """Whether the phase has attempts left; `restart_limit` claims of one phase may end without a commit of it."""
    return task.phase_attempts < restart_limit


def effect_is_unknown(task: Task) -> bool:
    """Whether the task is a tool call that may have acted, also while people find out about it."""
    reviewed = task.phase == REVIEWED and "start_seq" in task.checkpoint
    return task.kind.startswith("tool:") and (task.phase in EFFECT_PHASES or reviewed)


def asked_the_model(task: Task) -> bool:
    """Whether the present phase of the task calls the model."""
    return task.kind in (GENERATION, COMPACTION) and task.phase in REQUEST_PHASES


def is_call(task: Task) -> bool:
    """Whether the task is a tool call or a flow, whose end is a tool event."""
    return task.kind not in (GENERATION, INTAKE, COMPACTION, RESPONSE_CANCEL)
