"""An agent of a Brain whose module changes the same globals as its tools do."""

from __future__ import annotations

from decimal import Decimal

from brainhands import Agent
from brainhands.shared.model.prices import Prices
from tests.sample import rude_tools

rude = Agent(
    name="rude",
    version=1,
    instructions="Be rude.",
    tools=["echo", *(each.name for each in rude_tools.TOOLS)],
    prices=Prices(input=Decimal("0.123457"), output=Decimal("7.654321")),
    request_seconds=20,
)
