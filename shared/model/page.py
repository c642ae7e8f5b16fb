"""Lists that come in pages: each page a list, with the place where the next one begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from typing import TypeVar

from brainhands.shared.errors import BadCursor
from brainhands.shared.model.json import Json

Item = TypeVar("Item")


class Page(list[Item]):
    """Some of what there is, in order; `next` given as `after` gets what follows, None where nothing does."""

    def __init__(self, items: list[Item], next: str | None) -> None:
        super().__init__(items)
        self.next = next


def cursor(*place: str) -> str:
    """A place in a list, as text that means something to this code only."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(text: str, parts: int) -> list[str]:
    """The place that a cursor of so many parts stands for. Raises BadCursor."""
    try:
        place: Json = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        place = None
    if not isinstance(place, list) or len(place) != parts or not all(isinstance(each, str) for each in place):
        raise BadCursor(text)
    return place


def every(page_after: Callable[[str | None], Page[Item]]) -> Iterator[Item]:
    """What all pages have, one after the other, each asked for when it is reached."""
    after = None
    while True:
        page = page_after(after)
        yield from page
        after = page.next
        if after is None:
            return
