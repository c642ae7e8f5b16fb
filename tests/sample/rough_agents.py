"""The agent that has the tools which go wrong with their whole process."""

from brainhands import Agent

rough = Agent(
    name="rough",
    version=1,
    instructions="Do as you are told.",
    tools=["poison", "hold", "hold_unsafe", "spin", "start_program", "later", "note", "send_safe", "slow"],
    request_seconds=20,
)
