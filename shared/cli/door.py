"""How the commands get at the store: addresses, a schema that fits, and who asks."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager

from brainhands.shared.client import Client
from brainhands.shared.runtime.settings import Addresses, addresses
from brainhands.shared.store import migrate
from brainhands.shared.store.database import Database

TENANT = "default"


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


@contextmanager
def open_database() -> Iterator[Database]:
    database = Database(current_addresses().database_url)
    try:
        yield database
    finally:
        database.close()


def who() -> str:
    """The person at this command line, for the log: the account's name, or its number where it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
