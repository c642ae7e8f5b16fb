"""Cancel from outside: the wish, what it ends at once and what it leaves to end, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brainhands.shared.engine import ends, inbox
from brainhands.shared.engine.closing import freeze
from brainhands.shared.engine.draft import NOBODY, Draft
from brainhands.shared.engine.writer import Writer
from brainhands.shared.errors import Incompatible
from brainhands.shared.model.commit import Commit
from brainhands.shared.model.event import LOG_FORMAT, CancelRequested
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.model.session import Inbox
from brainhands.shared.model.submission import Cancellation, CancelState, Submission, SubmissionStatus
from brainhands.shared.model.task import Outcome, Status, Task
from brainhands.shared.rules import compat
from brainhands.shared.rules.background import RESPONSE_CANCEL
from brainhands.shared.rules.first_work import GENERATION
from brainhands.shared.store import reads
from brainhands.shared.store.locked import Locked


def cancel_submission(writer: Writer, submission: Submission, *, reason: str, who: str | None = None) -> Cancellation:
    """End what works on one input, or take the input out of the inbox."""
    _cancel(
        writer,
        submission.session_id,
        roots=lambda tasks: [task.id for task in tasks if _works_on(task, submission)],
        inputs=lambda entry: entry.submission_id == submission.id,
        wish=CancelRequested(scope="submission", subject=str(submission.id), reason=reason, who=who),
    )
    now = reads.submission(writer.database, submission.tenant, submission.id)
    assert now is not None
    state = CancelState.ENDING
    if now.status is SubmissionStatus.DONE:
        late = submission.status is SubmissionStatus.DONE
        state = CancelState.TOO_LATE if late or now.outcome != "cancelled" else CancelState.CANCELLED
    return Cancellation(session_id=submission.session_id, state=state, outcome=now.outcome)


def cancel_session(writer: Writer, session_id: SessionId, *, reason: str, who: str | None = None) -> Cancellation:
    """End everything that is open in a session, and empty its inboxes."""
    left = _cancel(
        writer,
        session_id,
        roots=lambda tasks: [task.id for task in tasks],
        inputs=lambda _entry: True,
        wish=CancelRequested(scope="session", subject=None, reason=reason, who=who),
    )
    state = {None: CancelState.TOO_LATE, True: CancelState.ENDING, False: CancelState.CANCELLED}[left]
    return Cancellation(session_id=session_id, state=state, outcome=None)


def cancel_task(writer: Writer, task: Task, *, reason: str, who: str | None = None) -> Cancellation:
    """End one task and all it owns; who waits for it goes on with its outcome."""
    left = _cancel(
        writer,
        task.session_id,
        roots=lambda tasks: [each.id for each in tasks if each.id == task.id],
        inputs=lambda _entry: False,
        wish=CancelRequested(scope="task", subject=str(task.id), reason=reason, who=who),
    )
    now = reads.task(writer.database, task.id)
    assert now is not None
    decided_otherwise = now.status is Status.COMPLETING and now.outcome is not Outcome.CANCELLED
    if left is None or decided_otherwise:
        state = CancelState.TOO_LATE
    else:
        state = CancelState.ENDING if now.is_open else CancelState.CANCELLED
    return Cancellation(session_id=task.session_id, state=state, outcome=now.outcome)


def _cancel(
    writer: Writer,
    session_id: SessionId,
    *,
    roots: Callable[[Iterable[Task]], list[TaskId]],
    inputs: Callable[[Inbox], bool],
    wish: CancelRequested,
) -> bool | None:
    """Store the wish and carry it down the tree: whether something is left to end, None if there was nothing to."""
    left: bool | None = None

    def fill(locked: Locked) -> Commit | None:
        nonlocal left
        open_tasks = locked.open_tasks()
        wanted = roots([task for task in open_tasks.values() if _may_be_stopped(task, wish)])
        waiting = [entry for entry in locked.inputs() if inputs(entry)]
        if not wanted and not waiting:
            return None
        if not compat.readable(locked.session.log_format):
            # Whether a call may have acted is told by its phase, which need not be known here.
            raise Incompatible(
                f"session {session_id} has log format {locked.session.log_format}, this code reads {LOG_FORMAT}",
                "cancel it with a client of the newer version",
            )
        draft = Draft(locked, NOBODY)
        draft.event(wish, causes=())
        for entry in waiting:
            inbox.withdraw(draft, entry, reason="cancelled before it was begun")
        ends.cancel_trees(draft, wanted, open_tasks)
        commit = freeze(draft)
        left = any(draft.task(each).is_open for each in wanted)
        return commit

    # A try whose COMMIT lost its reply had gone through if a second one finds nothing to end.
    writer.apply(session_id, [], fill)
    return left


def _may_be_stopped(task: Task, wish: CancelRequested) -> bool:
    """What has a provider stop is not stopped itself, unless nobody can run it and it is named."""
    return task.kind != RESPONSE_CANCEL or (wish.scope == "task" and task.blocked is not None)


def _works_on(task: Task, submission: Submission) -> bool:
    """Whether a task is for this submission; an input that joined another's work can only end together with it."""
    if task.submission_id == submission.id:
        return True
    return task.kind == GENERATION and submission.id in ends.submissions_of(task)
