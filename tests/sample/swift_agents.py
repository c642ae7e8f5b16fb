"""The agent that has the swift tools, and others that think, remember and delegate."""

from brainhands import Agent

swift = Agent(
    name="swift",
    version=1,
    instructions="Do as you are told, swiftly.",
    tools=[
        *("post_once", "post_often", "post_findable", "post_late", "post_if_allowed", "post_at_length"),
        *("linger", "refuse", "errand", "venture", "drift"),
    ],
    request_seconds=60,
)
thoughtful = Agent(
    name="swift_thoughtful",
    version=1,
    instructions="Think it over, then do as you are told.",
    tools=["post_once", "post_often"],
    background=True,
    request_seconds=60,
)
forgetful = Agent(
    name="swift_forgetful",
    version=1,
    model="window-4000",
    instructions="Do as you are told.",
    tools=["post_often"],
    request_seconds=60,
)
lead = Agent(
    name="swift_lead",
    version=1,
    instructions="Let others do it, and stop all at the first failure.",
    tools=["swift_scout"],
    fail_fast=True,
    request_seconds=60,
)
scout = Agent(
    name="swift_scout",
    version=1,
    description="Does one thing.",
    instructions="Do as you are told.",
    tools=["post_often", "linger"],
    request_seconds=60,
)
