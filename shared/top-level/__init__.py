"""A durable agent runtime. What users import stands here, and each name is loaded when it is first asked for.

The build makes this file `brainhands/__init__.py`, and in a checkout `make` links it there.
"""

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brainhands.brain.agent import Agent, Model
    from brainhands.hands.context import ToolContext
    from brainhands.hands.flow import Flow, FlowState, phase
    from brainhands.hands.outcomes import NotFound, Retry, ToolError, Unknown
    from brainhands.hands.policy import Rule
    from brainhands.hands.tool import tool
    from brainhands.shared.async_client import AsyncClient
    from brainhands.shared.client import Client
    from brainhands.shared.model.approval import Ask
    from brainhands.shared.model.document import Document
    from brainhands.shared.model.prices import Prices
    from brainhands.shared.model.task import Done, Fail, Next, Sleep, Wait, WaitSignal

__all__ = [
    "Agent",
    "Ask",
    "AsyncClient",
    "Client",
    "Document",
    "Done",
    "Fail",
    "Flow",
    "FlowState",
    "Model",
    "Next",
    "NotFound",
    "Prices",
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

_HOMES = {
    "brain.agent": ("Agent", "Model"),
    "hands.context": ("ToolContext",),
    "hands.flow": ("Flow", "FlowState", "phase"),
    "hands.outcomes": ("NotFound", "Retry", "ToolError", "Unknown"),
    "hands.policy": ("Rule",),
    "hands.tool": ("tool",),
    "shared.async_client": ("AsyncClient",),
    "shared.client": ("Client",),
    "shared.model.approval": ("Ask",),
    "shared.model.document": ("Document",),
    "shared.model.prices": ("Prices",),
    "shared.model.task": ("Done", "Fail", "Next", "Sleep", "Wait", "WaitSignal"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(_loaded(f"brainhands.{home}"), name)
            return globals()[name]
    raise AttributeError(f"module 'brainhands' has no attribute {name!r}")


def _loaded(module: str) -> ModuleType:
    # What modules make stays, and to look through it for garbage again and again takes a sixth of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
