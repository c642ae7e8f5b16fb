"""Another build of this project: a copy of its source with small textual changes, to run beside this one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("brain", "hands", "outbox", "shared", "deploy", "tests/sample")


@dataclass(frozen=True, slots=True)
class Edit:
    """In a file, every `old` becomes `new`; it must be there. With no `old`, `new` is a new file."""

    file: str
    old: str | None
    new: str


def build(folder: Path, edits: Sequence[Edit]) -> Path:
    """Make the build; a part started in its folder (`Fleet.folder`) runs its code."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests/__init__.py", folder / "tests")
    for edit in edits:
        file = folder / edit.file
        if edit.old is None:
            assert not file.exists(), f"{edit.file} is there already"
            file.write_text(edit.new)
            continue
        text = file.read_text()
        assert edit.old in text, f"{edit.file} has no {edit.old!r}"
        file.write_text(text.replace(edit.old, edit.new))
    return folder
