"""Flower over both fleets: readable, behind a password, and read-only."""

from __future__ import annotations

import base64
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from brainhands.shared.local.servers import free_port
from brainhands.shared.model.submission import Receipt
from tests.instruments.fleet import CELERY, Fleet, wait_until


class Page:
    """Flower's address with the operator's password."""

    def __init__(self, port: int, password: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._password = password

    def status(self, path: str, *, method: str = "GET", password: str | None = None) -> int:
        """The status of an answer; no credentials are sent without a password."""
        try:
            with self._open(path, method, password) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    def read(self, path: str) -> str:
        """The text of a page, asked for with the right password."""
        with self._open(path, "GET", self._password) as answer:
            return str(answer.read().decode())

    def makes_flower_log(self) -> str:
        """Ask for what it warns of; gives words of its line."""
        assert self.status("/worker/nobody", password=self._password) == 404
        return "Unknown worker 'nobody'"

    def json(self, path: str) -> Any:
        return json.loads(self.read(path))

    @property
    def password(self) -> str:
        return self._password

    def _open(self, path: str, method: str, password: str | None) -> Any:
        request = urllib.request.Request(f"{self.url}{path}", method=method, data=b"" if method == "POST" else None)
        if password is not None:
            credentials = base64.b64encode(f"operator:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        return urllib.request.urlopen(request, timeout=20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def flower(fleet: Fleet, home: Path) -> Page:
    """Flower as the command line starts it, next to a whole fleet."""
    fleet.environment["BRAINHANDS_HOME"] = str(home)
    port = free_port()
    flower = fleet._start("flower", "-m", "brainhands.shared.cli.main", "flower", "--port", str(port), environment={})
    fleet.relay()
    for role in ("brain", "hands"):  # as in README, which gives them no names
        fleet._start(
            role, *CELERY, f"brainhands.{role}.app", "worker", "-Q", f"{role}.default", "-c", "1", environment={}
        )
    fleet.wait_for_workers(relay=1, brain=1, hands=1)
    wait_until(lambda: answers(port), 60, f"Flower's answer; it wrote {flower.output[-2000:]}")
    return Page(port, (home / "flower-password").read_text())


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def hints_of(flower: Page, receipt: Receipt) -> set[str]:
    """How Flower shows the hints of a session."""
    shown = flower.json("/api/tasks").values()
    return {task["kwargs"] for task in shown if str(receipt.session_id) in (task["kwargs"] or "")}


@pytest.mark.slow
@pytest.mark.promise("K2")
@pytest.mark.case("mher/flower#1217")
def test_flower_shows_both_fleets_and_readable_hints_to_who_has_the_password_and_lets_nobody_write(
    flower: Page, fleet: Fleet, home: Path
) -> None:
    receipt = fleet.script({"calls": [{"name": "note", "arguments": {"text": "private"}}]}, {"text": "done"})
    fleet.wait(receipt)

    wait_until(lambda: len(flower.json("/api/workers?refresh=1")) == 2, 30, "two workers in Flower")
    names = {name.partition("@")[0].rstrip("-0123456789") for name in flower.json("/api/workers")}
    assert names == {"brain", "hands"}
    wanted = {f"{what} session={receipt.session_id}" for what in ("worker", "note")}
    wait_until(lambda: hints_of(flower, receipt) >= wanted, 30, "the hints in Flower")
    columns = re.findall(r'data-column="(\w+)"', flower.read("/tasks"))
    assert columns[0] == "kwargs"  # the readable form of a hint
    tasks = flower.json("/api/tasks")
    # Of a task whose first event came before Flower listened, it knows no name.
    assert {task["name"] for task in tasks.values()} - {None} == {"brain.advance", "hands.advance"}
    assert "private" not in json.dumps(tasks)

    pages = ["/", "/workers", "/tasks", "/broker", "/api/workers", "/api/tasks"]
    assert {page: flower.status(page) for page in pages} == dict.fromkeys(pages, 401)
    assert {page: flower.status(page, password="wrong") for page in pages} == dict.fromkeys(pages, 401)
    assert {page: flower.status(page, password=flower.password) for page in pages} == dict.fromkeys(pages, 200)
    assert (home / "flower-password").stat().st_mode & 0o077 == 0

    worker = next(iter(flower.json("/api/workers")))
    task = next(iter(tasks))
    writes = [
        f"/api/worker/shutdown/{worker}",
        f"/api/worker/pool/restart/{worker}",
        f"/api/worker/pool/grow/{worker}?n=3",
        f"/api/worker/pool/shrink/{worker}",
        f"/api/worker/queue/cancel-consumer/{worker}?queue=brain.default",
        f"/api/task/revoke/{task}",
        f"/api/task/abort/{task}",
        "/api/task/rate-limit/brain.advance",
        "/api/task/timeout/brain.advance",
        "/api/task/apply/brain.advance",
        "/api/task/async-apply/brain.advance",
        "/api/task/send-task/brain.advance",
    ]
    assert {each: flower.status(each, method="POST") for each in writes} == dict.fromkeys(writes, 401)
    assert {each: flower.status(each, method="POST", password=flower.password) for each in writes} == dict.fromkeys(
        writes, 403
    )
    again = fleet.submit("echo still here", agent="echo")
    assert fleet.wait(again).output == "still here"
