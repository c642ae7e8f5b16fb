"""Flows for tests: they crash, sleep, leave early, share a document, and own children that end in every way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from uuid import UUID

from pydantic import BaseModel

from brainhands import Document, Done, Fail, Flow, Next, Sleep, ToolContext, ToolError, Wait, phase, tool
from brainhands.shared.model.ids import TaskId
from tests.sample.odd_tools import gated, hold, leave, wait_for_gate
from tests.sample.tools import act, effects, note


class Mail(BaseModel):
    """One planned mail."""

    model_config = {"frozen": True}
    to: str
    state: str = "planned"


class Plan(Document, kind="plan", schema_version=2):
    """What a mailing is about to do, and how far it came."""

    mails: tuple[Mail, ...] = ()


class Steps(Document, kind="steps"):
    """The phases that were stored."""

    done: tuple[str, ...] = ()


def step(name: str) -> Callable[[Steps | None], Steps]:
    """A change of the steps: one more."""
    return lambda steps: Steps(done=(*(steps.done if steps else ()), name))


@tool(replay="safe", timeout=20, operation=lambda mail: f"{mail.to}/{mail.body}")
def deliver(ctx: ToolContext, to: str, body: str) -> str:
    """Deliver one mail; one to `held` holds at its first attempt."""
    act(f"deliver {ctx.operation_id}")
    if to.startswith("held"):
        hold(ctx)
    return f"delivered {body} to {to}"


@tool(replay="safe", timeout=20)
def deliver_all(ctx: ToolContext, customers: list[str], body: str) -> int:
    """Deliver all mails in one call, which is a black box."""
    for to in customers:
        act(f"box {to}/{body}")
        if to.startswith("held"):
            hold(ctx)
    return len(customers)


class Mailing(Flow, name="mailing", version=1):
    """Send one mail to each customer, an owned call each."""

    @phase
    def plan(self, customers: list[str], body: str) -> object:
        self.update(Plan, lambda _: Plan(mails=tuple(Mail(to=to) for to in customers)))
        children = {to: self.spawn(deliver, {"to": to, "body": body}) for to in customers}
        return Wait(list(children.values()), phase="report", checkpoint={to: str(id) for to, id in children.items()})

    @phase
    def report(self) -> object:
        plan = self.document(Plan)
        assert plan is not None
        states = {mail.to: self.result(child(self.checkpoint[mail.to])).outcome for mail in plan.mails}
        self.update(Plan, lambda _: Plan(mails=tuple(Mail(to=to, state=state) for to, state in states.items())))
        return Done({"body": self.input.body, "states": states})


def child(text: str) -> TaskId:
    return TaskId(UUID(text))


class CountOne(Flow, name="count_one", version=1):
    """Add one name to the steps, having read them at the same time as the others."""

    @phase
    def count(self, name: str, group: str) -> object:
        self.document(Steps)
        act(f"counts {group} {name}")
        wait_for_gate(group)
        self.update(Steps, step(name))
        return Done(name)


class CountAll(Flow, name="count_all", version=1):
    """Let flows count in parallel, a child each."""

    @phase
    def start(self, names: list[str], group: str) -> object:
        children = [self.spawn(CountOne, {"name": name, "group": group}) for name in names]
        return Wait(children, phase="finish")

    @phase
    def finish(self) -> object:
        steps = self.document(Steps)
        return Done([] if steps is None else list(steps.done))


class Stumble(Flow, name="stumble", version=1):
    """Die in the middle of the second phase, the first time."""

    @phase
    def one(self, name: str) -> object:
        act(f"stumble {name} one")
        self.update(Steps, step("one"))
        return Next(self.two, checkpoint={"left by": "one"})

    @phase
    def two(self) -> object:
        act(f"stumble {self.input.name} two")
        self.update(Steps, step("two"))
        self.spawn(note, {"text": f"stumbled {self.input.name}"})
        if effects().count(f"stumble {self.input.name} two") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Next(self.three)

    @phase
    def three(self) -> object:
        act(f"stumble {self.input.name} three")
        return Done(self.checkpoint)


class Poison(Flow, name="poison", version=1):
    """Never get through the second phase: `kill` its process or `raise`."""

    @phase
    def start(self, name: str, how: str) -> object:
        return Next(self.fall, checkpoint={"name": name, "how": how})

    @phase
    def fall(self) -> object:
        act(f"poison {self.checkpoint['name']}")
        self.progress("falling")
        if self.checkpoint["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("cannot go on")


class Dream(Flow, name="dream", version=1):
    """Sleep for an hour, and know afterwards what it knew before."""

    @phase
    def fall_asleep(self, about: str) -> object:
        self.update(Steps, step("asleep"))
        return Sleep(3600, phase="wake_up", checkpoint={"dreams of": about})

    @phase
    def wake_up(self) -> object:
        steps = self.document(Steps)
        return Done({"about": self.input.about, "checkpoint": self.checkpoint, "steps": steps and list(steps.done)})


class LeaveEarly(Flow, name="leave_early", version=1):
    """Be done while a child still works."""

    @phase
    def start(self, gate: str) -> object:
        self.spawn(gated, {"name": gate})
        return Done("left early")


class Settle(Flow, name="settle", version=1):
    """Own children that succeed, fail and stay unknown, and tell of each."""

    @phase
    def start(self, gate: str) -> object:
        children = [
            self.spawn(note, {"text": "settles"}),
            self.spawn("definite", {"text": "settles not"}),
            self.spawn(leave, {"how": "boom"}),
            self.spawn("gated@1", {"name": gate}),
        ]
        return Wait(children, phase="tell", checkpoint=children)

    @phase
    def tell(self) -> object:
        results = [self.result(child(each)) for each in self.checkpoint]
        return Done([[each.outcome, each.result or each.error] for each in results])


class GiveUp(Flow, name="give_up", version=1):
    """Fail for sure: by what it returns, or by what it raises; or ask for a child that nobody offers."""

    @phase
    def start(self, how: str) -> object:
        self.update(Steps, step("given up"))
        match how:
            case "raise":
                raise ToolError("nobody is at home")
            case "nameless":
                self.spawn("no_such_tool", {})
        return Fail("gave up", result={"how": how})
