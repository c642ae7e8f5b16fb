"""A newcomer follows the pages in an empty folder, with the package as it is installed, and what they show works."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from brainhands.shared.client import Client
from brainhands.shared.model.task import Outcome
from brainhands.shared.runtime.settings import settings
from deploy.demo import model_server
from deploy.demo.model_scripts import Call, Reply, Request
from tests.conftest import readable_folder
from tests.first_hour.pages import PAGES, ROOT, blocks, write_blocks
from tests.instruments.fleet import wait_until
from tests.instruments.processes import Child, Children, child_environment

pytestmark = [pytest.mark.slow, pytest.mark.promise("K7")]

RUN = ("python shop_backend.py", "--agents agents/", "submit packer", "submit cashier", "export OPENAI_API_KEY=")
"""What is in the shell blocks that are run."""

NOT_RUN = {
    "pip install '.[all]'": "the wheel is built and installed here without the network",
    "make demo": "it needs the checkout, and is a test of its own",
    "make test": "these are the tests",
    "export DATABASE_URL=postgresql://shop:secret@": "the addresses are those of somebody's production",
}
"""How the other shell blocks begin, and why they are not run."""

SOME_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
"""The session that a page names as an example."""

PATIENCE_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A folder with the pages' code, an environment with the package, and `up` with all that the pages start."""

    folder: Path
    environment: dict[str, str]
    client: Client
    up: Child

    def shell(self, script: str) -> str:
        """What a shell of the newcomer prints, where every line succeeds."""
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{self.up.output[-4000:]}"
        return done.stdout

    def follow(self, block: str) -> list[str]:
        """What each line of a block prints; ids that an earlier line printed take the place of words in capitals."""
        outputs: list[str] = []
        begin = ""
        for line in map(without_comment, block.splitlines()):
            if line.startswith(("export ", "eval ")):
                begin += f"{line}\n"
            elif not line.startswith("brainhands up"):
                if "brainhands approvals" in line:
                    wait_until(lambda: bool(self.client.approvals()), PATIENCE_SECONDS, "a question")
                outputs.append(self.shell(begin + self._named(line, outputs)))
        return outputs

    def _named(self, line: str, outputs: list[str]) -> str:
        said = "\n".join(outputs)
        session = re.search(r"^session +(\S+)$", said, re.MULTILINE)
        line = line.replace("SESSION", session[1] if session else "")
        return line.replace("QUESTION", str(self.client.approvals()[0].id)) if "QUESTION" in line else line


@pytest.fixture(scope="module")
def newcomer() -> Iterator[Newcomer]:
    with readable_folder() as place, Children(place) as children, model_server.start({"shop": says}) as model:
        folder, programs = place / "shop", install(place)
        folder.mkdir()
        write_blocks(folder)
        environment = child_environment(
            PATH=f"{programs}:/usr/bin:/bin",
            OPENAI_API_KEY="none",
            OPENAI_BASE_URL=f"{model.url}/v1",
            BRAINHANDS_MODEL="shop",
            BRAINHANDS_SERVERS=settings().servers,
        )
        environment.pop("PYTHONPATH", None)
        up = children.start(
            str(programs / "brainhands"),
            *(*up_of_all_pages(), "--no-flower", "--brain-concurrency", "4", "--hands-concurrency", "2"),
            environment=environment,
            folder=folder,
        )
        up.wait_for_line("up     | ready:", timeout=PATIENCE_SECONDS)
        given = dict(re.findall(r"^export (\w+)=(.+)$", up.output, re.MULTILINE))
        with closing(Client(given["DATABASE_URL"], given["REDIS_URL"])) as client:
            yield Newcomer(folder=folder, environment=environment, client=client, up=up)
        up.send(signal.SIGINT)
        assert up.wait() == 0


