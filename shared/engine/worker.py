"""A worker process: takes hints, claims tasks, runs their phases and commits each step.

    look (no lock) -> claim -> phase -> commit -> next phase -> ... -> given back, waiting, sleeping or done

A first hint whose phase only decides is claimed by the commit of that phase. A task whose hint was published more than
once is claimed in a commit of its own, so that an attempt which kills the process is counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from brainhands.shared.bus.bell import Bell
from brainhands.shared.engine import blocking, ends, steps
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.company import Company
from brainhands.shared.engine.definition import DECIDING_SECONDS, Kind, Phase, PhaseResult, Registry
from brainhands.shared.engine.draft import Decide, Draft, Origin
from brainhands.shared.engine.keeper import Keeper
from brainhands.shared.engine.limits import Limits
from brainhands.shared.engine.run import Run
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import Incompatible, ServerUnavailable, StaleWrite, Unsettled
from brainhands.shared.model.commit import Commit, Guard
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Final, Status, Task
from brainhands.shared.model.worker import WorkerInfo
from brainhands.shared.rules import background, compat, recovery
from brainhands.shared.runtime.faults import told
from brainhands.shared.runtime.logs import logger
from brainhands.shared.store import attempts, hints, reads
from brainhands.shared.store.database import TRANSIENT, Database
from brainhands.shared.store.locked import Locked

log = logger("worker")


THEIRS = (*TRANSIENT, ServerUnavailable, Unsettled)
"""Errors that are not the phase's: Postgres is away, and the lease decides what becomes of the task."""


class _MustEnd(Exception):
    """The task is to be cancelled, and its phase did not end it: nothing more is made under it."""

    def __init__(self, checkpoint: Json) -> None:
        super().__init__()
        self.checkpoint = checkpoint


