"""The demo's mailbox: once by operation, on disk before its receipt, and whatever its switches say."""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deploy.demo import mailbox
from deploy.demo.mailbox import Switches
from tests.instruments.processes import Children

MAIL = {"operation_id": "op-1", "to": "customer-1@example.com", "subject": "Notice", "body": "We open at nine."}


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path) as children:
        yield children


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx2.Client]:
    with mailbox.start(tmp_path) as server, _client(server.url) as client:
        yield client


def _client(url: str, patience: float = 20) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=httpx2.Timeout(20, read=patience), trust_env=False)


def _mails(http: httpx2.Client, at_least: int = 0) -> list[dict[str, Any]]:
    mails: list[dict[str, Any]] = http.get("/mails", params={"at_least": at_least, "timeout": 20}).json()["mails"]
    return mails


def test_a_mail_is_accepted_and_its_receipt_can_be_asked_for(http: httpx2.Client) -> None:
    reply = http.post("/mails", json=MAIL)

    assert reply.status_code == 201
    receipt = reply.json()
    assert set(receipt) == {"mail_id", "operation_id", "to", "accepted_at"}
    assert http.get("/operations/op-1").json() == receipt
    assert _mails(http) == [receipt | MAIL]


def test_an_operation_asked_twice_is_accepted_once_and_gets_its_first_receipt(http: httpx2.Client) -> None:
    first = http.post("/mails", json=MAIL)
    second = http.post("/mails", json=MAIL)

    assert (second.status_code, second.json()) == (200, first.json())
    assert len(_mails(http)) == 1
    asked = http.get("/requests").json()["requests"]
    assert [request["operation_id"] for request in asked] == ["op-1", "op-1"]


def test_an_operation_id_may_hold_any_characters(http: httpx2.Client) -> None:
    http.post("/mails", json={**MAIL, "operation_id": "task/7 é?#%"})

    assert http.get("/operations/task%2F7%20%C3%A9%3F%23%25").json()["operation_id"] == "task/7 é?#%"


def test_an_operation_nobody_asked_for_is_not_found(http: httpx2.Client) -> None:
    assert http.get("/operations/op-1").status_code == 404


@pytest.mark.parametrize("body", ["no json", "[]", "{}", '{"operation_id": 1, "to": "", "subject": "", "body": ""}'])
def test_what_is_no_mail_is_refused(http: httpx2.Client, body: str) -> None:
    assert http.post("/mails", content=body).status_code == 400
    assert _mails(http) == []


def test_without_dedup_a_repeated_operation_is_a_second_mail(http: httpx2.Client) -> None:
    http.post("/switches", json={"dedup": False}).raise_for_status()

    statuses = [http.post("/mails", json=MAIL).status_code for _ in range(2)]

    assert statuses == [201, 201]
    assert len(_mails(http)) == 2


def test_without_lookup_nothing_is_said_about_an_operation(http: httpx2.Client) -> None:
    http.post("/mails", json=MAIL)
    http.post("/switches", json={"lookup": False}).raise_for_status()

    assert http.get("/operations/op-1").status_code == 501


def test_a_mail_asked_for_arrives_although_its_client_has_gone(http: httpx2.Client) -> None:
    http.post("/switches", json={"accept_delay": 0.5}).raise_for_status()
    with _client(str(http.base_url), patience=0.1) as impatient, pytest.raises(httpx2.ReadTimeout):
        impatient.post("/mails", json=MAIL)

    (mail,) = _mails(http, at_least=1)
    (asked,) = http.get("/requests").json()["requests"]
    assert mail["operation_id"] == "op-1"
    assert mail["accepted_at"] - asked["at"] > 0.4


def test_a_mail_is_there_before_a_late_reply_says_so(http: httpx2.Client) -> None:
    http.post("/switches", json={"reply_delay": 30}).raise_for_status()
    with _client(str(http.base_url), patience=0.1) as impatient, pytest.raises(httpx2.ReadTimeout):
        impatient.post("/mails", json=MAIL)

    assert len(_mails(http, at_least=1)) == 1


def test_an_unknown_switch_is_refused_and_changes_nothing(http: httpx2.Client) -> None:
    assert http.post("/switches", json={"dedup": False, "colour": "red"}).status_code == 400
    assert http.get("/switches").json() == Switches().model_dump()


def test_who_waits_for_mails_is_answered_when_they_are_there(http: httpx2.Client) -> None:
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(len(_mails(http, at_least=2))))
    waiting.start()

    http.post("/mails", json=MAIL)
    http.post("/mails", json={**MAIL, "operation_id": "op-2"})
    waiting.join()

    assert seen == [2]


def test_who_waits_for_too_many_mails_is_told_how_many_there_are(http: httpx2.Client) -> None:
    http.post("/mails", json=MAIL)

    assert len(http.get("/mails", params={"at_least": 2, "timeout": 0.1}).json()["mails"]) == 1


def test_a_killed_mailbox_knows_its_mails_again(tmp_path: Path, children: Children) -> None:
    folder = tmp_path / "mails"
    command = (sys.executable, "-m", "deploy.demo.mailbox", "--port", "0", "--folder", str(folder))
    killed = children.start(*command, name="mailbox")
    with _client(killed.wait_for_line("listening on").split()[-1]) as http:
        receipt = http.post("/mails", json=MAIL).json()
    killed.kill()
    with (folder / "mails.jsonl").open("ab") as torn:
        torn.write(b'{"mail_id": "half a li')

    again = children.start(*command, "--no-lookup", name="mailbox")

    with _client(again.wait_for_line("listening on").split()[-1]) as http:
        assert http.post("/mails", json=MAIL).json() == receipt
        assert http.get("/operations/op-1").status_code == 501
        assert http.post("/mails", json={**MAIL, "operation_id": "op-2"}).status_code == 201
        assert [mail["operation_id"] for mail in _mails(http)] == ["op-1", "op-2"]
    again.send(signal.SIGTERM)
    assert again.wait() == 0
