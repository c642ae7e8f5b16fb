"""The one way by which a command prints: nothing that comes from the store reaches the terminal as a command.

Control characters, the escapes of terminals, marks that turn the direction of text, and whatever else has no shape of
its own are shown as JSON would escape them (`\\u001b`, `\\u202e`); so what is printed as JSON stays the same JSON. What
the terminal's encoding lacks is shown in the same way, and never ends a command.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import sys
import unicodedata
from io import TextIOWrapper
from typing import TYPE_CHECKING, TypeAlias

from brainhands.shared.model.json import Json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WIDTH = 100
"""Columns where the output is no terminal."""

NARROWEST = 40
"""Columns that a line takes also where the terminal has fewer."""

READER_LEFT = 141
"""The exit status of a command whose output nobody reads any more: that of one that SIGPIPE ends."""

Piece: TypeAlias = "str | tuple[str, str]"
"""A text, or a text with its style."""

_NOT_ASCII = re.compile(r"[^ -~]")
_NOT_ASCII_IN_LINES = re.compile(r"[^ -~\n]")


def say(what: RenderableType = "", *, error: bool = False) -> None:
    """Print text, of which lines stay lines and all else without a shape is escaped, or what `styled` made."""
    text = escaped(what, lines=True) if isinstance(what, str) else _rendered(what)
    try:
        print(text, file=sys.stderr if error else sys.stdout, flush=True)
    except BrokenPipeError:
        # What is still buffered would be written at the very end, with a trace.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if error else sys.stdout).fileno())
        sys.exit(READER_LEFT)


def say_json(value: Json) -> None:
    """Print one JSON value on one line, at once readable by who follows the output."""
    say(json.dumps(value, ensure_ascii=False))


def styled(*pieces: Piece) -> Text:
    """One line of these pieces, each escaped; styles are seen on a terminal only."""
    from rich.text import Text

    pairs = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
    return Text.assemble(*((escaped(text), style) for text, style in pairs))


def escaped(text: str, *, lines: bool = False) -> str:
    """The text in one line, or with its own lines, where each character is one that can be seen or a space."""
    return (_NOT_ASCII_IN_LINES if lines else _NOT_ASCII).sub(lambda found: _shown(found.group()), text)


def one_line(text: str, room: int) -> str:
    """As much of a text as one line of `room` characters takes; an ellipsis says that there is more."""
    room = max(room, 1)
    shown = escaped(text[: room + 1])
    return shown if len(shown) <= room else shown[: room - 1] + "…"


def width() -> int:
    """The columns of the terminal."""
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def prepare() -> None:
    """Let no character that the terminal's encoding lacks end this process."""
    codecs.register_error("escaped", _escape_what_is_not_encoded)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="escaped")


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return json.dumps(character)[1:-1]


def _escape_what_is_not_encoded(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeEncodeError)
    return json.dumps(problem.object[problem.start : problem.end])[1:-1], problem.end


def _rendered(what: RenderableType) -> str:
    """As standard output shows it, with colours where that is a terminal; nothing is taken for markup."""
    from rich.console import Console

    console = Console(width=width(), markup=False, highlight=False, emoji=False, soft_wrap=True)
    with console.capture() as rendered:
        console.print(what, end="")
    return rendered.get()
