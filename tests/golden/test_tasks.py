"""Sessions that were stored in the middle of each phase go on with the present code, to their right end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.brain.subagent import agent_kind
from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import flow_kind
from brainhands.shared.engine.definition import Kind
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.task import Outcome
from brainhands.shared.runtime.settings import settings
from deploy.demo import model_server
from tests.conftest import migrated, new_database
from tests.golden import tasks
from tests.golden.cast import GoldenSteps, golden_plain, helper
from tests.golden.tasks import Theatre, theatre_of
from tests.instruments import invariants

FILES = sorted(tasks.FOLDER.glob("*.jsonl"))
KINDS = (generation_kind({}), intake_kind(), agent_kind(helper), tool_kind(golden_plain), flow_kind(GoldenSteps))


@pytest.fixture(scope="module")
def theatre(postgres: Postgres) -> Iterator[Theatre]:
    with (
        pytest.MonkeyPatch.context() as patch,
        model_server.start() as model,
        new_database(postgres, template=migrated(postgres)) as url,
    ):
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        settings.cache_clear()
        with theatre_of(url) as made:
            yield made
    settings.cache_clear()


@pytest.mark.promise("H8")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_phase_has_a_golden_session(kind: Kind) -> None:
    role = kind.name.partition(":")[0]
    there = {moment.phase for moment in tasks.MOMENTS.values() if moment.kind.partition(":")[0] == role}

    assert set(kind.phases) - there == set(), "add a moment in tests/golden/tasks.py and run `python -m tests.golden`"
    assert {file.stem for file in FILES} >= set(tasks.MOMENTS), "run `python -m tests.golden`, and commit its files"


@pytest.mark.promise("H8", "C2", "C3")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_session_that_was_stored_in_the_middle_goes_on(theatre: Theatre, file: Path) -> None:
    session_id, submission_id = tasks.load(theatre.stage, file)
    before = [json.loads(line)["row"] for line in file.read_text().splitlines() if '"table": "events"' in line]

    done = theatre.finish(session_id, submission_id)

    assert (done.outcome, done.output) == (Outcome.SUCCEEDED, "golden")
    invariants.check(theatre.stage.database_url, at_rest=True)
    assert theatre.stage.client.verify(session_id) is None
    assert [event.hash.hex() for event in theatre.stage.client.events(session_id)][: len(before)] == [
        row["hash"].removeprefix("\\x") for row in before
    ]
