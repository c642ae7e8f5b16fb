"""Documents of an application: how it names them, and how it reads those that older code has stored."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from brainhands import Flow, phase
from brainhands.shared.errors import BadDefinition, Incompatible
from brainhands.shared.model.derived import TokenUsage
from brainhands.shared.model.document import RESERVED, Document, StoredDocument
from brainhands.shared.model.ids import SessionId, new_task_id


def with_states(value: Any) -> Any:
    """From a list of recipients to one of mails; it may do to its argument what it likes."""
    value["mails"] = [{"to": to, "state": "planned"} for to in value.pop("customers")]
    return value


def with_subject(value: Any) -> Any:
    return {**value, "subject": "Notice"}


class MailPlan(Document, kind="test_mail_plan", schema_version=3, migrations={1: with_states, 2: with_subject}):
    mails: tuple[dict[str, str], ...]
    subject: str


class Tight(Document, kind="test_tight", schema_version=3, migrations={2: with_subject}):
    subject: str


def stored(value: Any, schema_version: int) -> StoredDocument:
    return StoredDocument(
        session_id=SessionId(UUID(int=1)),
        name="plan",
        version=1,
        kind="plan",
        schema_version=schema_version,
        value=value,
        seq=1,
    )


@pytest.mark.promise("H8", "B9")
def test_an_older_value_is_read_through_each_migration_and_left_as_it_is() -> None:
    first = stored({"customers": ["a", "b"]}, 1)
    second = stored({"mails": [{"to": "a", "state": "sent"}]}, 2)

    assert MailPlan.read(first).mails == ({"to": "a", "state": "planned"}, {"to": "b", "state": "planned"})
    assert MailPlan.read(second) == MailPlan(mails=({"to": "a", "state": "sent"},), subject="Notice")
    assert (first.value, first.schema_version) == ({"customers": ["a", "b"]}, 1)


@pytest.mark.promise("H8")
@pytest.mark.hazard(24)
@pytest.mark.parametrize(
    ("document", "value", "schema_version", "reason"),
    [
        (MailPlan, {"mails": [], "subject": "x", "new": 1}, 4, "schema version 4, and this code reads 3 at most"),
        (MailPlan, {"mails": [], "subject": "x"}, 9, "schema version 9, and this code reads 3 at most"),
        (Tight, {"subject": "x"}, 1, "schema version 1, from which no migration of Tight leads on"),
        (MailPlan, {"no": "customers"}, 1, "the migration from 1 fails: KeyError: 'customers'"),
        (MailPlan, {"mails": 7, "subject": "x"}, 3, "does not fit MailPlan: mails: "),
        (MailPlan, None, 3, "does not fit MailPlan"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    document: type[Document], value: Any, schema_version: int, reason: str
) -> None:
    with pytest.raises(Incompatible) as refusal:
        document.read(stored(value, schema_version))

    assert "document 'plan'" in str(refusal.value)
    assert reason in str(refusal.value)
    assert refusal.value.next_step


@pytest.mark.promise("H8", "B10")
@pytest.mark.parametrize(
    ("schema_version", "steps"), [(4, (1, 3)), (3, (1,)), (2, (1, 2)), (1, (1,)), (2, (0, 1)), (0, ())]
)
def test_a_chain_of_migrations_with_a_gap_is_refused_where_it_is_defined(
    schema_version: int, steps: tuple[int, ...]
) -> None:
    with pytest.raises(BadDefinition, match="schema version"):

        class Broken(
            Document, kind="broken", schema_version=schema_version, migrations=dict.fromkeys(steps, with_subject)
        ):
            pass


@pytest.mark.promise("B9", "B10")
@pytest.mark.hazard(39)
@pytest.mark.parametrize("kind", sorted(RESERVED))
def test_the_names_of_the_views_cannot_be_taken(kind: str) -> None:
    with pytest.raises(BadDefinition, match=kind):

        class Mine(Document, kind=kind):
            pass


@pytest.mark.promise("B9")
@pytest.mark.hazard(39)
def test_a_view_cannot_be_changed_by_a_flow() -> None:
    class Spend(Flow, name="spend", version=1):
        @phase
        def start(self) -> object:
            self.update(TokenUsage, lambda usage: usage or TokenUsage())
            raise AssertionError("unreachable")

    flow = Spend(
        task_id=new_task_id(),
        arguments={},
        checkpoint=None,
        read_document=lambda _document: None,
        read_result=lambda _task: None,
        write_progress=lambda _text: None,
    )
    with pytest.raises(BadDefinition, match="usage is a view of rows"):
        flow.start()
