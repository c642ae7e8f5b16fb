"""Slots: how many tasks of a tool or of a tenant run at a time. A claim takes them, and what ends the claim frees them.

A slot is a row, so that two claims at once cannot both have the last one; who has it holds it as long as the task runs
under that claim, so a dead holder blocks nobody for longer than its lease. Rows beyond a limit that was lowered are
left alone. Slots are locked with SKIP LOCKED, after tasks and before hints: nobody waits for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import (
    ARRAY,
    Double,
    Integer,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from brainhands.shared.model.ids import TaskId
from brainhands.shared.store.database import Call, Statement
from brainhands.shared.store.tables import outbox, slots, tasks

TENANT_SLOT = "tenant:"
"""How the name of a tenant's slots begins; those of a tool have the name that its calls require, `tool:NAME`."""

ABANDONED_SECONDS = 5
"""After so long a slot whose task does not run is free again: an older worker may have ended the claim."""

_WANTED = (
    func.unnest(bindparam("names", type_=ARRAY(Text)), bindparam("limits", type_=ARRAY(Integer)))
    .table_valued("name", "most", name="wanted")
    .render_derived()
)
_NUMBERS = func.generate_series(1, _WANTED.c.most).table_valued("number", name="numbers").render_derived()
MAKE = Statement(
    insert(slots)
    .from_select(["name", "number"], select(_WANTED.c.name, _NUMBERS.c.number).join(_NUMBERS, true()))
    .on_conflict_do_nothing()
)
_FREE_SLOT = (
    select(slots.c.name, slots.c.number)
    .where(slots.c.name == _WANTED.c.name, slots.c.number <= _WANTED.c.most, slots.c.task_id.is_(None))
    .order_by(slots.c.number)
    .limit(literal_column("1"))
    .with_for_update(skip_locked=True)
    .correlate(_WANTED)
    .lateral("free_slot")
)
_FOUND = select(_FREE_SLOT.c.name, _FREE_SLOT.c.number).select_from(_WANTED).join(_FREE_SLOT, true()).cte("found")
TAKE = Statement(
    update(slots)
    .where(
        tuple_(slots.c.name, slots.c.number) == tuple_(_FOUND.c.name, _FOUND.c.number),
        select(func.count()).select_from(_FOUND).scalar_subquery()
        == func.cardinality(bindparam("names", type_=ARRAY(Text))),
    )
    .values(task_id=bindparam("the_task"), taken_at=func.clock_timestamp())
)
_OF_TASKS = slots.c.task_id == any_(bindparam("ids", type_=ARRAY(Uuid)))
FREE = Statement(update(slots).where(_OF_TASKS).values(task_id=None, taken_at=None))
PASS_ON = Statement(update(slots).where(slots.c.task_id == bindparam("from_task")).values(task_id=bindparam("to_task")))
_NEXT_IN_LINE = (
    select(outbox.c.task_id)
    .where(
        outbox.c.awaits.is_not(None),
        outbox.c.awaits.op("&&")(func.array(select(slots.c.name).where(_OF_TASKS).scalar_subquery())),
    )
    .order_by(outbox.c.not_before)
    .limit(literal_column("1"))
    .with_for_update(skip_locked=True)
)
HINT_NEXT = Statement(
    update(outbox)
    .where(outbox.c.task_id == any_(func.array(_NEXT_IN_LINE.scalar_subquery())))
    .values(not_before=func.statement_timestamp(), awaits=None)
)
PUT_OFF = Statement(
    update(outbox)
    .where(outbox.c.task_id == bindparam("the_task"))
    .values(
        not_before=func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("seconds", type_=Double)),
        published_at=None,
        attempts=func.greatest(outbox.c.attempts - 1, 0),
        awaits=bindparam("names", type_=ARRAY(Text)),
    )
)
_ABANDONED = (
    select(slots.c.name, slots.c.number)
    .where(
        slots.c.task_id.is_not(None),
        slots.c.taken_at < func.clock_timestamp() - text(f"interval '{ABANDONED_SECONDS} seconds'"),
        ~select(tasks.c.id)
        .where(and_(tasks.c.id == slots.c.task_id, tasks.c.status == "running", tasks.c.holds_slots))
        .exists(),
    )
    .with_for_update(skip_locked=True)
    .cte("abandoned")
)
FREE_ABANDONED = Statement(
    update(slots)
    .where(tuple_(slots.c.name, slots.c.number) == tuple_(_ABANDONED.c.name, _ABANDONED.c.number))
    .values(task_id=None, taken_at=None)
)


def make(limits: Mapping[str, int]) -> Call:
    """Makes what is missing of so many slots for each name."""
    return MAKE(names=list(limits), limits=list(limits.values()))


def take(task_id: TaskId, limits: Mapping[str, int]) -> Call:
    """Takes one slot of each name for a task, or none at all; the count says which."""
    return TAKE(the_task=task_id, names=list(limits), limits=list(limits.values()))


def free(ids: Sequence[TaskId]) -> tuple[Call, Call]:
    """Frees what tasks hold, and makes the hint that has waited longest for such a slot due; both as of one moment."""
    return FREE(ids=list(ids)), HINT_NEXT(ids=list(ids))


def pass_on(from_task: TaskId, to_task: TaskId) -> Call:
    """Gives what one task holds to another."""
    return PASS_ON(from_task=from_task, to_task=to_task)


def put_off(task_id: TaskId, names: Sequence[str], seconds: float) -> Call:
    """Makes a hint whose claim was refused for want of a slot due a little later; it counts as not sent."""
    return PUT_OFF(the_task=task_id, names=list(names), seconds=seconds)


def free_abandoned() -> Call:
    """Frees slots that are held for a task which does not run under a claim that took them."""
    return FREE_ABANDONED()
