"""The five mails: Hands dies after the fourth was accepted and before anybody recorded it."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from brainhands.shared.model.event import Event
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from deploy.demo import mailbox
from deploy.demo.mailbox import Switches
from deploy.demo.model_scripts import BODY, CUSTOMERS, SUBJECT
from tests.conftest import readable_folder
from tests.instruments import invariants
from tests.instruments.fleet import Fleet, wait_until
from tests.instruments.processes import Child, Children, child_environment

INPUT = f'Send this notice to these five customers, {", ".join(CUSTOMERS)}: "{BODY}"'

pytestmark = [pytest.mark.crash, pytest.mark.slow]


class PostOffice:
    """The mailbox as a test sees it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def mails(self, at_least: int = 0) -> list[dict[str, Any]]:
        """The accepted mails; waits until there are so many."""
        mails: list[dict[str, Any]] = self._get(f"/mails?at_least={at_least}&timeout=40")["mails"]
        assert len(mails) >= at_least
        return mails

    def asked(self) -> list[str]:
        """The operation ids of all mails asked for, accepted or not."""
        return [request["operation_id"] for request in self._get("/requests")["requests"]]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def post_office(fleet: Fleet, folder: Path, switches: Switches, **settings: str) -> Iterator[PostOffice]:
    """A mailbox, and a fleet set to the demo's agent and tools, with nothing started yet."""
    with mailbox.start(folder / "mailbox", switches) as server:
        fleet.environment.update(
            BRAINHANDS_AGENTS="deploy.demo.agents",
            BRAINHANDS_TOOLS="deploy.demo.tools",
            MAILBOX_URL=server.url,
            **settings,
        )
        yield PostOffice(server.url)


def kill_hands_after_the_fourth_mail(fleet: Fleet, office: PostOffice) -> tuple[Receipt, list[Event]]:
    """Submit, kill Hands in the worst moment, start another; gives the receipt and the log as the kill left it."""
    fleet.relay(), fleet.brain()
    hands = fleet.hands()
    fleet.wait_for_workers(brain=1, hands=1, relay=1)
    receipt = fleet.submit(INPUT, agent="notices")
    office.mails(at_least=4)
    hands.kill()
    left = fleet.client.events(receipt.session_id)
    fleet.hands()
    return receipt, left


def mail_events(events: list[Event], type: str) -> list[dict[str, Any]]:
    payloads = (json.loads(event.payload_text) for event in events if event.type == type)
    return [payload for payload in payloads if payload["tool"] == "send_email"]


@pytest.mark.promise("F5", "F10", "F12", "G1", "G2")
def test_the_fourth_mail_is_found_by_its_operation_id_and_the_fifth_is_sent_once(fleet: Fleet, tmp_path: Path) -> None:
    with post_office(fleet, tmp_path, Switches(hold_reply=4)) as office:
        receipt, left = kill_hands_after_the_fourth_mail(fleet, office)
        done = fleet.wait(receipt)
        mails, asked = office.mails(), office.asked()

    assert done.outcome is Outcome.SUCCEEDED
    assert sorted(mail["to"] for mail in mails) == sorted(CUSTOMERS)
    events = fleet.client.events(receipt.session_id)
    assert events[: len(left)] == left
    started, recorded = mail_events(events, "tool_call_start"), mail_events(events, "tool_call_success")
    before = [payload["operation_id"] for payload in mail_events(left, "tool_call_success")]
    fourth, fifth = mails[3]["operation_id"], mails[4]["operation_id"]
    assert before == [mail["operation_id"] for mail in mails[:3]]
    assert [payload["operation_id"] for payload in mail_events(left, "tool_call_start")] == [*before, fourth]
    assert {payload["operation_id"]: payload["source"] for payload in recorded} == {
        **dict.fromkeys(before, "run"),
        fourth: "lookup",
        fifth: "run",
    }
    assert len(started) == len(recorded) == 5
    assert sorted(asked) == sorted(mail["operation_id"] for mail in mails)
    invariants.check(fleet.database_url, at_rest=True)

    _the_plan_lists_what_became_of_each_mail(fleet, receipt.session_id, mails)
    _each_operation_is_bound_to_recipient_and_body_before_the_call(events, mails)


