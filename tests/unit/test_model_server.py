"""The demo's model server, asked by the client library that the product uses."""

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx2
import openai
import pytest
from openai import OpenAI

from deploy.demo import model_server
from deploy.demo.model_scripts import BODY, CUSTOMERS, SUBJECT, Reply
from deploy.demo.model_server import transcript_problem

Messages = list[dict[str, Any]]

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
ECHO = {"type": "function", "function": {"name": "echo", "parameters": NOTHING}}
NOTICES = {"type": "function", "function": {"name": "send_notices", "parameters": NOTHING}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "echo", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "the result"}


@pytest.fixture
def client() -> Iterator[OpenAI]:
    scripts = {"shouting": lambda request: Reply(text=request["messages"][-1]["content"].upper())}
    with model_server.start(scripts) as server, _client(server.url) as client:
        yield client


def _client(url: str) -> OpenAI:
    http = httpx2.Client(trust_env=False)
    return OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=20, http_client=http)


def _user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def _scripted(*steps: dict[str, Any]) -> Messages:
    return _user(f"play this: {json.dumps({'script': steps})} please")


def _ask(client: OpenAI, messages: Messages, model: str = "any", **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=cast(Any, messages), **options)


def _stream(client: OpenAI, messages: Messages, **options: Any) -> list[Any]:
    return list(_ask(client, messages, stream=True, stream_options={"include_usage": True}, **options))


def _streamed_text(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def _finish_reasons(chunks: list[Any]) -> list[str]:
    return [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]


def _requests(client: OpenAI) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = httpx2.get(_address(client, "/requests"), trust_env=False).json()["requests"]
    return requests


def _address(client: OpenAI, path: str) -> str:
    return str(client.base_url.copy_with(path=path))


def test_a_plain_text_is_said_back_in_several_chunks_with_usage_in_the_last(client: OpenAI) -> None:
    chunks = _stream(client, _user("how are you today?"))

    assert _streamed_text(chunks) == "You said: how are you today?"
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
    assert _finish_reasons(chunks) == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens


def test_no_usage_is_streamed_unless_it_is_asked_for(client: OpenAI) -> None:
    chunks = list(_ask(client, _user("hello"), stream=True))

    assert [chunk.usage for chunk in chunks if chunk.usage] == []


def test_echo_is_called_with_the_text_and_its_result_is_the_answer(client: OpenAI) -> None:
    asked = _ask(client, _user("echo hello, world"), tools=[ECHO]).choices[0]
    (call,) = asked.message.tool_calls
    answered = _ask(
        client,
        [
            *_user("echo hello, world"),
            asked.message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "hello back"},
        ],
        tools=[ECHO],
    ).choices[0]

    assert asked.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("echo", {"text": "hello, world"})
    assert (answered.finish_reason, answered.message.content) == ("stop", "hello back")


def test_arguments_are_streamed_in_pieces_that_add_up(client: OpenAI) -> None:
    chunks = _stream(client, _user("send this notice to these five customers"), tools=[NOTICES])

    deltas = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0:] and _has_call(chunk)]
    arguments = json.loads("".join(delta.function.arguments for delta in deltas))
    assert len(deltas) > 3
    assert [delta.function.name for delta in deltas if delta.function.name] == ["send_notices"]
    assert arguments == {"subject": SUBJECT, "body": BODY, "customers": CUSTOMERS}
    assert _finish_reasons(chunks) == ["tool_calls"]


def _has_call(chunk: Any) -> bool:
    return bool(chunk.choices[0].delta.tool_calls)


def test_notices_go_to_the_addresses_and_with_the_words_of_the_text(client: OpenAI) -> None:
    text = 'Send "We move." to customer-9@example.com, customer-8@example.com and customer-9@example.com.'
    call = _ask(client, _user(text), tools=[NOTICES]).choices[0].message.tool_calls[0]

    assert json.loads(call.function.arguments) == {
        "subject": SUBJECT,
        "body": "We move.",
        "customers": ["customer-9@example.com", "customer-8@example.com"],
    }


def test_notices_are_sent_once_for_each_user_message(client: OpenAI) -> None:
    done = [*_user("send the notices"), {"role": "assistant", "tool_calls": [CALL]}, RESULT]

    answer = _ask(client, done, tools=[NOTICES]).choices[0]
    again = _ask(
        client, [*done, {"role": "assistant", "content": "done"}, *_user("and again")], tools=[NOTICES]
    ).choices[0]

    assert "the result" in answer.message.content
    assert again.finish_reason == "tool_calls"


