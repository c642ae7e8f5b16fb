"""The draft of a commit: what a step, a submission or the sweep wants stored, filled under the session's lock.

A draft keeps the session's invariants by itself: an ended task frees those that wait for it and lets its completing
owner end, a wait with nothing left open is over at once, and a conversation left without a generation takes its next
input.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from brainhands.shared.engine import ends
from brainhands.shared.engine.definition import PhaseResult
from brainhands.shared.errors import OlderWorkers
from brainhands.shared.model import prices
from brainhands.shared.model.approval import HUMAN, Answer, Approval
from brainhands.shared.model.commit import (
    ApprovalChange,
    AttemptStep,
    Commit,
    InboxEntry,
    NewAttempt,
    NewWait,
    Redaction,
    SubmissionEnd,
    SubmissionUse,
    TaskChange,
)
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.event import (
    DocumentsChanged,
    Event,
    HumanApprovalAnswered,
    HumanApprovalRequested,
    ModelUse,
    Payload,
    SignalMissed,
    SignalReceived,
    SignalTaken,
    SubmissionDone,
    TaskCreated,
    Usage,
    UserMessage,
)
from brainhands.shared.model.ids import (
    ApprovalId,
    ConversationId,
    SignalId,
    SubmissionId,
    TaskId,
    WorkerId,
    new_task_id,
)
from brainhands.shared.model.json import Json, canonical, clean, duplicate, storable, storable_text
from brainhands.shared.model.session import Conversation, Inbox, Session
from brainhands.shared.model.signal import Signal
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Attempt, Outcome, Priority, Requirement, Status, Task
from brainhands.shared.rules import chain, delta, first_work, moves
from brainhands.shared.rules.owners import owned_first
from brainhands.shared.rules.times import later
from brainhands.shared.store.locked import Locked


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who writes: recorded in every event."""

    worker_id: WorkerId | None = None
    pool: str | None = None
    environment: str | None = None


NOBODY = Origin()


Total = TypeVar("Total", Session, SubmissionUse)


def _with_use(total: Total, usage: Usage) -> Total:
    return replace(
        total,
        tokens_in=total.tokens_in + usage.tokens_in,
        tokens_out=total.tokens_out + usage.tokens_out,
        cost=prices.added(total.cost, usage.cost),
    )


