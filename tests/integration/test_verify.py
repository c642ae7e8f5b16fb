"""The log is proof against tampering: a later change is found, and against a known head a missing tail too."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from typer.testing import CliRunner

from brainhands.shared.cli.main import commands
from brainhands.shared.client import Client
from brainhands.shared.errors import BadInput
from brainhands.shared.model.submission import Receipt
from brainhands.shared.rules.verify import head_of
from brainhands.shared.runtime.settings import libpq_url


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    made = Client(database_url, "redis://127.0.0.1:1/0")
    yield made
    made.close()


@pytest.fixture
def receipt(client: Client) -> Receipt:
    first = client.submit(agent="echo", input="one")
    for number in range(3):
        client.cancel(session=first.session_id, reason=str(number))
        client.submit(agent="echo", input=f"again {number}", session=first.session_id)
    return first


CHANGES = {
    "a payload is changed": "SET payload = '{}' WHERE seq = 2",
    "white space is added": "SET payload = (payload::text || ' ')::json WHERE seq = 2",
    "a time is moved": "SET at = at + interval '1 microsecond' WHERE seq = 3",
    "a type is renamed": "SET type = 'user_message' WHERE seq = 1",
    "a cause is dropped": "SET causes = '{}' WHERE causes <> '{}'",
    "tokens are made up": "SET tokens_in = 7 WHERE seq = 2",
    "an event is moved": "SET seq = 1000 WHERE seq = 2",
}
TAMPERINGS = {
    **{name: f"UPDATE brainhands.events {change}" for name, change in CHANGES.items()},
    "an event is taken out": "DELETE FROM brainhands.events WHERE seq = 3",
    "the tail is cut": "DELETE FROM brainhands.events WHERE seq = (SELECT max(seq) FROM brainhands.events)",
}


@pytest.mark.promise("I3")
@pytest.mark.hazard(23)
@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_any_later_change_is_found(client: Client, receipt: Receipt, database_url: str, tampering: str) -> None:
    assert client.verify(receipt.session_id) is None

    _execute(database_url, TAMPERINGS[tampering])

    assert client.verify(receipt.session_id) is not None


@pytest.mark.promise("I3")
def test_a_tail_cut_with_its_session_row_shows_only_against_a_known_head(
    client: Client, receipt: Receipt, database_url: str
) -> None:
    head = head_of(client.session(receipt.session_id).session)
    _execute(database_url, "DELETE FROM brainhands.events WHERE seq > 2")
    _execute(
        database_url,
        "UPDATE brainhands.sessions SET last_seq = 2, last_hash = (SELECT hash FROM brainhands.events WHERE seq = 2)",
    )

    assert client.verify(receipt.session_id) is None
    flaw = client.verify(receipt.session_id, head)
    assert flaw is not None
    assert "known head" in flaw.problem


@pytest.mark.promise("I3")
def test_the_head_of_a_receipt_proves_what_was_accepted(client: Client, receipt: Receipt) -> None:
    assert receipt.head is not None
    assert client.verify(receipt.session_id, receipt.head) is None
    seq, _, digest = receipt.head.partition(":")
    forged = f"{seq}:{'0' * len(digest)}"
    assert client.verify(receipt.session_id, forged) is not None
    with pytest.raises(BadInput):
        client.verify(receipt.session_id, "nonsense")


@pytest.mark.promise("I2")
def test_causes_and_effects_are_asked_in_both_directions(client: Client, receipt: Receipt) -> None:
    for event in client.events(receipt.session_id):
        for cause in event.causes:
            assert event.seq in [effect.seq for effect in client.effects(receipt.session_id, cause)]
        for effect in client.effects(receipt.session_id, event.seq):
            assert event.seq in effect.causes


@pytest.mark.promise("I3")
def test_the_command_names_the_first_event_that_does_not_fit(
    receipt: Receipt, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    runner = CliRunner()
    assert runner.invoke(commands, ["verify", "--all"]).exit_code == 0

    _execute(database_url, "UPDATE brainhands.events SET tokens_out = 1 WHERE seq = 2")
    result = runner.invoke(commands, ["verify", str(receipt.session_id)])

    assert result.exit_code == 1
    assert "event 2" in result.output


def _execute(database_url: str, statements: str) -> None:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        connection.execute(statements)
