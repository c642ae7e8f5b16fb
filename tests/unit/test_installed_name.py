"""All of it is installed under one name, so that users' own packages may be called `shared` or `outbox`."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import brainhands
from tests.first_hour.pages import ROOT

FOLDERS = ("brain", "hands", "outbox", "shared")
BARE = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(FOLDERS)})\b", re.MULTILINE)


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_no_file_imports_a_folder_by_its_bare_name() -> None:
    files = [
        file
        for folder in (*FOLDERS, "deploy", "tests")
        for ending in ("py", "md", "toml", "mako")
        for file in (ROOT / folder).rglob(f"*.{ending}")
    ]

    assert len(files) > 300
    assert [file for file in (*files, *ROOT.glob("*.md")) if BARE.search(file.read_text())] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_checkout_cannot_be_loaded_a_second_time_under_its_bare_name(folder: str) -> None:
    importlib.import_module(f"brainhands.{folder}")
    with pytest.raises(ImportError, match=rf"this package is brainhands\.{folder}"):
        importlib.import_module(folder)
    assert f"this package is brainhands.{folder}" in python("-c", f"import {folder}", folder=ROOT).stderr


@pytest.mark.promise("K7")
@pytest.mark.parametrize("module", ["brain.loading", "hands.loading", "outbox.app", "shared.cli.main"])
def test_users_packages_may_be_called_like_our_folders(module: str, tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("theirs = True\n")

    check = f"import brainhands.{module}, brain, hands, outbox, shared; print(brain.theirs, shared.theirs)"

    assert python("-c", check, folder=tmp_path).stdout == "True True\n"


def test_importing_the_name_loads_none_of_what_stands_there() -> None:
    loaded = "import sys, brainhands; print([name for name in sys.modules if name.startswith('brainhands.')])"

    assert python("-c", loaded, folder=ROOT).stdout == "[]\n"


def test_each_name_that_users_import_is_there() -> None:
    assert [name for name in brainhands.__all__ if not hasattr(brainhands, name)] == []
    assert set(brainhands.__all__) <= set(dir(brainhands))


def test_a_name_that_is_not_there_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'brainhands' has no attribute 'nobody'"):
        brainhands.nobody  # noqa: B018
