"""A pytest plugin that says which promises of promises.md are kept: by the tests that carry their numbers.

A promise is kept (`true`) when at least one of its tests ran and all that ran passed in every phase, broken (`false`)
when one did not, and open (`null`) when none ran. With xdist the workers send the numbers along with their reports, and
the process that prints counts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

PROMISES = Path(__file__).with_name("promises.md")
PROMISE_LINE = re.compile(r"^- ([A-Z]\d+) (.+)$", re.MULTILINE)
PROPERTY = "promise"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--promises-json", metavar="PATH", help="write which promises are kept, and print the table")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--promises-json")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(Path(path)), "promises-ledger")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a test that carries a number which is no promise."""
    known = promises()
    for item in items:
        unknown = [number for number in _numbers(item) if number not in known]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: no promise {', '.join(unknown)} in {PROMISES.name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.extend((PROPERTY, number) for number in _numbers(item))
    return report


class Writer:
    """Collects the outcome of every phase of every test that carries a promise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, dict[str, bool | None]] = {number: {} for number in promises()}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for number in dict.fromkeys(str(value) for key, value in report.user_properties if key == PROPERTY):
            tests = self._kept[number]
            tests[report.nodeid] = _and(tests.get(report.nodeid), _phase_passed(report))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        found = {number: {"tests": sorted(tests), "passed": _all(tests)} for number, tests in self._kept.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(found, indent=2) + "\n")
        terminalreporter.section("promises")
        words = {True: "kept", False: "BROKEN", None: "-"}
        for number, text in promises().items():
            passed = words[_all(self._kept[number])]
            terminalreporter.write_line(f"{number:<4} {len(self._kept[number]):>3} tests  {passed:<7} {text}"[:120])


def promises() -> dict[str, str]:
    """The promises, number to text, in the order of the list."""
    return dict(PROMISE_LINE.findall(PROMISES.read_text()))


def _numbers(item: pytest.Item) -> list[str]:
    return [str(number) for mark in item.iter_markers("promise") for number in mark.args]


def _phase_passed(report: pytest.TestReport) -> bool | None:
    """None for a phase that says nothing: a set-up or a tear-down without a fault, or a skip."""
    if report.failed or hasattr(report, "wasxfail"):
        return False
    return True if report.passed and report.when == "call" else None


def _and(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else other if one is None else one


def _all(tests: dict[str, bool | None]) -> bool | None:
    ran = [passed for passed in tests.values() if passed is not None]
    return all(ran) if ran else None
