"""Tools and flows for the crash matrix and the soak: their time is short, so that nobody waits long for what has died.

Effects are lines `NAME KEY OPERATION_ID`, so that they can be counted by call and by operation.
"""

from __future__ import annotations

import time
from uuid import UUID

from brainhands import (
    Ask,
    Done,
    Fail,
    Flow,
    Next,
    NotFound,
    Retry,
    Sleep,
    ToolContext,
    ToolError,
    Wait,
    WaitSignal,
    phase,
    tool,
)
from brainhands.shared.model.ids import TaskId
from tests.sample.odd_tools import wait_for_gate
from tests.sample.tools import act, effects


def _post(ctx: ToolContext, name: str, key: str, seconds: float) -> None:
    """Act in the middle of a time."""
    time.sleep(seconds / 2)
    act(f"{name} {key} {ctx.operation_id}")
    time.sleep(seconds / 2)


@tool(timeout=5)
def post_once(ctx: ToolContext, key: str, seconds: float = 0.0) -> str:
    """Post what nobody can look for, nor post again."""
    _post(ctx, "post_once", key, seconds)
    return f"posted {key}"


@tool(replay="safe", timeout=20)
def post_often(ctx: ToolContext, key: str, seconds: float = 0.0) -> str:
    """Post what may be posted again."""
    _post(ctx, "post_often", key, seconds)
    return f"posted {key}"


@tool(replay="reconcile", timeout=20, operation=lambda arguments: arguments.key)
def post_findable(ctx: ToolContext, key: str, seconds: float = 0.0) -> str:
    """Post what can be looked for, and is believed not to be there as soon as it is not found."""
    _post(ctx, "post_findable", key, seconds)
    return f"posted {key}"


@tool(replay="reconcile", timeout=2, settle=0.5)
def post_late(ctx: ToolContext, key: str, seconds: float = 0.0) -> str:
    """Post what can be looked for, and is believed not to be there only once it cannot come any more."""
    _post(ctx, "post_late", key, seconds)
    return f"posted {key}"


@post_findable.lookup(dedupes=True)
def find_post(ctx: ToolContext) -> object:
    """Look for the effect of an operation."""
    found = any(line.split()[-1] == ctx.operation_id for line in effects())
    return f"found {ctx.operation_id}" if found else NotFound


post_late.lookup()(find_post)


@tool(timeout=5, policy=Ask(answer_seconds=600, use_seconds=600))
def post_if_allowed(ctx: ToolContext, key: str) -> str:
    """Post what somebody has to agree to, once."""
    act(f"post_if_allowed {key} {ctx.operation_id}")
    return f"posted {key}"


@tool(replay="safe", retries=5, timeout=20)
def post_at_length(ctx: ToolContext, key: str) -> str:
    """Post at the second attempt."""
    if ctx.attempt < 2:
        raise Retry("not yet", after=0.2)
    act(f"post_at_length {key} {ctx.operation_id}")
    return f"posted {key}"


@tool(replay="safe", timeout=60)
def linger(key: str) -> str:
    """Work until the gate of this key is open, deaf to any wish to stop."""
    wait_for_gate(key)
    return f"lingered for {key}"


@tool(replay="safe")
def refuse(key: str) -> None:
    """Fail for sure."""
    raise ToolError(f"{key} is refused")


class Errand(Flow, name="errand", version=1):
    """Make a call of each named tool, a child each; then sleep, and wait for the signal `go`, if asked to."""

    @phase
    def start(self, key: str, tools: list[str], nap: float = 0.0, listen: bool = False) -> object:
        children = [self.spawn(name, {"key": f"{key}.{place}"}) for place, name in enumerate(tools)]
        return Wait(children, phase="rest", checkpoint={"nap": nap, "listen": listen})

    @phase
    def rest(self) -> object:
        return Sleep(self.checkpoint["nap"], phase="hear") if self.checkpoint["nap"] else Next("hear")

    @phase
    def hear(self) -> object:
        if not self.checkpoint["listen"]:
            return Done("not listening")
        return WaitSignal("go", phase="tell", key=self.input.key, seconds=600)

    @phase
    def tell(self) -> object:
        return Done(self.signal["payload"]) if self.signal else Fail("nobody said go")


class Venture(Flow, name="venture", version=1):
    """Wait for the signal `go`; then let a child that lingers and one that fails run, failing fast."""

    @phase
    def start(self, key: str) -> object:
        return WaitSignal("go", phase="risk", key=key, seconds=600)

    @phase
    def risk(self) -> object:
        if self.signal is None:
            return Fail("nobody said go")
        key = self.input.key
        children = [self.spawn(linger, {"key": key}), self.spawn(refuse, {"key": key})]
        checkpoint = {"go": self.signal["payload"], "children": [str(child) for child in children]}
        return Wait(children, phase="tell", checkpoint=checkpoint, fail_fast=True)

    @phase
    def tell(self) -> object:
        lingers, fails = (self.result(TaskId(UUID(child))).outcome for child in self.checkpoint["children"])
        return Done({"go": self.checkpoint["go"], "lingers": lingers, "fails": fails})


class Drift(Flow, name="drift", version=1):
    """Be done at once, while a child still lingers."""

    @phase
    def start(self, key: str) -> object:
        self.spawn(linger, {"key": key})
        return Done("adrift")
