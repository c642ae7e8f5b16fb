"""Old and new workers side by side: what one cannot read it leaves alone, with a reason, until another comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from brainhands.shared.engine.definition import Kind, PhaseResult, registry
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.worker import Worker
from brainhands.shared.errors import Incompatible, OlderWorkers
from brainhands.shared.model.event import LOG_FORMAT, Payload
from brainhands.shared.model.ids import SessionId, TaskId, new_task_id
from brainhands.shared.model.task import Done, Next, Requirement, Status, Task, Transition
from brainhands.shared.model.worker import Offer
from brainhands.shared.rules import compat
from brainhands.shared.store import health, turns, workers
from tests.instruments import invariants
from tests.store.stage import OFFERS, PLAY, POOL, Act, Stage, answer, decide, finish, go_on, play_task

NEWER = LOG_FORMAT + 1


class Newer(Payload):
    """An event that came with the next log format."""

    event_type = "newer"
    log_format = NEWER


def write_newer(transition: Transition) -> Act:
    def change(draft: Draft, task: Task) -> Transition:
        draft.event(Newer(), causes=task.causes, task=task)
        return transition

    return decide(change)


def unreadable(_run: Run) -> PhaseResult:
    raise Incompatible("document plan has schema version 9")


def unreadable_when_stored(run: Run) -> PhaseResult:
    def change(_draft: Draft, _task: Task) -> Transition:
        raise Incompatible("document plan has schema version 9")

    return decide(change)(run)


def worker_elsewhere(stage: Stage, host: str, offers: tuple[Offer, ...] = OFFERS) -> Worker:
    """One more live worker, started by another main process."""
    made = stage.worker(offers=offers)
    made.info = replace(made.info, host=host)
    stage.sql("UPDATE brainhands.workers SET host = %s WHERE id = %s", host, made.info.id)
    return made


def read_newer(stage: Stage, *these: Worker) -> None:
    """Let workers say that they read the next log format."""
    for worker in these:
        stage.sql("UPDATE brainhands.workers SET log_format = %s WHERE id = %s", NEWER, worker.info.id)


@contextmanager
def newer_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What runs meanwhile in this process is of the next version."""
    with monkeypatch.context() as patch:
        patch.setattr(compat, "LOG_FORMAT", NEWER)
        yield


def pending(stage: Stage) -> tuple[SessionId, TaskId]:
    """A task that is to be played, in a session of its own."""
    session_id, generation = stage.session()
    stage.advance(generation)
    return session_id, stage.add(session_id)


def format_of(stage: Stage, session_id: SessionId) -> int:
    (row,) = stage.sql("SELECT log_format FROM brainhands.sessions WHERE id = %s", session_id)
    return int(row["log_format"])


def left_lying(stage: Stage, task_id: TaskId) -> None:
    """Let a hint be as old as the sweep wants it before it steps in."""
    stage.sql(
        "UPDATE brainhands.outbox SET created_at = now() - interval '1 minute',"
        " not_before = now() - interval '1 minute' WHERE task_id = %s",
        task_id,
    )


