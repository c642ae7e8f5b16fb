"""Turns through Brain against a provider that says anything: every input ends, and its session goes on."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from brainhands.brain import background
from brainhands.brain.models import line
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Outcome
from brainhands.shared.runtime.settings import settings
from tests.instruments.provider import (
    COUNTED,
    ODD,
    ODD_RESPONSES,
    RECORDED,
    STOP,
    Asked,
    HostileProvider,
    Pieces,
    delta,
    document,
    event,
    http,
    response,
    stream,
)
from tests.store.desk import Desk
from tests.store.stage import Stage

RETRIES = 2
MOST_REQUESTS = 3 * (RETRIES + 1) + 6
"""Of one input: its rounds, tries and looks."""
STILL_HERE = "Still here."
PAST = "Long ago. " * 200
FLOODS = ["a whole flood", "a line without end", "headers without end", "an error without end"]
SILENCES = ["silence", "silence after the head", "silence in an error"]


class Turns:
    """Plays inputs against `hostile`: what it says first is given, and after that it answers well."""

    def __init__(self, stage: Stage, hostile: HostileProvider, **agent: Any) -> None:
        self.desk = Desk(stage, retries=RETRIES, request_seconds=2.0, silence_seconds=0.2, **agent)
        self.hostile = hostile
        self.background = bool(agent.get("background"))
        self.script: deque[Callable[[], Pieces]] = deque()
        hostile.script = self.answer

    def answer(self, asked: Asked) -> Pieces:
        if self.script:
            return self.script.popleft()()
        if self.background and not asked.path.endswith("/completions"):
            said = {"type": "message", "content": [{"type": "output_text", "text": STILL_HERE}]}
            return document(response(output=[said]))
        return stream(delta(content=STILL_HERE), STOP, event(choices=[], usage=COUNTED))

    def play(self, *answers: Callable[[], Pieces]) -> Receipt:
        """One input whose requests are answered like this, and what must hold of it and of the next one."""
        self.hostile.requests.clear()
        self.script.extend(answers)
        receipt = self.desk.submit("Say it.")
        self.desk.play()
        client = self.desk.stage.client
        done = client.submission(receipt.submission_id)
        assert done is not None
        assert done.outcome is not None
        assert done.output is not None or done.error
        assert len(self.hostile.requests) <= MOST_REQUESTS
        self.script.clear()

        again = client.submit(agent="desk", input="And now?", session=receipt.session_id)
        self.desk.play()
        gone_on = client.submission(again.submission_id)
        assert gone_on is not None
        assert (gone_on.output, gone_on.error) == (STILL_HERE, None)
        assert self.hostile.problems() == []
        for paid in self.desk.payloads(receipt.session_id, "model_output", "model_interrupted"):
            assert paid["usage"]["tokens_in"] > 0
        return receipt


@contextmanager
def turns_of(stage: Stage, **agent: Any) -> Iterator[Turns]:
    with pytest.MonkeyPatch.context() as patch, HostileProvider(lambda _asked: []) as hostile:
        patch.setattr(line, "MOST_BYTES", 2_000_000)
        patch.setattr(background, "CALL_TIMEOUTS", Timeouts(whole=1.0))
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.setenv("OPENAI_BASE_URL", hostile.url)
        settings.cache_clear()
        made = Turns(stage, hostile, **agent)
        with closing(made.desk):
            yield made


@pytest.fixture
def turns(shared_stage: Stage) -> Iterator[Turns]:
    with turns_of(shared_stage) as made:
        yield made


@pytest.fixture
def background_turns(shared_stage: Stage) -> Iterator[Turns]:
    with turns_of(shared_stage, background=True) as made:
        yield made


@pytest.mark.promise("E4", "E6", "E11", "E12", "E13", "E15")
@pytest.mark.parametrize("name", [name for name in ODD if "silence" not in name and "flood" not in name])
def test_whatever_a_provider_says_the_input_ends_and_the_session_goes_on(turns: Turns, name: str) -> None:
    turns.play(ODD[name])


@pytest.mark.promise("E4", "E11", "E13")
def test_a_reply_that_is_cut_in_ten_places_starts_no_tool_twice_and_the_session_goes_on(turns: Turns) -> None:
    for end in range(0, len(RECORDED), len(RECORDED) // 9):
        receipt = turns.play(lambda end=end: [http(), RECORDED[:end]])  # type: ignore[misc]
        assert len(turns.desk.payloads(receipt.session_id, "tool_call_start")) <= 1


@pytest.mark.promise("E4", "E6", "E11", "E12", "E13", "E15")
@pytest.mark.parametrize("name", [name for name in ODD_RESPONSES if "silence" not in name and name not in ODD])
def test_whatever_a_background_response_is_the_input_ends_and_the_session_goes_on(
    background_turns: Turns, name: str
) -> None:
    background_turns.play(ODD_RESPONSES[name])


@pytest.mark.promise("E4", "E11", "E13")
@pytest.mark.parametrize("begun", [False, True])
def test_a_background_response_that_is_cut_in_ten_places_is_asked_for_again_and_the_session_goes_on(
    background_turns: Turns, begun: bool
) -> None:
    called = {"type": "function_call", "call_id": "abcdefgh1", "name": "echo", "arguments": '{"text": "a"}'}
    head, text = document(response(output=[called]))
    queued = [lambda: document(response(status="queued"))] if begun else []
    for end in range(0, len(text), len(text) // 9):
        receipt = background_turns.play(*queued, lambda end=end: [head, text[:end]])  # type: ignore[misc]
        assert background_turns.desk.payloads(receipt.session_id, "tool_call_start") == []


@pytest.mark.promise("E13")
def test_a_reply_that_ran_out_of_room_is_counted_before_the_context_is_compacted(turns: Turns) -> None:
    receipt = turns.play(ODD["no room in the middle"])

    (paid,) = turns.desk.payloads(receipt.session_id, "model_interrupted")
    assert paid["text"] == "Half"
    assert paid["usage"]["tokens_out"] > 0
    assert turns.desk.payloads(receipt.session_id, "model_request_voided")


def spoken(turns: Turns) -> SessionId:
    """A session whose past is worth a summary."""
    receipt = turns.desk.submit(PAST)
    turns.desk.play()
    turns.hostile.requests.clear()
    return receipt.session_id


@pytest.mark.promise("E10", "E13", "B8")
def test_a_summary_that_runs_out_of_room_is_counted_and_asked_for_with_less(turns: Turns) -> None:
    session = spoken(turns)
    turns.script.extend([ODD["too long, in words"], ODD["no room in the middle"]])
    receipt = turns.desk.submit("Go on.", session=session)
    turns.desk.play()

    done = turns.desk.stage.client.submission(receipt.submission_id)
    assert done.output == STILL_HERE
    (paid,) = turns.desk.payloads(session, "model_interrupted")
    assert (paid["text"], paid["usage"]["tokens_out"] > 0) == ("Half", True)
    first, second = (json.dumps(asked.body) for asked in turns.hostile.requests[1:3])
    assert len(second) < len(first)
    assert len(turns.desk.payloads(session, "context_compacted")) == 1


@pytest.mark.promise("E6", "E10")
def test_the_model_that_was_fallen_back_to_writes_the_summary_and_goes_on(shared_stage: Stage) -> None:
    with turns_of(shared_stage, models=["large", "small"]) as turns:
        session = spoken(turns)
        turns.script.extend([ODD["a refusal for good"], ODD["too long, in words"]])
        receipt = turns.desk.submit("Go on.", session=session)
        turns.desk.play()

        assert turns.desk.stage.client.submission(receipt.submission_id).output == STILL_HERE
        asked = [asked.body["model"] for asked in turns.hostile.requests if asked.body is not None]
        assert asked == ["large", "small", "small", "small"]
        assert len(turns.desk.payloads(session, "context_compacted")) == 1


@pytest.mark.promise("E6", "E12")
def test_a_model_whose_template_takes_no_tools_is_said_to_be_one_in_its_servers_words(turns: Turns) -> None:
    no_tools = {"error": {"message": "this model does not support tools", "type": "api_error"}}
    turns.hostile.script = lambda _asked: document(no_tools, 400)
    session = None
    for _ in range(3):
        receipt = turns.desk.submit("Go on.", session=session)
        session = receipt.session_id
        turns.desk.play()
        done = turns.desk.stage.client.submission(receipt.submission_id)
        assert (done.outcome, done.error) == (Outcome.FAILED, "this model does not support tools")

    assert len(turns.hostile.requests) <= 5


MIXTURES = st.lists(st.sampled_from([*ODD]), min_size=1, max_size=6)


@pytest.mark.promise("E4", "E6", "E11", "E12", "E13", "E15")
@examples(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(names=MIXTURES)
def test_any_mixture_of_answers_ends_and_leaves_a_session_that_goes_on(shared_stage: Stage, names: list[str]) -> None:
    with turns_of(shared_stage) as turns:
        turns.play(*(ODD[name] for name in names))


@pytest.mark.promise("E4", "E6", "E11", "E12", "E13", "E15")
@examples(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.sampled_from([*ODD_RESPONSES]), min_size=1, max_size=8))
def test_any_mixture_of_looks_at_a_background_response_ends_and_leaves_a_session_that_goes_on(
    shared_stage: Stage, names: list[str]
) -> None:
    with turns_of(shared_stage, background=True) as turns:
        turns.play(
            lambda: document(response(status="queued")),
            *(ODD_RESPONSES[name] for name in names if name not in SILENCES),
        )


@pytest.mark.promise("E13", "E15")
@pytest.mark.parametrize("name", [*FLOODS, *SILENCES])
@pytest.mark.parametrize("begun", [False, True])
def test_a_flood_or_a_silence_of_a_background_response_is_bounded_when_it_is_made_and_when_it_is_looked_at(
    background_turns: Turns, name: str, begun: bool
) -> None:
    queued = [lambda: document(response(status="queued"))] if begun else []

    background_turns.play(*queued, ODD_RESPONSES[name])
