"""How the commands get at the store: addresses, a schema that fits, and JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from shared.client import Client
from shared.model.json import Json
from shared.runtime.settings import Addresses, addresses
from shared.store import migrate


def current_addresses() -> Addresses:
    """The servers' addresses, once the schema is known to fit. Raises ServerUnavailable, SchemaNotCurrent."""
    found = addresses()
    migrate.require_current(found.database_url)
    return found


@contextmanager
def open_client() -> Iterator[Client]:
    found = current_addresses()
    client = Client(found.database_url, found.redis_url)
    try:
        yield client
    finally:
        client.close()


def print_json(value: Json) -> None:
    """One JSON value on one line, at once readable by who follows the output."""
    print(json.dumps(value, ensure_ascii=False), flush=True)
