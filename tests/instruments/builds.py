"""Another build of this project: a copy of its source with small textual changes, to run beside this one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.store import migrate

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "tests/sample", "tests/crash", "tests/instruments")


@dataclass(frozen=True, slots=True)
class Edit:
    """In a file, every `old` becomes `new`; it must be there. With no `old`, `new` is a new file."""

    file: str
    old: str | None
    new: str


NEXT_FORMAT = LOG_FORMAT + 1
MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "r9000"
down_revision = "{migrate.newest()}"


def upgrade():
    for table in ("sessions", "tasks", "outbox", "workers"):
        op.add_column(table, sa.Column("mark", sa.Text()), schema="brainhands")
'''
REMARK = f"""
class Remark(Payload):
    event_type = "remark"
    log_format = {NEXT_FORMAT}
    text: str


PAYLOADS: dict["""
WRITE_REMARK = f"""
    if draft.locked.fleet_format() >= {NEXT_FORMAT}:
        draft.event(Remark(text="prepared"), causes=causes, task=owned)
    request = ModelRequest(
"""
RELEASE = (
    Edit("brainhands/shared/store/migrations/versions/r9000_next.py", None, MIGRATION),
    Edit("brainhands/shared/model/event.py", "\nPAYLOADS: dict[", REMARK),
    Edit("brainhands/shared/model/event.py", "        SubmissionDone,\n", "        SubmissionDone,\n        Remark,\n"),
    Edit("brainhands/brain/generation.py", "    ModelRequest,\n", "    ModelRequest,\n    Remark,\n"),
    Edit("brainhands/brain/generation.py", "\n    request = ModelRequest(\n", WRITE_REMARK),
)
"""What the next release changes: a migration, and an event of a new log format once every worker can read it."""


def build(folder: Path, edits: Sequence[Edit]) -> Path:
    """Make the build; a part started in its folder (`Fleet.folder`) runs its code."""
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / ".house", folder, ignore=without_caches, dirs_exist_ok=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=without_caches)
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
