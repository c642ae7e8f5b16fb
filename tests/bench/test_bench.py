"""The measure itself: it counts what was said, and writes down all that it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import redis

from brainhands.shared.bus.topics import BRAIN_QUEUE, HANDS_QUEUE, RELAY_BELL
from tests.bench.messages import counting
from tests.bench.wire import Counts, taps
from tests.instruments.processes import child_environment

INSERT = "INSERT INTO counted VALUES (1)"
INSERT_WITHIN = "WITH written AS (INSERT INTO counted VALUES (2) RETURNING 1) SELECT count(*) FROM written"


def counted(database_url: str, *pipelines: list[str]) -> Counts:
    """What a tap counts while each list of statements is sent as one pipeline, some of which may fail."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE counted (number int)")
    with taps(database_url, "only") as tapped, psycopg.connect(tapped["only"].url, autocommit=True) as connection:
        before = tapped["only"].counts
        for statements in pipelines:
            with suppress(psycopg.Error), connection.pipeline():
                for statement in statements:
                    connection.execute(statement.encode())
        return tapped["only"].counts - before


@pytest.mark.parametrize(
    ("pipelines", "expected"),
    [
        ([["BEGIN", INSERT, INSERT, "COMMIT"]], Counts(round_trips=1, statements=4, commits=1)),
        ([["BEGIN", INSERT], ["COMMIT"]], Counts(round_trips=2, statements=3, commits=1)),
        ([[INSERT], [INSERT_WITHIN]], Counts(round_trips=2, statements=2, commits=2)),
        ([["BEGIN", "SELECT number FROM counted FOR UPDATE", "COMMIT"]], Counts(round_trips=1, statements=3)),
        ([["UPDATE counted SET number = 3"], ["DELETE FROM counted"]], Counts(round_trips=2, statements=2)),
        ([["BEGIN", INSERT], ["ROLLBACK"]], Counts(round_trips=2, statements=3)),
        ([["BEGIN", INSERT, "SELECT 1 / 0", "COMMIT"], ["ROLLBACK"]], Counts(round_trips=2, statements=3)),
        ([["SELECT 1 / 0", INSERT], [INSERT]], Counts(round_trips=2, statements=1, commits=1)),
        ([["SELECT repeat('x', 1000000)"]], Counts(round_trips=1, statements=1)),
    ],
)
def test_a_tap_counts_round_trips_statements_and_commits_that_wrote(
    empty_database_url: str, pipelines: list[list[str]], expected: Counts
) -> None:
    assert counted(empty_database_url, *pipelines) == expected


def test_a_tap_counts_simple_queries_and_prepared_statements_too(empty_database_url: str) -> None:
    with taps(empty_database_url, "only") as tapped, psycopg.connect(tapped["only"].url, autocommit=True) as connection:
        connection.execute("CREATE TABLE counted (number int)")
        connection.execute("INSERT INTO counted VALUES (%s)", [1], prepare=True)
        before = tapped["only"].counts
        connection.execute("INSERT INTO counted VALUES (%s)", [2], prepare=True)
        connection.execute("BEGIN; INSERT INTO counted VALUES (3); COMMIT")

        assert tapped["only"].counts - before == Counts(round_trips=2, statements=4, commits=2)


def test_what_is_put_on_a_queue_is_a_message_and_a_bell_is_none(redis_url: str) -> None:
    with counting(redis_url) as messages, redis.Redis.from_url(redis_url) as broker:
        broker.lpush(BRAIN_QUEUE, "hint")
        broker.lpush(RELAY_BELL, 1)
        broker.lpush(HANDS_QUEUE, "hint")
        broker.brpop([HANDS_QUEUE])

        assert messages.so_far() == 2


@pytest.mark.slow
def test_a_quick_run_measures_everything_and_writes_it_down(tmp_path: Path) -> None:
    written = tmp_path / "bench.json"

    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", "--output", str(written)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(written.read_text())
    assert set(figures) == {
        *("settings", "runs", "floor", "turns", "handoff", "per_turn", "long_session", "imports", "ratios"),
    }
    assert set(figures["imports"]) == {"client", "help"}
    assert figures["runs"] == 1
    assert figures["settings"]["postgres"]["fsync"] == "on"
    for speed in ("floor", "turns"):
        assert list(figures[speed]) == ["1", "16", "64"]
        assert all({"p50_ms", "p95_ms", "turns_per_s"} == set(figures[speed][n]) for n in figures[speed])
    assert set(figures["handoff"]) == {"commit_to_tool_ms", "result_to_request_ms"}
    assert {"commits", "round_trips", "messages", "bytes"} <= set(figures["per_turn"])
    assert all(figures["per_turn"][name] > 0 for name in ("commits", "round_trips", "messages", "bytes"))
    assert set(figures["ratios"]) == {"p50", "turns_per_s", "long_session"}
