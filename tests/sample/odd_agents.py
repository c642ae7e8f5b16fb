"""Agents for the odd tools and flows, and one whose settings come from the environment."""

from __future__ import annotations

from brain import Agent

odd = Agent(
    name="odd",
    version=1,
    instructions="Do as you are told.",
    tools=[
        *("note", "flaky", "witness", "hold_unsafe", "hold_safe", "hold_reconcile", "send_late", "slow_unsafe", "spin"),
        *("spin_safe", "leave", "vanish", "shaky", "not_before", "talk", "chatter", "order", "gated", "definite"),
        *("send_reconcile",),
    ],
    request_seconds=20,
)
turner = Agent(name="turner", version=1, instructions="Turn.", tools=["turning"])
wanting = Agent(name="wanting", version=1, instructions="Want.", tools=["from_later"])
