"""The agent of the loud tools."""

from __future__ import annotations

from brainhands import Agent

loud = Agent(
    name="loud",
    version=1,
    instructions="You use tools that write to where logs go.",
    tools=["speak", "stumble", "hold_unsafe"],
)
