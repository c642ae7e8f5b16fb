"""What people see on the command line, and what they answer by: whole, escaped, and never a stack trace."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from uuid import UUID

import pytest
from typer.main import get_command

from brainhands.shared.cli import main
from brainhands.shared.local.servers import Postgres, Redis
from brainhands.shared.model.approval import Approval
from brainhands.shared.model.submission import Receipt
from brainhands.shared.rules.verify import head_of
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.sessions import events_of, fleet_for_many, task_of

HOSTILE = "pay 5   \r\x1b[2K\u202epay 9\n  \x9b1A"


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, redis_server: Redis) -> Iterator[Fleet]:
    """One relay, one Brain and one Hands process for all tests of this file."""
    with fleet_for_many(tmp_path_factory.mktemp("people"), postgres, redis_server) as fleet:
        fleet.everything()
        yield fleet


class CommandLine:
    """The command line in this process, beside a fleet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[object, str, str]:
        """Exit status, output and errors."""
        self._monkeypatch.setattr("sys.argv", ["brainhands", *arguments])
        with pytest.raises(SystemExit) as exit:
            main.app()
        printed = self._capsys.readouterr()
        return exit.value.code, printed.out, printed.err

    def __call__(self, *arguments: str, status: int = 0) -> str:
        code, out, error = self.run(*arguments)
        assert code == status, out + error
        return out if status == 0 else out + error


