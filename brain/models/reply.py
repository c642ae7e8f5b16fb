"""What every model adapter hands back: a whole reply, or one of two reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brainhands.shared.errors import BrainhandsError
from brainhands.shared.model.event import Usage

REFUSED = frozenset({400, 422})
"""The statuses of a request whose content is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawCall:
    """A tool call as the provider sent it; each part may be empty, and `arguments` may be no JSON."""

    provider_id: str
    name: str
    arguments: str
    extra: dict[str, Any] | None = None
    """Fields of the provider's own on the call."""
    mixed_up: bool = False
    """Whether the provider contradicted itself about whose arguments these are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A reply whose terminal marker was seen; `finish_reason` is why it ended, in the words of Chat Completions."""

    text: str
    calls: tuple[RawCall, ...]
    finish_reason: str
    refusal: str | None
    usage: Usage
    model: str
    response_id: str | None
    logprobs: tuple[tuple[str, float], ...] = ()
    """Each token of the text with its log-probability, where the agent asked for them and the provider gave them."""
    extra: dict[str, Any] | None = None
    """Fields of the provider's own on the message."""
    calls_left_out: int = 0
    """Calls beyond those that are kept of one reply."""


class Interrupted(BrainhandsError):
    """The model may have worked on the request, but there is no whole reply; `text` is what it had said.

    `usage` is what the provider counted, None where it did not, `heals` says that the same request may be sent again,
    `overflow` that the model ran out of room while it spoke, `retry_after` in how many seconds the provider wants it
    to be.
    """

    def __init__(
        self,
        text: str,
        reason: str,
        *,
        usage: Usage | None = None,
        heals: bool = True,
        overflow: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"the model's reply was interrupted: {reason}")
        self.retry_after = retry_after
        self.text = text
        self.reason = reason
        self.usage = usage
        self.heals = heals
        self.overflow = overflow


class ProviderError(BrainhandsError):
    """The provider refused or failed the request.

    `status` is None where there was no HTTP answer, `provider_code` is its own word for what happened, `retry_after` is
    in seconds and at most an hour, `heals` says that the same request may succeed later, `overflow` that it is too long
    for the model, `filtered` that a content filter refused what it says, `of_key` that it is about the worker's key, so
    that no other request would be answered either.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        heals: bool,
        overflow: bool = False,
        filtered: bool = False,
        of_key: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.provider_code = code
        self.retry_after = retry_after
        self.heals = heals
        self.overflow = overflow
        self.filtered = filtered
        self.of_key = of_key

    @property
    def refuses_content(self) -> bool:
        """Whether it may be for what the request says that it was refused for good."""
        return not self.heals and not self.overflow and not self.of_key and self.status in REFUSED
