"""Fair turns with real relays, queues and workers: what is counted is who was served before whom, never how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from brainhands.outbox.relay import WINDOW_A_SLOT
from brainhands.shared.client import Client
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.submission import Receipt
from brainhands.shared.runtime.settings import libpq_url
from tests.bench.messages import counting
from tests.instruments import invariants
from tests.instruments.fleet import Fleet
from tests.instruments.runs import count
from tests.instruments.sessions import fleet_for_many, query, served_before

FLOOD = 150


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """Two relays, and a fleet in which everybody has to wait: one Brain slot and one Hands slot."""
    with fleet_for_many(tmp_path_factory.mktemp("narrow"), postgres, redis_server) as fleet:
        fleet.brain(slots=1), fleet.hands(slots=1), fleet.relay(), fleet.relay()
        fleet.wait_for_workers(brain=1, hands=1, relay=2)
        yield fleet
        invariants.check(fleet.database_url, at_rest=True)


def flood(fleet: Fleet, number: int, **options: Any) -> list[Receipt]:
    """So many submissions at one moment, each in a session of its own."""
    with psycopg.connect(libpq_url(fleet.database_url)) as connection:
        return [fleet.submit(f"flood {each}", connection=connection, **options) for each in range(number)]


@pytest.mark.slow
@pytest.mark.promise("H10")
@pytest.mark.hazard(15)
def test_a_flood_of_one_tenant_lets_the_single_request_of_another_one_through(narrow: Fleet) -> None:
    other = Client(narrow.database_url, narrow.redis_url, tenant="other")
    flooded = flood(narrow, FLOOD)
    narrow.wait(flooded[3])

    single = other.submit(agent="worker", input="only this")
    assert other.wait(single.submission_id, timeout=60).output == "You said: only this"
    waiting = count(narrow, "SELECT count(*) FROM brainhands.outbox")
    other.close()

    # What lay in the queue before it, and what two relays may have chosen at the same moment.
    assert served_before(narrow, "generation", single.session_id) <= 2 * WINDOW_A_SLOT + 2
    assert waiting > FLOOD // 4, "the flood was over before"
    for receipt in flooded:
        assert narrow.wait(receipt, timeout=90).output is not None


@pytest.mark.slow
@pytest.mark.promise("H10")
@pytest.mark.hazard(15, 38)
def test_a_flood_of_one_session_lets_the_single_call_of_another_one_through(narrow: Fleet) -> None:
    batch = {"calls": [{"name": "batch", "arguments": {"texts": [f"flood {each}" for each in range(FLOOD)]}}]}
    flooded = narrow.script(batch, {"text": "done"})
    narrow.wait_for_effect("note flood 5")

    single = narrow.script({"calls": [{"name": "echo", "arguments": {"text": "me"}}]}, {"text": "done"})
    assert narrow.wait(single).output == "done"
    waiting = count(narrow, f"SELECT count(*) FROM brainhands.outbox WHERE session_id = '{flooded.session_id}'")

    assert served_before(narrow, "tool:echo", single.session_id) <= 2 * WINDOW_A_SLOT + 2
    assert waiting > FLOOD // 4, "the flood was over before"
    assert narrow.wait(flooded, timeout=90).output == "done"


@pytest.mark.slow
@pytest.mark.promise("H10")
def test_of_batch_and_interactive_work_that_waits_one_in_four_served_is_batch(narrow: Fleet) -> None:
    with psycopg.connect(libpq_url(narrow.database_url)) as connection:
        receipts = [
            narrow.submit(f"{priority} {each}", priority=priority, connection=connection)
            for priority in ("batch", "interactive")
            for each in range(40)
        ]
    for receipt in receipts:
        assert narrow.wait(receipt, timeout=90).output is not None

    served = query(
        narrow,
        "SELECT t.priority FROM brainhands.tasks t JOIN brainhands.attempts a ON a.task_id = t.id"
        " WHERE t.submission_id = ANY (%s) ORDER BY a.started_at",
        [receipt.submission_id for receipt in receipts],
    )
    while_both_waited = [row["priority"] for row in served[:40]]
    # Each of the two relays takes turns by itself.
    assert 8 <= sum(while_both_waited) <= 12
    assert len(served) == 80


@pytest.mark.slow
@pytest.mark.promise("H10", "H3")
@pytest.mark.hazard(15)
def test_hints_that_lie_in_the_queue_for_long_are_not_sent_again(narrow: Fleet) -> None:
    number = WINDOW_A_SLOT + 2
    with counting(narrow.redis_url) as messages:
        receipts = [narrow.script({"text": "slow", "delay": 1.5}) for _ in range(number)]
        for receipt in receipts:
            assert narrow.wait(receipt, timeout=60).output == "slow"

        # One more is for a claim that a busy machine has not come to within seconds.
        assert messages.so_far() <= number + 1
