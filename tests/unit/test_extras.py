"""The light core: what a backend that submits loads, what the command line loads, and how a missing extra is told."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from brainhands.shared.cli.main import COMMANDS
from brainhands.shared.runtime.extras import EXTRAS
from tests.first_hour.pages import ROOT

OF_EXTRAS = {module for modules in EXTRAS.values() for module in modules} | {"kombu", "billiard", "click", "httpx"}

HIDE = """
import sys
from importlib.machinery import PathFinder
class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {hidden!r} else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
"""
"""Makes modules as absent as those that nobody installed."""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules of a process that has run this code to its end."""
    done = python(f"import atexit, sys\natexit.register(lambda: print('modules', *sys.modules))\n{code}", *arguments)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("modules ")[2].split())


COMMAND = "from brainhands.shared.cli.script import main; main()"


@pytest.mark.promise("K6")
def test_the_client_is_imported_without_what_only_workers_and_the_command_line_need() -> None:
    modules = loaded("from brainhands import Client")

    assert modules & (OF_EXTRAS | {"redis", "pydantic_settings", "brainhands.shared.doors.submit"}) == set()
    assert {
        name for name in modules if name.startswith(("brainhands.shared.cli.", "brainhands.shared.engine"))
    } == set()


@pytest.mark.promise("K6")
def test_whatever_users_import_and_every_door_work_without_the_packages_of_the_extras() -> None:
    everything = """
import brainhands
from brainhands.shared import doors
brainhands.Client("postgresql://localhost:9/none", "redis://localhost:9/0").close()
for module, names in ((brainhands, brainhands.__all__), (doors, doors.__all__)):
    for name in names:
        getattr(module, name)
"""

    assert loaded(HIDE.format(hidden=OF_EXTRAS) + everything) & OF_EXTRAS == set()


@pytest.mark.promise("K6")
def test_the_list_of_commands_loads_none_of_them() -> None:
    modules = loaded(COMMAND, "--help")

    assert "typer" in modules
    assert modules & ((OF_EXTRAS - {"typer"}) | {"sqlalchemy", "psycopg", "pydantic", "redis"}) == set()
    assert not any(f"brainhands.shared.cli.{module}" in modules for module, _ in COMMANDS.values())


@pytest.mark.promise("K6")
@pytest.mark.parametrize(
    ("hidden", "extra", "arguments"),
    [
        ("typer", "cli", ["--help"]),
        ("celery", "cli", ["doctor"]),
        ("psutil", "local", ["up", "--agents", "a", "--tools", "t"]),
        ("openai", "brain", ["brain", "--agents", "a"]),
        ("flower", "flower", ["flower"]),
    ],
)
def test_a_missing_extra_is_told_in_one_line_with_what_installs_it(
    hidden: str, extra: str, arguments: list[str]
) -> None:
    refused = python(HIDE.format(hidden={hidden}) + COMMAND, *arguments)

    assert refused.stderr == f"error: {hidden} is not installed\npip install 'brainhands[{extra}]'\n"
    assert refused.returncode == 1


@pytest.mark.promise("K6")
def test_a_brain_that_celery_starts_without_its_extra_says_so_in_one_line() -> None:
    refused = python(
        HIDE.format(hidden={"openai"}) + "from celery.bin.celery import main; main()",
        "-A",
        "brainhands.brain.app",
        "worker",
    )

    assert "Traceback" not in refused.stderr
    assert "openai is not installed" in refused.stderr
    assert "pip install 'brainhands[brain]'" in refused.stderr


def brought(extra: str) -> set[str]:
    """The names of the packages that an extra brings."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    requirements = [Requirement(each) for each in listed]
    inner = [brought(name) for each in requirements if each.name == "brainhands" for name in each.extras]
    return {each.name.lower() for each in requirements}.union(*inner)


@pytest.mark.promise("K6")
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_modules_that_tell_whether_it_is_there(extra: str) -> None:
    homes = metadata.packages_distributions()

    assert {homes[module][0].lower() for module in EXTRAS[extra]} <= brought(extra)
    assert brought(extra) <= brought("all")