def _the_plan_lists_what_became_of_each_mail(fleet: Fleet, session: UUID, mails: list[dict[str, Any]]) -> None:
    view = fleet.client.session(session)
    (plan,) = view.documents
    assert (plan.name, plan.version) == ("mail_plan", 2)
    assert (plan.value["subject"], plan.value["body"]) == (SUBJECT, BODY)
    assert [(mail["to"], mail["outcome"]) for mail in plan.value["mails"]] == [(to, "sent") for to in CUSTOMERS]
    tasks = {str(task.id): task for task in view.tasks}
    (flow,) = (task for task in view.tasks if task.kind == "flow:send_notices")
    for mail in plan.value["mails"]:
        task = tasks[mail["task"]]
        assert (task.kind, task.owner_id, task.outcome) == ("tool:send_email", flow.id, Outcome.SUCCEEDED)
        assert task.result["to"] == mail["to"]
    assert {task.result["mail_id"] for task in view.tasks if task.kind == "tool:send_email"} == {
        mail["mail_id"] for mail in mails
    }


def _each_operation_is_bound_to_recipient_and_body_before_the_call(
    events: list[Event], mails: list[dict[str, Any]]
) -> None:
    stored = {}
    for event in events:
        payload = json.loads(event.payload_text)
        if event.type == "tool_call_start" and payload["tool"] == "send_email":
            stored[payload["operation_id"]] = (payload["arguments"]["to"], payload["arguments"]["body"], event.at)
    assert len(stored) == 5
    for mail in mails:
        to, body, at = stored[mail["operation_id"]]
        assert (to, body) == (mail["to"], mail["body"])
        assert at.timestamp() < mail["accepted_at"]


@pytest.mark.promise("F4", "F6", "G3")
def test_a_mail_service_that_can_say_nothing_leaves_the_fourth_mail_unknown_and_it_is_never_sent_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    mute = Switches(hold_reply=4, dedup=False, lookup=False)
    settings = {"MAILBOX_DEDUPES": "0", "MAILBOX_LOOKUP": "0", "MAILBOX_TIMEOUT_SECONDS": "8"}
    with post_office(fleet, tmp_path, mute, **settings) as office:
        receipt, left = kill_hands_after_the_fourth_mail(fleet, office)
        done = fleet.wait(receipt)
        mails, asked = office.mails(), office.asked()

    assert done.outcome is Outcome.SUCCEEDED
    assert sorted(mail["to"] for mail in mails) == sorted(CUSTOMERS)
    assert len(set(asked)) == len(asked) == 5
    events = fleet.client.events(receipt.session_id)
    assert events[: len(left)] == left
    (unknown,) = mail_events(events, "tool_call_interrupted")
    assert unknown["operation_id"] == mails[3]["operation_id"]
    assert len(mail_events(events, "tool_call_success")) == 4
    (plan,) = fleet.client.session(receipt.session_id).documents
    outcomes = {mail["to"]: mail["outcome"] for mail in plan.value["mails"]}
    assert outcomes == {**dict.fromkeys(CUSTOMERS, "sent"), mails[3]["to"]: "unknown"}
    assert f'"{mails[3]["to"]}":"unknown' in str(done.output)
    invariants.check(fleet.database_url, at_rest=True)


@pytest.fixture
def demo() -> Iterator[tuple[Child, str]]:
    """`python -m deploy.demo` as a person runs it where nothing runs, and the folder of all it keeps."""
    with readable_folder() as folder, Children(folder) as children:
        started = children.start(
            sys.executable, "-m", "deploy.demo", name="demo", environment=child_environment(TMPDIR=str(folder))
        )
        yield started, str(folder)


def left_of(folder: str) -> list[str]:
    """Processes that were started with this folder for temporary files and still live."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.promise("G2", "K1")
def test_the_demo_kills_hands_and_exactly_five_mails_arrive(demo: tuple[Child, str]) -> None:
    running, folder = demo

    status = running.wait(timeout=100)

    assert status == 0, running.output
    for told in ("kill -9 of Hands", "starts another Hands", "found by its operation id", "exactly five mails arrived"):
        assert told in running.output
    assert running.output.count("│ ") == 5 * 4
    assert "submission_done" in running.output
    assert left_of(folder) == []


@pytest.mark.promise("K1")
def test_the_demo_takes_everything_it_started_with_it_when_it_is_interrupted(demo: tuple[Child, str]) -> None:
    running, folder = demo
    running.wait_for_line("kill -9 of Hands", timeout=60)

    running.send(signal.SIGINT)

    assert running.wait(timeout=60) == 130, running.output
    wait_until(lambda: left_of(folder) == [], 10, "the end of all that it started")
    assert not list(Path(folder).glob("brainhands-demo-*"))