@pytest.fixture
def cli(shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("DATABASE_URL", shared_fleet.database_url)
    monkeypatch.setenv("REDIS_URL", shared_fleet.redis_url)
    monkeypatch.setenv("COLUMNS", "100")
    return CommandLine(monkeypatch, capsys)


def asked(fleet: Fleet, *steps: dict[str, Any], text: str = "Let me see.", **arguments: Any) -> Approval:
    """The question about a payment that a model came to."""
    step = {"text": text, "calls": [{"name": "pay", "arguments": arguments}]}
    receipt = fleet.script(*steps, step, {"text": "done"}, agent="careful")

    def found() -> list[Approval]:
        return [each for each in fleet.client.approvals() if each.session_id == receipt.session_id]

    wait_until(lambda: bool(found()), 30, "a question is asked")
    return found()[0]


def noted(fleet: Fleet, text: str) -> Receipt:
    receipt = fleet.script({"calls": [{"name": "note", "arguments": {"text": text}}]}, {"text": f"noted {text}"})
    fleet.wait(receipt)
    return receipt


def about(listing: str, question: Approval) -> str:
    """What a list says of one question."""
    return listing[listing.index(f"{question.id}  ") :].split("\n\n")[0]


@pytest.mark.promise("F13")
def test_a_question_is_shown_with_all_that_an_answer_needs(shared_fleet: Fleet, cli: CommandLine) -> None:
    before = {"calls": [{"name": "pay", "arguments": {"to": "eve", "amount": 5}}]}
    question = asked(shared_fleet, before, to=HOSTILE, amount=50, text="Ann is owed this.")

    listing = cli("approvals")

    shown = about(listing, question)
    assert str(question.session_id) in shown
    for expected in ("agent careful", "Ann is owed this.", "the tool asks for approval", "denied where nobody answers"):
        assert expected in shown
    assert "eve" in shown
    assert "paid 5 to eve" in shown
    assert all(character.isprintable() or character == "\n" for character in listing)
    arguments = shown[shown.index("  arguments\n") :].split("\n", 1)[1].split("  answer with")[0]
    assert json.loads(arguments) == {"to": HOSTILE, "amount": 50}
    (approve,) = [line.split()[1:] for line in shown.splitlines() if line.split()[1:] == ["approve", str(question.id)]]
    assert "answered approved" in cli(*approve)
    assert "not accepted, it stands at approved" in cli("deny", str(question.id), status=1)


@pytest.mark.promise("F13")
@pytest.mark.parametrize("size", [3_000, 5_000, 90_000])
def test_what_is_approved_is_whole_or_says_that_it_is_not_and_how_to_see_it(
    size: int, shared_fleet: Fleet, cli: CommandLine
) -> None:
    question = asked(shared_fleet, to="x " * (size // 2) + "AND ALL MY GOODS", amount=50)
    shown = about(cli("approvals"), question)
    whole = "AND ALL MY GOODS" in shown
    assert whole is (size < 4_000)
    assert ("THIS IS NOT ALL" in shown) is not whole
    if not whole:
        (see,) = re.findall(r"before you answer: brainhands (.*)", shown)
        assert "AND ALL MY GOODS" in cli(*shlex.split(see))
    cli("deny", str(question.id), "--comment", "no")


def test_an_empty_list_says_so(shared_fleet: Fleet, cli: CommandLine) -> None:
    for each in shared_fleet.client.approvals():
        cli("deny", str(each.id))
    assert cli("approvals") == "no question waits for an answer\n"
    assert json.loads(cli("approvals", "--json")) == []


@pytest.mark.promise("I2")
def test_an_event_is_shown_whole_with_its_causes_and_effects(shared_fleet: Fleet, cli: CommandLine) -> None:
    receipt = noted(shared_fleet, "all of it " * 50 + "\x1b[2J" + " to the end")
    session = str(receipt.session_id)
    (start,) = events_of(shared_fleet, receipt.session_id, "tool_call_start")

    shown = cli("event", session, str(start.seq))

    assert "\x1b" not in shown
    for expected in ("all of it " * 50, " to the end", str(start.task_id), start.hash.hex(), f"{start.at:%M:%S.%f}"):
        assert expected in shown
    causes, effects = shown[shown.index("caused by") :].split("effects")
    assert [int(line.split()[0]) for line in causes.splitlines()[1:] if line] == list(start.causes)
    assert "tool_call_success" in effects
    found = json.loads(cli("event", session, str(start.seq), "--json"))
    assert found["effects"] == [event.seq for event in shared_fleet.client.effects(session, start.seq)]
    shown_events = json.loads(cli("show", session, "--json"))["events"]
    assert {**shown_events[start.seq - 1], "effects": found["effects"]} == found
    assert "has no event 9999" in cli("event", session, "9999", status=2)


@pytest.mark.promise("I2")
def test_an_event_of_a_shared_past_is_shown_with_its_effects_in_the_fork(shared_fleet: Fleet, cli: CommandLine) -> None:
    receipt = noted(shared_fleet, "before")
    fork = shared_fleet.client.fork(
        receipt.session_id, shared_fleet.client.session(receipt.session_id).session.last_seq
    )
    for event in shared_fleet.client.events(fork.session_id):
        found = json.loads(cli("event", str(fork.session_id), str(event.seq), "--json"))
        effects = shared_fleet.client.effects(fork.session_id, event.seq)
        assert (found["hash"], found["effects"]) == (event.hash.hex(), [each.seq for each in effects])


def test_show_has_times_of_day_the_head_filters_and_whole_events(shared_fleet: Fleet, cli: CommandLine) -> None:
    receipt = noted(shared_fleet, "long " * 60 + "end")
    session = str(receipt.session_id)
    head = head_of(shared_fleet.client.session(session).session)
    events = shared_fleet.client.events(session)
    call = task_of(shared_fleet, receipt.session_id, "tool:note")

    shown = cli("show", session)
    assert f"head {head}" in shown
    assert f"head {head}" in cli("sessions")
    assert head in [each["head"] for each in json.loads(cli("sessions", "--json"))]
    for event in events:
        assert f"\n{event.seq:>5} {event.at.astimezone():%H:%M:%S} " in shown
    assert "long end" not in shown.split("timeline")[1]
    assert "long end" in cli("show", session, "--full")

    def seqs(*filters: str) -> list[int]:
        found = json.loads(cli("show", session, *filters, "--json"))["events"]
        lines = cli("show", session, *filters).splitlines()
        assert [int(line.split()[0]) for line in lines] == [event["seq"] for event in found]
        return [event["seq"] for event in found]

    assert seqs("--type", "tool_call_start") == [event.seq for event in events if event.type == "tool_call_start"]
    assert seqs("--task", str(call.id)) == [event.seq for event in events if event.task_id == call.id]
    assert seqs("--task", str(call.id)[-8:].upper()) == seqs("--task", str(call.id))
    assert len(seqs("--type", "user_message", "--type", "model_output")) == 3
    assert cli("show", session, "--type", "no_such_type") == "no event fits\n"
    full = cli("show", session, "--full", "--task", str(call.id))
    assert "long end" in full
    assert "conversations" not in full


def test_taking_content_out_asks_first(shared_fleet: Fleet, cli: CommandLine) -> None:
    receipt = noted(shared_fleet, "keep me")
    session = str(receipt.session_id)
    (start,) = events_of(shared_fleet, receipt.session_id, "tool_call_start")
    for command in (("redact", session, str(start.seq)), ("erase", session)):
        told = cli(*command, "--reason", "r", status=2)
        assert "for good" in told
        assert "--yes" in told
    assert [event for event in shared_fleet.client.events(session) if event.redacted_at] == []
    assert f"redacted  {start.seq}" in cli("redact", session, str(start.seq), "--reason", "r", "--yes")


def test_an_account_without_a_name_answers_by_its_number(
    shared_fleet: Fleet, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = asked(shared_fleet, to="ann", amount=50)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def nameless(_uid: int) -> NoReturn:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", nameless)
    found = json.loads(cli("approve", str(question.id), "--json"))
    assert found["approval"]["answered_by"] == f"uid {os.getuid()}"


ODD = {
    "empty": "",
    "no id": "not-a-uuid",
    "another id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "NUL": "a\x00b",
    "a lone surrogate": "\udcff",
    "an escape": "\x1b[31m\u202e",
    "huge": "x" * 1_100_000,
    "a negative number": "-1",
    "a number beyond a column": "2147483648",
    "a number of 5,000 digits": "9" * 5_000,
    "no JSON": "{",
    "JSON out of range": "1e9999",
    "deep JSON": "[" * 2_000 + "]" * 2_000,
    "a dash": "--",
}
BASE: dict[str, Callable[[UUID], list[str]]] = {
    "up": lambda _: ["--agents", "tests.sample.agents", "--tools", "tests.sample.tools", "--flower-port", "0"],
    "brain": lambda _: ["--agents", "tests.sample.agents"],
    "hands": lambda _: ["--tools", "tests.sample.tools"],
    "submit": lambda _: ["echo", "hello"],
    "document": lambda id: [str(id), "usage"],
    "fork": lambda id: [str(id), "--at", "1"],
    "signal": lambda id: [str(id), "heard"],
    "redact": lambda id: [str(id), "1", "--reason", "r", "--yes"],
    "erase": lambda id: [str(id), "--reason", "r", "--yes"],
    "event": lambda id: [str(id), "1"],
    "review": lambda id: [str(id), "happened"],
    "settle": lambda id: [str(id), "happened"],
    "due": lambda _: ["hands.default"],
    "watch": lambda _: ["01890a5d-ac96-774b-bcce-b302099a8057"],
}
COMMANDS = get_command(main.commands).commands  # type: ignore[attr-defined]


def just_the_session(id: UUID) -> list[str]:
    return [str(id)]


def odd_lines(name: str, session: UUID) -> Iterator[list[str]]:
    """The command line with one odd value in each place, and with odd options."""
    usual = BASE.get(name, just_the_session)(session)
    parameters = COMMANDS[name].params
    places = [index for index, word in enumerate(usual) if not word.startswith("--")]
    for odd in ODD.values():
        for place in places:
            yield [*usual[:place], odd, *usual[place + 1 :]]
        for parameter in parameters:
            if parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help":
                yield [*usual, parameter.opts[0], odd]
    yield [*usual, "one more"]
    yield ["--no-such-option"]
    yield []


@pytest.mark.parametrize("name", sorted(COMMANDS))
@pytest.mark.slow
def test_no_odd_argument_of_any_command_ends_in_a_trace_or_a_surprise(
    name: str, shared_fleet: Fleet, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(*_: object) -> NoReturn:
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    receipt = noted(shared_fleet, "odd")
    surprises = []
    for line in odd_lines(name, receipt.session_id):
        code, _, error = cli.run(name, *line)
        clear = code in (0, 1) or (code in (2, 3) and error.strip())
        if not clear or "Traceback" in error or "error: unexpected" in error:
            surprises.append(([word[:40] for word in line], code, error[:300]))
    assert surprises == []
