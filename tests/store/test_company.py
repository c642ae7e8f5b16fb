"""A task that took its process along runs alone where it can, at a bounded cost to others; one that raised does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from brainhands.shared.engine import company
from brainhands.shared.engine.company import Company
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import Incompatible
from brainhands.shared.model.ids import TaskId, new_task_id
from brainhands.shared.model.task import Status, Task
from brainhands.shared.store import attempts
from tests.conftest import migrated, new_database
from tests.instruments import invariants
from tests.store.stage import Act, Stage, finish, go_on, nap, stage_of


@pytest.fixture(scope="module")
def patient_stage(postgres: Any) -> Iterator[Stage]:
    with new_database(postgres, template=migrated(postgres)) as url, stage_of(url, restart_limit=9) as made:
        yield made


def raising(error: Exception) -> Act:
    def act(_run: Run) -> PhaseResult:
        raise error

    return act


def let_it_end(stage: Stage, task_id: TaskId, how: str) -> None:
    """One claim of a task ends in this way, and its next hint is due."""
    stage.forget_first_hint(task_id)
    if how == "dies":
        stage.claim_and_die(task_id)
        stage.lose(task_id)
    elif how == "is blocked":
        stage.advance(task_id, raising(Incompatible("document plan has schema version 9")))
        stage.sql("UPDATE brainhands.tasks SET blocked = NULL, refused_by = NULL WHERE id = %s", task_id)
    else:
        stage.advance(task_id, raising(KeyError("unexpected")))
    stage.sql("UPDATE brainhands.outbox SET not_before = clock_timestamp() WHERE task_id = %s", task_id)


@pytest.mark.promise("C10")
@pytest.mark.parametrize(
    ("ends", "crashes"),
    [
        (["raises"], 0),
        (["raises", "raises", "raises"], 0),
        (["dies"], 1),
        (["raises", "dies"], 1),
        (["dies", "raises"], 1),
        (["is blocked", "raises"], 0),
        (["is blocked", "dies"], 1),
        (["dies", "dies"], 2),
        (["dies", "raises", "dies"], 2),
    ],
    ids=str,
)
def test_only_a_claim_that_ended_with_its_lease_counts_as_a_crash(
    patient_stage: Stage, ends: Sequence[str], crashes: int
) -> None:
    session_id, _ = patient_stage.session()
    task_id = patient_stage.add(session_id)

    for each in ends:
        let_it_end(patient_stage, task_id, each)

    found, waited = attempts.crashes(patient_stage.database, patient_stage.task(task_id))
    assert (found, waited >= 0) == (crashes, True)


@pytest.mark.promise("I10", "C10")
def test_a_task_that_wakes_again_and_again_leaves_no_attempt_for_each_time_and_its_crashes_count_as_ever(
    patient_stage: Stage,
) -> None:
    """What an attempt showed, or was told late, stays."""
    session_id, _ = patient_stage.session()
    task_id = patient_stage.add(session_id)
    patient_stage.advance(task_id, nap)

    def again(*acts: Act) -> None:
        patient_stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE id = %s", task_id)
        patient_stage.sweep.sweep_once()
        patient_stage.advance(task_id, *acts)

    for _ in range(30):
        again(nap)
    kept = patient_stage.sql("SELECT fence, phase FROM brainhands.attempts WHERE task_id = %s ORDER BY fence", task_id)
    assert [each["phase"] for each in kept[:1]] == ["first"]
    assert len(kept) < 8
    assert kept[-1]["fence"] == patient_stage.task(task_id).fence - 1

    def show(run: Run) -> PhaseResult:
        run.progress("half of it is done")
        return nap(run)

    again(show)
    for _ in range(5):
        again(nap)
    shown = patient_stage.sql("SELECT progress FROM brainhands.attempts WHERE task_id = %s", task_id)
    assert "half of it is done" in [each["progress"] for each in shown]

    patient_stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE id = %s", task_id)
    patient_stage.sweep.sweep_once()
    for crashes in (1, 2):
        let_it_end(patient_stage, task_id, "dies")
        assert attempts.crashes(patient_stage.database, patient_stage.task(task_id))[0] == crashes
    invariants.check(patient_stage.database_url)


@pytest.mark.promise("C10")
def test_crashes_of_an_earlier_visit_to_the_phase_do_not_count(patient_stage: Stage) -> None:
    session_id, _ = patient_stage.session()
    task_id = patient_stage.add(session_id)
    let_it_end(patient_stage, task_id, "dies")
    let_it_end(patient_stage, task_id, "dies")
    patient_stage.advance(task_id, nap)
    patient_stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE id = %s", task_id)
    patient_stage.sweep.sweep_once()

    let_it_end(patient_stage, task_id, "dies")

    assert attempts.crashes(patient_stage.database, patient_stage.task(task_id))[0] == 1


@pytest.mark.promise("C10")
@pytest.mark.parametrize("ends", [["raises"] * 3, ["dies", "raises", "raises"]], ids=" ".join)
def test_a_task_that_raises_again_and_again_keeps_no_neighbour_from_its_process(
    patient_stage: Stage, ends: Sequence[str]
) -> None:
    session_id, _ = patient_stage.session()
    raises, busy, neighbour = (patient_stage.add(session_id) for _ in range(3))
    for each in ends:
        let_it_end(patient_stage, raises, each)
    entered, leave = threading.Event(), threading.Event()

    def stay(_run: Run) -> PhaseResult:
        entered.set()
        assert leave.wait(20)
        return finish()(_run)

    patient_stage.forget_first_hint(busy)
    staying = threading.Thread(target=patient_stage.advance, args=(busy, stay))
    staying.start()
    assert entered.wait(20)
    patient_stage.advance(raises, raising(KeyError("again")))
    patient_stage.advance(neighbour, finish())
    leave.set()
    staying.join()

    assert patient_stage.task(raises).phase_attempts == len(ends) + 1
    assert patient_stage.status(neighbour) is Status.DONE


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(company, "time", made)
    return made


def play(stage: Stage) -> Task:
    session_id, _ = stage.session()
    return stage.task(stage.add(session_id))


def another(task: Task, *, suspect: bool = False) -> Task:
    return replace(task, id=new_task_id(), phase_attempts=2 if suspect else 0)


@pytest.mark.promise("C10")
@pytest.mark.parametrize("seconds", [5.0, 50.0, 500.0])
@pytest.mark.parametrize("suspects", [1, 16])
def test_tasks_of_two_crashes_run_one_at_a_time_in_bounded_time_and_cost_the_others_little(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock, suspects: int, seconds: float
) -> None:
    """A process of 16 slots that always has more to do than it can, with tasks that take so many seconds each."""
    beginning, known, example = clock.now, Company(), play(shared_stage)
    monkeypatch.setattr(attempts, "crashes", lambda *_: (2, clock.now - beginning))
    waiting = [another(example, suspect=True) for _ in range(suspects)]
    running: dict[TaskId, tuple[float, bool]] = {}
    refused = 0

    while waiting:
        clock.now += 1.0
        for task_id in [each for each, (end, _) in running.items() if end <= clock.now]:
            known.leave(task_id)
            del running[task_id]
        for task in list(waiting):  # each is hinted once a second
            if len(running) < 16 and known.admits(task, shared_stage.database):
                running[task.id] = (clock.now + seconds, True)
                waiting.remove(task)
        while len(running) < 16:
            task = another(example)
            if not known.admits(task, shared_stage.database):
                refused += 1
                break
            running[task.id] = (clock.now + seconds, False)
        assert sum(suspect for _, suspect in running.values()) <= 1

    assert clock.now - beginning <= company.PATIENCE_SECONDS + suspects * 2 * (seconds + company.RESERVE_EVERY_SECONDS)
    # A free slot asks once a second, so this many seconds at the most.
    reserved = company.RESERVED_SECONDS * (1 + (clock.now - beginning) / company.RESERVE_EVERY_SECONDS)
    assert refused <= reserved + suspects * company.ALONE_SECONDS


@pytest.mark.promise("C10")
def test_an_empty_process_takes_one_of_them_at_once_and_others_beside_it_only_later(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(attempts, "crashes", lambda *_: (2, 0.0))
    known, example = Company(), play(shared_stage)
    first = another(example, suspect=True)

    assert known.admits(first, shared_stage.database)
    assert not known.admits(another(example), shared_stage.database)
    assert not known.admits(another(example, suspect=True), shared_stage.database)
    clock.now += company.ALONE_SECONDS
    assert known.admits(another(example), shared_stage.database)
    assert not known.admits(another(example, suspect=True), shared_stage.database)


@pytest.mark.promise("C10")
def test_a_process_that_is_not_empty_reserves_itself_for_a_moment_and_not_again_at_once(
    shared_stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(attempts, "crashes", lambda *_: (2, 0.0))
    known, example = Company(), play(shared_stage)
    assert known.admits(another(example), shared_stage.database)
    suspect = another(example, suspect=True)

    assert not known.admits(suspect, shared_stage.database)
    assert not known.admits(another(example), shared_stage.database)
    clock.now += company.RESERVED_SECONDS
    assert not known.admits(suspect, shared_stage.database)
    assert known.admits(another(example), shared_stage.database)


@pytest.mark.promise("H13")
def test_each_step_of_work_is_one_line_with_its_task_phase_outcome_and_time(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "brainhands")
    session_id, _ = stage.session()
    task_id = stage.add(session_id)

    stage.advance(task_id, go_on, nap)
    stage.sql("UPDATE brainhands.tasks SET wake_at = clock_timestamp() WHERE id = %s", task_id)
    stage.sweep.sweep_once()
    stage.advance(task_id, raising(KeyError("unexpected")))
    stage.advance(task_id, finish())

    steps = [record.fields for record in caplog.records if record.getMessage() == "step"]  # type: ignore[attr-defined]
    assert [(each["phase"], each["outcome"]) for each in steps] == [
        ("first", "running"),
        ("second", "sleeping"),
        ("second", "pending"),
        ("second", "succeeded"),
    ]
    assert all((each["session"], each["task"], each["kind"]) == (session_id, task_id, "play") for each in steps)
    assert all(0 <= each["seconds"] < 60 for each in steps)
