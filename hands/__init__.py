"""Hands act: they run tool calls and business flows, and never call the model."""

from hands.context import ToolContext
from hands.flow import Flow, FlowState, phase
from hands.outcomes import NotFound, Retry, ToolError, Unknown
from hands.policy import Rule
from hands.tool import tool
from shared.model.approval import Ask
from shared.model.document import Document
from shared.model.task import Done, Fail, Next, Sleep, Wait, WaitSignal

__all__ = [
    "Ask",
    "Document",
    "Done",
    "Fail",
    "Flow",
    "FlowState",
    "Next",
    "NotFound",
    "Retry",
    "Rule",
    "Sleep",
    "ToolContext",
    "ToolError",
    "Unknown",
    "Wait",
    "WaitSignal",
    "phase",
    "tool",
]
