"""The command `brainhands`: its commands, and how an error is told: one line, and one with what to do."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from brainhands.shared.cli import interrupt
from brainhands.shared.cli.approvals import approvals, approve, deny, review, settle
from brainhands.shared.cli.awake import awake
from brainhands.shared.cli.cancel import cancel
from brainhands.shared.cli.doctor import doctor
from brainhands.shared.cli.document import document
from brainhands.shared.cli.due import due
from brainhands.shared.cli.env import env
from brainhands.shared.cli.fork import fork
from brainhands.shared.cli.parts import brain, flower, hands, migrate, relay
from brainhands.shared.cli.redact import erase, redact
from brainhands.shared.cli.show import event, sessions, show
from brainhands.shared.cli.signal import signal
from brainhands.shared.cli.submit import submit, watch
from brainhands.shared.cli.terminal import escaped, prepare, say
from brainhands.shared.cli.up import up
from brainhands.shared.cli.verify import verify
from brainhands.shared.errors import BrainhandsError
from brainhands.shared.runtime.faults import told
from brainhands.shared.store.database import TRANSIENT, unavailable

commands = typer.Typer(
    name="brainhands",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(asked: bool) -> None:
    if asked:
        say(f"brainhands {version('brainhands')}")
        raise typer.Exit


@commands.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A durable agent runtime: Brain workers think, Hands workers act, every step between them is a committed row."""


for command in (
    up,
    env,
    brain,
    hands,
    relay,
    flower,
    migrate,
    submit,
    cancel,
    signal,
    approvals,
    approve,
    deny,
    review,
    settle,
    watch,
    sessions,
    show,
    event,
    document,
    awake,
    fork,
    verify,
    redact,
    erase,
    due,
    doctor,
):
    commands.command()(command)


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
    except TRANSIENT as error:
        _fail(unavailable(error))
    except OSError as error:
        _fail(BrainhandsError(f"the system refuses: {error}", "see that files and output can be read and written"))
    except Exception as error:
        if os.environ.get("BRAINHANDS_LOG_LEVEL", "").upper() == "DEBUG":
            raise
        _fail(BrainhandsError(f"unexpected {told(error)}", "report it, with what BRAINHANDS_LOG_LEVEL=DEBUG shows"))


def _fail(error: BrainhandsError) -> None:
    for line in (f"error: {error}", error.next_step):
        if line:
            say(escaped(" ".join(line.split())), error=True)
    sys.exit(error.exit_code)


if __name__ == "__main__":
    app()
