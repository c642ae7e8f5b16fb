"""One agent in the versions that SAMPLE_VERSIONS names, so that a test can deploy and withdraw them."""

from __future__ import annotations

import os

from brainhands import Agent

one, two = (
    Agent(name="versioned", version=version, instructions=f"You are version {version}.")
    if str(version) in os.environ.get("SAMPLE_VERSIONS", "1,2")
    else None
    for version in (1, 2)
)
