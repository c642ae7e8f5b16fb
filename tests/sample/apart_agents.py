"""An agent for a Brain of its own pool, which a test stops and starts as it likes; options are the environment's."""

from __future__ import annotations

import os

from brainhands import Agent

apart = Agent(
    name="apart",
    version=1,
    instructions="Do as you are told.",
    tools=["note", "gated"],
    options={"temperature": float(os.environ.get("SAMPLE_TEMPERATURE", "0"))},
    request_seconds=60,
)
