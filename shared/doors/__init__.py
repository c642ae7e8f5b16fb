"""The doors: what comes in from outside, one module a verb, each a commit under its session's lock.

Each is loaded when it is first used.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brainhands.shared.doors import answer, awake, cancel, fork, redact, signal, submit, watch

__all__ = ["answer", "awake", "cancel", "fork", "redact", "signal", "submit", "watch"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
