"""The published JSON schema of an agent in a YAML file; `python -m brainhands.brain.agent_schema` prints it.

It is kept in brain/agent.schema.json, where editors find it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from brainhands.brain.agent import Agent

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class WrittenAgent(Agent):
    """An agent: what a Brain worker needs to know to think in its name. A session pins the version it began with."""

    # Strict, since a schema takes "1" for no number either. Its errors keep their places, which an Agent's do not.
    model_config = ConfigDict(title="Agent", strict=True)

    if not TYPE_CHECKING:
        __init__ = BaseModel.__init__


def schema_text() -> str:
    """The schema as it is kept."""
    schema = {"$schema": DIALECT, **WrittenAgent.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
