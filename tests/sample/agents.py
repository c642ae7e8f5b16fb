"""Agents for tests: the model server's directives decide what they do."""

from brain import Agent

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
