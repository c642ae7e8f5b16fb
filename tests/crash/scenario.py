"""What can be struck: a scenario is a play of a client, and what must be true when it has ended.

A new one is a play, a check and an entry in SCENARIOS of `tests.crash.scenarios`:

    def play_greeting(door: Door) -> None:
        receipt = door.call("post_often", then="greeted")     # tools and agents: tests/sample/swift_*.py
        door.wait_for_event(receipt, "tool_call_start")
        door.script({"text": "and again"}, session=receipt.session_id)

    def check_greeting(run: Run) -> None:
        assert run.outputs() == ["greeted", "and again"]
        run.succeeded("post_often")                           # and others of `Run`, by what a tool promises

    Scenario(name="greeting", play=play_greeting, check=check_greeting, promises=("A9",))

The instrument does the rest: it plays the scenario undisturbed and notes each commit and publish of each process, the
client's included; then it plays it again for each of them, once ending the process just before and once just after. In
every run the client and all parts are started again when they die; all work must come to rest; the invariants hold,
`doctor` finds nothing and `verify` finds every log as it was written. `check` is asked then, and says only what is this
scenario's own.

Rules for a play: it may be begun again at any time, so it waits for what stays true (an event, a status or a later
one), and not for what may have passed; its requests are named by the door. Whatever a check looks for carries
`door.run`. Where a strike may change the end, `run.struck(role)` says whose process was struck; in all other runs the
check should be strict. A tool that is not `safe` needs a short timeout, since its lease lasts as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Task
from deploy.demo.mailbox import Switches
from tests.crash.driver import Door
from tests.crash.plugin import Plan, Point
from tests.instruments.fleet import Fleet

CALL_ENDS = ("tool_call_success", "tool_call_error", "tool_call_interrupted")

Plans = Callable[[Sequence[Point]], list[Plan]]


@dataclass(frozen=True, kw_only=True)
class House:
    """What the parts run with. Scenarios of one house are played on one stage, which takes long to set up.

    `slots` are the calls that Hands run at a time, `settings` further environment variables.
    """

    agents: str = "deploy.demo.agents,tests.sample.swift_agents"
    tools: str = "deploy.demo.tools,tests.sample.swift_tools"
    slots: int = 2
    lease_seconds: float = 2.0
    switches: Switches = field(default_factory=Switches)
    settings: tuple[tuple[str, str], ...] = ()
    next_release: tuple[str, ...] = ()
    """The roles that run the next release, beside the others that run this one, on its schema."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has come to rest; its submissions are in the order of the play."""

    name: str
    fleet: Fleet
    submissions: Sequence[Submission]
    mails: Sequence[dict[str, Any]]
    plan: Plan | None
    """The strike, if there was one."""

    def struck(self, role: str) -> bool:
        return self.plan is not None and self.plan.point.role == role

    def outputs(self) -> list[str | None]:
        """What each submission came to."""
        return [submission.output for submission in self.submissions]

    def outcomes(self) -> list[str | None]:
        return [submission.outcome for submission in self.submissions]

    def tasks(self, kind: str) -> list[Task]:
        """The first session's tasks of a kind."""
        return [task for task in self.fleet.client.session(self.submissions[0].session_id).tasks if task.kind == kind]

    def types(self) -> list[str]:
        """The types of the first session's events, in order."""
        return self.fleet.types(self.submissions[0].session_id)

    def call_ends(self, tool: str) -> list[tuple[str, dict[str, Any]]]:
        """How calls of a tool ended in the first session: type and payload of their last events."""
        events = self.fleet.client.events(self.submissions[0].session_id)
        ends = [(event.type, json.loads(event.payload_text)) for event in events if event.type in CALL_ENDS]
        return [(type, payload) for type, payload in ends if payload["tool"] == tool]

    def posts(self, tool: str) -> list[str]:
        """The operation ids of a swift tool's effects in this run, one for each."""
        starts = (f"{tool} {self.name} ", f"{tool} {self.name}.")
        return [line.split()[-1] for line in self.fleet.effects() if line.startswith(starts)]

    def may_be_unknown(self, tool: str) -> None:
        """An unsafe call posted once and said so; if Hands died, perhaps nobody knows, and it posted once at most."""
        ((type, _),) = self.call_ends(tool)
        if type == "tool_call_interrupted":
            assert self.struck("hands"), "interrupted, and no Hands process was struck"
            assert len(self.posts(tool)) <= 1
        else:
            assert (type, len(self.posts(tool))) == ("tool_call_success", 1)

    def succeeded_once(self, tool: str) -> None:
        """A call succeeded, and its effect is there once."""
        assert ([type for type, _ in self.call_ends(tool)], len(self.posts(tool))) == (["tool_call_success"], 1)

    def succeeded(self, tool: str) -> None:
        """A call succeeded; its effect may be there more than once, always of one operation."""
        assert ([type for type, _ in self.call_ends(tool)], len(set(self.posts(tool)))) == (["tool_call_success"], 1)


def every_kill(points: Sequence[Point]) -> list[Plan]:
    """Kill the process just before and just after each point."""
    return [Plan(point=point, when=when) for point in points for when in ("before", "after")]


def every_end(points: Sequence[Point]) -> list[Plan]:
    """Every kill, and a stop beyond the lease just before each commit of a worker."""
    commits = [point for point in points if point.role in ("brain", "hands") and point.name.startswith("commit")]
    return [*every_kill(points), *(Plan(point=point, when="before", how="stop") for point in commits)]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A play, the check of its end, and where to strike; `part` is how many strikes where not all are asked for."""

    name: str
    play: Callable[[Door], None]
    check: Callable[[Run], None]
    promises: tuple[str, ...]
    hazards: tuple[int, ...] = ()
    house: House = House()
    plans: Plans = every_end
    part: int = 2

    def __str__(self) -> str:
        return self.name
