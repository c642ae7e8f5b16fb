"""Durations and counts have bounds where they are given, and the error names the bound."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from brainhands import Ask, Document, Flow, Retry, phase, tool
from brainhands.brain.agent import Agent
from brainhands.hands.tool import MAX_OUTPUT_BYTES
from brainhands.shared.errors import BadDefinition, SettingsError
from brainhands.shared.model.bounds import MAX_CONCURRENCY, MAX_COUNT, MAX_SECONDS, MAX_TOKENS, MAX_TRIES, check_time
from brainhands.shared.runtime.settings import settings

NOT_A_DURATION = [
    0,
    -1,
    math.inf,
    math.nan,
    1e13,
    sys.maxsize,
    pytest.param(10**400, id="400 digits"),
    True,
    "60",
    None,
    timedelta(seconds=1),
]
NOT_A_COUNT = [-1, 2**31, sys.maxsize, pytest.param(10**5_000, id="5,000 digits"), 1.0, True, "1"]


def fine(value: int) -> int:
    return value


def flow(**options: Any) -> None:
    type("Made", (Flow,), {"start": phase(lambda self: None)}, **{"name": "made", **options})  # noqa: ARG005


def document(**options: Any) -> None:
    type("Made", (Document,), {}, **{"kind": "made", **options})


def agent(**fields: Any) -> None:
    Agent(**{"name": "made", "version": 1, "instructions": "", "prices": {"input": 1, "output": 1}, **fields})


DURATIONS: list[Callable[[Any], object]] = [
    lambda given: tool(timeout=given)(fine),
    lambda given: phase(timeout=given)(fine),
    lambda given: Ask(answer_seconds=given),
    lambda given: Ask(use_seconds=given),
]
COUNTS: list[tuple[int, Callable[[Any], object]]] = [
    (MAX_COUNT, lambda given: tool(version=given)(fine)),
    (MAX_COUNT, lambda given: tool(version=MAX_COUNT, accepts=given)(fine)),
    (MAX_TRIES, lambda given: tool(retries=given)(fine)),
    (MAX_OUTPUT_BYTES, lambda given: tool(output_limit=given)(fine)),
    (MAX_CONCURRENCY, lambda given: tool(concurrency=given)(fine)),
    (MAX_COUNT, lambda given: document(schema_version=given)),
]


@pytest.mark.promise("H12")
@pytest.mark.parametrize("give", DURATIONS)
@pytest.mark.parametrize("given", NOT_A_DURATION)
def test_a_duration_that_no_date_could_hold_is_refused_where_it_is_given(
    give: Callable[[Any], object], given: object
) -> None:
    give(MAX_SECONDS)
    with pytest.raises(BadDefinition, match="is no duration") as refused:
        give(given)
    assert f"{MAX_SECONDS:,}" in refused.value.next_step


@pytest.mark.promise("H12")
@pytest.mark.parametrize(("most", "give"), COUNTS)
@pytest.mark.parametrize("given", NOT_A_COUNT)
def test_a_count_that_no_column_could_hold_is_refused_where_it_is_given(
    most: int, give: Callable[[Any], object], given: object
) -> None:
    for refused in (given, most + 1):
        with pytest.raises(BadDefinition, match="is not possible") as error:
            give(refused)
        assert f"{most:,}" in error.value.next_step


@pytest.mark.parametrize("version", [0, 2**31, 10**30])
def test_the_version_of_a_flow_has_the_bounds_of_a_count(version: int) -> None:
    with pytest.raises(BadDefinition, match=r"version=.* is not possible"):
        flow(version=version)


@pytest.mark.promise("H12")
@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("version", MAX_COUNT),
        ("request_seconds", MAX_SECONDS),
        ("retries", MAX_TRIES),
        ("rounds", MAX_COUNT),
        ("session_tokens", MAX_TOKENS),
        ("submission_tokens", MAX_TOKENS),
        ("context_tokens", MAX_TOKENS),
        ("session_cost", 10**9),
        ("submission_cost", 10**9),
    ],
)
@pytest.mark.parametrize("beyond", [1, 1e300, 10**30, math.inf, math.nan])
def test_numbers_of_an_agent_have_bounds(field: str, most: int, beyond: float) -> None:
    agent(**{field: most})
    with pytest.raises(BadDefinition, match=f"{field}: "):
        agent(**{field: most + 1 if beyond == 1 else beyond})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BRAINHANDS_LEASE_SECONDS", "1e13"),
        ("BRAINHANDS_LEASE_SECONDS", "inf"),
        ("BRAINHANDS_RESTART_LIMIT", "99999999999"),
        ("BRAINHANDS_TENANT_CONCURRENCY", "99999999999"),
    ],
)
def test_numbers_of_the_settings_have_bounds(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    settings.cache_clear()
    with pytest.raises(SettingsError, match=rf"{variable}: .*less than or equal to"):
        settings()
    settings.cache_clear()


@pytest.mark.parametrize("kind", ["k" * 201, "a\x00", "\ud800"])
def test_a_kind_of_document_that_no_index_could_hold_is_refused(kind: str) -> None:
    with pytest.raises(BadDefinition, match="cannot be of kind"):
        document(kind=kind)


@pytest.mark.parametrize(
    ("after", "kept"),
    [("5", None), (timedelta(seconds=5), None), (math.nan, None), (10**400, 86_400.0), (-(10**400), 0.0), (True, 1.0)],
)
def test_a_delay_that_makes_no_sense_leaves_the_failure_as_definite_as_it_is(after: Any, kept: float | None) -> None:
    assert Retry("later", after=after).after == kept


NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 12, 1),  # noqa: DTZ001
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
        NOW + timedelta(seconds=MAX_SECONDS + 1),
        "2026-12-01T00:00:00Z",
        1_800_000_000,
    ],
)
def test_a_time_that_no_clock_will_reach_is_refused(given: object) -> None:
    with pytest.raises(BadDefinition, match="is no time to wait for"):
        check_time("until", given, "flow", now=NOW)


def test_a_time_of_any_zone_is_taken_in_utc() -> None:
    given = datetime(2026, 12, 1, 1, tzinfo=timezone(timedelta(hours=1)))

    assert check_time("until", given, "flow", now=NOW) == datetime(2026, 12, 1, tzinfo=UTC)
