"""Agents for tests: the model server's directives decide what they do."""

from decimal import Decimal

from brainhands import Agent, Prices

echo = Agent(name="echo", version=1, instructions="Echo what you are told.", tools=["echo"])
worker = Agent(
    name="worker",
    version=1,
    instructions="Do as you are told.",
    tools=["echo", "note", "send_unsafe", "send_safe", "send_reconcile", "flaky", "slow", "batch", "race", "payment"],
    request_seconds=20,
)
apart = Agent(
    name="apart", version=1, instructions="Do as you are told.", tools=["echo", "apart_slow"], request_seconds=20
)
narrow = Agent(
    name="narrow", version=1, instructions="Do as you are told.", tools=["timed", "narrow"], request_seconds=20
)
curious = Agent(
    name="curious", version=1, instructions="Say how sure you are.", options={"logprobs": True}, request_seconds=20
)
thrifty = Agent(
    name="thrifty",
    version=1,
    instructions="Do as you are told, cheaply.",
    tools=["echo"],
    session_tokens=100,
    request_seconds=20,
)
careful = Agent(
    name="careful",
    version=1,
    instructions="Do as you are told, carefully.",
    tools=["pay", "pay_soon", "pay_now", "wire_money", "note", "echo", "batch", "send_unsafe"],
    rules={"note": "deny", "echo": "ask", "batch": "ask"},
    request_seconds=20,
)
lead = Agent(
    name="lead",
    version=1,
    instructions="Let others do it.",
    tools=["scout", "nester", "note", "slow", "send_unsafe", "echo"],
    rules={"scout": "allow"},
    request_seconds=20,
)
brisk = Agent(
    name="brisk",
    version=1,
    instructions="Let others do it, and stop all at the first failure.",
    tools=["scout", "slow"],
    fail_fast=True,
    request_seconds=20,
)
wary = Agent(
    name="wary",
    version=1,
    instructions="Ask before others do it.",
    tools=["scout"],
    rules={"scout": "ask"},
    request_seconds=20,
)
scout = Agent(
    name="scout",
    version=1,
    description="Looks into one thing and reports.",
    instructions="Look into what you are asked.",
    tools=["echo", "note", "slow", "send_unsafe"],
    request_seconds=20,
)
nester = Agent(
    name="nester",
    version=1,
    description="Gives its task to another of its kind.",
    instructions="Give it on.",
    tools=["nester"],
    request_seconds=20,
)
thoughtful = Agent(
    name="thoughtful", version=1, instructions="Think it over.", tools=["echo"], background=True, request_seconds=60
)
small = Agent(
    name="small",
    version=1,
    model="window-4000",
    instructions="Do as you are told.",
    tools=["echo"],
    prices=Prices(input=Decimal("0.5"), output=Decimal("2")),
    request_seconds=20,
)
foreseeing = Agent(
    name="foreseeing",
    version=1,
    model="window-8000",
    instructions="Do as you are told.",
    tools=["echo"],
    context_tokens=1000,
    request_seconds=20,
)
billed = Agent(
    name="billed",
    version=1,
    instructions="Do as you are told, cheaply.",
    tools=["echo"],
    prices=Prices(input=Decimal("0.15"), cached_input=Decimal("0.075"), output=Decimal("0.6")),
    session_cost=Decimal("0.001"),
    submission_tokens=1000,
    request_seconds=20,
)
