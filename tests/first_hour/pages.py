"""The pages that a newcomer follows, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md",)
"""README, and every page that it sends a newcomer to."""

PAYMENTS = '''
"""What the client of a payment service looks like that a page writes about."""
class Refused(Exception): ...
class NotReachable(Exception): ...
def refund(payment: str, cents: int, *, idempotency_key: str) -> dict[str, str]:
    return {"refund": idempotency_key}
def find(operation_id: str) -> dict[str, str] | None:
    return {"refund": operation_id} if operation_id.endswith("paid") else None
'''


def blocks(page: Path, language: str) -> Iterator[str]:
    """The fenced blocks of a page in one language."""
    for block in re.finditer(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        yield block[1]


def write_blocks(folder: Path) -> list[Path]:
    """The Python and YAML of all pages, each block in the file that its first line names, and what they import."""
    written = [folder / "payments.py"]
    written[0].write_text(PAYMENTS)
    for page in PAGES:
        for block in (*blocks(page, "python"), *blocks(page, "yaml")):
            file = folder / block.splitlines()[0].removeprefix("# ")
            assert file not in written, f"two blocks are named {file.name}"
            file.parent.mkdir(exist_ok=True)
            file.write_text(block)
            written.append(file)
    return written
