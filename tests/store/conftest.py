"""The stage of a test: an own database, a live worker and a sweep, all in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brainhands.shared.local.servers import Postgres
from tests.conftest import migrated, new_database
from tests.store.stage import Stage, stage_of


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with stage_of(database_url) as made:
        yield made


@pytest.fixture(scope="module")
def shared_stage(postgres: Postgres) -> Iterator[Stage]:
    """One stage for the tests of a module that each make a session of their own."""
    with new_database(postgres, template=migrated(postgres)) as url, stage_of(url) as made:
        yield made
