"""The soak itself, very short: what runs for minutes by `make soak` must not rot."""

from __future__ import annotations

from pathlib import Path

import pytest

from brainhands.shared.local.servers import Postgres, Redis
from tests.soak.soak import plan, soak


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("redis_url")
@pytest.mark.promise("A6", "C4", "D5", "H3", "H4", "H5", "H6")
@pytest.mark.case("celery/celery#4843")
def test_a_short_soak_finds_nothing_lost_doubled_or_stuck(
    tmp_path: Path, database_url: str, postgres: Postgres, redis_server: Redis
) -> None:
    planned = plan(seed=7, seconds=12)
    said: list[str] = []

    found = soak(
        planned, tmp_path, database_url=database_url, postgres=postgres, redis_server=redis_server, say=said.append
    )

    assert not found, "\n".join((*found, *said))


def test_an_equal_seed_makes_an_equal_plan() -> None:
    assert plan(3, 60) == plan(3, 60) != plan(4, 60)
