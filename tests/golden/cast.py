"""Who plays in the golden sessions: an agent, its tools and a flow, none of which may ever change."""

from __future__ import annotations

from brainhands import (
    Agent,
    Ask,
    Done,
    Flow,
    NotFound,
    Retry,
    Sleep,
    ToolContext,
    Unknown,
    Wait,
    WaitSignal,
    phase,
    tool,
)
from tests.store.stage import Gone

YEARS = 10 * 365 * 86_400.0

moods: set[str] = set()
"""What goes wrong while a session is brought to its moment; nothing does when it is taken up again."""


@tool(replay="safe")
def golden_plain(text: str) -> str:
    """Give a text back."""
    if "die" in moods:
        raise Gone
    return text


@tool(replay="safe", retries=9)
def golden_later(text: str) -> str:
    """Give a text back, later."""
    if "later" in moods:
        raise Retry("not yet", after=60)
    return text


@tool(replay="reconcile")
def golden_sent(ctx: ToolContext, to: str) -> str:
    """Send something."""
    raise ConnectionError(f"cut while sending {ctx.operation_id} to {to}")


@golden_sent.lookup(dedupes=True)
def golden_find(ctx: ToolContext) -> object:
    if not ctx.operation_id:
        return NotFound
    return Unknown if "unknown" in moods else "found"


@tool(policy=Ask(answer_seconds=YEARS, use_seconds=YEARS))
def golden_asked(amount: int) -> int:
    """Ask first."""
    return amount


@tool(unknown="review")
def golden_reviewed(to: str) -> str:
    """Leave it open whether it acted."""
    raise ConnectionError(to)


class GoldenSteps(Flow, name="golden_steps", version=1):
    """Wait for a child, for a time and for a signal."""

    @phase
    def start(self, text: str) -> object:
        return Wait([self.spawn(golden_plain, {"text": text})], phase="nap", checkpoint={"seen": ["start"]})

    @phase
    def nap(self) -> object:
        return Sleep(YEARS, phase="listen", checkpoint={"seen": [*self.checkpoint["seen"], "nap"]})

    @phase
    def listen(self) -> object:
        return WaitSignal("golden", phase="tell", seconds=YEARS, key=self.input.text)

    @phase
    def tell(self) -> object:
        return Done({"seen": self.checkpoint["seen"], "told": self.signal["payload"]})


TOOLS = (golden_plain, golden_later, golden_sent, golden_asked, golden_reviewed)
NAMES = [*(each.name for each in TOOLS), "golden_steps"]
golden = Agent(name="golden", version=1, instructions="Be golden.", tools=[*NAMES, "golden_helper"])
patient = Agent(name="golden_patient", version=1, instructions="Think long.", background=True)
helper = Agent(name="golden_helper", version=1, instructions="Help.", description="Helps.")
careful = Agent(
    name="golden_careful",
    version=1,
    instructions="Ask.",
    tools=[*NAMES, "golden_helper"],
    rules={"golden_steps": "ask", "golden_helper": "ask"},
)
