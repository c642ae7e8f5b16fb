"""The main job, end to end: an input becomes an answer through real Postgres, Redis and two Celery workers."""

from __future__ import annotations

import pytest

from brainhands.shared.model.submission import SubmissionStatus
from brainhands.shared.model.task import Outcome
from tests.instruments.fleet import Fleet


@pytest.mark.promise("A1", "A5", "B8", "E1", "E5", "E8", "E9", "F2", "F8")
def test_an_input_becomes_an_answer_through_a_tool(fleet: Fleet) -> None:
    fleet.everything()

    receipt = fleet.submit("echo good morning", agent="echo")
    assert fleet.client.submission(receipt.submission_id).status is not SubmissionStatus.DONE
    done = fleet.wait(receipt)

    assert (done.status, done.outcome, done.output) == (SubmissionStatus.DONE, Outcome.SUCCEEDED, "good morning")
    assert fleet.types(receipt.session_id) == [
        "session_created",
        "user_message",
        "system_prompt_set",
        "model_request",
        "model_output",
        "tool_call_start",
        "tool_call_success",
        "model_request",
        "model_output",
        "submission_done",
    ]
