"""What model calls cost: prices for a million tokens, and exact decimal amounts of US dollars."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

MILLION = 1_000_000
MAX_USD = 10**9
_EXACT = Context(prec=60, traps=[])
"""Of our own: a module of the same process may change the one that all threads begin with."""


def dollars(amount: Decimal) -> str:
    """An amount in plain digits, without an exponent or zeros at its end: `0.0125`."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def added(amount: Decimal, other: Decimal | None) -> Decimal:
    """The exact sum; None counts as nothing."""
    return _EXACT.add(amount, other or Decimal(0))


Usd: TypeAlias = Annotated[
    Decimal, Field(allow_inf_nan=False), PlainSerializer(dollars, return_type=str, when_used="json")
]
"""US dollars; in JSON as text, since a binary number would drift."""

Price: TypeAlias = Annotated[Usd, Field(ge=0, le=100_000, decimal_places=6)]


class Prices(BaseModel):
    """USD for a million tokens. Without `cached_input`, input that the provider had in its cache costs the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    input: Price
    cached_input: Price | None = None
    output: Price

    def cost(self, *, tokens_in: int, tokens_cached: int, tokens_out: int) -> Decimal:
        """USD for one model call, exactly; `tokens_cached` of `tokens_in` came from the provider's cache."""
        cached = min(tokens_cached, tokens_in)
        cached_price = self.input if self.cached_input is None else self.cached_input
        with localcontext(_EXACT):
            return ((tokens_in - cached) * self.input + cached * cached_price + tokens_out * self.output) / MILLION
