"""Measures what a turn costs, prints it and writes it down: `python -m tests.bench [--quick] [--output FILE]`.

A turn is submit, generation (one tool call), the tool, generation (the answer). Times are taken with nothing between
the parts; counts are taken afterwards, from turns made one by one through proxies that read along.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from brainhands.shared.client import Client
from brainhands.shared.store.database import Database
from tests.bench import floor, imports, messages, turns
from tests.bench.counts import CLIENT, PARTS, TurnCounts, count_turn, typical
from tests.bench.history import long_session
from tests.bench.report import Measured, Run, report, show
from tests.bench.system import System, system
from tests.bench.wire import taps
from tests.instruments import invariants


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    runs: int
    turns: Mapping[int, int]
    """Turns of a run, for each number in flight."""
    first_turns: int
    """Turns before anything is measured, at 16 in flight, so that new workers have their connections and plans."""
    warm_up: int
    """Turns of each caller before the clock starts."""
    counted: int
    """Turns that are counted one by one."""
    earlier_turns: int


FULL = Plan(runs=3, turns={1: 100, 16: 480, 64: 640}, first_turns=320, warm_up=3, counted=20, earlier_turns=2000)
QUICK = Plan(runs=1, turns={1: 6, 16: 16, 64: 64}, first_turns=16, warm_up=0, counted=4, earlier_turns=100)


def measure(plan: Plan, console: Console) -> Measured:
    with system() as under_test:
        runs, bytes_a_turn = _timed(under_test, plan, console)
        lone_turn, long_turn = _counted(under_test, plan, console)
        return Measured(
            settings=under_test.settings(),
            runs=runs,
            lone_turn=lone_turn,
            bytes_a_turn=bytes_a_turn,
            earlier_turns=plan.earlier_turns,
            long_turn=long_turn,
            imports=imports.measured(),
        )


def _timed(under_test: System, plan: Plan, console: Console) -> tuple[list[Run], int]:
    """The runs, floor and product by turns; and the bytes that a turn leaves."""
    with under_test.fleet():
        turns.run(under_test.database_url, under_test.redis_url, 16, plan.first_turns, warm_up=0)
        before = under_test.stored_bytes()
        runs = [_run(under_test, plan, console, number) for number in range(1, plan.runs + 1)]
        stored = under_test.stored_bytes() - before
    invariants.check(under_test.database_url, at_rest=True)
    made = plan.runs * sum(count + plan.warm_up * in_flight for in_flight, count in plan.turns.items())
    return runs, round(stored / made)


def _run(under_test: System, plan: Plan, console: Console, number: int) -> Run:
    addresses = under_test.database_url, under_test.redis_url
    floors, products = {}, {}
    for in_flight, count in plan.turns.items():
        floors[in_flight] = floor.run(*addresses, in_flight, count, plan.warm_up)
        turns.forget_arrivals(under_test.model_url)
        products[in_flight] = turns.run(*addresses, in_flight, count, plan.warm_up)
        if in_flight == 1:
            arrivals = turns.arrivals(under_test.model_url)[2 * plan.warm_up :]
        told = f"{products[in_flight].turns_per_s} turns/s, floor {floors[in_flight].turns_per_s}"
        console.print(f"run {number}, {in_flight} in flight: {told}")
    with closing(Client(*addresses)) as client:
        hand_off = turns.hand_offs(client, products[1].sessions, arrivals)
    return Run(floor=floors, turns=products, hand_off=hand_off)


def _counted(under_test: System, plan: Plan, console: Console) -> tuple[TurnCounts, TurnCounts]:
    """A typical turn in a fresh session, and one in a long session."""
    with (
        taps(under_test.database_url, *PARTS) as tapped,
        under_test.fleet({part: tap.url for part, tap in tapped.items()}),
        messages.counting(under_test.redis_url) as sent,
        closing(Client(tapped[CLIENT].url, under_test.redis_url)) as client,
        closing(Database(under_test.database_url)) as database,
    ):
        turns.run(under_test.database_url, under_test.redis_url, 16, plan.first_turns, warm_up=0)
        fresh = [count_turn(client, tapped, sent, f"fresh {number}") for number in range(plan.counted)]
        console.print(f"counted {plan.counted} turns in fresh sessions")
        session = long_session(client, database, plan.earlier_turns)
        long = [count_turn(client, tapped, sent, f"long {number}", session) for number in range(plan.counted)]
        console.print(f"counted {plan.counted} turns after {plan.earlier_turns:,} earlier ones")
    # Connections are new and statements unprepared in the first half.
    return typical(fresh[plan.counted // 2 :]), typical(long[plan.counted // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure what a turn costs.")
    parser.add_argument("--quick", action="store_true", help="one short run, to see that everything is measured")
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    console = Console(soft_wrap=True)
    figures = report(measure(QUICK if arguments.quick else FULL, console))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures, console)
    console.print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
