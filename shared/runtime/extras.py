"""The optional parts of an installation: for one that is not there it is said what is missing and how to install it."""

from __future__ import annotations

from importlib.util import find_spec

from brainhands.shared.errors import MissingExtra

EXTRAS = {
    "brain": ("celery", "openai", "httpx2", "yaml"),
    "hands": ("celery",),
    "relay": ("celery",),
    "flower": ("flower", "celery"),
    "local": ("psutil",),
    "cli": ("typer", "rich", "alembic", "celery"),
}
"""Modules that come with each extra of pyproject.toml, and that what is started cannot be loaded without."""


def require(*extras: str) -> None:
    """Raises MissingExtra for the first of these extras that is not installed."""
    for extra in extras:
        for module in EXTRAS[extra]:
            if find_spec(module) is None:
                raise MissingExtra(extra, module)
