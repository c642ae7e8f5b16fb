"""Looking at sessions: the list of them, and one in full."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from brainhands.shared.cli import timeline
from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.submit import AsJson
from brainhands.shared.cli.terminal import escaped, one_line, say, say_json, styled, width
from brainhands.shared.cli.timeline import moment, span
from brainhands.shared.model import wire
from brainhands.shared.model.event import Event
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.prices import dollars
from brainhands.shared.model.session import Session
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Outcome, Task
from brainhands.shared.rules.verify import head_of
from brainhands.shared.store.reads import SessionView

OUTCOME_STYLES = {
    Outcome.SUCCEEDED: "green",
    Outcome.FAILED: "red",
    Outcome.CANCELLED: "yellow",
    Outcome.INTERRUPTED: "yellow",
}


NONE_YET = "there are no sessions yet"

OneSession = Annotated[str, typer.Argument(help="The session's id.")]


def sessions(
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.")] = None,
    open: Annotated[bool | None, typer.Option("--open/--idle", help="Only those with open tasks, or without.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only those made since this time, in UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only those made before this time, in UTC.")] = None,
    after: Annotated[str | None, typer.Option(help="Where the last list ended, as it says.")] = None,
    limit: Annotated[int, typer.Option(help="How many at the most.")] = 50,
    json: AsJson = False,
) -> None:
    """List sessions, the newest first, each with the head of its log, which `verify --head` takes."""
    with open_client() as client:
        found = client.sessions(
            agent=agent, open=open, since=_in_utc(since), until=_in_utc(until), after=after, limit=limit
        )
    if json:
        say_json([wire.session_summary(each) for each in found])
        return
    if not found:
        say("there are no such sessions" if agent or since or until or after or open is not None else NONE_YET)
    for each in found:
        state = f"{each.open_tasks} open" if each.open_tasks else "erased" if each.erased_at else "idle"
        name = one_line(each.agent, 24)
        say(f"{each.id}  {name:<24} {state:<8} {each.last_seq:>5} events  {moment(each.created_at)}")
        say(styled((f"    head {each.head}", "dim")))
    if found.next is not None:
        say(f"more: --after {found.next}")


def _in_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def show(
    session: OneSession,
    full: Annotated[bool, typer.Option("--full", help="Show each event whole.")] = False,
    type: Annotated[list[str] | None, typer.Option(help="Only events of this type, or of several.")] = None,
    task: Annotated[str | None, typer.Option(help="Only events of this task, by its id or the end of it.")] = None,
    json: AsJson = False,
) -> None:
    """Show a session: its conversations, submissions, tasks and the timeline of its events, or some of the events."""
    with open_client() as client:
        view, events = client.session(session), client.events(session)
    if some := bool(type or task):
        events = [event for event in events if _is_asked_for(event, type, task)]
    if json:
        say_json(_view_json(view, events))
        return
    if not some:
        _print_view(view)
    elif not events:
        say("no event fits")
    if full:
        for each in events:
            say()
            timeline.say_whole(each)
    else:
        for line in timeline.lines(events):
            say(line)


def event(
    session: OneSession, seq: Annotated[int, typer.Argument(help="The event's number.")], json: AsJson = False
) -> None:
    """Show one event whole, with the events that caused it and those that it caused."""
    with open_client() as client:
        found = client.event(session, seq)
    if json:
        say_json({**wire.event(found.event), "effects": [effect.seq for effect in found.effects]})
        return
    timeline.say_whole(found.event)
    for title, others in (("caused by", found.causes), ("effects", found.effects)):
        _title(title if others else f"{title}: none")
        for line in timeline.lines(others):
            say(line)


def _is_asked_for(event: Event, types: list[str] | None, task: str | None) -> bool:
    of_task = task is None or (event.task_id is not None and str(event.task_id).endswith(task.lower()))
    return of_task and (not types or event.type in types)


def _view_json(view: SessionView, events: list[Event]) -> dict[str, object]:
    return {
        "session": wire.session(view.session),
        "conversations": [wire.conversation(each) for each in view.conversations],
        "tasks": [wire.task(each) for each in view.tasks],
        "submissions": [wire.submission(each) for each in view.submissions],
        "events": [wire.event(each) for each in events],
    }


def _print_view(view: SessionView) -> None:
    head, lasted = view.session, span(view.session.last_at - view.session.created_at)
    say(styled((f"session {head.id}", "bold")))
    say(f"{moment(head.created_at)}, {lasted}, {head.last_seq} events, {_use(head)}")
    say(f"head {head_of(head)}")
    if head.erased_at is not None:
        say(styled((f"erased {moment(head.erased_at)}", "magenta")))
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
    for depth, task in tree(view.tasks):
        say(_task_line(task, depth))
        if task.blocked is not None:
            say(styled((f"    blocked: {task.blocked}", "yellow")))
    _title("timeline (time of day, time since the start, time since the latest cause)")


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


def tree(tasks: tuple[Task, ...]) -> Iterator[tuple[int, Task]]:
    """Each task with its depth, owners before what they own."""
    known = {task.id for task in tasks}
    owned: dict[TaskId | None, list[Task]] = {}
    for task in tasks:
        owned.setdefault(task.owner_id if task.owner_id in known else None, []).append(task)

    left = [(task, 0) for task in reversed(owned.get(None, []))]
    while left:
        task, depth = left.pop()
        yield depth, task
        left += [(each, depth + 1) for each in reversed(owned.get(task.id, []))]


def _task_line(task: Task, depth: int) -> Text:
    state = task.outcome or task.status
    name = "  " * min(depth, 8) + one_line(task.kind, 26 - 2 * min(depth, 8))
    tried = f" {task.phase_attempts} tried" if task.is_open and task.phase_attempts else ""
    style = OUTCOME_STYLES.get(task.outcome, "") if task.outcome else "cyan"
    line = styled(f"  {_short(task.id)}  {name:<26} ", (f"{state:<12}", style), f" {task.phase:<10}{tried}")
    why = task.error or (f"wakes {moment(task.wake_at)}" if task.wake_at else "")
    if why:
        line += styled(("  " + one_line(why, max(10, width() - len(line) - 2)), "yellow"))
    line.rstrip()
    return line


def _short(id: object) -> str:
    """The last digits of an id: they are the random ones."""
    return str(id)[-8:]