def test_each_request_since_the_user_message_plays_the_next_step(client: OpenAI) -> None:
    calls = [
        {"name": "a", "arguments": {"n": 1}, "id": "call00001"},
        {"name": "b", "arguments": "{broken", "id": "call00002"},
    ]
    messages = _scripted({"text": "first", "calls": calls, "finish_reason": "stop"}, {"refusal": "I will not."})

    first = _ask(client, messages).choices[0]
    said = first.message.model_dump()
    said["tool_calls"][1]["function"]["arguments"] = "{}"
    messages += [
        said,
        {"role": "tool", "tool_call_id": "call00001", "content": "1"},
        {"role": "tool", "tool_call_id": "call00002", "content": "2"},
    ]
    second = _ask(client, messages).choices[0]
    third = _ask(client, [*messages, {"role": "assistant", "content": "x"}, *_user("new")]).choices[0]

    assert [call.function.arguments for call in first.message.tool_calls] == ['{"n": 1}', "{broken"]
    assert (first.message.content, first.finish_reason) == ("first", "stop")
    assert second.message.refusal == "I will not."
    assert third.message.content == "You said: new"


def test_calls_may_share_an_id_or_have_none(client: OpenAI) -> None:
    step = {"calls": [{"name": "a", "id": "x"}, {"name": "b", "id": "x"}, {"name": "c", "id": None}, {"name": "d"}]}

    calls = _ask(client, _scripted(step)).choices[0].message.tool_calls

    assert [call.id for call in calls[:3]] == ["x", "x", None]
    assert len(calls[3].id) == 9
    assert calls[3].function.arguments == ""


