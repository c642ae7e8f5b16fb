"""What a submission waits for now, in words, for whoever asked: each with what would end the wait."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from sqlalchemy import ARRAY, Integer, any_, bindparam, literal_column, or_, select

from brainhands.shared.model.approval import Approval, Question
from brainhands.shared.model.json import canonical
from brainhands.shared.model.signal import OF_PEOPLE
from brainhands.shared.model.submission import Submission, SubmissionStatus
from brainhands.shared.model.task import Status, Task
from brainhands.shared.rules import background, compat
from brainhands.shared.rules.first_work import GENERATION
from brainhands.shared.store import reads, rows, workers
from brainhands.shared.store.database import Database, Row, Statement
from brainhands.shared.store.due import UNOFFERED_TASKS
from brainhands.shared.store.slots import TENANT_SLOT
from brainhands.shared.store.tables import approvals, outbox, tasks
from brainhands.shared.store.tables import workers as registered

MOST_TASKS = 500
"""Open tasks of a session that are looked at, the oldest first."""
MOST_REASONS = 10

_PROCESSES = (registered.c.pid, registered.c.parent_pid)
OPEN_TASKS = Statement(
    select(tasks)
    .where(tasks.c.session_id == bindparam("session_id"), tasks.c.status != Status.DONE)
    .order_by(tasks.c.id)
    .limit(literal_column(str(MOST_TASKS)))
)
LIMITED = Statement(
    select(outbox.c.task_id, outbox.c.awaits).where(
        outbox.c.session_id == bindparam("session_id"), outbox.c.awaits.is_not(None)
    )
)
ASKED = Statement(
    select(approvals)
    .where(approvals.c.session_id == bindparam("session_id"), approvals.c.answer == "pending")
    .order_by(approvals.c.asked_at, approvals.c.id)
)
AT_WORK = Statement(
    select(tasks)
    .join(registered, registered.c.id == tasks.c.worker_id)
    .where(
        tasks.c.status == Status.RUNNING,
        or_(*(column == any_(bindparam("pids", type_=ARRAY(Integer))) for column in _PROCESSES)),
    )
    .order_by(tasks.c.id)
)


def reasons(database: Database, submission: Submission) -> list[str]:
    """What it waits for: a worker, a tool, a person, a signal, a limit, a retry, or what runs.

    Equal reasons are one, and of more than ten the number is said. Empty if it is done.
    """
    if submission.status is SubmissionStatus.DONE:
        return []
    session = submission.session_id
    opened, unoffered, asked, limited, live = database.run(
        OPEN_TASKS(session_id=session),
        UNOFFERED_TASKS(session_id=session),
        ASKED(session_id=session),
        LIMITED(session_id=session),
        workers.REGISTERED(),
    )
    open_tasks = reads.with_reasons(opened.rows, unoffered.rows)
    own = [task for task in open_tasks if task.submission_id == submission.id]
    questions = {approval.task_id: approval for approval in map(rows.approval, asked.rows)}
    awaits = {row["task_id"]: row["awaits"] for row in limited.rows}
    found = [
        _of_person(questions[task.id]) if task.id in questions else _of_task(task, awaits.get(task.id, []), live.rows)
        for task in own or open_tasks
    ]
    told = list(dict.fromkeys(reason for reason in found if reason is not None))
    if not own:
        told.insert(0, "the work before it in its session")
    more = len(told) - MOST_REASONS
    return [*told[:MOST_REASONS], *([f"{more} more"] if more > 0 else [])]


def at_work(database: Database, pids: Iterable[int]) -> list[str]:
    """What runs in these processes and their children, and until when at most."""
    (found,) = database.run(AT_WORK(pids=list(pids)))
    running = [rows.task(row) for row in found.rows]
    return [
        f"{_name(task)} of session {task.session_id}, until {_moment(task.deadline)} at most"
        for task in running
        if task.deadline is not None
    ]


def strangers(database: Database, agent: str) -> list[str] | None:
    """The agents that Brain workers offered in the last day, where this one is not among them."""
    (seen,) = database.run(workers.AGENTS())
    offered = {str(row["name"]).partition(":")[2] for row in seen.rows}
    return None if agent in offered or not offered else sorted(offered)


def _of_person(asked: Approval) -> str:
    until = _moment(asked.answer_by)
    if asked.question is Question.REVIEW:
        answers = f"`brainhands review {asked.id} happened`, or did_not_happen, or unknown"
        return f"a person, until {until}, to say whether {asked.tool} took effect: {answers}"
    answers = f"`brainhands approve {asked.id}` or `brainhands deny {asked.id}`"
    return f"a person, until {until}, to let {asked.tool} run with {canonical(asked.arguments)}: {answers}"


def _of_task(task: Task, awaits: list[str], live: list[Row]) -> str | None:
    """What one task waits for; None where others say it, such as its children."""
    name = _name(task)
    match task.status:
        case Status.PENDING if task.blocked is not None:
            advice = f"; start one that offers {task.requires}" if task.blocked.startswith(compat.NO_WORKER) else ""
            return f"a worker for {name}: {task.blocked}{advice}"
        case Status.PENDING if awaits:
            whose = [f"of tenant {each.removeprefix(TENANT_SLOT)}" for each in awaits if each.startswith(TENANT_SLOT)]
            limited = whose or [f"of {each.replace(':', ' ')}" for each in awaits]
            return f"a limit: as many tasks {' and '.join(limited)} run as may at a time"
        case Status.PENDING:
            return _of_pending(name, task, live)
        case Status.SLEEPING:
            return _of_sleeper(name, task)
        case Status.WAITING if task.signal_name and task.wake_at and not task.signal_name.startswith(OF_PEOPLE):
            key = ["--key", task.signal_key] if task.signal_key else []
            sent = shlex.join(["brainhands", "signal", str(task.session_id), task.signal_name, *key])
            return f"a signal for {name}, until {_moment(task.wake_at)}: `{sent}`"
        case Status.RUNNING:
            return f"{name}, which is at work" if task.kind == GENERATION else f"{name}, which runs"
        case Status.COMPLETING:
            return f"{name}, which winds up"
    return None


def _of_pending(name: str, task: Task, live: list[Row]) -> str:
    offered = list(_offered(live))
    if "relay" not in {row["role"] for row in live}:
        return "a relay: none was seen lately; start one with `brainhands relay`"
    if task.requires.name not in offered:
        return f"a worker for {name}: no live one offers {task.requires}"
    return f"its turn for {name}"


def _of_sleeper(name: str, task: Task) -> str:
    at = "" if task.wake_at is None else f", at {_moment(task.wake_at)}"
    if task.kind == GENERATION and "waits_for" in task.checkpoint:
        return f"a tool: {task.checkpoint['reason']}; name its module in BRAINHANDS_TOOLS of a Hands worker"
    if background.handle(task):
        return f"a look at what the provider does in the background{at}"
    if task.kind.startswith("flow:"):
        return f"{name}, which sleeps{at}"
    why = task.checkpoint.get("error")
    return f"{'a look-up' if task.phase == 'reconcile' else 'a retry'} of {name}{at}{f': {why}' if why else ''}"


def _name(task: Task) -> str:
    return "the model" if task.kind == GENERATION else task.kind.replace(":", " ")


def _offered(live: list[Row]) -> Iterator[str]:
    for row in live:
        for offer in row["offers"]:
            yield str(offer["name"])


def _moment(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
