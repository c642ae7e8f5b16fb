"""`python -m tests.soak.faulty_relay`: a relay whose messages are sometimes lost and sometimes doubled.

SOAK_SEED makes the choice repeatable for one process, SOAK_CALM names a file that ends it once it is there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from brainhands.outbox import app
from brainhands.outbox.publisher import Publisher

SEED, CALM = "SOAK_SEED", "SOAK_CALM"
LOST = 0.1
DOUBLED = 0.1


def faulty(publish: Callable[..., None], chance: random.Random, calm: Path) -> Callable[..., None]:
    """Publishing that loses some messages and doubles others."""

    @wraps(publish)
    def publish_or_not(*arguments: Any) -> None:
        drawn = 1.0 if calm.exists() else chance.random()
        if drawn < LOST:
            return
        publish(*arguments)
        if drawn < LOST + DOUBLED:
            publish(*arguments)

    return publish_or_not


if __name__ == "__main__":
    chance = random.Random(f"{os.environ[SEED]} {os.getpid()}")
    Publisher.publish = faulty(Publisher.publish, chance, Path(os.environ[CALM]))  # type: ignore[method-assign]
    app.main()
