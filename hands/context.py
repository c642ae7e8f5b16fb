"""What a running tool knows about its call, and the two things it can say or ask meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.json import clean_text


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """One attempt of one call; a tool's first parameter of this type is filled in with it."""

    operation_id: str
    """Identity of the effect, the same for every attempt: send it to the service as its idempotency key."""
    task_id: TaskId
    session_id: SessionId
    attempt: int
    """1 for the first attempt."""
    deadline: datetime
    """Aware UTC; the call is ended then."""
    write_progress: Callable[[str], None]
    ask_cancelled: Callable[[], bool]

    def progress(self, text: str) -> None:
        """Appends to what the attempt has shown so far, which is kept if it is interrupted and decides nothing."""
        self.write_progress(clean_text(text))

    @property
    def cancelled(self) -> bool:
        """Whether the call should stop; what it does then is the tool's choice."""
        return self.ask_cancelled()
