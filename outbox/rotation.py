"""Where a relay's turns stand: which tenant and which session had the last one, and when batch work has its next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.task import Priority
from brainhands.shared.store.database import Row
from brainhands.shared.store.turns import INTERACTIVE_A_BATCH, Place

KNOWN_TENANTS = 2_000
"""Of how many tenants it is known which session comes next; of any other it is the oldest."""


class Rotation:
    """The turns of one pool, as one relay takes them."""

    def __init__(self) -> None:
        self._tenants: dict[Priority, str] = {}
        self._sessions: dict[str, SessionId] = {}
        self._since_batch = 0

    def place(self, room: int) -> Place:
        """Where to go on, for a pass that visits no more than `room` tenants of a priority."""
        known = sorted(self._sessions)
        ahead: set[str] = set()
        for lane in Priority:
            start = bisect_right(known, self._tenants.get(lane, ""))
            ahead.update((known[start:] + known[:start])[:room])
        return Place(
            tenants=dict(self._tenants),
            sessions={tenant: self._sessions[tenant] for tenant in sorted(ahead)},
            since_batch=self._since_batch,
        )

    def moved_on(self, taken: Sequence[Row]) -> list[Row]:
        """The rows of a pass in the order in which they go out, each of which has had its turn now."""
        in_order = sorted(taken, key=itemgetter("place"))
        for row in in_order:
            lane = Priority(row["priority"])
            self._tenants[lane] = row["tenant"]
            self._sessions.pop(row["tenant"], None)
            self._sessions[row["tenant"]] = row["session_id"]
            interactive = lane is Priority.INTERACTIVE
            self._since_batch = min(self._since_batch + 1, INTERACTIVE_A_BATCH) if interactive else 0
        while len(self._sessions) > KNOWN_TENANTS:
            del self._sessions[next(iter(self._sessions))]
        return in_order
