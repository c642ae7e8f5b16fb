"""What a turn costs does not grow with the session: statements and rows are counted at the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from brainhands.brain.agent import Agent
from brainhands.brain.generation import generation_kind, intake_kind
from brainhands.shared.engine.worker import Worker
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.settings import settings
from deploy.demo import model_server
from tests.sample.agents import echo
from tests.store.desk import echo_hands, worker_of
from tests.store.filled import lengthen
from tests.store.stage import Stage

TURNS = 2000


@pytest.mark.slow
@pytest.mark.promise("I10", "B8")
def test_a_turn_after_two_thousand_others_costs_what_the_second_one_cost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_server.start() as model:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        settings.cache_clear()
        fleet = [_brain(stage, echo), echo_hands(stage)]
        first = stage.client.submit(agent="echo", input="echo one")
        _play(stage, fleet)
        lengthen(stage.database_url, first.session_id, TURNS)
        fresh = stage.client.submit(agent="echo", input="echo one")
        _play(stage, fleet)

        with _counted(monkeypatch) as of_the_fresh:
            _turn(stage, fleet, fresh.session_id)
        with _counted(monkeypatch) as of_the_long:
            _turn(stage, fleet, first.session_id)

    assert of_the_fresh["statements"] > 10
    assert of_the_long["contexts"] == of_the_fresh["contexts"]
    for what in ("statements", "rows"):
        # Something that is read again after a while, such as the catalogue, may fall to one of them and not the other.
        assert of_the_long[what] <= 1.5 * of_the_fresh[what], (of_the_long, of_the_fresh)


def _turn(stage: Stage, fleet: list[Worker], session_id: SessionId) -> None:
    receipt = stage.client.submit(agent="echo", input="echo good morning", session=session_id)
    _play(stage, fleet)
    assert stage.client.submission(receipt.submission_id).output == "good morning"


def _play(stage: Stage, fleet: list[Worker]) -> None:
    """Hand every hint to who can take it until none is left."""
    while rows := stage.sql("SELECT task_id, session_id, requires_name FROM brainhands.outbox"):
        for row in rows:
            for worker in fleet:
                if any(offer.name == row["requires_name"] for offer in worker.info.offers):
                    worker.advance([(row["task_id"], row["session_id"])])


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many statements are sent and how many rows come back, those of the model's context apart."""
    count: Counter[str] = Counter()
    execute, fetchall = psycopg.Cursor.execute, psycopg.Cursor.fetchall

    def counted_execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        count["contexts" if "ORDER BY brainhands.events.seq" in text else "statements"] += 1
        return execute(self, query, *arguments, **options)

    def counted_fetchall(self: Any) -> Any:
        rows = fetchall(self)
        if not (rows and isinstance(rows[0], dict) and "seq" in rows[0]):
            count["rows"] += len(rows)
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", counted_execute)
        patch.setattr(psycopg.Cursor, "fetchall", counted_fetchall)
        yield count


def _brain(stage: Stage, agent: Agent) -> Worker:
    kinds = (generation_kind({(agent.name, agent.version): agent}), intake_kind())
    return worker_of(stage, "brain", kinds, Offer(name=f"agent:{agent.name}", low=1, high=1))
