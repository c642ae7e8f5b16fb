"""Imports the modules a user names: how workers find agents, tools and flows."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from shared.errors import BadDefinition

OURS = tuple(os.path.join(Path(__file__).parents[2], name, "") for name in ("brain", "hands", "shared"))
"""The folders of this package, of which no frame says where a user's definition is."""

YAML_ENDINGS = (".yaml", ".yml")


def is_path(name: str) -> bool:
    """Whether a name of where agents are is that of a file or folder, rather than a dotted module.

    A package's folder is there too, so its bare name stays a module.
    """
    if os.sep in name or name.endswith(YAML_ENDINGS):
        return True
    return Path(name).exists() and not Path(name, "__init__.py").exists()


def is_dotted(name: str) -> bool:
    """Whether a module could have this name."""
    return all(part.isidentifier() for part in name.split("."))


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Imports dotted modules in the order given, the working folder first on the path.

    Raises BadDefinition for a module that does not exist, and with file and line for what is defined in it; another
    error inside a module is its author's and stays as it is.
    """
    folder = os.getcwd()
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    return [_import(name) for name in names]


def _import(name: str) -> ModuleType:
    missing = BadDefinition(f"there is no module {name!r}", "name modules of the working folder or installed ones")
    if not is_dotted(name):
        raise missing
    try:
        return importlib.import_module(name)
    except BadDefinition as error:
        raise BadDefinition(f"{_place(error)}{error}", error.next_step) from None
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise missing from None


def _place(error: BadDefinition) -> str:
    """Where in the code of others the definition is: the last frame that is none of ours, as `FILE:LINE: `."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((*OURS, "<frozen "))]
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
