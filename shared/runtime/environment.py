"""The environment of a process: a hash of the interpreter and of all installed packages, stored with what ran in it."""

from __future__ import annotations

import functools
import hashlib
import platform
from importlib.metadata import distributions


@functools.cache
def environment_hash() -> str:
    """The first 16 hex digits of SHA-256 over the Python version and each distribution with its version."""
    packages = sorted(f"{found.metadata['Name']}=={found.version}" for found in distributions())
    text = "\n".join([platform.python_implementation(), platform.python_version(), *packages])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
