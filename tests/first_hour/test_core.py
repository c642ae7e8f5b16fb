"""A backend that only submits: an environment with the wheel and what the wheel itself requires, and no extra."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import readable_folder
from tests.first_hour.test_first_hour import install

pytestmark = [pytest.mark.slow, pytest.mark.promise("K6")]

SUBMIT = """
import sys
from brainhands import Client

client = Client(*sys.argv[1:])
receipt = client.submit(agent="desk", input="Where is order 42?", request_id="question-7")
print(client.submission(receipt.submission_id).status, receipt.status)
client.close()
"""


def needed(requirements: list[str], extra: str = "") -> Iterator[metadata.Distribution]:
    """The packages that these requirements bring, as they are installed here."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found = metadata.distribution(requirement.name)
            yield found
            for inner in requirement.extras or {""}:
                yield from needed(found.requires or [], inner)


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    with readable_folder() as place:
        programs = install(place)
        (packages,) = place.glob("venv/lib/python*/site-packages")
        (packages / "needed.pth").unlink()
        (installed,) = metadata.distributions(path=[str(packages)])
        for each in needed(installed.requires or []):
            for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(str(each.locate_file(name)))
        yield programs


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)


def test_a_backend_submits_with_the_core_alone(programs: Path, database_url: str, redis_url: str) -> None:
    done = run(programs / "python", "-W", "ignore", "-c", SUBMIT, database_url, redis_url)

    assert (done.stdout, done.stderr) == ("accepted accepted\n", "")


def test_the_command_without_the_packages_of_the_command_line_says_how_to_install_them(programs: Path) -> None:
    refused = run(programs / "brainhands", "--help")

    assert refused.returncode == 1
    assert refused.stderr == "error: typer is not installed\npip install 'brainhands[cli]'\n"