def raised(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[SessionId, TaskId]:
    """A pending task of a session in whose log there is an event of the next format, as an old client left it."""
    session_id, task_id = pending(stage)
    read_newer(stage, stage.first)
    with newer_code(monkeypatch):
        stage.advance(stage.add(session_id), write_newer(Done()))
    stage.sql("UPDATE brainhands.workers SET log_format = %s", LOG_FORMAT)
    assert format_of(stage, session_id) == NEWER
    return session_id, task_id


@pytest.mark.promise("H8", "K5")
@pytest.mark.hazard(24)
def test_a_session_has_the_newest_log_format_of_the_events_that_are_really_in_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, task_id = pending(stage)
    assert format_of(stage, session_id) == 1

    read_newer(stage, stage.first)
    with newer_code(monkeypatch):
        stage.advance(task_id, write_newer(Next("second")), finish())

    assert format_of(stage, session_id) == NEWER
    assert stage.task(task_id).outcome == "succeeded"


@pytest.mark.promise("H7", "H8", "K5")
@pytest.mark.hazard(24, 16)
@pytest.mark.case("celery/celery#6485: work that an old worker does not know is dropped during a deploy")
def test_a_worker_leaves_a_session_of_a_newer_log_format_and_its_hint_to_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, task_id = raised(stage, monkeypatch)

    stage.advance(task_id)

    assert (stage.status(task_id), stage.task(task_id).fence) == (Status.PENDING, 0)
    (hint,) = stage.sql("SELECT *, not_before > clock_timestamp() AS later FROM brainhands.outbox")
    assert (hint["task_id"], hint["log_format"], hint["later"]) == (task_id, NEWER, True)
    stage.sql("UPDATE brainhands.outbox SET not_before = now() - interval '1 second'")
    (old,) = stage.database.run(turns.take(POOL, 9))
    elsewhere = stage.worker(pool="hands.newer")
    read_newer(stage, elsewhere)
    (new,) = stage.database.run(turns.take("hands.newer", 9))
    assert (len(old.rows), len(new.rows)) == (0, 1)
    stage.database.run(workers.leave(elsewhere.info.id))

    left_lying(stage, task_id)
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked == f"no live worker reads log format {NEWER}"
    assert stage.types(session_id)[-1] == "task_blocked"
    (finding,) = health.blocked(stage.database)
    assert finding.next_step == "start a worker of a newer version that offers play@1"
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked is not None

    newer = stage.worker()
    read_newer(stage, newer)
    stage.sweep.sweep_once()
    stage.advance(task_id)
    assert stage.status(task_id) is Status.PENDING
    with newer_code(monkeypatch):
        stage.advance(task_id, worker=newer)
    assert stage.task(task_id).outcome == "succeeded"


@pytest.mark.promise("K5")
@pytest.mark.hazard(24)
def test_a_session_that_gets_a_newer_log_format_between_look_and_claim_is_not_claimed(stage: Stage) -> None:
    session_id, task_id = pending(stage)

    def overtaken(run: Run) -> PhaseResult:
        stage.sql("UPDATE brainhands.sessions SET log_format = %s WHERE id = %s", NEWER, session_id)
        return finish()(run)

    stage.advance(task_id, overtaken)

    assert (stage.status(task_id), stage.task(task_id).fence) == (Status.PENDING, 0)


@pytest.mark.promise("H8")
def test_what_the_end_of_a_lease_means_in_a_newer_session_is_left_to_a_newer_relay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id, task_id = pending(stage)
    read_newer(stage, stage.first)
    with newer_code(monkeypatch):
        stage.advance(stage.add(session_id), write_newer(Done()))
        stage.claim_and_die(task_id)

    stage.lose(task_id)
    assert stage.status(task_id) is Status.RUNNING
    with pytest.raises(Incompatible, match=f"log format {NEWER}"):
        stage.client.cancel(session=session_id)

    with newer_code(monkeypatch):
        stage.lose(task_id)
        assert stage.status(task_id) is Status.PENDING
        stage.client.cancel(session=session_id)
    assert stage.task(task_id).outcome == "cancelled"


@pytest.mark.promise("H8", "K5")
@pytest.mark.hazard(24)
def test_a_newer_log_format_is_not_written_while_older_workers_live_and_the_task_goes_on_when_they_are_gone(
    stage: Stage,
) -> None:
    session_id, task_id = pending(stage)
    newer = worker_elsewhere(stage, "new")
    read_newer(stage, newer)
    stage.sql("UPDATE brainhands.workers SET draining = true WHERE id = %s", stage.first.info.id)

    stage.advance(task_id, write_newer(Done()), worker=newer)

    reason = f"older workers are still live: log format {NEWER} is written once every live worker reads it"
    task = stage.task(task_id)
    assert (task.status, task.blocked, task.fence, task.refused_by) == (Status.PENDING, reason, 0, ())
    assert format_of(stage, session_id) == LOG_FORMAT
    (finding,) = health.blocked(stage.database)
    assert finding.next_step == "stop the workers and relays of older versions"
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked == reason

    stage.database.run(workers.leave(stage.first.info.id))
    stage.sweep.sweep_once()
    stage.advance(task_id, write_newer(Done()), worker=newer)
    assert stage.task(task_id).outcome == "succeeded"
    assert format_of(stage, session_id) == NEWER


@pytest.mark.promise("H8", "K5")
@pytest.mark.hazard(24)
def test_a_phase_asks_before_it_acts_and_what_it_has_done_is_stored_all_the_same(stage: Stage) -> None:
    session_id, task_id = pending(stage)
    acted = []

    def act(run: Run) -> PhaseResult:
        if run.writes_format < NEWER:
            raise OlderWorkers(NEWER)
        acted.append(run.task.fence)
        # Now an old worker comes, but what was done cannot be undone.
        stage.sql("UPDATE brainhands.workers SET log_format = %s", LOG_FORMAT)
        return write_newer(Done("acted"))(run)

    stage.advance(task_id, go_on, act)
    task = stage.task(task_id)
    assert (task.phase, task.status, task.phase_attempts) == ("second", Status.PENDING, 0)
    assert str(task.blocked).startswith("older workers are still live")
    assert acted == []

    read_newer(stage, stage.first)
    stage.sweep.sweep_once()
    stage.advance(task_id, act)
    assert (stage.task(task_id).result, len(acted), format_of(stage, session_id)) == ("acted", 1, NEWER)


@pytest.mark.promise("H7", "H8", "C10")
@pytest.mark.parametrize("acts", [[unreadable], [go_on, unreadable], [go_on, unreadable_when_stored]])
def test_state_that_cannot_be_read_blocks_its_task_which_is_not_a_crash_and_goes_on_elsewhere(
    stage: Stage, acts: list[Act]
) -> None:
    session_id, task_id = pending(stage)

    for host in ("here", "there", "yonder", "nowhere"):
        worker = stage.first if host == "here" else worker_elsewhere(stage, host)
        stage.sweep.sweep_once()
        stage.advance(task_id, *acts, worker=worker)
        acts = acts[-1:]
        task = stage.task(task_id)
        assert task.blocked == "no live worker that tried can go on with it: document plan has schema version 9"
        assert (task.status, task.phase_attempts, task.refused_by[-1]) == (Status.PENDING, 0, host)
        invariants.check(stage.database_url)
        stage.sweep.sweep_once()
        assert stage.task(task_id).blocked is not None

    fitting = worker_elsewhere(stage, "newer")
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked is None
    stage.advance(task_id)
    assert (stage.status(task_id), task_id in stage.hinted()) == (Status.PENDING, True)
    stage.advance(task_id, answer(Next("third")), finish("read"), worker=fitting)
    task = stage.task(task_id)
    assert (task.result, task.refused_by) == ("read", ())
    assert stage.types(session_id).count("task_blocked") == 4
    invariants.check(stage.database_url, at_rest=True)


@pytest.mark.promise("H7", "D5")
def test_a_task_whose_last_untried_worker_leaves_is_blocked_again(stage: Stage) -> None:
    _, task_id = pending(stage)
    stage.advance(task_id, unreadable)
    other = worker_elsewhere(stage, "there")
    stage.sweep.sweep_once()
    assert stage.task(task_id).blocked is None

    stage.database.run(workers.leave(other.info.id))
    left_lying(stage, task_id)
    stage.sweep.sweep_once()

    assert stage.task(task_id).blocked == "no live worker that tried can go on with it"
    (finding,) = health.blocked(stage.database)
    assert finding.next_step == "start a worker of a newer version that offers play@1"
    assert health.without_mover(stage.database) == []


@pytest.mark.promise("C12", "H8")
def test_a_task_that_is_to_be_cancelled_ends_where_its_state_cannot_be_read(stage: Stage) -> None:
    session_id, task_id = pending(stage)

    def cancelled_meanwhile(run: Run) -> PhaseResult:
        stage.client.cancel(session=session_id)
        return unreadable(run)

    stage.advance(task_id, go_on, cancelled_meanwhile)

    assert stage.task(task_id).outcome == "cancelled"


@pytest.mark.promise("H7", "H8")
@pytest.mark.parametrize(
    ("change", "reason"),
    [("phase = 'polled'", "play@1 has no phase 'polled'"), ("version = 9", "play@9 is not known")],
)
def test_a_task_that_its_worker_offers_to_run_but_does_not_know_is_blocked(
    stage: Stage, change: str, reason: str
) -> None:
    _, task_id = pending(stage)
    stage.sql(f"UPDATE brainhands.tasks SET {change} WHERE id = %s", task_id)

    stage.advance(task_id)

    assert stage.task(task_id).blocked == f"no live worker that tried can go on with it: {reason}"


def third_version(stage: Stage, *, broken: bool = False) -> Kind:
    """The played kind in version 3: its checkpoint counts what version 1 listed, its phases have other names."""

    def migrate(task: Task) -> Task:
        if broken:
            raise KeyError("listed")
        return replace(task, phase=task.phase.upper(), checkpoint={"count": len(task.checkpoint.get("listed", []))})

    phases = {name.upper(): phase for name, phase in stage.play_kind().phases.items()}
    return Kind(name=PLAY, version=3, oldest=1, migrate=migrate, phases=phases)


def of_third_version(stage: Stage, kind: Kind) -> Worker:
    offers = (Offer(name=PLAY, low=1, high=3), OFFERS[1])
    worker = worker_elsewhere(stage, "third", offers=offers)
    worker._registry = registry((kind,), offers)
    return worker


@pytest.mark.promise("H8")
@pytest.mark.case("czpython/druks#619: what was begun before a deploy never goes on after it")
@pytest.mark.parametrize("claimed_first", [False, True])
def test_a_task_of_an_older_version_is_migrated_as_it_is_read_and_stored_by_its_next_step(
    stage: Stage, claimed_first: bool
) -> None:
    _, task_id = pending(stage)
    stage.advance(task_id, answer(Next("second", {"listed": ["a", "b"]})), unreadable)
    third = of_third_version(stage, third_version(stage))
    stage.sweep.sweep_once()
    seen = []

    def look(run: Run) -> PhaseResult:
        stored = stage.task(task_id)
        assert (stored.version, stored.phase, stored.checkpoint) == (1, "second", {"listed": ["a", "b"]})
        seen.append((run.task.version, run.task.phase, run.task.checkpoint))
        return answer(Next("THIRD"))(run)

    def look_again(run: Run) -> PhaseResult:
        seen.append((run.task.version, run.task.phase, run.task.checkpoint))
        return finish()(run)

    if claimed_first:
        stage.claim_and_die(task_id, worker=third)
        stage.lose(task_id)
    stage.advance(task_id, look, look_again, worker=third)

    assert seen == [(3, "SECOND", {"count": 2}), (3, "THIRD", {"count": 2})]
    task = stage.task(task_id)
    assert (task.version, task.requires, task.outcome) == (3, Requirement(name=PLAY, version=3), "succeeded")


@pytest.mark.promise("H8")
def test_a_task_that_cannot_be_migrated_is_left_untouched_with_the_reason(stage: Stage) -> None:
    _, task_id = pending(stage)
    stage.sql("DELETE FROM brainhands.workers")
    before = stage.task(task_id)

    stage.advance(task_id, worker=of_third_version(stage, third_version(stage, broken=True)))

    task = stage.task(task_id)
    assert "its state of version 1 cannot be made one of version 3: KeyError: 'listed'" in str(task.blocked)
    assert task == replace(before, blocked=task.blocked, refused_by=("third",))


def test_of_two_kinds_that_run_a_version_the_one_of_that_version_does(stage: Stage) -> None:
    first, third = stage.play_kind(), third_version(stage)

    found = registry((third, first), OFFERS).kinds

    assert [found[PLAY, version] for version in (1, 2, 3)] == [first, third, third]


@pytest.mark.promise("H8", "F7")
def test_a_call_that_has_acted_does_not_get_its_attempt_back(stage: Stage) -> None:
    """Otherwise the next worker would take it for one that has not acted, and act again."""
    session_id, generation = stage.session()
    stage.advance(generation)
    kind = Kind(name="tool:act", version=1, phases={"execute": stage.play_kind().phases["second"]})
    offers = (Offer(name=kind.name, low=1, high=1),)
    worker = stage.worker(offers=offers)
    worker._registry = registry((kind,), offers)
    task_id = new_task_id()
    requires = Requirement(name=kind.name, version=1)

    def call(draft: Draft) -> None:
        draft.add(replace(play_task(draft, task_id), kind=kind.name, requires=requires, phase="execute"))

    stage.commit(session_id, call)
    stage.advance(task_id, unreadable, worker=worker)
    assert stage.task(task_id).phase_attempts == 0
    stage.sql("UPDATE brainhands.tasks SET blocked = NULL, refused_by = NULL WHERE id = %s", task_id)

    stage.advance(task_id, unreadable_when_stored, worker=worker)

    task = stage.task(task_id)
    assert (task.status, task.phase_attempts, task.blocked) == (Status.PENDING, 1, None)
