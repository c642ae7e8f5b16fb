"""What the model server knows of the responses that it made."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def background_responses(url: str) -> list[dict[str, Any]]:
    """The responses made so far, oldest first: `{"id", "body", "looks", "cancels"}`."""
    with urllib.request.urlopen(f"{url}/responses") as answer:
        return list(json.load(answer)["responses"])
