"""Many sessions under way at once, and what must be true of them when they have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

import psycopg

from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.proxy import Proxy


def start_runs(fleet: Fleet, count: int, *, seconds: float = 0.1, name: str = "run") -> dict[str, Receipt]:
    """Submit so many sessions, each with three effects in two rounds; their receipts by name."""
    return {
        run: fleet.script(
            {
                "calls": [
                    {"name": "note", "arguments": {"text": run}},
                    {"name": "send_reconcile", "arguments": {"to": run, "seconds": seconds}},
                ]
            },
            {"calls": [{"name": "send_safe", "arguments": {"to": run, "seconds": seconds}}]},
            {"text": f"{run} is done"},
            request_id=run,
        )
        for run in (f"{name}-{number}" for number in range(count))
    }


def finish(fleet: Fleet, runs: dict[str, Receipt], timeout: float = 60.0) -> None:
    """Wait for all of them; each succeeds with its own answer, and nothing in the store is amiss or left over."""
    for run, receipt in runs.items():
        done = fleet.wait(receipt, timeout)
        assert (done.outcome, done.output) == (Outcome.SUCCEEDED, f"{run} is done")
    invariants.check(fleet.database_url, at_rest=True)


def count(fleet: Fleet, statement: str) -> int:
    """The one number that a statement gives; 0 for none."""
    with psycopg.connect(fleet.database_url) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0] or 0)


def results(fleet: Fleet) -> int:
    """How many results of tool calls are stored."""
    return count(fleet, "SELECT count(*) FROM brainhands.events WHERE type = 'tool_call_success'")


def wait_for_results(fleet: Fleet, number: int, timeout: float = 60.0) -> None:
    wait_until(lambda: results(fleet) >= number, timeout, f"{number} results")


def doubled(lines: Iterable[str]) -> list[str]:
    """Effects that happened more than once."""
    return sorted(line for line, count in Counter(lines).items() if count > 1)


def missing(lines: Iterable[str], runs: dict[str, Receipt], *tools: str) -> list[str]:
    """Runs in which one of these tools has no effect, as `tool run`."""
    present = {" ".join(line.split()[:2]) for line in lines}
    return [each for run in runs for tool in tools if (each := f"{tool} {run}") not in present]


def through(proxy: Proxy, url: str) -> str:
    """The address of a server, by way of a proxy."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{proxy.port}").geturl()
