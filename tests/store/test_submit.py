"""Submitting: an identity before any work, once for a request_id, and as part of a caller's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy

from brainhands.shared.client import Client
from brainhands.shared.errors import (
    BadInput,
    RequestConflict,
    RequestInProgress,
    UnfitConnection,
    UnknownSession,
    UnknownSubmission,
)
from brainhands.shared.local.servers import Postgres
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.model.submission import Receipt, SubmissionStatus
from brainhands.shared.model.task import Next, Priority, Status
from brainhands.shared.runtime.settings import libpq_url
from tests.conftest import migrated, new_database
from tests.instruments.invariants import violations
from tests.store.stage import AGENT, NO_REDIS, Stage, answer, finish, spawn_and_wait


@pytest.mark.promise("A1", "A4")
def test_an_input_has_its_identity_its_message_its_work_and_its_hint_in_one_commit(shared_stage: Stage) -> None:
    receipt = shared_stage.submit("good morning", request_id="a1")

    (row,) = shared_stage.sql(
        """
        SELECT count(DISTINCT x) AS transactions, count(*) AS rows FROM (
            SELECT xmin::text AS x FROM brainhands.submissions WHERE id = %s
            UNION ALL SELECT xmin::text FROM brainhands.sessions WHERE id = %s
            UNION ALL SELECT xmin::text FROM brainhands.conversations WHERE session_id = %s
            UNION ALL SELECT xmin::text FROM brainhands.events WHERE session_id = %s
            UNION ALL SELECT xmin::text FROM brainhands.tasks WHERE session_id = %s
            UNION ALL SELECT xmin::text FROM brainhands.outbox WHERE session_id = %s
        ) AS everything
        """,
        receipt.submission_id,
        *[receipt.session_id] * 5,
    )
    assert (row["transactions"], row["rows"]) == (1, 1 + 1 + 1 + 2 + 1 + 1)
    stored = shared_stage.client.submission(receipt.submission_id)
    assert (stored.request_id, stored.input, stored.status) == ("a1", "good morning", SubmissionStatus.ACCEPTED)
    assert stored.session_id == receipt.session_id


@pytest.mark.promise("H10")
@pytest.mark.parametrize("caller", ["alone", "within a transaction"])
def test_the_priority_of_an_input_is_that_of_all_its_work_and_of_no_other_input(
    shared_stage: Stage, caller: str
) -> None:
    """Into a session that is busy with interactive work, so that it waits in the inbox."""
    stage = shared_stage
    session_id, generation = stage.session()
    child = new_task_id()
    if caller == "alone":
        batch = stage.submit("later", session=session_id, priority="batch")
    else:
        with psycopg.connect(libpq_url(stage.database_url)) as connection:
            batch = stage.submit("later", session=session_id, priority="batch", connection=connection)
        (intake,) = stage.sql("SELECT id FROM brainhands.tasks WHERE submission_id = %s", batch.submission_id)
        stage.advance(intake["id"])
    stage.advance(generation, finish())
    onward = stage.open_generation(session_id)
    stage.advance(onward, spawn_and_wait(child))

    def priorities(table: str, column: str) -> dict[UUID, Priority]:
        rows = stage.sql(f"SELECT {column} AS id, priority FROM brainhands.{table} WHERE session_id = %s", session_id)
        return {row["id"]: Priority(row["priority"]) for row in rows}

    tasks = priorities("tasks", "id")
    assert tasks[generation] is Priority.INTERACTIVE
    assert tasks[onward] is Priority.BATCH
    assert set(priorities("tasks", "submission_id").values()) == {Priority.INTERACTIVE, Priority.BATCH}
    assert priorities("outbox", "task_id")[child] is tasks[child]
    assert stage.client.submission(batch.submission_id).priority is Priority.BATCH


@pytest.mark.promise("A2", "A3")
def test_a_request_that_is_repeated_with_another_priority_is_the_same_and_keeps_the_first(shared_stage: Stage) -> None:
    first = shared_stage.submit(request_id="urgent", priority="batch")

    again = shared_stage.submit(request_id="urgent", priority="interactive")

    assert again.submission_id == first.submission_id
    assert shared_stage.client.submission(first.submission_id).priority is Priority.BATCH


@pytest.mark.promise("A2")
@pytest.mark.case("camunda/camunda#57363")
def test_the_same_request_id_returns_the_first_receipt_before_during_and_after_the_run(shared_stage: Stage) -> None:
    first = shared_stage.submit(request_id="a2")
    task_id = shared_stage.open_generation(first.session_id)
    before = shared_stage.submit(request_id="a2")
    during: list[Receipt] = []

    def ask_again(run: Any) -> Any:
        during.append(shared_stage.submit(request_id="a2"))
        return finish("answer")(run)

    shared_stage.advance(task_id, answer(Next("request")), ask_again)
    after = shared_stage.submit(request_id="a2")

    again = (before, during[0], after)
    assert {(receipt.submission_id, receipt.session_id) for receipt in (first, *again)} == {
        (first.submission_id, first.session_id)
    }
    assert after.status is SubmissionStatus.DONE
    assert shared_stage.types(first.session_id).count("user_message") == 1


@pytest.mark.promise("A2")
@pytest.mark.hazard(22)
@pytest.mark.parametrize("into", ["new session", "free session", "busy session"])
def test_callers_at_the_same_instant_get_one_receipt(shared_stage: Stage, into: str) -> None:
    options: dict[str, Any] = {"request_id": f"a2-{into}"}
    if into != "new session":
        session_id, generation = shared_stage.session()
        options["session"] = session_id
        if into == "free session":
            shared_stage.advance(generation)
    clients = [Client(shared_stage.database_url, NO_REDIS) for _ in range(6)]

    with ThreadPoolExecutor(6) as pool:
        receipts = list(pool.map(lambda client: client.submit(agent=AGENT, input="hi", **options), clients))
    for client in clients:
        client.close()

    assert len({receipt.submission_id for receipt in receipts}) == 1
    assert len({receipt.session_id for receipt in receipts}) == 1
    assert _stored(shared_stage, options["request_id"]) == 1
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("A3")
@pytest.mark.hazard(22)
@pytest.mark.parametrize("other", ["text", "agent", "session"])
def test_the_same_request_id_with_another_input_is_refused_and_changes_nothing(shared_stage: Stage, other: str) -> None:
    request_id = f"a3-{other}"
    session_id, _ = shared_stage.session()
    given: dict[str, Any] = {"agent": AGENT, "input": "pay 10"}
    shared_stage.client.submit(**given, request_id=request_id)
    changed: dict[str, dict[str, Any]] = {
        "text": {"input": "pay 10,000"},
        "agent": {"agent": "other"},
        "session": {"session": session_id},
    }
    before = _rows(shared_stage)

    with pytest.raises(RequestConflict, match=request_id) as refusal:
        shared_stage.client.submit(**{**given, **changed[other]}, request_id=request_id)

    assert refusal.value.next_step
    assert _rows(shared_stage) == before


@pytest.mark.promise("A2", "A3")
@pytest.mark.hazard(22)
def test_a_request_id_is_a_tenants_own(shared_stage: Stage) -> None:
    other = Client(shared_stage.database_url, NO_REDIS, tenant="other")
    mine = shared_stage.submit("mine", request_id="invoice-7")

    theirs = other.submit(agent=AGENT, input="theirs", request_id="invoice-7")

    assert theirs.submission_id != mine.submission_id
    assert other.submission(theirs.submission_id).input == "theirs"
    with pytest.raises(UnknownSubmission):
        other.submission(mine.submission_id)
    with pytest.raises(UnknownSession):
        other.submit(agent=AGENT, input="more", session=mine.session_id)
    other.close()


@pytest.mark.promise("A9")
def test_input_for_a_busy_session_waits_and_joins_in_order(shared_stage: Stage) -> None:
    session_id, generation = shared_stage.session()
    more = [shared_stage.submit(text, session=session_id) for text in ("second", "third")]
    waiting = shared_stage.types(session_id).count("user_message")

    answers = []
    for _ in range(3):
        shared_stage.advance(shared_stage.open_generation(session_id), finish("done"))
        answers.append([shared_stage.client.submission(each.submission_id).status for each in more])

    assert waiting == 1
    assert answers == [["accepted"] * 2, ["done", "accepted"], ["done", "done"]]
    assert shared_stage.status(generation) == Status.DONE
    assert violations(shared_stage.database_url) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": ""},
        {"input": " \n"},
        {"input": "x" * 1_000_001},
        {"agent": ""},
        {"agent": "a\x00b"},
        {"request_id": ""},
        {"request_id": "r" * 501},
        {"mode": "sideways"},
        {"priority": "at once"},
        {"session": "no-uuid"},
        {"session": UUID(int=7)},
    ],
    ids=str,
)
@pytest.mark.promise("B5")
def test_what_cannot_be_accepted_is_refused_and_leaves_nothing(shared_stage: Stage, wrong: dict[str, Any]) -> None:
    before = _rows(shared_stage)

    with pytest.raises(BadInput):
        shared_stage.client.submit(**{"agent": AGENT, "input": "hello", **wrong})

    assert _rows(shared_stage) == before


# -- as part of the caller's transaction -----------------------------------------------------------------------------


@contextmanager
def _psycopg(stage: Stage) -> Iterator[Any]:
    with psycopg.connect(libpq_url(stage.database_url)) as connection:
        yield connection


@contextmanager
def _sqlalchemy(stage: Stage) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(stage.database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


CALLERS = {"psycopg": _psycopg, "sqlalchemy": _sqlalchemy}


def _execute(connection: Any, statement: str) -> Any:
    if isinstance(connection, sqlalchemy.Connection):
        return connection.exec_driver_sql(statement)
    return connection.execute(statement)


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest, shared_stage: Stage) -> Iterator[Any]:
    with CALLERS[request.param](shared_stage) as connection:
        yield connection


@pytest.mark.promise("A7", "B4", "A4")
@pytest.mark.hazard(17)
@pytest.mark.parametrize("existing", [False, True], ids=["new session", "existing session"])
def test_a_submission_is_there_with_the_callers_commit_and_gone_with_its_rollback(
    shared_stage: Stage, caller: Any, existing: bool
) -> None:
    options = {"session": shared_stage.session()[0]} if existing else {}
    before = _rows(shared_stage)

    _execute(caller, "CREATE TEMPORARY TABLE IF NOT EXISTS business (id int)")
    rolled_back = shared_stage.submit("no", connection=caller, **options)
    caller.rollback()
    after_rollback = _rows(shared_stage)
    _execute(caller, "CREATE TEMPORARY TABLE IF NOT EXISTS business (id int)")
    receipt = shared_stage.submit("yes", connection=caller, **options)
    _execute(caller, "INSERT INTO business VALUES (1)")
    while_open = _rows(shared_stage)
    with pytest.raises(UnknownSubmission):
        shared_stage.client.submission(receipt.submission_id)
    caller.commit()

    assert after_rollback == while_open == before
    with pytest.raises(UnknownSubmission):
        shared_stage.client.submission(rolled_back.submission_id)
    assert shared_stage.client.submission(receipt.submission_id).input == "yes"
    assert shared_stage.client.session(receipt.session_id).tasks
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("A7", "A9")
@pytest.mark.hazard("17a")
def test_a_submission_in_an_open_transaction_locks_nothing_of_its_session(shared_stage: Stage, caller: Any) -> None:
    session_id, generation = shared_stage.session()
    receipt = shared_stage.submit("more", session=session_id, connection=caller)

    shared_stage.advance(generation, finish("first answer"))
    shared_stage.sweep.sweep_once()
    direct = shared_stage.submit("in between", session=session_id)
    shared_stage.advance(shared_stage.open_generation(session_id), finish())
    caller.commit()
    (intake,) = (each for each in shared_stage.client.session(session_id).tasks if each.kind == "intake")
    shared_stage.advance(intake.id)
    shared_stage.advance(shared_stage.open_generation(session_id), finish("third answer"))

    assert shared_stage.client.submission(direct.submission_id).status == "done"
    assert shared_stage.client.submission(receipt.submission_id).output == "third answer"
    assert violations(shared_stage.database_url) == []


@pytest.mark.promise("A7")
@pytest.mark.hazard("17b")
def test_two_callers_submit_to_two_sessions_in_both_orders(shared_stage: Stage) -> None:
    one, other = shared_stage.session()[0], shared_stage.session()[0]

    with _psycopg(shared_stage) as first, _psycopg(shared_stage) as second:
        shared_stage.submit("1", session=one, connection=first)
        shared_stage.submit("2", session=other, connection=second)
        shared_stage.submit("3", session=other, connection=first)
        shared_stage.submit("4", session=one, connection=second)
        first.commit()
        second.commit()

    assert len(shared_stage.client.session(one).submissions) == 3
    assert len(shared_stage.client.session(other).submissions) == 3


@pytest.mark.promise("A7")
@pytest.mark.hazard("17c", "17d")
@pytest.mark.parametrize("existing", [False, True], ids=["new session", "existing session"])
def test_a_connection_that_cannot_hold_the_submission_is_refused_and_not_spoiled(
    shared_stage: Stage, postgres: Postgres, existing: bool
) -> None:
    options = {"session": shared_stage.session()[0]} if existing else {}
    url = libpq_url(shared_stage.database_url)
    before = _rows(shared_stage)

    def refused(connection: Any) -> None:
        with pytest.raises(UnfitConnection) as refusal:
            shared_stage.submit("no", connection=connection, **options)
        assert refusal.value.next_step
        assert _execute(connection, "SELECT 1").fetchall()[0][0] == 1

    with psycopg.connect(url, autocommit=True) as autocommit:
        refused(autocommit)
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        with psycopg.connect(url) as isolated:
            isolated.isolation_level = level
            refused(isolated)
    with (
        new_database(postgres, template=migrated(postgres)) as elsewhere,
        psycopg.connect(libpq_url(elsewhere)) as other,
    ):
        refused(other)
    engine = sqlalchemy.create_engine(
        shared_stage.database_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        refused(connection)
    engine.dispose()
    with pytest.raises(UnfitConnection):
        shared_stage.submit("no", connection=object(), **options)

    assert _rows(shared_stage) == before


@pytest.mark.promise("A7")
def test_an_autocommit_connection_with_an_open_transaction_holds_the_submission(shared_stage: Stage) -> None:
    with psycopg.connect(libpq_url(shared_stage.database_url), autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            lost = shared_stage.submit("no", connection=connection)
        with connection.transaction():
            kept = shared_stage.submit("yes", connection=connection)

    with pytest.raises(UnknownSubmission):
        shared_stage.client.submission(lost.submission_id)
    assert shared_stage.client.submission(kept.submission_id).input == "yes"


@pytest.mark.promise("A7", "A3")
@pytest.mark.hazard("17d")
def test_a_refusal_does_not_spoil_the_callers_transaction(shared_stage: Stage, caller: Any) -> None:
    session_id, _ = shared_stage.session()
    shared_stage.submit("first", request_id=f"spoil-{id(caller)}")

    def refuse(error: type[Exception], **options: Any) -> None:
        with pytest.raises(error):
            shared_stage.client.submit(**{"agent": AGENT, "input": "no", **options}, connection=caller)

    _execute(caller, "CREATE TEMPORARY TABLE business (id int)")
    _execute(caller, "SET LOCAL lock_timeout = '1234ms'")
    refuse(RequestConflict, request_id=f"spoil-{id(caller)}")
    refuse(UnknownSession, session=UUID(int=9))
    refuse(BadInput, session=session_id, agent="another")
    receipt = shared_stage.submit("yes", connection=caller)
    patience = _execute(caller, "SHOW lock_timeout").fetchall()[0][0]
    caller.commit()

    assert patience == "1234ms"
    assert _execute(caller, "SELECT count(*) FROM business").fetchall()[0][0] == 0
    assert shared_stage.client.submission(receipt.submission_id).input == "yes"


@pytest.mark.promise("A2", "A7")
def test_the_same_request_id_in_a_callers_transaction_returns_the_first_receipt(
    shared_stage: Stage, caller: Any
) -> None:
    session_id, _ = shared_stage.session()
    for options in ({}, {"session": session_id}):
        request_id = f"again-{id(caller)}-{len(options)}"
        first = shared_stage.submit("hi", request_id=request_id, connection=caller, **options)
        same = shared_stage.submit("hi", request_id=request_id, connection=caller, **options)
        caller.commit()
        later = shared_stage.submit("hi", request_id=request_id, connection=caller, **options)
        direct = shared_stage.submit("hi", request_id=request_id, **options)
        caller.rollback()

        assert {each.submission_id for each in (first, same, later, direct)} == {first.submission_id}
        assert _stored(shared_stage, request_id) == 1


TWINS: dict[str, Callable[[Stage, Any], dict[str, Any]]] = {
    "direct": lambda _stage, _connection: {},
    "in a transaction": lambda _stage, connection: {"connection": connection},
}


@pytest.mark.promise("A2")
@pytest.mark.hazard(22)
@pytest.mark.parametrize("existing", [False, True], ids=["new session", "existing session"])
@pytest.mark.parametrize("how", TWINS)
def test_a_twin_that_is_not_committed_is_in_progress_and_the_next_try_gets_its_receipt(
    shared_stage: Stage, how: str, existing: bool
) -> None:
    options: dict[str, Any] = {"request_id": f"twin-{how}-{existing}"}
    if existing:
        options["session"] = shared_stage.session()[0]

    with _psycopg(shared_stage) as first, _psycopg(shared_stage) as second:
        receipt = shared_stage.submit("hi", connection=first, **options)
        with pytest.raises(RequestInProgress):
            shared_stage.submit("hi", **TWINS[how](shared_stage, second), **options)
        assert second.execute("SELECT 1").fetchall() == [(1,)]
        first.commit()
        again = shared_stage.submit("hi", **TWINS[how](shared_stage, second), **options)
        second.commit()

    assert again.submission_id == receipt.submission_id
    assert _stored(shared_stage, options["request_id"]) == 1


@pytest.mark.promise("A2")
@pytest.mark.hazard(22)
@pytest.mark.parametrize("existing", [False, True], ids=["new session", "existing session"])
@pytest.mark.parametrize("how", TWINS)
def test_a_twin_that_is_committed_meanwhile_gives_its_receipt(shared_stage: Stage, how: str, existing: bool) -> None:
    options: dict[str, Any] = {"request_id": f"meanwhile-{how}-{existing}"}
    if existing:
        options["session"] = shared_stage.session()[0]

    with _psycopg(shared_stage) as first, _psycopg(shared_stage) as second, ThreadPoolExecutor(1) as pool:
        receipt = shared_stage.submit("hi", connection=first, **options)
        waiting = pool.submit(shared_stage.submit, "hi", **TWINS[how](shared_stage, second), **options)
        shared_stage.wait_for_a_waiter()
        first.commit()
        again = waiting.result()
        second.commit()

    assert again.submission_id == receipt.submission_id
    assert _stored(shared_stage, options["request_id"]) == 1
    assert violations(shared_stage.database_url) == []


def _stored(stage: Stage, request_id: str) -> int:
    return len(stage.sql("SELECT 1 FROM brainhands.submissions WHERE request_id = %s", request_id))


def _rows(stage: Stage) -> list[int]:
    tables = ("sessions", "conversations", "events", "tasks", "submissions", "inbox", "outbox")
    return [stage.sql(f"SELECT count(*) AS n FROM brainhands.{table}")[0]["n"] for table in tables]
