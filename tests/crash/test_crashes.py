"""Every scenario ends as it should, whichever commit or publish of whichever process is the last that it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from brainhands.shared.local.servers import Postgres, Redis
from tests.conftest import migrated, new_database
from tests.crash.plugin import Plan
from tests.crash.scenario import House, Scenario
from tests.crash.scenarios import SCENARIOS
from tests.crash.stage import Stage, stage_of

SEED = 20
REHEARSALS = 2
UNREACHED_SHARE = 0.2
"""How many points may not be reached again: which hints share a message is up to chance."""

Stages = Callable[[House], Stage]

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Stages]:
    """Gives the stage of a house; it is set up anew for another house, and after a run that ended badly."""
    with ExitStack() as running:
        present: dict[House, Stage] = {}

        def stage(house: House) -> Stage:
            if house not in present or not present[house].fit:
                running.close()
                present.clear()
                redis_server.start()
                with redis.Redis.from_url(redis_server.url) as client:
                    client.flushall()
                url = running.enter_context(new_database(postgres, template=migrated(postgres)))
                folder = tmp_path_factory.mktemp("stage")
                present[house] = running.enter_context(
                    stage_of(folder, house, database_url=url, redis_url=redis_server.url)
                )
            return present[house]

        yield stage


@pytest.fixture
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether every point is struck, and not a seeded part of them."""
    return bool(request.config.getoption("--full-crash-matrix"))


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            scenario,
            id=str(scenario),
            marks=[pytest.mark.promise(*scenario.promises), *(pytest.mark.hazard(each) for each in scenario.hazards)],
        )
        for scenario in SCENARIOS
    ],
)
def test_a_scenario_ends_as_it_should_whichever_commit_or_publish_is_the_last_of_its_process(
    scenario: Scenario, stages: Stages, everything: bool, subtests: pytest.Subtests
) -> None:
    if everything:
        stages(scenario.house).rehearse(scenario, 1)  # the first run of a stage does what later ones need not
    points = stages(scenario.house).rehearse(scenario, REHEARSALS if everything else 1)
    plans = scenario.plans(points)
    assert plans
    chosen = plans if everything else part_of(plans, scenario)

    unreached = []
    for plan in chosen:
        with subtests.test(str(plan)):
            if not stages(scenario.house).strike(scenario, plan):
                unreached.append(str(plan))

    assert len(unreached) <= max(1, UNREACHED_SHARE * len(chosen)), unreached


def part_of(plans: list[Plan], scenario: Scenario) -> list[Plan]:
    """A part that is the same in every run, in the order of the whole."""
    chosen = random.Random(f"{SEED} {scenario}").sample(range(len(plans)), min(scenario.part, len(plans)))
    return [plans[place] for place in sorted(chosen)]
