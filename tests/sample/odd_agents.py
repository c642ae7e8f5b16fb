"""Agents for the odd tools."""

from __future__ import annotations

from decimal import Decimal

from brainhands import Agent, Model, Prices

odd = Agent(
    name="odd",
    version=1,
    instructions="Do as you are told.",
    tools=[
        *("note", "flaky", "witness", "hold_unsafe", "hold_safe", "hold_reconcile", "send_late", "slow_unsafe", "spin"),
        *("spin_safe", "leave", "vanish", "shaky", "not_before", "talk", "chatter", "order", "gated", "definite"),
        *("send_reconcile", "send_lost", "ping"),
    ],
    request_seconds=20,
)
turner = Agent(name="turner", version=1, instructions="Turn.", tools=["turning"])
wanting = Agent(name="wanting", version=1, instructions="Want.", tools=["from_later"])
flowing = Agent(
    name="flowing",
    version=1,
    instructions="Let it flow.",
    tools=[
        *("mailing", "deliver_all", "count_all", "stumble", "poison", "dream", "leave_early", "settle", "give_up"),
    ],
    request_seconds=20,
)
hasty = Agent(name="hasty", version=1, instructions="Hurry.", request_seconds=1)
impatient = Agent(name="impatient", version=1, instructions="Give up soon.", retries=1)
brief = Agent(name="brief", version=1, instructions="Be brief.", tools=["ping"], rounds=2)
spare = Agent(
    name="spare",
    version=1,
    instructions="Have another one.",
    tools=["ping"],
    retries=1,
    models=["large", Model(name="small", prices=Prices(input=Decimal(1), output=Decimal(2)))],
)
frugal = Agent(
    name="frugal", version=1, instructions="Save.", retries=0, models=["large", "small"], submission_tokens=1
)
