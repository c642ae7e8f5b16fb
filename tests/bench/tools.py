"""The tool of the measured turn: it gives back its text, and the time at which it ran."""

from __future__ import annotations

import time

from brainhands import tool


@tool(replay="safe")
def echo(text: str) -> str:
    """Give back a text, behind the present time in seconds."""
    return f"{time.time()} {text}"
