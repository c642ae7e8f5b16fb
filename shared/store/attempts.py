"""What a worker may write beside commits: the lease it renews, and its own attempt's progress and late result."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ARRAY, BigInteger, Double, Integer, Uuid, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import JSON

from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.json import Json, canonical
from brainhands.shared.model.task import Attempt, Task
from brainhands.shared.store import rows
from brainhands.shared.store.database import Call, Database, Statement
from brainhands.shared.store.tables import attempts, outbox, tasks

PROGRESS_LIMIT = 65_536
"""Characters of progress that are kept, the newest."""

_HELD = (
    func.unnest(bindparam("ids", type_=ARRAY(Uuid)), bindparam("fences", type_=ARRAY(BigInteger)))
    .table_valued("task_id", "fence", name="held")
    .render_derived()
)
_RENEWABLE = (
    select(tasks.c.id)
    .join(_HELD, (tasks.c.id == _HELD.c.task_id) & (tasks.c.fence == _HELD.c.fence))
    .where(
        tasks.c.status == "running",
        tasks.c.lease_until > func.clock_timestamp(),
        tasks.c.deadline > tasks.c.lease_until,
        ~tasks.c.cancel_wanted,
    )
    .order_by(tasks.c.id)
    .with_for_update(key_share=True, skip_locked=True, of=tasks)
    .cte("renewable")
)
_LEASE = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("seconds", type_=Double))
RENEW = Statement(
    update(tasks)
    .where(tasks.c.id == _RENEWABLE.c.id)
    .values(lease_until=func.least(tasks.c.deadline, _LEASE))
    .returning(
        tasks.c.id,
        tasks.c.fence,
        func.extract("epoch", tasks.c.lease_until - func.clock_timestamp()).label("seconds_left"),
    )
)
_HELD_FREE = (
    select(tasks.c.id)
    .join(_HELD, (tasks.c.id == _HELD.c.task_id) & (tasks.c.fence == _HELD.c.fence))
    .where(tasks.c.status == "running")
    .order_by(tasks.c.id)
    .with_for_update(key_share=True, skip_locked=True, of=tasks)
    .cte("held_free")
)
SHORTEN = Statement(
    update(tasks).where(tasks.c.id == _HELD_FREE.c.id).values(lease_until=func.least(tasks.c.lease_until, _LEASE))
)
OWNED = Statement(
    select(tasks.c.id, tasks.c.fence, tasks.c.cancel_wanted)
    .join(_HELD, (tasks.c.id == _HELD.c.task_id) & (tasks.c.fence == _HELD.c.fence))
    .where(tasks.c.status == "running")
)
WRITE_PROGRESS = Statement(
    update(attempts)
    .where(
        attempts.c.task_id == bindparam("attempt_task"),
        attempts.c.fence == bindparam("attempt_fence"),
        attempts.c.ended_at.is_(None),
    )
    .values(progress=bindparam("progress"))
)
WRITE_LATE_RESULT = Statement(
    update(attempts)
    .where(
        attempts.c.task_id == bindparam("attempt_task"),
        attempts.c.fence == bindparam("attempt_fence"),
        attempts.c.late_result.is_(None),
    )
    .values(late_result=bindparam("result", type_=JSON))
)
_LATEST = (
    select(attempts.c.ended_at)
    .where(attempts.c.task_id == bindparam("attempt_task"))
    .order_by(attempts.c.fence.desc())
    .limit(bindparam("claims", type_=Integer))
    .subquery()
)
CRASHES = Statement(
    select(
        select(func.count())
        .select_from(_LATEST)
        .where(_LATEST.c.ended_at.is_(None))
        .scalar_subquery()
        .label("crashes"),
        func.extract("epoch", func.clock_timestamp() - outbox.c.created_at).label("waited"),
    ).where(outbox.c.task_id == bindparam("attempt_task"))
)
OF_TASK = Statement(select(attempts).where(attempts.c.task_id == bindparam("task_id")).order_by(attempts.c.fence))


def renew(ids: Sequence[TaskId], fences: Sequence[int], lease_seconds: float) -> Call:
    """Renews leases in id order, never past the phase's deadline; a row that somebody holds is left for the next try.

    Gives a row (id, fence, seconds_left) for each lease renewed.
    """
    return RENEW(ids=list(ids), fences=list(fences), seconds=lease_seconds)


def shorten(ids: Sequence[TaskId], fences: Sequence[int], seconds: float) -> Call:
    """Lets leases end within so many seconds."""
    return SHORTEN(ids=list(ids), fences=list(fences), seconds=seconds)


def owned(ids: Sequence[TaskId], fences: Sequence[int]) -> Call:
    """Gives a row (id, fence, cancel_wanted) for each claim that still stands."""
    return OWNED(ids=list(ids), fences=list(fences))


def write_progress(task_id: TaskId, fence: int, progress: str) -> Call:
    """Shows the newest part of what an attempt has put out; decides nothing."""
    return WRITE_PROGRESS(attempt_task=task_id, attempt_fence=fence, progress=progress[-PROGRESS_LIMIT:])


def write_late_result(task_id: TaskId, fence: int, result: Json) -> Call:
    """Keeps, as evidence in the attempt's own row, a result whose commit was refused."""
    return WRITE_LATE_RESULT(attempt_task=task_id, attempt_fence=fence, result=canonical(result))


def crashes(database: Database, task: Task) -> tuple[int, float]:
    """How many of the present phase's claims took their process along, and how many seconds a pending task waits.

    Such a claim ended with its lease; every other end of a claim is in the attempt's row.
    """
    (result,) = database.run(CRASHES(attempt_task=task.id, claims=task.phase_attempts))
    return (0, 0.0) if result.first is None else (result.first["crashes"], float(result.first["waited"]))


def of_task(database: Database, task_id: TaskId) -> list[Attempt]:
    """All claims of a task, oldest first."""
    (result,) = database.run(OF_TASK(task_id=task_id))
    return [rows.attempt(row) for row in result.rows]
