"""What commands print: no text of the store steers the terminal, and no terminal ends a command."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from brainhands.shared.cli import terminal
from brainhands.shared.cli.terminal import escaped, one_line, say, say_json, styled

COMMANDS = Path(terminal.__file__).parent

STEERING = {
    "a colour": "\x1b[31m",
    "a title": "\x1b]0;title\x07",
    "a link": "\x1b]8;;https://example.com\x1b\\",
    "the one-byte form of an escape": "\x9b2J",
    "a bell": "\x07",
    "a return to the start of the line": "pay 5\rpay 9",
    "a step back": "9\x08",
    "a deletion": "\x7f",
    "a NUL": "\x00",
    "a tab": "\t",
    "an override of the direction": "\u202e",
    "an isolate": "\u2066",
    "a mark of direction": "\u200f",
    "a joiner without a width": "\u200d",
    "a soft hyphen": "\u00ad",
    "a line separator": "\u2028",
    "a next line": "\x85",
    "a tag": "\U000e0041",
    "a lone surrogate": "\ud800",
    "a private character": "\ue000",
}
PLAIN = ["plain ~ text", "größer", "日本語　全角", "un mot\u00a0!", "🙂", "a\\u001bb", "é̂"]


@pytest.mark.parametrize("text", STEERING.values(), ids=STEERING.keys())
def test_what_could_steer_a_terminal_is_seen_and_not_obeyed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"before {text} after")
    say(styled("before ", (text, "red"), " after"))
    say(f"error {text}", error=True)
    say_json({text: [text]})
    printed = capsys.readouterr()
    for character in set(text) - set(map(chr, range(32, 127))):
        assert character not in printed.out + printed.err
        assert json.dumps(character)[1:-1] in printed.out
    assert json.loads(printed.out.splitlines()[-1]) == {text: [text]}


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_is_printed_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(text)
    say(styled(text))
    say_json(text)
    assert capsys.readouterr().out == f"{text}\n{text}\n{json.dumps(text, ensure_ascii=False)}\n"


def test_a_text_keeps_its_lines_and_its_spaces_and_one_line_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\n  two   three")
    assert capsys.readouterr().out == "one\n  two   three\n"
    assert escaped("one\n  two   three") == one_line("one\n  two   three", 80) == "one\\n  two   three"


@pytest.mark.parametrize("room", [-5, 0, 1, 2, 10, 11, 12])
def test_what_is_cut_says_so(room: int) -> None:
    text = "hello world"
    shown = one_line(text, room)
    assert len(shown) <= max(room, 1)
    assert shown == text or shown.endswith("…")
    assert (shown == text) == (room >= len(text))


def process(code: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that prints, as a command does."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from brainhands.shared.cli.terminal import *\nprepare()\n{code}"],
        env={"PYTHONPATH": str(COMMANDS.parents[2]), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r", "utf-8"])
@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb", "NO_COLOR": "1"}, {"COLUMNS": "1"}, {"LC_ALL": "C"}])
def test_a_terminal_of_any_encoding_width_and_kind_shows_every_text(encoding: str, environment: dict[str, str]) -> None:
    text = "größer 日本 🙂 … \udcff"
    code = f"for _ in (0, 1): say({text!r}, error=bool(_))\nsay(styled(({text!r}, 'red')))\nsay_json({text!r})"
    printing = process(code, PYTHONIOENCODING=encoding, **environment)
    out, error = printing.communicate(timeout=60)
    assert (printing.returncode, b"Traceback" in error) == (0, False)
    first, second, last = out.decode(encoding).splitlines()
    assert first == second
    assert json.loads(last) == text
    assert all(each in first or json.dumps(each)[1:-1] in first for each in text)


@pytest.mark.parametrize("what", ["say('x' * 100)", "say(styled(('x' * 100, 'red')))", "say_json('x' * 100)"])
def test_a_reader_that_goes_away_ends_the_command_without_a_word(what: str) -> None:
    printing = process(f"while True: {what}")
    assert printing.stdout is not None
    assert printing.stderr is not None
    printing.stdout.readline()
    printing.stdout.close()
    assert printing.wait(60) == terminal.READER_LEFT
    assert printing.stderr.read() == b""
    printing.stderr.close()


def test_commands_print_in_one_way_only() -> None:
    forbidden = {"print", "typer.echo", "typer.secho", "Console", "Text", "sys.stdout.write", "sys.stderr.write"}
    found = [
        f"{file.name}:{node.lineno}: {ast.unparse(node.func)}"
        for file in sorted(COMMANDS.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if file.name != "terminal.py" and isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden
    ]
    assert found == []
