"""Puts this folder's files where they belong in a wheel: at `brainhands` itself.

A setting of the build would do the same in an editable install, where the copies would hide what `make` links.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TopLevel(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            for name in ("__init__.py", "py.typed"):
                build_data["force_include"][f"shared/top-level/{name}"] = f"brainhands/{name}"
