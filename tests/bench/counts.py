"""What single turns say to Postgres and Redis, each part of the system counted on a wire of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from uuid import UUID

from brainhands.shared.client import Client
from tests.bench.messages import Messages
from tests.bench.turns import AGENT, finish_turn
from tests.bench.wire import Counts, Tap

CLIENT, BRAIN, HANDS, RELAY = "client", "brain", "hands", "relay"
PARTS = (CLIENT, BRAIN, HANDS, RELAY)

QUIET_SECONDS = 0.05
"""A turn is over when its parts have said nothing for so long; the relay looks for work all the time."""


@dataclass(frozen=True, kw_only=True)
class TurnCounts:
    """One turn. `submitting` and `observing` are the caller's halves: until the receipt, and until the answer."""

    submitting: Counts
    observing: Counts
    brain: Counts
    hands: Counts
    relay: Counts
    messages: int
    seconds: float

    @property
    def total(self) -> Counts:
        """Everything but the relay, whose batches serve many turns at once."""
        return self.submitting + self.observing + self.brain + self.hands


def count_turn(
    client: Client, taps: dict[str, Tap], messages: Messages, text: str, session: UUID | None = None
) -> TurnCounts:
    """Make one turn, alone, through the taps."""
    before, sent_before = _counts(taps), messages.so_far()
    started = time.perf_counter()
    receipt = client.submit(agent=AGENT, input=f"echo {text}", session=session)
    submitted = taps[CLIENT].counts
    finish_turn(client, receipt, text)
    seconds = time.perf_counter() - started
    after = _quiet(taps)
    return TurnCounts(
        submitting=submitted - before[CLIENT],
        observing=after[CLIENT] - submitted,
        brain=after[BRAIN] - before[BRAIN],
        hands=after[HANDS] - before[HANDS],
        relay=after[RELAY] - before[RELAY],
        messages=messages.so_far() - sent_before,
        seconds=seconds,
    )


def typical(turns: Sequence[TurnCounts]) -> TurnCounts:
    """The turn in the middle by statements, so that a lease's renewal in one of them does not count."""
    middle = median_low(sorted(turn.total.statements for turn in turns))
    return next(turn for turn in turns if turn.total.statements == middle)


def _counts(taps: dict[str, Tap]) -> dict[str, Counts]:
    return {part: tap.counts for part, tap in taps.items()}


def _quiet(taps: dict[str, Tap]) -> dict[str, Counts]:
    """The counts once no part but the relay has added to them for a while."""
    counts = _counts(taps)
    while True:
        time.sleep(QUIET_SECONDS)
        now = _counts(taps)
        if all(now[part] == counts[part] for part in PARTS if part != RELAY):
            return counts
        counts = now