class Worker:
    """One process of a fleet with what it runs; `ends_process` where nothing may act after its lease."""

    def __init__(
        self,
        info: WorkerInfo,
        registry: Registry,
        *,
        database_url: str,
        redis_url: str,
        lease_seconds: float,
        restart_limit: int,
        ends_process: bool,
    ) -> None:
        self.info = info
        self._registry = registry
        self._origin = Origin(worker_id=info.id, pool=info.pool, environment=info.environment)
        self._lease_seconds = lease_seconds
        self._restart_limit = restart_limit
        step_seconds = max(0.5, min(5.0, lease_seconds / 3))
        self.database = Database(database_url, size=info.slots + 1, step_seconds=step_seconds)
        self._soft_database = Database(database_url, size=2, step_seconds=step_seconds, durable=False)
        self._writer = Writer(self.database, Bell(redis_url))
        self._limits = Limits(self.database, registry, info.tenant_concurrency)
        self.keeper = Keeper(database_url, info, lease_seconds=lease_seconds, ends_process=ends_process)
        self._busy: set[TaskId] = set()
        self._busy_lock = threading.Lock()
        self._company = Company()

    def advance(self, hinted: Iterable[tuple[TaskId, SessionId]]) -> None:
        """Take each hinted task as far as this worker can; whatever fails is left to its lease and the sweep."""
        for task_id, _ in hinted:
            if not self._enter(task_id):
                continue
            try:
                if self.keeper.draining:
                    self._put_off(task_id)
                else:
                    self._advance(task_id)
            except THEIRS as error:
                log.warning("advance_interrupted", task=task_id, error=type(error).__name__)
            except Exception:
                log.exception("advance_failed", task=task_id)
            finally:
                self._leave(task_id)

    def _enter(self, task_id: TaskId) -> bool:
        """A second hint for a task that this process is at does nothing."""
        with self._busy_lock:
            if task_id in self._busy:
                return False
            self._busy.add(task_id)
            return True

    def _leave(self, task_id: TaskId) -> None:
        with self._busy_lock:
            self._busy.discard(task_id)
        self._company.leave(task_id)

    def _advance(self, task_id: TaskId) -> None:
        look = reads.look(self.database, task_id, self.info.id)
        if look is None or look.task.status is not Status.PENDING or look.task.blocked is not None:
            return
        if not look.fits:
            self._put_off(look.task.id, look.log_format)
            return
        if not self._company.admits(look.task, self.database):
            return
        try:
            task = self._claim(look)
        except THEIRS:
            raise
        except Incompatible as problem:
            self._block(look, problem)
            return
        except Exception:
            log.exception("phase_failed", task=look.task.id, kind=look.task.kind, phase=look.task.phase)
            task = self._claim_or_block(look)
        try:
            while task is not None:
                task = self._step(task)
        finally:
            if task is not None:
                self.keeper.drop(task.id, task.fence)

    def _put_off(self, task_id: TaskId, log_format: int = 1) -> None:
        """Somebody else may take the task: its hint is due again in a moment."""
        self._soft_database.run(hints.put_off(task_id, log_format))

    def _block(self, look: reads.Look, problem: Incompatible) -> None:
        """Set a task aside before it was claimed, if it is still as it was looked at."""
        log.warning("task_blocked", task=look.task.id, kind=look.task.kind, reason=type(problem).__name__)

        def fill(locked: Locked) -> Commit | None:
            if not _as_looked_at(locked, look):
                return None
            draft = Draft(locked, self._origin, any_format=True)
            blocking.block(draft, look.task, problem, host=self.info.host)
            return freeze(draft)

        self._writer.apply(look.task.session_id, [look.task.id], fill, seconds=self._lease_seconds)

    def _claim(self, look: reads.Look, *, early: bool = True) -> Task | None:
        """The task as claimed, at the phase to run next; None if it was not to be had, or is done with already.

        `early` lets a phase that only decides share the claim's commit. Raises Incompatible, having claimed nothing.
        """
        kind = self._registry.kind(look.task)
        began = time.monotonic()
        with self.keeper.guests(DECIDING_SECONDS):  # no lease bounds migrations and rules that run before the claim
            found = kind.read(look.task)
            phase = kind.phases[found.phase]
            step = self._decide_early(replace(look, task=found), phase) if early else None

        def fill(locked: Locked) -> Commit | None:
            task = locked.tasks[look.task.id]
            if not _as_looked_at(locked, look) or not compat.readable(locked.session.log_format):
                return None
            draft = Draft(locked, self._origin)
            claimed = self._own(draft, task, phase)
            if step is not None:
                self._move(draft, claimed, kind, step.decide)
            return freeze(draft) if self._limits.take(draft, task.id) else None

        commit = self._writer.apply(look.task.session_id, [look.task.id], fill, seconds=self._lease_seconds)
        if commit is None:
            return None
        if step is not None:
            _tell(commit, look.task, began)
        return self._keep(commit)

    def _claim_or_block(self, look: reads.Look) -> Task | None:
        """Claim a task in a commit of its own, or set it aside if that fails, since the attempt cannot be counted."""
        try:
            return self._claim(look, early=False)
        except THEIRS:
            raise
        except Exception as error:
            log.exception("claim_failed", task=look.task.id, kind=look.task.kind, phase=look.task.phase)
            problem = f"its claim failed ({type(error).__name__}), see the log of {self.info.host}"
            self._block(look, Incompatible(problem))
            return None

    def _decide_early(self, look: reads.Look, phase: Phase) -> PhaseResult | None:
        """On a first hint, a phase that only decides runs before the claim and shares its commit."""
        if not phase.only_decides or look.hints is None or look.hints > 1 or look.task.phase_attempts > 0:
            return None
        return phase.run(self._run(look.task, look))

    def _step(self, task: Task) -> Task | None:
        """Run the present phase of an owned task and commit what it came to; the task to go on with, if any."""
        step, began = None, time.monotonic()
        try:
            kind = self._registry.kind(task)
            found = kind.read(task)
            phase, run = kind.phases[found.phase], self._run(found)
            with self.keeper.guests():
                step = phase.run(run)
            run.end()
            return self._store(task, kind, phase, run, step, began=began)
        except THEIRS:
            raise
        except Exception as error:
            if isinstance(error, Incompatible) and (step is None or not recovery.effect_is_unknown(task)):
                log.warning("task_blocked", task=task.id, kind=task.kind, reason=type(error).__name__)
                block = partial(blocking.block, task=task, problem=error, host=self.info.host)
                return self._commit(task, block, None, began=began)
            log.exception("phase_failed", task=task.id, kind=task.kind, phase=task.phase)
            if step is not None:
                self._keep_refused(task, step)
            reason = told(error)[:500]
            end = partial(ends.end_attempt, task=task, reason=reason, restart_limit=self._restart_limit)
            return self._commit(task, end, None, began=began)

    def _store(self, task: Task, kind: Kind, phase: Phase, run: Run, step: PhaseResult, *, began: float) -> Task | None:
        """Commit what a phase came to, with the least content if the store does not take all of it."""
        move = partial(self._move, owned=task, kind=kind, decide=step.decide, run=run)
        try:
            # What a phase did outside must be stored, it asked before it acted; one that only decided can decide again.
            return self._commit(task, move, step, began=began, any_format=not phase.only_decides)
        except (*THEIRS, Incompatible):
            raise
        except Exception:
            if step.instead is None:
                raise
            log.exception("content_not_stored", task=task.id, kind=task.kind, phase=task.phase)
            instead = replace(step, decide=step.instead, instead=None)
            return self._store(task, kind, phase, run, instead, began=began)

    def _commit(
        self,
        task: Task,
        decide: Callable[[Draft], None],
        step: PhaseResult | None,
        *,
        began: float,
        any_format: bool = True,
    ) -> Task | None:
        """Store what became of a phase that began then; without a `step` the attempt ends, and that is no crash."""

        def fill(locked: Locked) -> Commit:
            draft = Draft(locked, self._origin, any_format=any_format)
            if step is None:
                draft.record_end(task)
            try:
                decide(draft)
            except _MustEnd as unfinished:
                draft = Draft(locked, self._origin)
                draft.record_step(task, progress=None, deadline=None)
                ends.cancel(draft, background.with_handle_of(locked.tasks[task.id], unfinished.checkpoint))
            return freeze(draft)

        guard = Guard(task_id=task.id, fence=task.fence, step=task.step)
        try:
            commit = self._writer.apply(task.session_id, [task.id], fill, guard=guard, seconds=self._patience(task))
        except StaleWrite as error:
            log.warning("write_refused", task=task.id, fence=task.fence, reason=error)
            if step is not None:
                self._keep_refused(task, step)
            self.keeper.drop(task.id, task.fence)
            return None
        assert commit is not None
        _tell(commit, task, began)
        onward = self._keep(commit)
        if onward is None or onward.id != task.id:
            self.keeper.drop(task.id, task.fence)
        return onward

    def _move(self, draft: Draft, owned: Task, kind: Kind, decide: Decide, run: Run | None = None) -> None:
        """Carry out a step, and what it hands on to this worker in the same commit."""
        goes_on = not self.keeper.draining
        transition = decide(draft)
        ends = isinstance(transition, Final) and draft.handed_on is None
        if draft.task(owned.id).cancel_wanted and not ends:
            raise _MustEnd(None if isinstance(transition, Final) else transition.checkpoint)
        owned = kind.read(draft.task(owned.id))
        draft.change(owned)
        steps.move(
            draft,
            owned,
            transition,
            kind,
            progress=run.shown if run else None,
            lease_seconds=self._lease_seconds,
            goes_on=goes_on,
        )
        if goes_on and draft.handed_on is not None:
            onward, decide = draft.handed_on
            draft.handed_on = None
            kind = self._registry.kinds[onward.kind, onward.version]
            self._move(draft, self._own(draft, onward, kind.phases[onward.phase]), kind, decide)
            if owned.holds_slots and (going_on := draft.running_claim()) is not None:
                draft.pass_slots_on(owned, going_on)

    def _own(self, draft: Draft, task: Task, phase: Phase) -> Task:
        seconds = phase.seconds(task)
        lease_seconds = seconds if phase.whole_lease else self._lease_seconds
        return draft.claim(task, worker_id=self.info.id, lease_seconds=lease_seconds, phase_seconds=seconds)

    def _keep(self, commit: Commit) -> Task | None:
        """The task that this commit leaves running here, its lease kept from now on."""
        for task in (each.after for each in commit.tasks):
            if task.status is Status.RUNNING and task.worker_id == self.info.id and task.lease_until is not None:
                lease = (task.lease_until - commit.at).total_seconds()
                self.keeper.hold(task.id, task.fence, until=commit.asked_at + lease)
                return task
        return None

    def _patience(self, task: Task) -> float:
        """How long a commit may be tried again: while the lease can be held, since nobody else may act before."""
        assert task.deadline is not None
        return max(self._lease_seconds, self.keeper.seconds_left(task.id, task.fence))

    def _run(self, task: Task, look: reads.Look | None = None) -> Run:
        stopped = partial(self.keeper.lost, task.id, task.fence)
        cancelled = partial(self.keeper.cancelled, task.id, task.fence)
        return Run(task, self.database, self._soft_database, stopped, cancelled, lambda: self.keeper.leaving, look)

    def _keep_refused(self, task: Task, step: PhaseResult) -> None:
        """What must not be lost of a step whose commit was refused, or failed."""
        if step.evidence is not None:
            self.database.run_patiently(attempts.write_late_result(task.id, task.fence, step.evidence))
        if step.left_behind is not None:
            left_behind = step.left_behind

            def fill(locked: Locked) -> Commit:
                draft = Draft(locked, self._origin, any_format=True)
                left_behind(draft)
                return freeze(draft)

            self._writer.apply(task.session_id, [], fill, seconds=self._lease_seconds)


def _tell(commit: Commit, task: Task, began: float) -> None:
    """One line for each step of work: where it left its task, and how long it took."""
    after = next((each.after for each in commit.tasks if each.after.id == task.id), task)
    log.info(
        "step",
        session=task.session_id,
        task=task.id,
        kind=task.kind,
        phase=task.phase,
        outcome=after.outcome or after.status,
        seconds=round(time.monotonic() - began, 3),
    )


def _as_looked_at(locked: Locked, look: reads.Look) -> bool:
    """Whether a task that was looked at without a lock still waits for its claim, and nobody had it meanwhile."""
    task = locked.tasks[look.task.id]
    return (task.status, task.fence, task.blocked) == (Status.PENDING, look.task.fence, None)
