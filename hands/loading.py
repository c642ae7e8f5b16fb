"""Finds the tools and flows that a process offers in the modules it is told of."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brainhands.hands.flow import Flow, FlowDefinition
from brainhands.hands.tool import AnyTool, Tool
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.tool import Replay
from brainhands.shared.runtime.modules import import_modules, is_a


@dataclass(frozen=True, slots=True)
class Loaded:
    """Tools and flows in the order found, each object once; names and versions do not clash."""

    tools: tuple[AnyTool, ...]
    flows: tuple[type[Flow], ...]


def tools_in(modules: Iterable[str]) -> Loaded:
    """The top-level tools and named flows of dotted modules, imported ones too.

    Raises BadDefinition, with file and line of what is wrong.
    """
    values = [value for module in import_modules(modules) for value in vars(module).values()]
    tools = tuple(dict.fromkeys(value for value in values if is_a(value, Tool)))
    flows = tuple(dict.fromkeys(value for value in values if _is_named_flow(value)))
    _check_clashes(tools, flows)
    for tool in tools:
        if tool.replay is Replay.RECONCILE and tool.found_by is None:
            raise BadDefinition(
                f"{_place(tool.function)}{tool.name} is reconcile and has no look-up",
                f"define one with @{tool.name}.lookup()",
            )
    for tool in tools:
        _check_published(tool.function, tool)
    for flow in flows:
        _check_published(flow, flow.definition)
    return Loaded(tools, flows)


def _is_named_flow(value: object) -> bool:
    """A class that inherits a named flow without a name of its own is no flow of its own."""
    return is_a(value, type) and issubclass(value, Flow) and "definition" in vars(value)


def _check_published(code: Callable[..., object], definition: AnyTool | FlowDefinition) -> None:
    """Raises BadDefinition for what could not be shown to a model."""
    try:
        definition.spec().cleaned()
    except Exception as error:
        name = f"{_place(code)}{definition.name}@{definition.version}"
        raise BadDefinition(
            f"{name} cannot be published: {type(error).__name__}: {error}",
            "give its parameters types and defaults that JSON can hold",
        ) from error


def _place(code: Callable[..., object]) -> str:
    """Where a function or class is written, as `FILE:LINE: `."""
    try:
        return f"{os.path.relpath(inspect.getfile(code))}:{inspect.getsourcelines(code)[1]}: "
    except (OSError, TypeError):
        return ""


def _check_clashes(tools: tuple[AnyTool, ...], flows: tuple[type[Flow], ...]) -> None:
    offers = [(tool.kind, tool.name, tool.version, tool.function.__module__) for tool in tools]
    offers += [(d.kind, d.name, d.version, flow.__module__) for flow in flows for d in (flow.definition,)]
    seen: dict[tuple[str, int], str] = {}
    kinds: dict[str, str] = {}
    for kind, name, version, module in offers:
        if kinds.setdefault(name, kind) != kind:
            raise BadDefinition(f"{name!r} names both a tool and a flow", "rename one of them")
        if (name, version) in seen:
            raise BadDefinition(
                f"{name}@{version} is defined twice, in {seen[name, version]} and in {module}",
                "rename one or raise its version",
            )
        seen[name, version] = module
