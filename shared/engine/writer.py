"""Commits with their bells: store first, then ring for the relay and for those who watch the session."""

from __future__ import annotations

from collections.abc import Sequence

from brainhands.shared.bus.bell import Bell
from brainhands.shared.model.commit import Commit, Guard, Hint, SlotsFreed, SubmissionEnd
from brainhands.shared.model.ids import SessionId, TaskId
from brainhands.shared.store import commits
from brainhands.shared.store.database import Database


class Writer:
    """The one way in which the engine and the doors change a session."""

    def __init__(self, database: Database, bell: Bell) -> None:
        self.database = database
        self.bell = bell

    def apply(
        self,
        session_id: SessionId,
        task_ids: Sequence[TaskId],
        fill: commits.Fill,
        *,
        guard: Guard | None = None,
        seconds: float = 10.0,
        skip_locked: bool = False,
    ) -> Commit | None:
        """As brainhands.shared.store.commits.apply, then ring."""
        commit = commits.apply(
            self.database, session_id, task_ids, fill, guard=guard, seconds=seconds, skip_locked=skip_locked
        )
        if commit is not None:
            self.ring(commit)
        return commit

    def ring(self, commit: Commit) -> None:
        work = bool(commit.of(Hint) or commit.of(SlotsFreed))
        self.bell.ring(commit.session.id, hints=work, ended=bool(commit.of(SubmissionEnd)))