def install(place: Path) -> Path:
    """Installs the wheel of this checkout; the packages that it needs are those of the running environment."""
    python = place / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)])
    done([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")])
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    done([*pip, "--ignore-installed", *map(str, place.glob("*.whl"))])
    return python.parent


def done(command: list[str]) -> None:
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def says(request: Request) -> Reply:
    """A model that calls the tool it has, and then repeats what that said."""
    said = request["messages"][-1]
    if said["role"] == "tool":
        return Reply(text=f"Your {said['content']}.")
    (offered,) = (each["function"]["name"] for each in request["tools"])
    order = int(re.findall(r"\d+", said["content"])[0])
    arguments = {"pay_out": {"to": "Ada", "cents": order * 100}}.get(offered, {"order": order})
    return Reply(calls=(Call(name=offered, arguments=arguments),))


def shell_blocks() -> list[str]:
    return [block for page in PAGES for block in blocks(page, "sh")]


def block_with(text: str) -> str:
    (found,) = (block for block in shell_blocks() if text in block)
    return found


def up_of_all_pages() -> list[str]:
    """One `up` with the agents and tools of each that the pages show."""
    lines = [line for block in shell_blocks() for line in block.splitlines() if line.startswith("brainhands up ")]
    shown = [shlex.split(line, comments=True) for line in lines]
    named = {option: [words[words.index(option) + 1] for words in shown] for option in ("--agents", "--tools")}
    return ["up", *(each for option, names in named.items() for each in (option, ",".join(dict.fromkeys(names))))]


def without_comment(line: str) -> str:
    return re.sub(r"\s+#.*", "", line)


def test_every_shell_block_is_run_or_there_is_a_reason_why_not() -> None:
    left = [
        block
        for block in shell_blocks()
        if not block.startswith(tuple(NOT_RUN)) and not any(each in block for each in RUN)
    ]

    assert left == []


@pytest.mark.promise("A7", "F1", "K4")
def test_the_backend_of_the_example_runs_twice_and_gets_the_same_receipt_and_answer(newcomer: Newcomer) -> None:
    first, second, followed = newcomer.follow(block_with("python shop_backend.py"))

    receipt, answer = first.splitlines()
    assert answer == "Your order 42 arrives on Friday."
    assert second == first
    assert newcomer.client.submission(receipt).request_id == "question-7"
    assert "Your order 43 arrives on Friday." in followed
    assert str(ROOT) not in newcomer.shell("python -c 'import brainhands; print(brainhands.__file__)'")


def test_an_agent_from_yaml_answers(newcomer: Newcomer) -> None:
    receipt = newcomer.client.submit(agent="night_desk", input="Where is order 44?")

    assert newcomer.client.wait(receipt.submission_id, PATIENCE_SECONDS).output == "Your order 44 arrives on Friday."


def test_the_flow_goes_on_with_its_signal_and_gives_the_result_of_its_child(newcomer: Newcomer) -> None:
    submitted, _ = newcomer.follow(block_with("submit packer"))

    (receipt,) = re.findall(r"submission (\S+)", submitted)
    assert newcomer.client.wait(receipt, PATIENCE_SECONDS).output == "Your order 42 arrives on Friday."


def test_a_call_that_a_policy_asks_about_runs_once_a_person_approves_it_on_the_command_line(
    newcomer: Newcomer,
) -> None:
    submitted, listed, _ = newcomer.follow(block_with("submit cashier"))

    (receipt,) = re.findall(r"submission (\S+)", submitted)
    done = newcomer.client.wait(receipt, PATIENCE_SECONDS)
    assert done.outcome is Outcome.SUCCEEDED
    assert done.output.endswith("paid 50000 to Ada.")
    assert "as agreed" in done.output
    assert "pay_out" in listed
    assert newcomer.client.approvals() == []


def test_all_other_python_of_the_pages_can_be_imported_where_a_newcomer_has_it(newcomer: Newcomer) -> None:
    receipt = newcomer.client.submit(agent="desk", input="Where is order 45?")
    newcomer.client.wait(receipt.submission_id, PATIENCE_SECONDS)
    shown = sorted(file for file in newcomer.folder.glob("*.py"))
    for file in shown:
        file.write_text(file.read_text().replace(SOME_ID, str(receipt.session_id)))

    modules = ", ".join(file.stem for file in shown if file.stem != "shop_backend")

    newcomer.shell(f"python -c 'import {modules}'")
