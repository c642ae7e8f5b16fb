"""The Responses adapter against the demo's model server, and against answers that are lost on their way."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from brainhands.brain.models import line, responses
from brainhands.brain.models.line import Endpoint
from brainhands.brain.models.reply import Interrupted, ProviderError
from brainhands.brain.models.timeouts import Timeouts
from deploy.demo.model_server import start
from tests.instruments.responses import background_responses
from tests.integration.test_chat_adapter import ByteServer

KEY = "key-of-a-test"


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """Address of the demo's model server."""
    with start() as server:
        yield server.url


@pytest.fixture(autouse=True)
def _forget_requests(model: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{model}/reset", data=b"")).read()


def at(url: str, seconds: float = 20.0) -> Any:
    return {"at": Endpoint(api_key=KEY, base_url=f"{url}/v1"), "timeouts": Timeouts(whole=seconds)}


def scripted(**step: Any) -> dict[str, Any]:
    return {"model": "m", "input": [{"type": "message", "role": "user", "content": json.dumps({"script": [step]})}]}


@pytest.mark.promise("E7")
def test_a_response_is_created_looked_at_and_taken(model: str) -> None:
    request = scripted(text="Hi.", looks=["queued", "in_progress"])

    created = responses.create(request, **at(model))
    sights = [responses.retrieve(created.response_id, **at(model)) for _ in range(3)]

    assert [each.status for each in (created, *sights)] == ["queued", "queued", "in_progress", "completed"]
    assert [each.pending for each in (created, *sights)] == [True, True, True, False]
    reply = responses.reply_of(sights[-1], request)
    assert (reply.text, reply.finish_reason, reply.response_id) == ("Hi.", "stop", created.response_id)
    (known,) = background_responses(model)
    assert known["body"] == {**request, "background": True, "store": True}


def test_log_probabilities_come_where_they_are_asked_for(model: str) -> None:
    request = {**scripted(text="Hi."), "include": ["message.output_text.logprobs"]}
    created = responses.create(request, **at(model))

    reply = responses.reply_of(responses.retrieve(created.response_id, **at(model)), request)

    assert reply.logprobs == (("Hi.", -0.693),)


@pytest.mark.promise("E7")
def test_a_cancel_stops_what_is_under_way_and_leaves_what_has_ended(model: str) -> None:
    stuck = responses.create(scripted(fault="stuck"), **at(model))
    done = responses.create(scripted(text="Hi."), **at(model))
    responses.retrieve(done.response_id, **at(model))

    assert responses.cancel(stuck.response_id, **at(model)).status == "cancelled"
    assert responses.retrieve(stuck.response_id, **at(model)).status == "cancelled"
    assert responses.cancel(stuck.response_id, **at(model)).status == "cancelled"
    assert responses.cancel(done.response_id, **at(model)).status == "completed"


@pytest.mark.promise("E6")
def test_a_refused_look_says_how_long_to_wait_and_costs_no_second_create(model: str) -> None:
    created = responses.create(scripted(text="Hi.", looks=["429", "cut"], retry_after=7), **at(model))

    with pytest.raises(ProviderError) as limited:
        responses.retrieve(created.response_id, **at(model))
    with pytest.raises(Interrupted):
        responses.retrieve(created.response_id, **at(model))

    assert (limited.value.status, limited.value.retry_after, limited.value.heals) == (429, 7.0, True)
    assert responses.retrieve(created.response_id, **at(model)).status == "completed"
    assert len(background_responses(model)) == 1


def test_a_handle_that_nobody_knows_is_a_404(model: str) -> None:
    for ask in (responses.retrieve, responses.cancel):
        with pytest.raises(ProviderError) as raised:
            ask("resp/../never?x=1", **at(model))
        assert (raised.value.status, raised.value.heals) == (404, False)


@pytest.mark.hazard(26)
def test_a_create_whose_reply_is_lost_may_have_begun(model: str) -> None:
    with pytest.raises(Interrupted):
        responses.create(scripted(text="Hi.", fault="cut"), **at(model))

    assert len(background_responses(model)) == 1


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("fault", "heals"), [("503", True), ("insufficient_quota", False), ("401", False)])
def test_a_create_that_is_refused_has_not_begun(model: str, fault: str, heals: bool) -> None:
    with pytest.raises(ProviderError) as raised:
        responses.create(scripted(fault=fault), **at(model))

    assert raised.value.heals is heals
    assert background_responses(model) == []


@pytest.mark.parametrize(
    "text", [b"", b"<h1>Hello</h1>", b"[]", b"7", b"[" * 100_000, b'{"id": "', b'{"status": "queued"}']
)
def test_an_answer_that_makes_no_sense_is_a_lost_one(text: bytes) -> None:
    with ByteServer([text]) as server, pytest.raises(Interrupted):
        responses.create(scripted(), **at(server.url))


def test_an_answer_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 100

    with ByteServer(endless()) as server:
        with pytest.raises(Interrupted, match="deadline"):
            responses.create(scripted(), **at(server.url, seconds=0.2))
        monkeypatch.setattr(line, "MOST_BYTES", 1000)
        with pytest.raises(ProviderError, match="more than 1,000 bytes"):
            responses.create(scripted(), **at(server.url))


def test_the_model_server_speaks_to_the_client_library_as_a_provider_does(model: str) -> None:
    client = openai.OpenAI(api_key=KEY, base_url=f"{model}/v1", max_retries=0)
    nothing = {"type": "object", "properties": {}}
    tool: Any = {"type": "function", "name": "echo", "parameters": nothing, "strict": False}

    asked = client.responses.create(model="m", input="echo hello", tools=[tool])
    (call,) = (item for item in asked.output if item.type == "function_call")
    items: Any = [
        {"role": "user", "content": "echo hello"},
        *({"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},),
        {"type": "function_call_output", "call_id": call.call_id, "output": "hello back"},
    ]
    answered = client.responses.create(model="m", input=items, tools=[tool], instructions="Echo.")
    cut = client.responses.create(model="m", input=scripted(text="and", fault="length")["input"])
    failed = client.responses.create(model="m", input=scripted(fault="failed")["input"], background=True)

    assert (call.name, json.loads(call.arguments)) == ("echo", {"text": "hello"})
    assert (answered.status, answered.output_text) == ("completed", "hello back")
    assert answered.usage is not None
    assert answered.usage.total_tokens == answered.usage.input_tokens + answered.usage.output_tokens
    assert (cut.status, cut.incomplete_details and cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    ended = client.responses.retrieve(failed.id)
    assert (failed.status, ended.status, ended.error and ended.error.code) == ("queued", "failed", "server_error")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(answered.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="m", input=[items[2]])
