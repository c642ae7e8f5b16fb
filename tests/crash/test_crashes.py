"""The five mails arrive, each once, whichever commit or publish of whichever process is the last thing it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import redis

from deploy.demo.mailbox import Switches
from shared.runtime.servers import Postgres, Redis
from tests.conftest import migrated, new_database
from tests.crash.plugin import How, Plan, When
from tests.crash.stage import Play, Stage, stage_of

SEED = 20
IN_CI = {"client": 1, "relay": 3, "brain": 3, "hands": 4}
"""Strikes of each role where not all are asked for."""

LATE = Play(
    switches=Switches(accept_delay=3.0, dedup=False),
    slots=5,
    lease_seconds=1.5,
    settings=(("MAILBOX_DEDUPES", "0"), ("MAILBOX_TIMEOUT_SECONDS", "6"), ("MAILBOX_SETTLE_SECONDS", "3.5")),
)
"""A mailbox that accepts three seconds after it was asked, and accepts an operation id as often as it is asked.

So a mail whose sender died is not there yet when its lease has ended, and the look-up must not believe that.
"""

BETWEEN_INTENT_AND_RESULT: dict[str, When] = {
    "commit tool_call_start send_email": "after",
    "reply to a mail": "before",
    "commit tool_call_success send_email": "before",
}
"""The moments of a mail: its intent is stored, its request is sent, its reply is known."""

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]

Stages = Callable[[Play], Stage]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Stages]:
    """Gives the stage of a play; it is set up anew for another play, and after a run that ended badly."""
    with ExitStack() as running:
        present: dict[Play, Stage] = {}

        def stage(play: Play) -> Stage:
            if play not in present or not present[play].fit:
                running.close()
                present.clear()
                redis_server.start()
                with redis.Redis.from_url(redis_server.url) as client:
                    client.flushall()
                url = running.enter_context(new_database(postgres, template=migrated(postgres)))
                folder = tmp_path_factory.mktemp("stage")
                present[play] = running.enter_context(
                    stage_of(folder, play, database_url=url, redis_url=redis_server.url)
                )
            return present[play]

        yield stage


@pytest.fixture
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether every point is struck, and not a seeded part of them."""
    return bool(request.config.getoption("--full-crash-matrix"))


@pytest.mark.promise("A2", "C4", "G4", "H6")
def test_five_mails_arrive_whichever_commit_or_publish_is_the_last_of_its_process(
    stages: Stages, everything: bool, subtests: pytest.Subtests
) -> None:
    points = stages(Play()).rehearse()

    for role, number in IN_CI.items():
        ways: tuple[How, ...] = ("process", "worker") if role == "hands" else ("process",)
        plans = [
            Plan(point=point, when=when, how=how)
            for point in points
            if point.role == role
            for when in ("before", "after")
            for how in ways
        ]
        assert plans
        strike_each(stages, Play(), plans if everything else part_of(plans, number), subtests)


@pytest.mark.promise("D3", "F5", "G4")
@pytest.mark.hazard(1)
def test_a_late_mailbox_that_accepts_twice_gets_each_mail_once_whatever_ends_between_intent_and_result(
    stages: Stages, everything: bool, subtests: pytest.Subtests
) -> None:
    points = [point for point in stages(LATE).rehearse() if point.role == "hands"]
    ways: tuple[How, ...] = ("process", "stop")

    for place, (name, when) in enumerate(BETWEEN_INTENT_AND_RESULT.items()):
        between = [point for point in points if point.name == name]
        assert len(between) == 5
        for how in ways if everything else ways[place % 2 :][:1]:
            plans = [Plan(point=point, when=when, how=how) for point in between]
            strike_each(stages, LATE, plans if everything else part_of(plans, 1), subtests)


def strike_each(stages: Stages, play: Play, plans: Sequence[Plan], subtests: pytest.Subtests) -> None:
    for plan in plans:
        with subtests.test(str(plan)):
            stages(play).strike(plan)


def part_of(plans: Sequence[Plan], number: int) -> list[Plan]:
    """A part that is the same in every run, in the order of the whole."""
    chosen = random.Random(SEED).sample(range(len(plans)), min(number, len(plans)))
    return [plans[place] for place in sorted(chosen)]
