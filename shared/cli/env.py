"""The servers' addresses as lines for a shell, for whatever runs beside `brainhands up`."""

from __future__ import annotations

import shlex

from brainhands.shared.cli.terminal import say
from brainhands.shared.runtime.settings import Addresses, addresses, libpq_url


def env() -> None:
    """Print the servers' addresses for a shell, passwords included: eval "$(brainhands env)"."""
    say("\n".join(exports(addresses())))


def exports(found: Addresses) -> list[str]:
    """The lines that set DATABASE_URL, as psycopg and SQLAlchemy take it, and REDIS_URL."""
    named = {"DATABASE_URL": libpq_url(found.database_url), "REDIS_URL": found.redis_url}
    return [f"export {name}={shlex.quote(url)}" for name, url in named.items()]
