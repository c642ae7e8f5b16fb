"""The installed command `brainhands`; without the packages of the command line it says in one line what brings them."""

from __future__ import annotations

import sys

from brainhands.shared.errors import MissingExtra
from brainhands.shared.runtime.extras import require


def main() -> None:
    try:
        require("cli")
    except MissingExtra as error:
        sys.exit(f"error: {error}\n{error.next_step}")
    from brainhands.shared.cli.main import app

    app()
