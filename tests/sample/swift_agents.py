"""The agent that has the swift tools."""

from brain import Agent

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
