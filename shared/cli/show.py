"""Looking at sessions: the list of them, and one in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from shared.cli import timeline
from shared.cli.door import current_addresses, open_client, print_json
from shared.cli.submit import AsJson
from shared.cli.timeline import one_line, span
from shared.model import wire
from shared.model.event import Event
from shared.model.ids import TaskId
from shared.model.prices import dollars
from shared.model.session import Session
from shared.model.submission import Submission
from shared.model.task import Outcome, Task
from shared.store import reads
from shared.store.database import Database, Row
from shared.store.reads import SessionView

TENANT = "default"

OUTCOME_STYLES = {
    Outcome.SUCCEEDED: "green",
    Outcome.FAILED: "red",
    Outcome.CANCELLED: "yellow",
    Outcome.INTERRUPTED: "yellow",
}


def sessions(json: AsJson = False) -> None:
    """List the newest sessions."""
    database = Database(current_addresses().database_url)
    try:
        found = reads.sessions_of(database, TENANT)
    finally:
        database.close()
    if json:
        print_json([_session_json(row) for row in found])
        return
    for row in found:
        state = f"{row['open_tasks']} open" if row["open_tasks"] else "erased" if row["erased_at"] else "idle"
        name = one_line(str(row["agent"]), 24)
        print(f"{row['id']}  {name:<24} {state:<8} {row['last_seq']:>5} events  {_moment(row['created_at'])}")


def show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    json: AsJson = False,
) -> None:
    """Show a session: its conversations, submissions, tasks and the timeline of its events."""
    with open_client() as client:
        view, events = client.session(session), client.events(session)
    if json:
        print_json(_view_json(view, events))
    else:
        _print_view(view, events, timeline.console())


def _session_json(row: Row) -> dict[str, object]:
    return {
        "id": str(row["id"]),
        "agent": row["agent"],
        "open_tasks": row["open_tasks"],
        "last_seq": row["last_seq"],
        "created_at": row["created_at"].isoformat(timespec="microseconds"),
        "last_at": row["last_at"].isoformat(timespec="microseconds"),
    }


def _view_json(view: SessionView, events: list[Event]) -> dict[str, object]:
    return {
        "session": wire.session(view.session),
        "conversations": [wire.conversation(each) for each in view.conversations],
        "tasks": [wire.task(each) for each in view.tasks],
        "submissions": [wire.submission(each) for each in view.submissions],
        "events": [wire.event(each) for each in events],
    }


def _print_view(view: SessionView, events: list[Event], out: Console) -> None:
    head, lasted = view.session, span(view.session.last_at - view.session.created_at)
    out.print(Text(f"session {head.id}", style="bold"))
    out.print(f"{_moment(head.created_at)}, {lasted}, {head.last_seq} events, {_use(head)}")
    if head.erased_at is not None:
        out.print(Text(f"erased {_moment(head.erased_at)}", style="magenta"))
    if head.forked_from is not None:
        out.print(f"forked from session {head.forked_from} at event {head.forked_at}")
    _title(out, "conversations")
    for each in view.conversations:
        version = "" if each.agent_version is None else f"@{each.agent_version}"
        owner = "" if each.owner_id is None else f"  of task {_short(each.owner_id)}"
        out.print(f"  {each.id}  {each.agent}{version}{owner}")
    _title(out, "submissions")
    for submission in view.submissions:
        _print_submission(submission, out)
    _title(out, "tasks")
    for depth, task in _tree(view.tasks):
        out.print(_task_line(task, depth, out.width))
        if task.blocked is not None:
            out.print(Text(f"    blocked: {one_line(task.blocked, len(task.blocked))}", style="yellow"))
    _title(out, "timeline (time since the start, time since the latest cause)")
    for line in timeline.lines(events, out.width):
        out.print(line)


def _title(out: Console, title: str) -> None:
    out.print(Text(f"\n{title}", style="bold"))


def _print_submission(value: Submission, out: Console) -> None:
    state = Text(f"  {value.id}  ")
    state.append(str(value.outcome or value.status), style=OUTCOME_STYLES.get(value.outcome or Outcome.SUCCEEDED, ""))
    if value.done_at is not None:
        state.append(f" in {span(value.done_at - value.created_at)}")
    state.append(f", {_use(value)}")
    state.append(f"  request {one_line(value.request_id, out.width - state.cell_len - 10)}", style="dim")
    out.print(state)
    out.print(f"    < {one_line(value.input, out.width - 6)}")
    told = value.error if value.error is not None else value.output
    if told is not None:
        out.print(f"    > {one_line(str(told), out.width - 6)}")


def _use(value: Session | Submission) -> str:
    cost = f", {dollars(value.cost)} USD" if value.cost else ""
    return f"{value.tokens_in} tokens in, {value.tokens_out} out{cost}"


def _tree(tasks: tuple[Task, ...]) -> Iterator[tuple[int, Task]]:
    """Each task with its depth, owners before what they own."""
    known = {task.id for task in tasks}
    owned: dict[TaskId | None, list[Task]] = {}
    for task in tasks:
        owned.setdefault(task.owner_id if task.owner_id in known else None, []).append(task)

    def below(owner: TaskId | None, depth: int) -> Iterator[tuple[int, Task]]:
        for task in owned.get(owner, ()):
            yield depth, task
            yield from below(task.id, depth + 1)

    return below(None, 0)


def _task_line(task: Task, depth: int, width: int) -> Text:
    state = task.outcome or task.status
    name = "  " * min(depth, 8) + one_line(task.kind, 26 - 2 * min(depth, 8))
    line = Text(f"  {_short(task.id)}  {name:<26} ")
    line.append(f"{state:<12}", style=OUTCOME_STYLES.get(task.outcome, "") if task.outcome else "cyan")
    line.append(f" {task.phase:<10}")
    line.append(f" {task.phase_attempts} tried" if task.is_open and task.phase_attempts else "")
    why = task.error or (f"wakes {_moment(task.wake_at)}" if task.wake_at else "")
    line.append("  " + one_line(why, max(10, width - line.cell_len - 2)) if why else "", style="yellow")
    line.rstrip()
    return line


def _short(id: object) -> str:
    """The last digits of an id: they are the random ones."""
    return str(id)[-8:]


def _moment(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
