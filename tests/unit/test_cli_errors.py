"""What the command line says and exits with when something is wrong: never a stack trace."""

from __future__ import annotations

import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psycopg
import pytest

from brainhands.shared.cli import main, submit

ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(autouse=True)
def home_without_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path / "home"))


def brainhands(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit status of the command line, run in this process."""
    monkeypatch.setattr("sys.argv", ["brainhands", *arguments])
    with pytest.raises(SystemExit) as exit:
        main.app()
    return exit.value.code


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "echo", "hello"),
        ("watch", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("sessions",),
        ("show", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("document", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("relay",),
        ("flower",),
        ("migrate",),
        ("brain", "--agents", "tests.sample.agents"),
        ("hands", "--tools", "tests.sample.tools"),
    ],
)
def test_without_servers_every_command_says_what_is_missing_and_what_to_do(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert brainhands(monkeypatch, *arguments) == 3
    problem, next_step = capsys.readouterr().err.splitlines()
    assert problem.startswith("error: Postgres is not reachable: DATABASE_URL and REDIS_URL not set")
    assert "brainhands up" in next_step


def test_a_server_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://someone:secret@127.0.0.1:9/none")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    assert brainhands(monkeypatch, "sessions") == 3
    problem, next_step = capsys.readouterr().err.splitlines()
    assert problem.startswith("error: Postgres is not reachable: ")
    assert "secret" not in problem
    assert "DATABASE_URL" in next_step


def test_a_connection_that_breaks_in_the_middle_is_told_like_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise psycopg.OperationalError("the connection\nis lost")

    monkeypatch.setattr(submit, "open_client", broken)
    assert brainhands(monkeypatch, "watch", "01890a5d-ac96-774b-bcce-b302099a8057") == 3
    assert capsys.readouterr().err.splitlines()[0] == "error: Postgres is not reachable: the connection is lost"


@pytest.mark.parametrize("command", ["up", "brain"])
def test_a_module_that_does_not_exist_is_refused_before_anything_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = ("--tools", "tests.sample.tools") if command == "up" else ()
    assert brainhands(monkeypatch, command, "--agents", "tests.sample.agents,no.such.module", *tools) == 2
    assert capsys.readouterr().err.splitlines()[0] == "error: there is no module 'no.such.module'"
    assert not (tmp_path / "home").exists()


def test_an_unusable_setting_is_bad_input_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRAINHANDS_LEASE_SECONDS", "soon")
    assert brainhands(monkeypatch, "sessions") == 2
    assert capsys.readouterr().err.startswith("error: BRAINHANDS_LEASE_SECONDS: ")


@pytest.mark.parametrize("arguments", [("no-such-command",), ("submit", "echo"), ("watch", "x", "--after", "-1")])
def test_a_wrong_command_line_is_bad_input(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert brainhands(monkeypatch, *arguments) == 2


def test_ctrl_c_ends_a_command_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "open_client", interrupted)
    assert brainhands(monkeypatch, "watch", "01890a5d-ac96-774b-bcce-b302099a8057") == 130
    assert capsys.readouterr().err == ""


INTERRUPTED = """
import os, signal, sys, threading, weakref
from brainhands.shared.cli import interrupt, main, submit

def ctrl_c(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Dying:
    def __del__(self):
        ctrl_c()

def {where}():
    {code}
    threading.Event().wait()

interrupt.GRACE_SECONDS = 1
submit.open_client = {where}
sys.argv = ["brainhands", "watch", "x"]
main.app()
"""
IGNORED = {
    "a_finalizer": "Dying()",
    "a_weak_reference": "kept = type('Plain', (), {})()\n    watched = weakref.ref(kept, ctrl_c)\n    del kept",
}


@pytest.mark.parametrize("where", IGNORED)
def test_ctrl_c_ends_a_command_also_where_python_ignores_what_it_raises(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(where=where, code=IGNORED[where])],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 130, done.stderr
    assert "Exception ignored" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("signal", ID, "paid", "--payload", "notjson"),
        ("approve", ID, "--arguments", "{to: 1}"),
        ("review", ID, "happened", "--result", ""),
        ("settle", ID, "happened", "--result", "it's done"),
    ],
)
def test_text_that_is_no_json_is_refused_before_anything_with_how_to_write_it(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert brainhands(monkeypatch, *arguments) == 2
    problem, next_step = capsys.readouterr().err.splitlines()
    assert "not JSON" in problem
    assert """'"ready"'""" in next_step


def test_the_version_is_told_without_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert brainhands(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"brainhands {metadata.version('brainhands')}\n"


def test_up_says_before_anything_starts_that_flower_cannot_have_its_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        parts = ("--agents", "tests.sample.agents", "--tools", "tests.sample.tools")
        assert brainhands(monkeypatch, "up", *parts, "--flower-port", port) == 2

    problem, next_step = capsys.readouterr().err.splitlines()
    assert f"port {port}" in problem
    assert "--no-flower" in next_step


@pytest.mark.parametrize("password", ["plain", "it's$HOME", '"`id`"', "a%20b;c"])
def test_addresses_for_a_shell_are_quoted_for_it_and_fit_every_driver(
    password: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql+psycopg://shop:{password}@127.0.0.1:9/shop")
    monkeypatch.setenv("REDIS_URL", f"redis://:{password}@127.0.0.1:9/0")

    assert brainhands(monkeypatch, "env") == 0

    script = f'{capsys.readouterr().out}\nprintf \'%s\\n\' "$DATABASE_URL" "$REDIS_URL"'
    seen = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
    of_redis = password.replace(";", "%3B")  # at which kombu would part two addresses
    assert seen == f"postgresql://shop:{password}@127.0.0.1:9/shop\nredis://:{of_redis}@127.0.0.1:9/0\n"