class Draft:
    """A write set in the making; `freeze` settles what follows from it and gives the commit.

    Unless it may write `any_format`, an event that not every live worker could read is refused with OlderWorkers.
    """

    def __init__(self, locked: Locked, origin: Origin, *, new_session: bool = False, any_format: bool = False) -> None:
        self.locked = locked
        self.now = locked.now
        self.session = locked.session
        self._origin = origin
        self._new_session = new_session
        self._any_format = any_format or new_session
        self._events: list[Event] = []
        self._before: dict[TaskId, Task] = dict(locked.tasks)
        self._after: dict[TaskId, Task] = {}
        self._new_tasks: dict[TaskId, Task] = {}
        self._finishing: dict[TaskId, tuple[Outcome, Json, str | None]] = {}
        self._waits: dict[TaskId, list[NewWait]] = {}
        self._waits_over: list[TaskId] = []
        self._conversations: list[Conversation] = []
        self._documents_before: dict[str, StoredDocument | None] = {}
        self._documents: dict[str, StoredDocument] = {}
        self._attempts: dict[tuple[TaskId, int], NewAttempt] = {}
        self._attempt_steps: list[AttemptStep] = []
        self._new_submissions: list[Submission] = []
        self._submissions_started: list[SubmissionId] = []
        self._submissions_ended: list[SubmissionEnd] = []
        self._submissions_used: dict[SubmissionId, SubmissionUse] = {}
        self._new_approvals: list[Approval] = []
        self._approvals: list[ApprovalChange] = []
        self._new_signals: list[tuple[Signal, bytes]] = []
        self._signals_taken: list[tuple[SignalId, TaskId]] = []
        self._inbox: list[InboxEntry] = []
        self._inbox_taken: list[SubmissionId] = []
        self._redaction: Redaction | None = None
        self._slots_passed_on: list[tuple[TaskId, TaskId]] = []
        self._hint_delays: dict[TaskId, float] = {}
        self.handed_on: tuple[Task, PhaseResult] | None = None
        """A new task that the worker of this step shall go on with at once, with the step of its first phase."""

    def task(self, task_id: TaskId) -> Task:
        """The task as this draft leaves it so far."""
        return self._new_tasks.get(task_id) or self._after.get(task_id) or self._before[task_id]

    def load(self, tasks: Iterable[Task]) -> None:
        """Make tasks known that were read under the lock."""
        for task in tasks:
            self._before.setdefault(task.id, task)

    def event(
        self,
        payload: Payload,
        *,
        causes: Iterable[int],
        task: Task | None = None,
        conversation_id: ConversationId | None = None,
    ) -> int:
        """Append a fact and return its seq; conversation and fence are the task's where it has them.

        What a model call used is added to the totals of the session and of the task's submission. Raises OlderWorkers.
        """
        newer = payload.log_format > self.session.log_format
        if newer and not self._any_format and payload.log_format > self.locked.fleet_format():
            raise OlderWorkers(payload.log_format)
        usage = payload.usage if isinstance(payload, ModelUse) else None
        self.session, event = chain.append(
            self.session,
            payload,
            causes=causes,
            now=self.now,
            salt=os.urandom(16),
            conversation_id=conversation_id or (task.conversation_id if task else None),
            task=task,
            worker_id=self._origin.worker_id,
            pool=self._origin.pool,
            environment=self._origin.environment,
            tokens_in=usage.tokens_in if usage else None,
            tokens_out=usage.tokens_out if usage else None,
        )
        self._events.append(event)
        if usage is not None:
            self._charge(usage, task.submission_id if task else None)
        return event.seq

    def _charge(self, usage: Usage, submission_id: SubmissionId | None) -> None:
        self.session = _with_use(self.session, usage)
        if submission_id is not None:
            used = self._submissions_used.get(submission_id, SubmissionUse())
            self._submissions_used[submission_id] = _with_use(used, usage)

    def used_for(self, submission_id: SubmissionId) -> SubmissionUse:
        """What model calls have used for a submission, this draft's included."""
        stored = self.locked.submission_use(submission_id)
        added = self._submissions_used.get(submission_id, SubmissionUse())
        return SubmissionUse(
            tokens_in=stored.tokens_in + added.tokens_in,
            tokens_out=stored.tokens_out + added.tokens_out,
            cost=prices.added(stored.cost, added.cost),
        )

    def add(self, task: Task) -> None:
        """Make a task."""
        self._new_tasks[task.id] = task

    def hand_on(self, task: Task, first_step: PhaseResult) -> None:
        """Make a task and let the worker of this step claim it in the same commit, unless it drains."""
        self.add(task)
        self.handed_on = (task, first_step)

    def spawn(self, task: Task) -> Task:
        """Make a task that the present one owns, with the event that says so as its cause."""
        payload = TaskCreated(task=str(task.id), kind=task.kind, kind_version=task.version)
        owner = self.task(task.owner_id) if task.owner_id else None
        seq = self.event(payload, causes=[task.cause], task=owner, conversation_id=task.conversation_id)
        spawned = replace(task, cause=seq)
        self._new_tasks[task.id] = spawned
        return spawned

    def change(self, after: Task) -> None:
        """Record a task as a move left it."""
        if after.id in self._new_tasks:
            self._new_tasks[after.id] = after
        else:
            self._after[after.id] = after

    def claim(self, task: Task, *, worker_id: WorkerId, lease_seconds: float, phase_seconds: float) -> Task:
        """Give the task to a worker, as a new attempt."""
        claimed = moves.claim(
            task, worker_id=worker_id, now=self.now, lease_seconds=lease_seconds, phase_seconds=phase_seconds
        )
        assert claimed.deadline is not None
        self.change(claimed)
        attempt = Attempt(
            task_id=task.id,
            fence=claimed.fence,
            worker_id=worker_id,
            phase=task.phase,
            started_at=self.now,
            deadline=claimed.deadline,
            progress="",
            late_result=None,
        )
        self._attempts[task.id, claimed.fence] = NewAttempt(attempt=attempt, step=0, ended=False)
        return claimed

    def running_claim(self) -> Task | None:
        """The task that this draft claims and leaves running."""
        claimed = (self.task(task_id) for task_id, _ in self._attempts if not self.is_finishing(task_id))
        return next((task for task in claimed if task.status is Status.RUNNING), None)

    def hold_slots(self, task: Task) -> None:
        """The claim of a running task has taken slots, which whatever ends it frees."""
        self.change(replace(task, holds_slots=True))

    def pass_slots_on(self, task: Task, onward: Task) -> None:
        """Let a running task, whose work another one takes up in this commit, leave it the slots that it holds."""
        self._slots_passed_on.append((task.id, onward.id))
        self.hold_slots(onward)

    def record_step(self, owned: Task, *, progress: str | None, deadline: datetime | None) -> None:
        """Note in the attempt of `owned` that it committed a step, which is how a repeated try finds itself done.

        `deadline` is the next phase's, where the attempt goes on; None ends it.
        """
        step = owned.step + 1
        new = self._attempts.get((owned.id, owned.fence))
        if new is None:
            self._attempt_steps.append(
                AttemptStep(task_id=owned.id, fence=owned.fence, step=step, progress=progress, deadline=deadline)
            )
        else:
            attempt = replace(new.attempt, deadline=deadline or new.attempt.deadline)
            self._attempts[owned.id, owned.fence] = NewAttempt(attempt=attempt, step=step, ended=deadline is None)

    def record_end(self, owned: Task) -> None:
        """Note in the attempt of `owned` that it ends with no step, and not by the end of its process."""
        ended = AttemptStep(task_id=owned.id, fence=owned.fence, step=None, progress=None, deadline=None)
        self._attempt_steps.append(ended)

    def finish(self, task: Task, outcome: Outcome, *, result: Json = None, error: str | None = None) -> None:
        """Decide the task's outcome; it is done now, or completing until the work it owns has ended."""
        self._finishing[task.id] = (outcome, result, None if error is None else storable_text(error))

    def is_finishing(self, task_id: TaskId) -> bool:
        return task_id in self._finishing

    def wait(self, waiter: Task, dependencies: Sequence[TaskId], *, fail_fast: bool = False) -> None:
        """Let a waiting task wait for others of its session; what has ended already is not waited for."""
        self._waits[waiter.id] = [
            NewWait(waiter_id=waiter.id, dependency_id=each, fail_fast=fail_fast)
            for each in dict.fromkeys(dependencies)
        ]

    def wait_also(self, waiter_id: TaskId, new_task_id: TaskId) -> None:
        """Let a task that waits already wait for a new one too, made by this draft."""
        self._waits[waiter_id] = [NewWait(waiter_id=waiter_id, dependency_id=new_task_id, fail_fast=False)]

    def ask(self, approval: Approval, call: dict[str, Json], *, task: Task, causes: Iterable[int]) -> int:
        """Put a question to people about a call of a task, and return the seq of its event."""
        self._new_approvals.append(approval)
        return self.tell_question(approval, call, task=task, causes=causes)

    def tell_question(self, approval: Approval, call: dict[str, Json], *, task: Task, causes: Iterable[int]) -> int:
        payload = HumanApprovalRequested(
            **call,
            approval=str(approval.id),
            question=approval.question,
            about=approval.about,
            answer_by=approval.answer_by,
            default_answer=approval.default_answer,
        )
        return self.event(payload, causes=causes, task=task)

    def answer(self, before: Approval, after: Approval) -> None:
        """Store the answer to a question, and let the task that asked go on."""
        waiter = self.locked.asker(before)
        asked = [] if waiter is None else [waiter.checkpoint["asked_seq"]]
        seq = self.tell_answer(after, causes=asked, task=waiter)
        self.change_approval(before, after)
        if waiter is not None:
            self.load([waiter])
            self.change(moves.signalled(self.task(waiter.id), {"answered_seq": seq}))

    def tell_answer(self, answered: Approval, *, causes: Iterable[int], task: Task | None) -> int:
        payload = HumanApprovalAnswered(
            approval=str(answered.id),
            question=answered.question,
            answer=answered.answer,
            answered_by=answered.answered_by,
            comment=answered.comment,
            edited_arguments=answered.edited_arguments,
            result=answered.result,
        )
        return self.event(payload, causes=causes, task=task)

    def change_approval(self, before: Approval, after: Approval) -> None:
        self._approvals.append(ApprovalChange(before=before, after=after))

    def add_approval(self, approval: Approval) -> None:
        """Store a question that is answered already."""
        self._new_approvals.append(approval)

    def close_question(self, asker: Task) -> None:
        """The call that asked has ended: nobody need answer any more."""
        approval = self._open_question(asker)
        if approval is not None:
            self.change_approval(approval, replace(approval, answer=Answer.CANCELLED, answered_at=self.now))

    def _open_question(self, asker: Task) -> Approval | None:
        """The question that a task has put and nobody has answered."""
        asked = asker.checkpoint.get("approval")
        approval = None if asked is None else self.locked.approval(ApprovalId(UUID(asked)))
        return approval if approval is not None and approval.answer is Answer.PENDING else None

    def wait_for_signal(self, waiter: Task) -> None:
        """Let a waiting task go on at once if its signal has come already."""
        assert waiter.signal_name is not None
        assert waiter.signal_key is not None
        signal = self.locked.next_signal(waiter.signal_name, waiter.signal_key)
        if signal is not None:
            self._signals_taken.append((signal.id, waiter.id))
            self._take_signal(waiter, signal)

    def send_signal(self, signal: Signal, request_digest: bytes) -> bool:
        """Store a signal and let who has waited longest for it go on; whether somebody did."""
        waiter = self.locked.signal_waiter(signal.name, signal.key)
        seq = self.event(
            SignalReceived(signal=str(signal.id), name=signal.name, key=signal.key, content=signal.payload), causes=()
        )
        taken_by = None
        if waiter is not None:
            taken_by = waiter.id
            self.load([waiter])
            self._take_signal(waiter, replace(signal, seq=seq))
        stored = replace(signal, seq=seq, sent_at=self.now, taken_by=taken_by)
        self._new_signals.append((stored, request_digest))
        return waiter is not None

    def miss_signal(self, waiter: Task) -> None:
        """The deadline of a wait for a signal has passed: the task goes on without it."""
        assert waiter.signal_name is not None
        assert waiter.signal_key is not None
        # A flow may wait under the name of answers, and has put no question.
        approval = self._open_question(waiter) if waiter.signal_name == HUMAN else None
        if approval is not None:
            use_by = later(self.now, approval.use_seconds)
            self.answer(approval, replace(approval, answer=Answer.EXPIRED, answered_at=self.now, use_by=use_by))
            return
        payload = SignalMissed(name=waiter.signal_name, key=waiter.signal_key)
        self.event(payload, causes=waiter.causes, task=waiter)
        self.change(moves.signalled(waiter, None))

    def _take_signal(self, waiter: Task, signal: Signal) -> None:
        payload = SignalTaken(signal=str(signal.id), name=signal.name, key=signal.key)
        self.event(payload, causes=[signal.seq], task=waiter)
        told = {"name": signal.name, "key": signal.key, "payload": signal.payload}
        self.change(moves.signalled(waiter, told))

    def end_wait(self, waiter: Task) -> None:
        """Nothing that the task waits for is open any more."""
        self.change(moves.ready(waiter))
        self._waits_over.append(waiter.id)

    def delay_hint(self, task_id: TaskId, seconds: float) -> None:
        self._hint_delays[task_id] = seconds

    def require(self, task_id: TaskId, requirement: Requirement) -> Task:
        """Raise what a task asks of the worker that goes on with it."""
        task = replace(self.task(task_id), requires=requirement)
        self.change(task)
        return task

    def pin_agent(self, conversation: Conversation, version: int) -> None:
        """From now on only this version of the agent goes on with the conversation."""
        self._conversations.append(replace(conversation, agent_version=version))

    def save_conversation(self, conversation: Conversation) -> None:
        self._conversations.append(conversation)

    def document(self, name: str) -> StoredDocument | None:
        """The document as it is at this point of the draft."""
        if name not in self._documents_before:
            self._documents_before[name] = self.locked.document(name)
        found = self._documents.get(name) or self._documents_before[name]
        # Not the value from which the delta is made, whatever is done to this one.
        return None if found is None else replace(found, value=duplicate(found.value))

    def change_document(
        self, name: str, kind: str, schema_version: int, change: Callable[[StoredDocument | None], Json]
    ) -> None:
        """Write a document's next version, computed from the one that stands under the lock.

        Several changes in one commit make one version, whose seq is that of the commit's last event.
        """
        value = clean(change(self.document(name)))
        before = self._documents_before[name]
        self._documents[name] = StoredDocument(
            session_id=self.session.id,
            name=name,
            version=1 if before is None else before.version + 1,
            kind=kind,
            schema_version=schema_version,
            value=value,
            seq=self.session.last_seq,
        )

    def copy_document(self, stored: StoredDocument) -> None:
        """Take a document over as another session had it, with its version."""
        self._documents[stored.name] = replace(stored, session_id=self.session.id)

    def accept(self, submission: Submission) -> None:
        self._new_submissions.append(submission)

    def queue(self, submission: Submission) -> None:
        """Put the input of a submission into its conversation's inbox."""
        self._inbox.append(InboxEntry(submission=submission, text=submission.input))

    def start_submission(self, submission_id: SubmissionId) -> None:
        self._submissions_started.append(submission_id)

    def end_submission(
        self,
        submission_id: SubmissionId,
        outcome: Outcome,
        *,
        causes: Iterable[int],
        task: Task | None = None,
        conversation_id: ConversationId | None = None,
        output: Json = None,
        error: str | None = None,
    ) -> None:
        """End a submission with its answer, or with the reason why there is none."""
        payload = SubmissionDone(submission=str(submission_id), outcome=outcome, output=output, error=error)
        self.event(payload, causes=causes, task=task, conversation_id=conversation_id)
        self._submissions_ended.append(
            SubmissionEnd(
                submission_id=submission_id,
                outcome=outcome,
                output_text=None if output is None else canonical(storable(output)),
                error=None if error is None else storable_text(error),
            )
        )

    def admit(self, conversation: Conversation, submission_id: SubmissionId, text: str, priority: Priority) -> Task:
        """Let an input join its conversation, which is free: the user's message and the generation that answers it."""
        seq = self.event(
            UserMessage(text=text, submission=str(submission_id)), causes=(), conversation_id=conversation.id
        )
        task = first_work.generation_task(
            new_task_id(),
            conversation,
            submission_id=submission_id,
            cause=seq,
            round_number=1,
            priority=priority,
            now=self.now,
        )
        self.add(task)
        return task

    def redact(self, redaction: Redaction) -> None:
        """Take content out of the store with this commit."""
        self._redaction = redaction

    def take_steering(self, conversation_id: ConversationId) -> list[tuple[SubmissionId, int]]:
        """Let inputs that wait to join the present work do so; gives each submission with its message's seq."""
        taken = []
        for entry in self.locked.steering(conversation_id):
            if entry.submission_id in self._inbox_taken:
                continue
            self._inbox_taken.append(entry.submission_id)
            self._submissions_started.append(entry.submission_id)
            payload = UserMessage(text=entry.text, submission=str(entry.submission_id))
            taken.append((entry.submission_id, self.event(payload, causes=(), conversation_id=conversation_id)))
        return taken

    def withdraw(self, entry: Inbox, *, reason: str) -> None:
        """End a submission whose input was never admitted."""
        self._inbox_taken.append(entry.submission_id)
        self.end_submission(
            entry.submission_id, Outcome.CANCELLED, causes=(), conversation_id=entry.conversation_id, error=reason
        )

    def take_next_input(self, conversation_id: ConversationId) -> Task | None:
        """Admit the oldest input that waits for the conversation, unless a generation of it is open."""
        if any(
            task.kind == first_work.GENERATION and task.conversation_id == conversation_id and task.is_open
            for task in self._new_tasks.values()
        ):
            return None
        conversation, entry, active = self.locked.conversation(conversation_id, taken=self._inbox_taken)
        ended = any(
            task.kind == first_work.GENERATION and task.conversation_id == conversation_id and not task.is_open
            for task in self._after.values()
        )
        if entry is None or (active and not ended):
            return None
        if self.session.erased_at is not None:
            # A caller's transaction that was open while the session was erased brought it.
            self.withdraw(entry, reason="the session was erased")
            self.redact(Redaction(inputs=(entry.submission_id,)))
            return None
        self._inbox_taken.append(entry.submission_id)
        return self.admit(conversation, entry.submission_id, entry.text, entry.priority)

    def freeze(self) -> Commit:
        """Settle what follows from the draft and give the commit."""
        self._settle_waits()
        self._settle_ends()
        if self._documents and not self._events:
            self.event(DocumentsChanged(documents=sorted(self._documents)), causes=())
        return Commit(
            at=self.now,
            asked_at=self.locked.asked_at,
            session=self.session,
            new_session=self._new_session,
            conversations=tuple(self._conversations),
            events=tuple(self._events),
            documents=tuple(self._versions()),
            new_tasks=tuple(self._new_tasks.values()),
            changes=tuple(
                TaskChange(before=self._before[task_id], after=after)
                for task_id, after in sorted(self._after.items())
                if after is not self._before[task_id]
            ),
            waits=tuple(each for waits in self._waits.values() for each in waits),
            waits_over=tuple(self._waits_over),
            attempts=tuple(self._attempts.values()),
            attempt_steps=tuple(self._attempt_steps),
            new_submissions=tuple(self._new_submissions),
            submissions_started=tuple(self._submissions_started),
            submissions_ended=tuple(self._submissions_ended),
            submissions_used=self._submissions_used,
            new_approvals=tuple(self._new_approvals),
            approvals=tuple(self._approvals),
            new_signals=tuple(self._new_signals),
            signals_taken=tuple(self._signals_taken),
            inbox=tuple(self._inbox),
            inbox_taken=tuple(self._inbox_taken),
            redaction=self._redaction,
            slots_passed_on=tuple(self._slots_passed_on),
            hint_delays=self._hint_delays,
        )

    def _versions(self) -> Iterator[StoredDocument]:
        """The documents' next versions, as changes of the ones before where that is shorter."""
        for name, after in self._documents.items():
            yield delta.next_version(self._documents_before.get(name), replace(after, seq=self.session.last_seq))

    def _settle_waits(self) -> None:
        """A new wait on what has ended already, or on nothing, is over at once."""
        for waiter_id, waits in list(self._waits.items()):
            stored = [each.dependency_id for each in waits if each.dependency_id not in self._new_tasks]
            states = self.locked.states(stored) if stored else {}
            failed = any(
                status is Status.DONE and outcome is not Outcome.SUCCEEDED for status, outcome in states.values()
            )
            remaining = [
                each
                for each in waits
                if each.dependency_id in self._new_tasks
                or states.get(each.dependency_id, (Status.DONE, None))[0] is not Status.DONE
            ]
            if remaining:
                self._waits[waiter_id] = remaining
                if failed and any(each.fail_fast for each in waits):
                    self._cancel_owned(waiter_id, [each.dependency_id for each in remaining])
            else:
                del self._waits[waiter_id]
                self.change(moves.ready(self.task(waiter_id)))

    def _settle_ends(self) -> None:
        """End what is finishing, then what waited for that, up the tree of owners."""
        ended_generations: list[ConversationId] = []
        while self._finishing:
            finishing, self._finishing = self._finishing, {}
            around = self.locked.neighbours([self.task(task_id) for task_id in finishing])
            self.load([*around.waiters.values(), *around.completing_owners.values()])
            for task_id in owned_first({task_id: self.task(task_id).owner_id for task_id in finishing}):
                outcome, result, error = finishing[task_id]
                task = self.task(task_id)
                if self._open_children(task_id, around.open_children.get(task_id, frozenset())):
                    if task.status is not Status.COMPLETING:
                        self._leave_wait(task)
                        self.change(moves.complete(task, outcome=outcome, result=result, error=error))
                    continue
                self._leave_wait(task)
                self.change(moves.end(task, outcome=outcome, result=result, error=error))
                if task.kind == first_work.GENERATION and task.conversation_id is not None:
                    ended_generations.append(task.conversation_id)
                    self._end_cancelled_submission(self.task(task_id))
            for waiter_id in around.waiters:
                still_open = self._still_open(around.open_dependencies.get(waiter_id, frozenset()))
                still_open |= self._open_of_new_waits(waiter_id)
                if self.task(waiter_id).status is not Status.WAITING or waiter_id in self._finishing:
                    continue
                if not still_open:
                    self.end_wait(self.task(waiter_id))
                elif any(self._went_wrong(each) for each in around.fail_fast_on.get(waiter_id, ())):
                    self._cancel_owned(waiter_id, still_open)
            for owner_id in around.completing_owners:
                owner = self.task(owner_id)
                if owner.is_open and not self._open_children(owner_id, around.open_children.get(owner_id, frozenset())):
                    assert owner.outcome is not None
                    self._finishing[owner_id] = (owner.outcome, owner.result, owner.error)
        for conversation_id in dict.fromkeys(ended_generations):
            self.take_next_input(conversation_id)

    def _open_of_new_waits(self, waiter_id: TaskId) -> set[TaskId]:
        """What a task waits for from this draft on, less what was made and has ended within it."""
        waits = [
            each
            for each in self._waits.pop(waiter_id, ())
            if each.dependency_id not in self._new_tasks or self._new_tasks[each.dependency_id].is_open
        ]
        if waits:
            self._waits[waiter_id] = waits
        return {each.dependency_id for each in waits}

    def _leave_wait(self, task: Task) -> None:
        if task.status is Status.WAITING:
            self._waits_over.append(task.id)

    def _went_wrong(self, task_id: TaskId) -> bool:
        ended = self._after.get(task_id)
        return ended is not None and not ended.is_open and ended.outcome is not Outcome.SUCCEEDED

    def _cancel_owned(self, owner_id: TaskId, among: Iterable[TaskId]) -> None:
        """Stop what a task owns, at the first failure of something it waits for."""
        among = set(among)
        open_tasks = self.locked.open_tasks()
        ends.cancel_trees(
            self,
            [each.id for each in open_tasks.values() if each.id in among and each.owner_id == owner_id],
            open_tasks,
        )

    def _end_cancelled_submission(self, generation: Task) -> None:
        if generation.outcome is Outcome.CANCELLED:
            ends.end_generation(self, generation, Outcome.CANCELLED, causes=[generation.cause], error="cancelled")

    def _open_children(self, owner_id: TaskId, stored: frozenset[TaskId]) -> bool:
        made = any(task.owner_id == owner_id and task.is_open for task in self._new_tasks.values())
        return made or bool(self._still_open(stored))

    def _still_open(self, stored: frozenset[TaskId]) -> frozenset[TaskId]:
        return frozenset(each for each in stored if each not in self._after or self._after[each].is_open)
