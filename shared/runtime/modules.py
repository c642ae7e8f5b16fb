"""Imports the modules a user names: how workers find agents, tools and flows."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType

from shared.errors import BadDefinition


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Imports dotted modules in the order given, the working folder first on the path.

    Raises BadDefinition for a module that does not exist; an error inside a module is its author's and stays as it is.
    """
    folder = os.getcwd()
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    return [_import(name) for name in names]


def _import(name: str) -> ModuleType:
    missing = BadDefinition(f"there is no module {name!r}", "name modules of the working folder or installed ones")
    if not all(part.isidentifier() for part in name.split(".")):
        raise missing
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise missing from None
