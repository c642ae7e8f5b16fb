"""The figures: medians of the runs, ratios to the floor, and what is to be reached; as a value and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.counts import TurnCounts
from tests.bench.floor import FloorResult
from tests.bench.imports import Import
from tests.bench.turns import HandOff, Turns
from tests.bench.wire import Counts


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: floor and product at each number in flight."""

    floor: Mapping[int, FloorResult]
    turns: Mapping[int, Turns]
    hand_off: HandOff


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured."""

    settings: dict[str, Any]
    runs: Sequence[Run]
    lone_turn: TurnCounts
    bytes_a_turn: int
    earlier_turns: int
    long_turn: TurnCounts
    imports: Mapping[str, Import]


Report = dict[str, Any]


def report(measured: Measured) -> Report:
    """What is written to the file; times in milliseconds, numbers in flight as text."""
    runs, lone = measured.runs, measured.lone_turn
    floor = {str(n): _medians([run.floor[n] for run in runs]) for n in runs[0].floor}
    turns = {str(n): _medians([run.turns[n] for run in runs]) for n in runs[0].turns}
    fresh, long = _session_cost(lone), _session_cost(measured.long_turn)
    return {
        "settings": measured.settings,
        "runs": len(runs),
        "floor": floor,
        "turns": turns,
        "handoff": {
            name: round(median(getattr(run.hand_off, name) for run in runs), 3)
            for name in ("commit_to_tool_ms", "result_to_request_ms")
        },
        "per_turn": {
            "commits": lone.total.commits,
            "round_trips": lone.total.round_trips,
            "messages": lone.messages,
            "bytes": measured.bytes_a_turn,
            "statements": lone.total.statements,
            "parts": {name: asdict(counts) for name, counts in _parts(lone)},
        },
        "long_session": {"earlier_turns": measured.earlier_turns, "fresh": fresh, "long": long},
        "imports": {name: asdict(cost) for name, cost in measured.imports.items()},
        "ratios": {
            "p50": {n: round(turns[n]["p50_ms"] / floor[n]["p50_ms"], 2) for n in turns},
            "turns_per_s": {n: round(turns[n]["turns_per_s"] / floor[n]["turns_per_s"], 3) for n in turns},
            "long_session": {name: round(long[name] / fresh[name], 2) for name in ("round_trips", "statements")},
        },
    }


def _medians(results: Sequence[FloorResult | Turns]) -> dict[str, float]:
    return {
        name: round(median(getattr(result, name) for result in results), 3)
        for name in ("p50_ms", "p95_ms", "turns_per_s")
    }


def _session_cost(turn: TurnCounts) -> dict[str, Any]:
    return {
        "round_trips": turn.total.round_trips,
        "statements": turn.total.statements,
        "turn_ms": round(turn.seconds * 1000, 3),
    }


def _parts(turn: TurnCounts) -> list[tuple[str, Counts]]:
    return [
        ("submitting", turn.submitting),
        ("brain", turn.brain),
        ("hands", turn.hands),
        ("observing", turn.observing),
        ("relay", turn.relay),
    ]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure to be reached."""

    name: str
    limit: float
    value: Callable[[Report], float]
    at_least: bool = False

    def reached(self, report: Report) -> bool:
        value = self.value(report)
        return value >= self.limit if self.at_least else value <= self.limit


TARGETS = (
    Target(name="commits a turn", limit=7, value=lambda report: report["per_turn"]["commits"]),
    Target(name="SQL round trips a turn", limit=40, value=lambda report: report["per_turn"]["round_trips"]),
    Target(name="messages a turn", limit=3, value=lambda report: report["per_turn"]["messages"]),
    Target(name="p50 of a lone turn, times the floor", limit=5, value=lambda report: report["ratios"]["p50"]["1"]),
    Target(
        name="turns a second at 16 in flight, part of the floor's",
        limit=0.25,
        value=lambda report: report["ratios"]["turns_per_s"]["16"],
        at_least=True,
    ),
    Target(
        name="SQL of a turn in the long session, times a fresh one",
        limit=1.5,
        value=lambda report: max(report["ratios"]["long_session"].values()),
    ),
    Target(name="seconds to import the client", limit=0.333, value=lambda report: report["imports"]["client"]["cpu_s"]),
    Target(name="seconds of `brainhands --help`", limit=0.333, value=lambda report: report["imports"]["help"]["cpu_s"]),
)


def show(report: Report, console: Console) -> None:
    """Print the figures, and how they stand to what is to be reached."""
    console.print(_speed_table(report))
    console.print(_counts_table(report))
    console.print(_targets_table(report))
    hand_off, settings = report["handoff"], report["settings"]
    console.print(
        f"hand-off: commit to tool {hand_off['commit_to_tool_ms']} ms, "
        f"result to next model request {hand_off['result_to_request_ms']} ms"
    )
    for name in ("postgres", "redis"):
        console.print(f"{name}: {', '.join(f'{key} {value!r}' for key, value in settings[name].items())}")
    console.print(f"brain: {settings['brain']}; hands: {settings['hands']}; {settings['cores']} cores")


def _speed_table(report: Report) -> Table:
    table = Table(title=f"Turns, medians of {report['runs']} runs")
    for column in ("in flight", "p50 ms", "p95 ms", "turns/s", "floor p50 ms", "floor turns/s", "p50 ×", "turns/s ×"):
        table.add_column(column, justify="right")
    for n, turns in report["turns"].items():
        floor = report["floor"][n]
        table.add_row(
            n,
            f"{turns['p50_ms']:.1f}",
            f"{turns['p95_ms']:.1f}",
            f"{turns['turns_per_s']:.1f}",
            f"{floor['p50_ms']:.1f}",
            f"{floor['turns_per_s']:.1f}",
            f"{report['ratios']['p50'][n]:.2f}",
            f"{report['ratios']['turns_per_s'][n]:.3f}",
        )
    return table


def _counts_table(report: Report) -> Table:
    per_turn = report["per_turn"]
    title = f"One turn: {per_turn['messages']} messages, {per_turn['bytes']:,} bytes stored"
    table = Table(title=title, caption="the relay serves many turns at once and is counted apart")
    for column in ("part", "round trips", "statements", "commits"):
        table.add_column(column, justify="left" if column == "part" else "right")
    long_session = report["long_session"]
    rows = [*per_turn["parts"].items(), ("all but the relay", per_turn)]
    for name, counts in rows:
        table.add_row(name, *(str(counts[column]) for column in ("round_trips", "statements", "commits")))
    long_turn = long_session["long"]
    name = f"after {long_session['earlier_turns']:,} earlier turns"
    table.add_row(name, str(long_turn["round_trips"]), str(long_turn["statements"]), "")
    return table


def _targets_table(report: Report) -> Table:
    table = Table(title="To reach")
    for column in ("figure", "value", "to reach", ""):
        table.add_column(column, justify="left" if column in ("figure", "") else "right")
    for target in TARGETS:
        sign = "≥" if target.at_least else "≤"
        reached = "[green]reached[/green]" if target.reached(report) else "[red]missed[/red]"
        table.add_row(target.name, f"{target.value(report):g}", f"{sign} {target.limit:g}", reached)
    return table
