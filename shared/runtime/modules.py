"""Imports the modules a user names: how workers find agents, tools and flows."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TypeGuard, TypeVar

from brainhands.shared.errors import BadDefinition

T = TypeVar("T")

OURS = os.path.join(Path(__file__).parents[2], "")
"""The folder of this package, of which no frame says where a user's definition is."""

LIBRARIES = tuple(os.path.join(path, "") for path in {sysconfig.get_path(name) for name in ("stdlib", "purelib")})

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

    Raises BadDefinition for a module that does not exist, or whose code raises something, with its file and line.
    """
    folder = os.getcwd()
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    return [_import(name) for name in names]


def is_a(value: object, kind: type[T]) -> TypeGuard[T]:
    """Whether a module's value is of a kind, by its type: a proxy in a module may raise when it is asked itself."""
    return issubclass(type(value), kind)


def _import(name: str) -> ModuleType:
    missing = BadDefinition(f"there is no module {name!r}", "name modules of the working folder or installed ones")
    if not is_dotted(name):
        raise missing
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise missing from None
        raise _broken(name, error) from error
    except BadDefinition as error:
        raise BadDefinition(f"{place(error)}{error}", error.next_step) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> BadDefinition:
    return BadDefinition(
        f"{place(error)}module {name} cannot be imported: {type(error).__name__}: {error}", "mend it and start again"
    )


def place(error: BaseException) -> str:
    """Where in the code of others an error comes from, as `FILE:LINE: `: the last frame that is none of ours.

    Frames of libraries count only where there are no others.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((OURS, "<frozen "))]
    frames = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)] or frames
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}: " if frames else ""
