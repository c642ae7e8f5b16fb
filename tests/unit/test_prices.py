"""What model calls cost: exact amounts, whatever the prices."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brainhands import Agent, Prices
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.event import Usage
from brainhands.shared.model.prices import dollars


@pytest.mark.promise("E13")
def test_cached_input_has_its_own_price_and_nothing_is_rounded() -> None:
    prices = Prices(input=Decimal("0.15"), cached_input=Decimal("0.075"), output=Decimal("0.6"))

    assert prices.cost(tokens_in=3, tokens_cached=1, tokens_out=1) == Decimal("0.000000975")
    assert Prices(input=Decimal("0.15"), output=Decimal("0.6")).cost(
        tokens_in=3, tokens_cached=1, tokens_out=0
    ) == Decimal("0.00000045")


@given(calls=st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)), max_size=50))
def test_the_sum_of_costs_is_the_cost_of_the_sum(calls: list[tuple[int, int]]) -> None:
    prices = Prices(input=Decimal("0.1"), output=Decimal("99999.999999"))
    costs = [
        prices.cost(tokens_in=tokens_in, tokens_cached=0, tokens_out=tokens_out) for tokens_in, tokens_out in calls
    ]

    whole = prices.cost(tokens_in=sum(each[0] for each in calls), tokens_cached=0, tokens_out=sum(c[1] for c in calls))
    assert sum(costs, Decimal(0)) == whole


def test_a_use_is_recorded_with_its_cost_as_decimal_text() -> None:
    charged = Usage(tokens_in=1, tokens_out=0).charged(Prices(input=Decimal("0.01"), output=Decimal(0)))

    assert charged.model_dump(mode="json")["cost"] == "0.00000001"
    assert Usage.model_validate(charged.model_dump(mode="json")) == charged
    assert Usage(tokens_in=1).charged(None).cost is None


@pytest.mark.parametrize(
    ("amount", "text"), [("0", "0"), ("0.0100", "0.01"), ("100", "100"), ("1E-8", "0.00000001"), ("12.50", "12.5")]
)
def test_dollars_are_written_in_plain_digits(amount: str, text: str) -> None:
    assert dollars(Decimal(amount)) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"session_cost": 1},
        {"submission_cost": "0.5"},
        {"prices": {"input": -1, "output": 1}},
        {"prices": {"input": 1}},
        {"prices": {"input": "NaN", "output": 1}},
        {"prices": {"input": 1, "output": 1}, "session_cost": 0},
        {"prices": {"input": 1, "output": 1}, "session_cost": "Infinity"},
        {"submission_tokens": 0},
        {"context_tokens": 0},
    ],
)
def test_an_agent_with_prices_or_budgets_that_cannot_be_kept_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadDefinition):
        Agent(name="a", version=1, instructions="", **fields)
