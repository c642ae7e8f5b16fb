"""What becomes of a claim that ended without a commit, and how long tries wait for each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brainhands.shared.model.task import Status
from brainhands.shared.rules import recovery
from brainhands.shared.rules.backoff import LONGEST_SECONDS, backoff_seconds
from tests.rules.tasks import task


@pytest.mark.promise("C10")
@pytest.mark.parametrize(("attempts", "limit", "again"), [(1, 3, True), (2, 3, True), (3, 3, False), (1, 1, False)])
def test_a_phase_runs_again_until_the_restart_limit(attempts: int, limit: int, again: bool) -> None:
    assert recovery.may_run_again(task(Status.RUNNING, phase_attempts=attempts), limit) is again


@pytest.mark.promise("F7", "E4")
@pytest.mark.parametrize(
    ("kind", "phase", "unknown", "asked"),
    [
        ("tool:send", "call", False, False),
        ("tool:send", "execute", True, False),
        ("tool:send", "reconcile", True, False),
        ("tool:send", "again", False, False),
        ("flow:send", "execute", False, False),
        ("generation", "prepare", False, False),
        ("generation", "request", False, True),
        ("generation", "retry", False, True),
        ("generation", "poll", False, False),
        ("generation", "tools", False, False),
        ("intake", "admit", False, False),
        ("response_cancel", "cancel", False, False),
        ("compaction", "request", False, True),
        ("compaction", "retry", False, True),
    ],
)
def test_only_what_may_have_acted_is_taken_for_unknown(kind: str, phase: str, unknown: bool, asked: bool) -> None:
    found = task(Status.RUNNING, kind=kind, phase=phase)

    assert recovery.effect_is_unknown(found) is unknown
    assert recovery.asked_the_model(found) is asked
    assert recovery.is_call(found) is (kind not in ("generation", "intake", "response_cancel", "compaction"))


@pytest.mark.promise("E6", "F11")
def test_waits_between_tries_double_up_to_a_limit() -> None:
    waits = [backoff_seconds(tries, spread=0) for tries in range(1, 12)]

    assert waits[:4] == [1, 2, 4, 8]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_SECONDS


@pytest.mark.promise("E6")
@given(
    tries=st.integers(1, 10_000),
    asked=st.none() | st.floats(0, 1e6),
    spread=st.floats(0, 1),
)
def test_a_wait_is_never_shorter_than_asked_nor_much_longer(tries: int, asked: float | None, spread: float) -> None:
    least = asked if asked is not None else min(LONGEST_SECONDS, 2.0 ** (min(tries, 10) - 1))

    assert least <= backoff_seconds(tries, asked_for=asked, spread=spread) <= least * 1.25
