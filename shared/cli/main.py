"""The command `brainhands`: its commands, and how an error is told: one line, and one with what to do."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from brainhands.shared.cli import interrupt
from brainhands.shared.cli.terminal import escaped, prepare, say
from brainhands.shared.errors import BrainhandsError
from brainhands.shared.runtime.extras import require

COMMANDS = {
    "up": ("up", "Run everything on this machine, until Ctrl-C."),
    "env": ("env", "Print the servers' addresses for a shell."),
    "brain": ("parts", "Run a Brain worker."),
    "hands": ("parts", "Run a Hands worker."),
    "relay": ("parts", "Run a relay."),
    "flower": ("parts", "Run Flower, to look at both fleets."),
    "migrate": ("parts", "Bring the database schema to what this code needs."),
    "submit": ("submit", "Give an agent input, durably."),
    "cancel": ("cancel", "Cancel work, and say what won."),
    "signal": ("signal", "Tell a session something."),
    "approvals": ("approvals", "List the questions that wait for an answer."),
    "approve": ("approvals", "Let a call run, as it is or with other arguments."),
    "deny": ("approvals", "Refuse a call."),
    "review": ("approvals", "Say whether the effect of a call happened."),
    "settle": ("approvals", "Say what became of a call that is unknown."),
    "watch": ("submit", "Show a session's events as they come."),
    "sessions": ("show", "List the newest sessions."),
    "show": ("show", "Show a session, or some of its events."),
    "event": ("show", "Show one event whole, with its causes."),
    "document": ("document", "Show a document of a session, or which there are."),
    "awake": ("awake", "Drive a session on from its last commit."),
    "fork": ("fork", "Make a session that goes on from another one."),
    "verify": ("verify", "Check the hash chain of a session's log."),
    "redact": ("redact", "Take the content of events out of the store."),
    "erase": ("redact", "Take all content of a session out of the store."),
    "due": ("due", "Say whether work is ready for a pool."),
    "doctor": ("doctor", "Look for what is wrong."),
}
"""The module of each command, which is loaded when the command runs, and what a list of commands says of it."""

PARTS = {"up": ("local", "brain", "hands", "relay")} | {part: (part,) for part in ("brain", "hands", "relay", "flower")}
"""The extras of the parts that a command runs."""


def load(name: str) -> TyperCommand:
    """The command of a name. Raises MissingExtra."""
    require(*PARTS.get(name, ()))
    module, _ = COMMANDS[name]
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(getattr(import_module(f"brainhands.shared.cli.{module}"), name))
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


class Commands(TyperGroup):
    """The commands by their names; the one that is asked for is loaded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else None, rest


commands = typer.Typer(
    cls=Commands,
    name="brainhands",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"brainhands {version('brainhands')}")
        raise typer.Exit


@commands.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A durable agent runtime: Brain workers think, Hands workers act, every step between them is a committed row."""


def _not_loaded() -> None:
    """Stands for each command until it is asked for."""


for _name, (_, _told) in COMMANDS.items():
    commands.command(_name, short_help=_told)(_not_loaded)


def app() -> None:
    """Run the command line and exit.

    0 done, 1 a failed outcome or a finding, 2 bad input, 3 a server or the schema, 130 Ctrl-C.
    """
    try:
        with interrupt.heard():
            prepare()
            commands()
    except BrainhandsError as error:
        _fail(error)
    except OSError as error:
        _fail(BrainhandsError(f"the system refuses: {error}", "see that files and output can be read and written"))
    except Exception as error:
        if os.environ.get("BRAINHANDS_LOG_LEVEL", "").upper() == "DEBUG":
            raise
        _fail(_in_words(error))


def _in_words(error: Exception) -> BrainhandsError:
    from brainhands.shared.runtime.faults import told
    from brainhands.shared.store.database import TRANSIENT, unavailable

    if isinstance(error, TRANSIENT):
        return unavailable(error)
    return BrainhandsError(f"unexpected {told(error)}", "report it, with what BRAINHANDS_LOG_LEVEL=DEBUG shows")


def _fail(error: BrainhandsError) -> None:
    for line in (f"error: {error}", error.next_step):
        if line:
            say(escaped(" ".join(line.split())), error=True)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    app()
