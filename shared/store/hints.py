"""Hint rows: the runnable backlog. A commit inserts one with each pending task, the claim deletes it.

The relay marks a batch published in one short statement (`shared/store/turns.py` chooses it) and sends it afterwards. A
row that was published more than two seconds ago, was not claimed and lies in no queue is lost, and waits for its turn
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ARRAY, Integer, Uuid, any_, bindparam, func, select, text, update

from brainhands.shared.model.ids import TaskId
from brainhands.shared.store.database import Call, Statement
from brainhands.shared.store.offers import LIVE, fits
from brainhands.shared.store.tables import outbox

RESEND_SECONDS = 2
"""Age after which a published row that is still there is looked for in the queues."""

PUT_OFF_SECONDS = 0.3
"""How long a hint rests that reached a worker which cannot take its task."""

UNPUBLISHABLE = "the hint cannot be published"
"""How the reason of a parked row begins."""

_RESEND = text(f"interval '{RESEND_SECONDS} seconds'")
OVERDUE = Statement(
    select(outbox.c.task_id)
    .where(
        outbox.c.parked.is_(None),
        outbox.c.published_at < func.clock_timestamp() - _RESEND,
        fits(outbox.c.requires_name, outbox.c.requires_version, LIVE),
    )
    .order_by(outbox.c.published_at)
)
LOSE = Statement(
    update(outbox)
    .where(
        outbox.c.task_id == any_(bindparam("ids", type_=ARRAY(Uuid))),
        outbox.c.parked.is_(None),
        outbox.c.published_at < func.clock_timestamp() - _RESEND,
    )
    .values(published_at=None)
)
GIVE_BACK = Statement(
    update(outbox)
    .where(outbox.c.task_id == any_(bindparam("ids", type_=ARRAY(Uuid))))
    .values(published_at=None, attempts=func.greatest(outbox.c.attempts - 1, 0))
)
PUT_OFF = Statement(
    update(outbox)
    .where(outbox.c.task_id == bindparam("the_task"))
    .values(
        log_format=func.greatest(outbox.c.log_format, bindparam("log_format", type_=Integer)),
        published_at=None,
        attempts=func.greatest(outbox.c.attempts - 1, 0),
        not_before=func.greatest(
            outbox.c.not_before, func.clock_timestamp() + text(f"interval '{PUT_OFF_SECONDS} seconds'")
        ),
    )
)
PARK = Statement(update(outbox).where(outbox.c.task_id == bindparam("the_task")).values(parked=bindparam("reason")))


def overdue() -> Call:
    """Finds hints that fit a live worker and were sent long enough ago to be lost, if they are in no queue any more."""
    return OVERDUE()


def lose(ids: Sequence[TaskId]) -> Call:
    """Lets hints that are lost wait for their turn again; one that somebody has sent since stays as it is."""
    return LOSE(ids=list(ids))


def give_back(ids: Sequence[TaskId]) -> Call:
    """Unmarks rows whose publish failed with the broker: it counts against none of them."""
    return GIVE_BACK(ids=list(ids))


def put_off(task_id: TaskId, log_format: int = 1) -> Call:
    """Makes a hint due again in a moment: who got it leaves its task to somebody else.

    `log_format` is that of the task's session, where it is known: it may have risen after the hint was made.
    """
    return PUT_OFF(the_task=task_id, log_format=log_format)


def park(task_id: TaskId, reason: str) -> Call:
    """Sets one row aside that fails alone; its reason is why its task is blocked."""
    return PARK(the_task=task_id, reason=reason)
