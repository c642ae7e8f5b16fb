"""What errors of others quote of somebody's content reaches no log line and no event."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import psycopg
import pydantic
import pytest
import sqlalchemy

from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.ids import new_task_id
from brainhands.shared.model.task import Done, Task, Transition
from brainhands.shared.runtime.faults import told
from brainhands.shared.runtime.logs import JsonLines, TextLines
from brainhands.shared.store import connections
from tests.store.stage import Stage, decide, play_task

SECRET = "tops3cret"


def both_forms(record: logging.LogRecord) -> str:
    return TextLines("here").format(record) + JsonLines("here").format(record)


def test_an_error_that_quotes_a_row_is_told_by_its_kind_in_log_and_event(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    session_id, _ = stage.session()
    task_id = stage.add(session_id)
    stage.forget_first_hint(task_id)

    def add_what_breaks_a_constraint(draft: Draft, _task: Task) -> Transition:
        draft.add(replace(play_task(draft, new_task_id()), fence=-1, input={"call_id": SECRET}))
        return Done()

    stage.advance(task_id, decide(add_what_breaks_a_constraint))

    (failed,) = (record for record in caplog.records if record.msg == "%s" and record.args == ("phase_failed",))
    assert "CheckViolation (23514, tasks, " in both_forms(failed)
    assert not any(SECRET in both_forms(record) for record in caplog.records)
    events = [event.payload_text for event in stage.client.events(session_id)]
    assert any("CheckViolation (23514, tasks, " in text for text in events)
    assert not any(SECRET in text for text in events)


class Note(pydantic.BaseModel):
    number: int


STATEMENTS = [
    f"SELECT '{SECRET}'::int",
    f"SELECT '{{\"{SECRET}\": }}'::jsonb",
    f"SELECT to_date('{SECRET}', 'YYYY-MM-DD')",
    f"DO $$ BEGIN RAISE EXCEPTION '{SECRET}'; END $$",
    f"INSERT INTO brainhands.compatibility SELECT '{SECRET}' FROM generate_series(1, 2)",
]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("library", ["psycopg", "sqlalchemy"])
def test_no_error_of_postgres_is_told_with_the_values_that_it_quotes(
    shared_stage: Stage, statement: str, library: str
) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: connections.connect(shared_stage.database_url)
    )
    with engine.connect() as connection:
        runs = shared_stage.sql if library == "psycopg" else connection.exec_driver_sql
        with pytest.raises((psycopg.Error, sqlalchemy.exc.SQLAlchemyError)) as problem:
            runs(statement)
    engine.dispose()

    assert SECRET[:4] in str(problem.value)
    assert SECRET[:4] not in told(problem.value)


def test_errors_of_operation_keep_their_words_and_those_of_validation_lose_the_input(shared_stage: Stage) -> None:
    with pytest.raises(psycopg.Error) as unknown:
        shared_stage.sql("SELECT * FROM brainhands.absent")
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect("postgresql://127.0.0.1:9/none", connect_timeout=2)
    with pytest.raises(pydantic.ValidationError) as invalid:
        Note.model_validate({"number": SECRET})

    assert told(unknown.value) == 'UndefinedTable (42P01): relation "brainhands.absent" does not exist'
    assert "refused" in told(refused.value)
    assert "\n" not in told(refused.value)
    assert told(invalid.value) == "ValidationError: 1 in Note"
    assert told(ValueError("three\nlines")) == "ValueError: three lines"


def test_celerys_line_of_a_task_that_raised_has_the_kind_of_its_error(shared_stage: Stage) -> None:
    try:
        shared_stage.sql(f"SELECT '{SECRET}'::int")
    except psycopg.Error as error:
        said = {"name": "advance", "exc": repr(error), "traceback": f"... {error}"}
        record = logging.LogRecord(
            *("celery.app.trace", logging.ERROR, "trace.py", 1, "Task %(name)s raised: %(exc)s\n%(traceback)s"),
            (said,),
            (type(error), error, error.__traceback__),
        )
    assert "Task advance raised: InvalidTextRepresentation (22P02)" in TextLines("here").format(record)
    assert json.loads(JsonLines("here").format(record))["error"] == "InvalidTextRepresentation (22P02)"
    assert SECRET not in both_forms(record)
