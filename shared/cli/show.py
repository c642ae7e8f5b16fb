"""Looking at sessions: the list of them, and one in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from shared.cli import timeline
from shared.cli.door import current_addresses, open_client
from shared.cli.submit import AsJson
from shared.cli.terminal import escaped, one_line, say, say_json, styled, width
from shared.cli.timeline import span
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
        say_json([_session_json(row) for row in found])
        return
    for row in found:
        state = f"{row['open_tasks']} open" if row["open_tasks"] else "erased" if row["erased_at"] else "idle"
        name = one_line(str(row["agent"]), 24)
        say(f"{row['id']}  {name:<24} {state:<8} {row['last_seq']:>5} events  {_moment(row['created_at'])}")


def show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    json: AsJson = False,
) -> None:
    """Show a session: its conversations, submissions, tasks and the timeline of its events."""
    with open_client() as client:
        view, events = client.session(session), client.events(session)
    if json:
        say_json(_view_json(view, events))
    else:
        _print_view(view, events)


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


def _print_view(view: SessionView, events: list[Event]) -> None:
    head, lasted = view.session, span(view.session.last_at - view.session.created_at)
    say(styled((f"session {head.id}", "bold")))
    say(f"{_moment(head.created_at)}, {lasted}, {head.last_seq} events, {_use(head)}")
    if head.erased_at is not None:
        say(styled((f"erased {_moment(head.erased_at)}", "magenta")))
    if head.forked_from is not None:
        say(f"forked from session {head.forked_from} at event {head.forked_at}")
    _title("conversations")
    for each in view.conversations:
        version = "" if each.agent_version is None else f"@{each.agent_version}"
        owner = "" if each.owner_id is None else f"  of task {_short(each.owner_id)}"
        say(f"  {each.id}  {escaped(each.agent)}{version}{owner}")
    _title("submissions")
    for submission in view.submissions:
        _print_submission(submission)
    _title("tasks")
    for depth, task in _tree(view.tasks):
        say(_task_line(task, depth))
        if task.blocked is not None:
            say(styled((f"    blocked: {task.blocked}", "yellow")))
    _title("timeline (time since the start, time since the latest cause)")
    for line in timeline.lines(events):
        say(line)


def _title(title: str) -> None:
    say()
    say(styled((title, "bold")))


def _print_submission(value: Submission) -> None:
    style = OUTCOME_STYLES.get(value.outcome or Outcome.SUCCEEDED, "")
    took = "" if value.done_at is None else f" in {span(value.done_at - value.created_at)}"
    state = styled(f"  {value.id}  ", (str(value.outcome or value.status), style), f"{took}, {_use(value)}")
    say(state + styled((f"  request {one_line(value.request_id, width() - len(state) - 10)}", "dim")))
    say(f"    < {one_line(value.input, width() - 6)}")
    told = value.error if value.error is not None else value.output
    if told is not None:
        say(f"    > {one_line(str(told), width() - 6)}")


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


def _task_line(task: Task, depth: int) -> Text:
    state = task.outcome or task.status
    name = "  " * min(depth, 8) + one_line(task.kind, 26 - 2 * min(depth, 8))
    tried = f" {task.phase_attempts} tried" if task.is_open and task.phase_attempts else ""
    style = OUTCOME_STYLES.get(task.outcome, "") if task.outcome else "cyan"
    line = styled(f"  {_short(task.id)}  {name:<26} ", (f"{state:<12}", style), f" {task.phase:<10}{tried}")
    why = task.error or (f"wakes {_moment(task.wake_at)}" if task.wake_at else "")
    if why:
        line += styled(("  " + one_line(why, max(10, width() - len(line) - 2)), "yellow"))
    line.rstrip()
    return line


def _short(id: object) -> str:
    """The last digits of an id: they are the random ones."""
    return str(id)[-8:]


def _moment(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