def test_usage_can_be_given_or_left_out(client: OpenAI) -> None:
    given = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}

    assert _ask(client, _scripted({"text": "x", "usage": given})).usage.total_tokens == 3
    assert _ask(client, _scripted({"text": "x", "usage": None})).usage is None


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        ("429", openai.RateLimitError, "rate_limit_exceeded"),
        ("insufficient_quota", openai.RateLimitError, "insufficient_quota"),
        ("500", openai.InternalServerError, "server_error"),
        ("503", openai.InternalServerError, "overloaded"),
        ("context_length", openai.BadRequestError, "context_length_exceeded"),
    ],
)
def test_a_fault_is_an_error_the_client_library_knows(
    client: OpenAI, fault: str, error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as raised:
        _ask(client, _scripted({"fault": fault, "retry_after": 1.5}))

    assert raised.value.code == code
    assert raised.value.response.headers["Retry-After"] == "1.5"


def test_a_fault_is_played_so_many_times_for_equal_messages_and_then_the_step(client: OpenAI) -> None:
    messages = _scripted({"fault": "503", "times": 2, "text": "recovered"})
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            _ask(client, messages)

    assert _ask(client, messages).choices[0].message.content == "recovered"
    httpx2.post(_address(client, "/reset"), trust_env=False).raise_for_status()
    assert _requests(client) == []
    with pytest.raises(openai.InternalServerError):
        _ask(client, messages)


@pytest.mark.parametrize("chunk_delay", [0, 0.01])
def test_a_cut_stream_ends_after_its_chunks_with_a_broken_connection(client: OpenAI, chunk_delay: float) -> None:
    step = {"text": "one two three four five", "fault": "cut", "chunks": 2, "chunk_delay": chunk_delay}
    stream = iter(_ask(client, _scripted(step), stream=True))
    received = [next(stream), next(stream)]
    with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
        next(stream)

    assert _streamed_text(received) == "one two thre"
    assert [request["finished"] for request in _requests(client)] == [False]


def test_a_truncated_stream_ends_in_order_and_without_finish_reason(client: OpenAI) -> None:
    chunks = _stream(client, _scripted({"text": "half of an ans", "fault": "truncated"}))

    assert _streamed_text(chunks) == "half of an ans"
    assert _finish_reasons(chunks) == []


@pytest.mark.parametrize("fault", ["length", "content_filter"])
def test_a_reply_ends_early_with_the_reason_for_it(client: OpenAI, fault: str) -> None:
    chunks = _stream(client, _scripted({"text": "so far", "fault": fault}))

    assert (_streamed_text(chunks), _finish_reasons(chunks)) == ("so far", [fault])


def test_an_empty_reply_says_and_calls_nothing(client: OpenAI) -> None:
    choice = _ask(client, _scripted({"text": "x", "calls": [{"name": "a"}], "fault": "empty"})).choices[0]

    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (None, None, "stop")


@pytest.mark.parametrize("step", [{"fault": "hang"}, {"delay": 60, "text": "late"}])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_will_not_wait_leaves_its_request_unfinished(
    client: OpenAI, step: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(openai.APITimeoutError):
        _ask(client.with_options(timeout=openai.Timeout(20, read=0.2)), _scripted(step), stream=stream)

    assert [request["finished"] for request in _requests(client)] == [False]


def test_chunks_come_while_later_ones_are_delayed(client: OpenAI) -> None:
    stream = iter(_ask(client, _scripted({"text": "x" * 24, "fault": "hang", "chunks": 2}), stream=True))

    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content == "x" * 12


def test_requests_are_kept_without_their_token(client: OpenAI) -> None:
    _ask(client, _user("hello"))

    (request,) = _requests(client)
    assert request["body"]["messages"] == _user("hello")
    assert request["finished"] is True
    assert request["at"] > 0
    assert "authorization" not in {name.lower() for name in request["headers"]}
    assert "User-Agent" in request["headers"]


def test_a_request_without_a_token_is_refused_and_health_needs_none(client: OpenAI) -> None:
    refused = httpx2.post(_address(client, "/v1/chat/completions"), json={"messages": _user("x")}, trust_env=False)

    assert refused.status_code == 401
    assert httpx2.get(_address(client, "/healthz"), trust_env=False).status_code == 200


def test_a_model_with_a_script_of_its_own_is_listed_and_follows_it(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo", "shouting"]
    assert _ask(client, _user("hello"), model="shouting").choices[0].message.content == "HELLO"


@pytest.mark.parametrize("text", ['{"script": [{"txt": "x"}]}', '{"script": [{"fault": "1"}]}', '{"script": [{]}'])
def test_a_script_that_makes_no_sense_is_refused(client: OpenAI, text: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        _ask(client, _user(text))

    assert raised.value.code == "invalid_script"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "No messages"),
        ([*_user("x"), {"role": "assistant", "tool_calls": [CALL]}], "No answer to these calls: call00001"),
        ([*_user("x"), {"role": "assistant", "tool_calls": [CALL]}, *_user("y"), RESULT], "No answer"),
        ([*_user("x"), RESULT], r"messages\[1\] answers no call"),
        ([{"role": "assistant", "tool_calls": [CALL]}, RESULT, RESULT], r"messages\[2\] answers no call"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}, RESULT], r"messages\[0\] repeats the id"),
        ([{"role": "assistant", "content": None}], r"messages\[0\] has neither"),
        ([{"role": "user", "content": None}], r"messages\[0\] has no content"),
    ],
)
def test_a_transcript_that_a_provider_refuses_is_refused(client: OpenAI, messages: Messages, problem: str) -> None:
    with pytest.raises(openai.BadRequestError, match=problem):
        _ask(client, messages)


def test_a_whole_transcript_has_no_problem() -> None:
    assert transcript_problem([*_user("x"), {"role": "assistant", "tool_calls": [CALL]}, RESULT]) is None


def test_a_model_with_a_window_refuses_what_is_longer(client: OpenAI) -> None:
    assert _ask(client, _user("short"), "window-100").choices[0].message.content == "You said: short"
    with pytest.raises(openai.BadRequestError) as refused:
        _ask(client, _user("long" * 25), "window-100")

    assert refused.value.code == "context_length_exceeded"


def test_asked_for_a_summary_it_gives_a_short_one_or_plays_the_last_step_for_it(client: OpenAI) -> None:
    def summary(text: str) -> Any:
        system = {"role": "system", "content": "Be brief. Answer with the summary alone."}
        return _ask(client, [system, *_user(text)]).choices[0]

    assert summary("They met and talked.").message.content == "They exchanged 20 characters."
    steps = (
        'User: {"summary": {"text": "first"}} Assistant: Yes. User: {"summary": {"text": "last", "fault": "length"}}'
    )
    assert (summary(steps).message.content, summary(steps).finish_reason) == ("last", "length")
