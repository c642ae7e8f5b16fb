"""What the sweep must look at: candidates found without locks, each to be judged again under its session's lock."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, and_, delete, func, literal, null, or_, select, text, union_all
from sqlalchemy.dialects.postgresql import insert

from shared.store.database import Call, Database, Row, Statement
from shared.store.hints import OFFER_FITS_HINT, OFFERED, offered
from shared.store.tables import inbox, outbox, sessions, tasks, waits

BATCH = 200
"""Candidates of one sort in one sweep; more wait for the next."""

GRACE_SECONDS = 5
"""How long a hint may be without a live worker that fits, or an input without its intake, before the sweep steps in."""

NO_WORKER = "no live worker offers"
"""How the reason begins with which a task is blocked until a fitting worker appears."""


class Due(StrEnum):
    WAKE = "wake"
    EXPIRE = "expire"
    READY = "ready"
    MISS = "miss"
    COMPLETE = "complete"
    BLOCK = "block"
    UNBLOCK = "unblock"
    INPUT = "input"


_NOW = func.clock_timestamp()
_GRACE = text(f"interval '{GRACE_SECONDS} seconds'")
_OTHER = tasks.alias("other")


def _candidates(due: Due, *conditions: object, reason: object = None) -> Select[Any, Any, str, Any]:
    return (
        select(
            tasks.c.session_id,
            tasks.c.id.label("subject"),
            literal(due.value).label("due"),
            (null() if reason is None else reason).label("reason"),  # type: ignore[attr-defined]
        )
        .where(*conditions)  # type: ignore[arg-type]
        .limit(BATCH)
    )


_OPEN_DEPENDENCY = (
    select(waits.c.waiter_id)
    .join(_OTHER, _OTHER.c.id == waits.c.dependency_id)
    .where(waits.c.waiter_id == tasks.c.id, _OTHER.c.status != "done")
    .exists()
)
_OPEN_CHILD = select(_OTHER.c.id).where(_OTHER.c.owner_id == tasks.c.id, _OTHER.c.status != "done").exists()
_OPEN_WORK_OF_CONVERSATION = (
    select(_OTHER.c.id)
    .where(
        _OTHER.c.conversation_id == inbox.c.conversation_id,
        _OTHER.c.status != "done",
        or_(_OTHER.c.kind == "generation", _OTHER.c.kind == "intake"),
    )
    .exists()
)
_OFFER_FITS_TASK = (
    select(OFFERED.c.name)
    .where(
        OFFERED.c.name == tasks.c.requires_name,
        or_(tasks.c.requires_version.is_(None), tasks.c.requires_version.between(OFFERED.c.low, OFFERED.c.high)),
    )
    .exists()
)
_HINTED = outbox.c.task_id == tasks.c.id
FIND = Statement(
    union_all(
        *(
            each.subquery().select()
            for each in (
                _candidates(Due.WAKE, tasks.c.status == "sleeping", tasks.c.wake_at <= _NOW),
                _candidates(Due.EXPIRE, tasks.c.status == "running", tasks.c.lease_until < _NOW),
                _candidates(Due.READY, tasks.c.status == "waiting", tasks.c.signal_name.is_(None), ~_OPEN_DEPENDENCY),
                _candidates(
                    Due.MISS, tasks.c.status == "waiting", tasks.c.signal_name.is_not(None), tasks.c.wake_at <= _NOW
                ),
                _candidates(Due.COMPLETE, tasks.c.status == "completing", ~_OPEN_CHILD),
                _candidates(
                    Due.BLOCK,
                    tasks.c.status == "pending",
                    tasks.c.blocked.is_(None),
                    _HINTED,
                    or_(
                        outbox.c.parked.is_not(None),
                        and_(outbox.c.created_at < _NOW - _GRACE, outbox.c.not_before < _NOW, ~OFFER_FITS_HINT),
                    ),
                    reason=outbox.c.parked,
                ),
                _candidates(Due.UNBLOCK, tasks.c.blocked.startswith(NO_WORKER), _OFFER_FITS_TASK),
                select(
                    inbox.c.session_id,
                    inbox.c.conversation_id.label("subject"),
                    literal(Due.INPUT.value).label("due"),
                    null().label("reason"),
                )
                .where(inbox.c.created_at < _NOW - _GRACE, ~_OPEN_WORK_OF_CONVERSATION)
                .distinct()
                .limit(BATCH),
            )
        )
    )
)
DROP_USELESS_HINTS = Statement(
    delete(outbox).where(
        outbox.c.created_at < _NOW - _GRACE,
        ~select(tasks.c.id)
        .where(tasks.c.id == outbox.c.task_id, tasks.c.status == "pending", tasks.c.blocked.is_(None))
        .exists(),
    )
)
_UNHINTED = (
    select(
        tasks.c.id,
        tasks.c.session_id,
        select(sessions.c.tenant).where(sessions.c.id == tasks.c.session_id).scalar_subquery(),
        tasks.c.priority,
        tasks.c.requires_name,
        tasks.c.requires_version,
        _NOW,
    )
    .where(
        tasks.c.status == "pending",
        tasks.c.blocked.is_(None),
        ~select(outbox.c.task_id).where(_HINTED).exists(),
    )
    .limit(BATCH)
)
ADD_MISSING_HINTS = Statement(
    insert(outbox)
    .from_select(
        ["task_id", "session_id", "tenant", "priority", "requires_name", "requires_version", "not_before"], _UNHINTED
    )
    .on_conflict_do_nothing()
)


def find(database: Database, offers: Sequence[Row]) -> list[Row]:
    """Candidates as rows (session_id, subject, due, reason); `subject` is a task, of `input` a conversation."""
    (result,) = database.run(FIND(**offered(offers)))
    return result.rows


def mend_hints() -> tuple[Call, Call]:
    """Removes hints of tasks that are not runnable, and gives runnable tasks without a hint theirs."""
    return DROP_USELESS_HINTS(), ADD_MISSING_HINTS()
