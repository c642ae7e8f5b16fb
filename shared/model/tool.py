"""Tools as data: what Hands publish, what Brain offers to the model."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from brainhands.shared.model.json import clean, clean_text, digest


class Replay(StrEnum):
    """What may be done when it is unknown whether a call took effect."""

    UNSAFE = "unsafe"
    SAFE = "safe"
    RECONCILE = "reconcile"


class ToolSpec(BaseModel):
    """A published tool or flow; `kind` (`tool:NAME` or `flow:NAME`) is the task kind that runs it."""

    model_config = ConfigDict(frozen=True)
    kind: str
    name: str
    version: int
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments object."""
    pool: str

    def cleaned(self) -> ToolSpec:
        """As the catalogue can hold it. Raises NotStorable."""
        return self.model_copy(
            update={"description": clean_text(self.description), "parameters": clean(self.parameters)}
        )

    @property
    def digest(self) -> str:
        """SHA-256 of what a model must know to call it; one for a name and version."""
        return digest(self.parameters)
