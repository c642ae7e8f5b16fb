"""How a draft becomes a commit: what follows from it is settled, whoever filled it.

An ended task frees those that wait for it and lets its completing owner end, a wait with nothing left open is over at
once, a conversation left without a generation takes its next input, and each runnable task has its hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from brainhands.shared.engine import documents, ends, inbox
from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.commit import (
    Commit,
    Hint,
    HintsGone,
    NewTask,
    SlotsFreed,
    SlotsHandedOn,
    SubmissionEnd,
    SubmissionUse,
    TaskChange,
    Use,
    WaitsOver,
    Write,
)
from brainhands.shared.model.event import DocumentsChanged, Event
from brainhands.shared.model.ids import ConversationId, TaskId
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.rules import first_work, moves
from brainhands.shared.rules.owners import owned_first
from brainhands.shared.store.locked import Neighbours


def freeze(draft: Draft) -> Commit:
    """Settle what follows from the draft and give the commit."""
    # Waits come first: a task that ends below looks at what is left of them.
    _settle_waits(draft)
    _settle_ends(draft)
    if draft.documents and not draft.of(Event):
        draft.event(DocumentsChanged(documents=sorted(draft.documents)), causes=())
    # From here on no event is added: documents bear the seq of the last one, and the head is that of the commit.
    tasks = tuple(draft.tasks)
    return Commit(
        at=draft.now,
        asked_at=draft.locked.asked_at,
        session=draft.session,
        new_session=draft.new_session,
        tasks=tasks,
        writes=(
            *_rows(draft),
            *documents.versions(draft),
            *_waits(draft),
            *_hints(draft, tasks),
            *_slots(draft, tasks),
        ),
    )


def _rows(draft: Draft) -> Iterator[Write]:
    """All rows so far; what was used for a submission goes with its end, since a commit writes each row once."""
    used = dict(draft.used)
    for row in draft.writes:
        yield replace(row, used=used.pop(row.submission_id, Use())) if isinstance(row, SubmissionEnd) else row
    yield from (SubmissionUse(submission_id, use) for submission_id, use in used.items())


def _waits(draft: Draft) -> Iterator[Write]:
    yield from (each for waits in draft.waits.values() for each in waits)
    if draft.waits_over:
        yield WaitsOver(tuple(draft.waits_over))


def _hints(draft: Draft, tasks: Iterable[NewTask | TaskChange]) -> Iterator[Write]:
    """A hint for each task that is left runnable; none for one that was so and is not any more."""
    runnable = (each.after for each in tasks if _is_runnable(each.after))
    yield from (Hint(task, draft.hint_delays.get(task.id, 0.0)) for task in runnable)
    gone = [
        each.after.id
        for each in tasks
        if isinstance(each, TaskChange) and each.before.status is Status.PENDING and not _is_runnable(each.after)
    ]
    if gone:
        yield HintsGone(tuple(gone))


def _is_runnable(task: Task) -> bool:
    return task.status is Status.PENDING and task.blocked is None


def _slots(draft: Draft, tasks: Iterable[NewTask | TaskChange]) -> Iterator[Write]:
    """The slots of claims that end here are free, but for those that another claim has taken over."""
    handed_on = {each.from_task for each in draft.of(SlotsHandedOn)}
    freed = [
        each.after.id
        for each in tasks
        if isinstance(each, TaskChange)
        and each.before.holds_slots
        and not each.after.holds_slots
        and each.after.id not in handed_on
    ]
    if freed:
        yield SlotsFreed(tuple(freed))


def _settle_waits(draft: Draft) -> None:
    """A new wait on what has ended already, or on nothing, is over at once."""
    for waiter_id, waits in list(draft.waits.items()):
        stored = [each.dependency_id for each in waits if each.dependency_id not in draft.made]
        states = draft.locked.states(stored) if stored else {}
        failed = any(status is Status.DONE and outcome is not Outcome.SUCCEEDED for status, outcome in states.values())
        remaining = [
            each
            for each in waits
            if each.dependency_id in draft.made
            or states.get(each.dependency_id, (Status.DONE, None))[0] is not Status.DONE
        ]
        if remaining:
            draft.waits[waiter_id] = remaining
            if failed and any(each.fail_fast for each in waits):
                _cancel_owned(draft, waiter_id, [each.dependency_id for each in remaining])
        else:
            del draft.waits[waiter_id]
            draft.change(moves.ready(draft.task(waiter_id)))


def _settle_ends(draft: Draft) -> None:
    """End what is finishing, then what waited for that, up the tree of owners."""
    ended_generations: list[ConversationId] = []
    while draft.finishing:
        finishing, draft.finishing = draft.finishing, {}
        around = draft.locked.neighbours([draft.task(task_id) for task_id in finishing])
        draft.load([*around.waiters.values(), *around.completing_owners.values()])
        # An owner is done only when what it owns is, also where both end in this commit.
        for task_id in owned_first({task_id: draft.task(task_id).owner_id for task_id in finishing}):
            outcome, result, error = finishing[task_id]
            task = draft.task(task_id)
            open_children = _has_open_children(draft, task_id, around)
            if open_children and task.status is Status.COMPLETING:
                continue
            if task.status is Status.WAITING:
                draft.waits_over.append(task.id)
            end = moves.complete if open_children else moves.end
            draft.change(end(task, outcome=outcome, result=result, error=error))
            ended = draft.task(task_id)
            if not ended.is_open and ended.kind == first_work.GENERATION and ended.conversation_id is not None:
                ended_generations.append(ended.conversation_id)
                if ended.outcome is Outcome.CANCELLED:
                    ends.end_generation(draft, ended, Outcome.CANCELLED, causes=[ended.cause], error="cancelled")
        for waiter_id in around.waiters:
            _settle_waiter(draft, waiter_id, around)
        for owner_id in around.completing_owners:
            owner = draft.task(owner_id)
            if owner.is_open and not _has_open_children(draft, owner_id, around):
                assert owner.outcome is not None
                draft.finishing[owner_id] = (owner.outcome, owner.result, owner.error)
    # An input is admitted when all that ends has ended: what was freed last may be of its conversation.
    for conversation_id in dict.fromkeys(ended_generations):
        inbox.take_next(draft, conversation_id)


def _settle_waiter(draft: Draft, waiter_id: TaskId, around: Neighbours) -> None:
    """Let a task go on whose dependencies have ended, or cancel the rest of them if one should not have failed."""
    still_open = _still_open(draft, around.open_dependencies.get(waiter_id, frozenset()))
    still_open |= _open_of_new_waits(draft, waiter_id)
    if draft.task(waiter_id).status is not Status.WAITING or waiter_id in draft.finishing:
        return
    if not still_open:
        draft.end_wait(draft.task(waiter_id))
    elif any(_went_wrong(draft, each) for each in around.fail_fast_on.get(waiter_id, ())):
        _cancel_owned(draft, waiter_id, still_open)


def _open_of_new_waits(draft: Draft, waiter_id: TaskId) -> set[TaskId]:
    """What a task waits for from this draft on, less what was made and has ended within it."""
    waits = [
        each
        for each in draft.waits.pop(waiter_id, ())
        if each.dependency_id not in draft.made or draft.made[each.dependency_id].is_open
    ]
    if waits:
        draft.waits[waiter_id] = waits
    return {each.dependency_id for each in waits}


def _went_wrong(draft: Draft, task_id: TaskId) -> bool:
    ended = draft.changed.get(task_id)
    return ended is not None and not ended.is_open and ended.outcome is not Outcome.SUCCEEDED


def _cancel_owned(draft: Draft, owner_id: TaskId, among: Iterable[TaskId]) -> None:
    """Stop what a task owns, at the first failure of something it waits for."""
    among = set(among)
    open_tasks = draft.locked.open_tasks()
    roots = [each.id for each in open_tasks.values() if each.id in among and each.owner_id == owner_id]
    ends.cancel_trees(draft, roots, open_tasks)


def _has_open_children(draft: Draft, owner_id: TaskId, around: Neighbours) -> bool:
    made = any(task.owner_id == owner_id and task.is_open for task in draft.made.values())
    return made or bool(_still_open(draft, around.open_children.get(owner_id, frozenset())))


def _still_open(draft: Draft, stored: frozenset[TaskId]) -> frozenset[TaskId]:
    return frozenset(each for each in stored if each not in draft.changed or draft.changed[each].is_open)
