"""The documents say what is so: what they quote from the code is what the code says, and what they show runs."""

from __future__ import annotations

import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from brainhands import NotFound, ToolContext
from brainhands.brain.loading import agents_in
from brainhands.brain.models.dialects import DIALECTS
from brainhands.hands.loading import tools_in
from brainhands.shared.cli.main import COMMANDS, load
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.ids import new_session_id, new_task_id
from brainhands.shared.model.tool import Replay
from brainhands.shared.runtime.settings import settings_table
from tests.docs.lifecycle import diagram
from tests.first_hour.pages import ROOT, blocks, write_blocks
from tests.promises_plugin import promises

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("tests/**/*.md")])
README = ROOT / "README.md"
PROVIDERS = ROOT / "deploy" / "providers.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

HOSTS = ("127.0.0.1", "localhost", "host", "example.com", "keepachangelog.com", "semver.org")
"""Hosts that a document may name: none from which anything is installed."""

HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+(?:com|dev|eu|io|net|org)\b")
PLACES = re.compile(r"(?<![\w.:/$-])/(?:data|home|mnt|opt|private|root|srv|tmp|usr|var|work|Users)\b|\b[A-Z]:\\")
UNKEPT = re.compile(r"^Not kept or not proved yet:.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def asking_for(operation_id: str) -> ToolContext:
    """What a look-up gets when it is asked for an operation."""
    return ToolContext(
        operation_id=operation_id,
        task_id=new_task_id(),
        session_id=new_session_id(),
        attempt=1,
        deadline=datetime.now(UTC),
        write_progress=lambda _text: None,
        ask_cancelled=lambda: False,
    )


def uses(document: Path, program: str) -> Iterator[tuple[str, str]]:
    """Each use of a program in a document, in a shell block or quoted: its first argument, and what follows that."""
    shell = re.findall(rf"^{program} (.+?)(?:  #.*)?$", "".join(blocks(document, "sh")), re.MULTILINE)
    quoted = re.findall(rf"`{program} ([^`\n]+)`", document.read_text())
    for use in (*shell, *quoted):
        first, _, rest = use.partition(" ")
        yield first, rest


def known_commands() -> dict[str, set[str]]:
    """The commands with their options."""
    return {
        name: {
            option
            for parameter in load(name).params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
        for name in COMMANDS
    }


def test_the_architecture_shows_the_life_of_a_task_as_the_move_table_has_it() -> None:
    assert diagram() in list(blocks(ARCHITECTURE, "mermaid"))


def test_the_readme_lists_the_settings_as_the_code_has_them() -> None:
    shown = README.read_text().partition("<!-- settings -->\n")[2].partition("<!-- /settings -->")[0]

    assert shown == settings_table()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_and_option_that_a_document_shows_exists(document: Path) -> None:
    known = known_commands()

    for command, rest in uses(document, "brainhands"):
        assert command in known
        assert set(re.findall(r"--[a-z-]+", rest)) <= known[command], f"brainhands {command}{rest}"


def test_the_page_of_providers_lists_every_dialect_with_its_source_and_what_it_was_tried_against() -> None:
    rows = re.findall(r"^\| (\S+) \| (.+?) \| (.+?) \|$", PROVIDERS.read_text(), re.MULTILINE)
    listed = {name: source for name, source, tried in rows if tried not in ("tried against", "---")}

    assert listed == {row.name: row.source for row in DIALECTS}


def test_the_readme_lists_every_command_with_its_options() -> None:
    rows = re.findall(r"^\| `brainhands ([a-z]+)[^|]*\| [^|]* \|([^|]*)\|$", README.read_text(), re.MULTILINE)
    listed = {command: set(re.findall(r"--[a-z-]+", options)) for command, options in rows}

    assert listed == {command: options - {"--flower"} for command, options in known_commands().items()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_that_a_document_names_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {target for target, _ in uses(document, "make")} <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_a_document_points_to_exists(document: Path) -> None:
    text = document.read_text()
    linked = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    quoted = re.findall(r"`((?:brain|deploy|hands|outbox|shared|tests)/[\w./-]*)`", text)

    missing = [each for each in linked if each and not (document.parent / each).exists()]
    assert missing + [each for each in quoted if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_names_a_place_on_a_machine_or_a_host_to_install_from(document: Path) -> None:
    text = document.read_text()
    here = [str(ROOT), str(Path.home()), tempfile.gettempdir()]

    assert [place for place in here if f"{place}/" in text] == []
    assert PLACES.findall(text) == []
    hosts = [*HOST.findall(text), *(urlsplit(address).hostname for address in re.findall(r"\w+://[^\s)`>]+", text))]
    assert [host for host in hosts if host and not host.endswith(HOSTS)] == []


def test_the_readme_names_each_promise_that_has_no_test() -> None:
    numbers = list(promises())
    said = UNKEPT.search(README.read_text())
    assert said is not None
    named = set(re.findall(r"\b[A-Z]\d+\b", said[0]))
    for first, last in re.findall(r"\b([A-Z]\d+) to ([A-Z]\d+)\b", said[0]):
        named |= set(numbers[numbers.index(first) : numbers.index(last) + 1])
    marks = "".join(
        mark
        for file in (ROOT / "tests").rglob("test_*.py")
        for mark in re.findall(r"mark\.promise\(([^)]*)\)", file.read_text())
    )

    assert set(numbers) - set(re.findall(r'"([A-Z]\d+)"', marks)) <= named
    assert named <= set(numbers)


def test_the_tool_of_the_readme_can_be_loaded_and_looks_up_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_blocks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("payments", "refund_tools"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    (refund,) = tools_in(["refund_tools"]).tools

    assert refund.replay is Replay.RECONCILE
    assert refund.operation_id("task", {"payment": "p-1", "cents": 5}) == "refund:p-1"
    assert isinstance(refund.find_effect(asking_for("refund:p-1")), NotFound)
    assert refund.find_effect(asking_for("refund:paid")) == {"refund": "refund:paid"}


@pytest.mark.promise("B10")
def test_the_document_of_the_readme_reads_its_older_form(tmp_path: Path) -> None:
    write_blocks(tmp_path)

    order = runpy.run_path(str(tmp_path / "order_documents.py"))["Order"]

    stored = StoredDocument(
        session_id=new_session_id(),
        name="order",
        version=1,
        kind=order.kind,
        schema_version=1,
        value={"items": ["tea"]},
        seq=3,
    )
    assert order.read(stored) == order(items=("tea",), currency="EUR")


def test_the_agent_with_limits_of_the_readme_can_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_blocks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    (clerk,) = agents_in(["clerk_agents"])["clerk"]

    assert clerk.submission_cost == Decimal("0.05")


@pytest.mark.parametrize(("cents", "rule"), [(500, "allow"), (50_000, "ask"), (5_000_000, "deny")])
def test_the_policy_of_the_readme_lets_run_asks_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cents: int, rule: str
) -> None:
    write_blocks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "payout_tools", raising=False)

    (pay_out,) = tools_in(["payout_tools"]).tools

    assert pay_out.judge({"to": "customer-1@example.com", "cents": cents}, None).rule == rule
