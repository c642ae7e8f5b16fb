"""A commit is a list of rows, and one table says of each kind how it is written."""

from __future__ import annotations

from typing import get_args

from brainhands.shared.model.commit import NewTask, Redaction, TaskChange, Write
from brainhands.shared.model.session import Conversation, Session
from brainhands.shared.model.submission import Submission
from brainhands.shared.store.writes import GROUPS


def test_each_kind_of_row_in_a_commit_stands_in_one_group_and_content_goes_last() -> None:
    kinds = [kind for group in GROUPS for kind in group]

    assert set(kinds) == {Session, NewTask, TaskChange, *get_args(Write)}
    assert [kind for kind in kinds if kinds.count(kind) > 1] == [Redaction, Redaction]
    assert [list(group) for group in GROUPS[-2:]] == [[Redaction], [Redaction]]


def test_what_makes_room_is_written_before_what_takes_it_and_what_others_refer_to_before_them() -> None:
    assert TaskChange in GROUPS[0]
    assert list(GROUPS[1])[:3] == [Conversation, Submission, NewTask]
