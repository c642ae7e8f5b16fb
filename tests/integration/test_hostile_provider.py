"""The adapters against a provider that says anything: each outcome is stated, and bounded in all that it keeps."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainhands.brain.models import chat, line, provider, responses
from brainhands.brain.models.line import Endpoint
from brainhands.brain.models.provider import MOST_CHARACTERS, estimated_usage
from brainhands.brain.models.reply import Interrupted, ProviderError, RawCall, Reply
from brainhands.brain.models.timeouts import Timeouts
from brainhands.shared.model.event import Usage
from brainhands.shared.model.json import clean_text
from tests.instruments.provider import (
    COUNTED,
    DEEP,
    FRAMINGS,
    HALF,
    LONG,
    ODD,
    ODD_RESPONSES,
    RECORDED,
    STOP,
    HostileProvider,
    Pieces,
    call,
    delta,
    document,
    event,
    http,
    in_chunks,
    response,
    saying,
    split,
    stream,
)

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
TIMEOUTS = Timeouts(whole=20.0, first=10.0, silence=0.3)
HASTY = Timeouts(whole=0.5)
MOST_KEPT = 64 * 1024 * 1024
LONGEST_WORD = 200
WHOLE = Reply(
    text="So be it.",
    calls=(RawCall(provider_id="abcdefgh1", name="echo", arguments='{"text": "a"}'),),
    finish_reason="tool_calls",
    refusal=None,
    usage=Usage(tokens_in=70, tokens_out=30),
    model="",
    response_id=None,
)


@pytest.fixture(autouse=True)
def _low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood takes its time at the real bounds, and shows nothing else."""
    monkeypatch.setattr(line, "MOST_BYTES", 8_000_000)


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileProvider]:
    with HostileProvider(lambda _asked: []) as made:
        yield made


def outcome(
    hostile: HostileProvider, pieces: Callable[[], Pieces], timeouts: Timeouts = TIMEOUTS, api_key: str = "k"
) -> Reply | Interrupted | ProviderError:
    """What one chat request comes to; anything else than the three comes through."""
    before = len(hostile.requests)
    hostile.script = lambda _asked: pieces()
    try:
        return chat.send(
            BODY, at=Endpoint(api_key=api_key, base_url=hostile.url), timeouts=timeouts, on_text=lambda _text: None
        )
    except (Interrupted, ProviderError) as problem:
        return problem
    finally:
        assert len(hostile.requests) <= before + 1


def background_outcome(
    hostile: HostileProvider, pieces: Callable[[], Pieces], timeouts: Timeouts = TIMEOUTS, api_key: str = "k"
) -> Reply | Interrupted | ProviderError | None:
    """What a background response comes to that is answered and shown like this; None where it goes on."""
    hostile.script = lambda _asked: pieces()
    at = Endpoint(api_key=api_key, base_url=hostile.url)
    body = responses.request_of(BODY)
    try:
        made = responses.create(body, at=at, timeouts=timeouts)
        seen = responses.retrieve(made.response_id, at=at, timeouts=timeouts)
        return None if seen.pending else responses.reply_of(seen, body)
    except (Interrupted, ProviderError) as problem:
        return problem


def hold(found: Reply | Interrupted | ProviderError | None) -> None:
    """What is true of every outcome."""
    if isinstance(found, Reply):
        assert found.finish_reason
        assert found.usage.tokens_in > 0
        assert sum(len(each) for each in (found.text, *(call.arguments for call in found.calls))) <= MOST_CHARACTERS
        assert len(found.calls) <= 64
        words = [found.model, found.response_id or "", found.finish_reason]
        words += [word for call in found.calls for word in (call.name, call.provider_id)]
        assert max(map(len, words)) <= LONGEST_WORD
        texts = [found.text, found.refusal or "", *words, *(call.arguments for call in found.calls)]
        assert texts == [clean_text(text) for text in texts]
    elif isinstance(found, Interrupted):
        assert found.reason
        assert len(found.text) <= MOST_CHARACTERS
        assert found.usage or not found.text or found.text == "So be it."
        assert clean_text(found.text + found.reason) == found.text + found.reason
    elif isinstance(found, ProviderError):
        assert 0 < len(str(found)) <= provider.LONGEST_MESSAGE
        assert clean_text(str(found)) == str(found)
        assert len(found.provider_code or "") <= provider.LONGEST_CODE


@contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_KEPT
    finally:
        tracemalloc.stop()


@pytest.mark.promise("E4", "E13", "E15")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_reply_that_is_cut_at_any_byte_is_the_whole_one_or_none(hostile: HostileProvider, chunked: bool) -> None:
    head = http(200, "text/event-stream", *(["Transfer-Encoding: chunked"] if chunked else []))
    text = b"".join(in_chunks(RECORDED, 100)) if chunked else RECORDED
    whole = 0
    for end in range(0, len(text) + 1, 3 if chunked else 1):
        found = outcome(hostile, lambda end=end: [head, text[:end]])  # type: ignore[misc]
        hold(found)
        if isinstance(found, Reply):
            whole += 1
            assert found.usage in (WHOLE.usage, estimated_usage(BODY, 'So be it.echo{"text": "a"}'))
            assert (found.text, found.calls, found.finish_reason) == (WHOLE.text, WHOLE.calls, WHOLE.finish_reason)
        else:
            assert isinstance(found, Interrupted)
            assert found.text in ("", "So ", "So be it.")
            assert found.usage is not None
    assert whole > 0


@pytest.mark.promise("E15")
def test_an_answer_that_is_cut_anywhere_in_its_head_is_none(hostile: HostileProvider) -> None:
    head = http()
    for end in range(len(head)):
        found = outcome(hostile, lambda end=end: [head[:end]])  # type: ignore[misc]
        assert isinstance(found, Interrupted)
        assert found.heals


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_reply_is_the_same_in_every_framing(hostile: HostileProvider, name: str) -> None:
    assert outcome(hostile, lambda: FRAMINGS[name](RECORDED)) == WHOLE


ENDLESS = b"9" * 5_000
BESIDE: dict[str, Callable[[bytes], bytes]] = {
    "a number without end": lambda text: text.replace(b'"index": 0', b'"index": 0, "created": ' + ENDLESS),
    "a number that is none": lambda text: text.replace(b'"index": 0', b'"index": 0, "cost": NaN, "seed": -1e999'),
    "a count without end": lambda text: text.replace(b'"choices": []', b'"choices": [], "x_groq": ' + ENDLESS),
    "a name that is none": lambda text: event(id=7, model=["m"], choices=[], usage=[1], object={}) + text,
    "what it wants back, and nobody can store": lambda text: (
        b'data: {"choices": [{"index": 0, "delta": {"reasoning_details": ' + DEEP[4_800:-4_800] + b"}}]}\n\n" + text
    ),
}


@pytest.mark.promise("E13", "E15")
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_not_needed_is_no_reason_to_lose_a_reply(hostile: HostileProvider, name: str) -> None:
    found = outcome(hostile, lambda: [http(), BESIDE[name](RECORDED)])

    assert found == WHOLE


@pytest.mark.promise("E13", "E15")
@pytest.mark.parametrize("odd", [7, None, "x", [1], {}, {"type": 7}, {"type": "reasoning", "summary": 7}])
def test_an_item_that_is_not_needed_is_no_reason_to_lose_a_background_response(
    hostile: HostileProvider, odd: Any
) -> None:
    whole = response(status="incomplete", incomplete_details=odd, created_at=-1e999)
    text = json.dumps({**whole, "output": [odd, *whole["output"], odd]}).encode()

    found = background_outcome(hostile, lambda: [http(200, "application/json"), text.replace(b"-Infinity", ENDLESS)])

    assert isinstance(found, Reply)
    assert (found.text, found.usage.tokens_out) == ("So be it.", 30)


@pytest.mark.promise("E12", "E13", "E15")
@pytest.mark.parametrize("name", ODD)
def test_whatever_a_provider_says_has_a_stated_and_bounded_outcome(hostile: HostileProvider, name: str) -> None:
    with bounded_memory():
        hold(outcome(hostile, ODD[name], HASTY if "silence" in name else TIMEOUTS))


@pytest.mark.promise("E12", "E13", "E15")
@pytest.mark.parametrize("name", ODD_RESPONSES)
def test_whatever_a_background_response_is_has_a_stated_and_bounded_outcome(
    hostile: HostileProvider, name: str
) -> None:
    with bounded_memory():
        hold(background_outcome(hostile, ODD_RESPONSES[name], HASTY if "silence" in name else TIMEOUTS))


@pytest.mark.promise("E4", "E13")
def test_a_background_response_that_is_cut_at_any_byte_is_the_whole_one_or_none(hostile: HostileProvider) -> None:
    head, text = document(response())

    found = [background_outcome(hostile, lambda end=end: [head, text[:end]]) for end in range(len(text) + 1)]  # type: ignore[misc]

    for each in found[:-1]:
        assert isinstance(each, Interrupted)
        hold(each)
    assert isinstance(found[-1], Reply)


@pytest.mark.promise("E13")
@pytest.mark.parametrize("name", ["a flood of text", "a flood of calls", "no room in the middle"])
def test_what_was_said_before_a_bound_or_an_error_is_counted(hostile: HostileProvider, name: str) -> None:
    found = outcome(hostile, ODD[name])

    assert isinstance(found, Interrupted)
    assert found.usage is not None
    assert found.usage.tokens_out > 0
    assert not found.heals


@pytest.mark.promise("E6")
def test_a_background_response_that_is_refused_as_success_keeps_the_providers_words() -> None:
    error = {"error": {"message": "Pay first.", "code": "insufficient_quota"}}
    with saying(lambda: [http(200, "application/json"), str(error).replace("'", '"').encode()]) as hostile:
        at = Endpoint(api_key="k", base_url=hostile.url)
        with pytest.raises(ProviderError, match=r"Pay first\.") as raised:
            responses.create(BODY, at=at, timeouts=TIMEOUTS)

    assert not raised.value.heals


SECRET = "sk-proj-" + "".join(
    chr(ord("a") + number % 26) + str(number) for number in range(50)
)  # of a real key's length
QUOTED = {"message": f"Incorrect key {SECRET}.", "code": f"bad_key:{SECRET}"}
QUOTES: dict[str, Callable[[], Pieces]] = {
    "a refusal": lambda: document({"error": QUOTED}, 401),
    "a refusal in plain text": lambda: [http(400, "text/plain"), SECRET.encode()],
    "an error as success": lambda: document({"error": QUOTED}),
    "an error in the stream": lambda: stream(HALF, event(error=QUOTED)),
    "an error of a choice": lambda: stream(event(choices=[{"error": QUOTED}])),
    "a page as success": lambda: [http(200, "text/html"), f"<html>Authorization: Bearer {SECRET}".encode()],
    "a page as success that is cut": lambda: [http(200, "text/html"), b"<html>" + (b" -" * 40 + SECRET.encode()) * 40],
    "a long refusal": lambda: document(
        {"error": {"message": f"{'-' * 1_900} {SECRET}" * 20, "code": "-" * 90 + SECRET}}, 401
    ),
    "a failure": lambda: document(response(status="failed", error=QUOTED, usage=None, output=[])),
    "a failure after some words": lambda: document(response(status="failed", error=QUOTED)),
}


@pytest.mark.promise("E6")
@pytest.mark.parametrize("name", QUOTES)
def test_a_key_that_a_provider_quotes_is_in_no_error(hostile: HostileProvider, name: str) -> None:
    ask = background_outcome if "failure" in name else outcome
    found = ask(hostile, QUOTES[name], api_key=SECRET)

    assert isinstance(found, Interrupted | ProviderError)
    said = f"{found} {getattr(found, 'code', None)}"
    assert "***" in said
    assert not [start for start in range(len(SECRET) - 8) if SECRET[start : start + 8] in said]


@pytest.mark.promise("E15")
def test_a_refusal_of_megabytes_is_not_searched_to_its_end() -> None:
    found = provider.provider_error({"message": LONG * 20 + " maximum context length"}, 400, None, "")

    assert not found.overflow
    assert len(str(found)) == provider.LONGEST_MESSAGE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "type", "code"]), inner),
    max_leaves=4,
)
CALLS = st.builds(
    call,
    st.none() | st.integers(0, 2),
    st.none() | st.sampled_from(["a", "b", "", "\0"]),
    st.none() | st.sampled_from(["echo", "none", ""]),
    st.none() | st.sampled_from(["{}", '{"text"', ': "a"}', "[]"]) | JSON,
)
EVENTS = st.one_of(
    st.builds(lambda words: delta(content=words), st.text(max_size=8) | JSON),
    st.builds(lambda calls: delta(tool_calls=calls), st.lists(CALLS, max_size=3) | JSON),
    st.builds(delta, st.sampled_from(["stop", "length", "tool_calls", "eos", "error", "safety", "?", ""])),
    st.builds(lambda usage: event(choices=[], usage=usage), st.just(COUNTED) | JSON),
    st.builds(lambda error: event(error=error), JSON),
    st.builds(lambda choices: event(choices=choices), JSON),
    st.sampled_from(
        [b"data: [DONE]\n\n", b"data:\n\n", b": x\n\n", b"\r", b"data: {\n\n", DEEP, b"\xff\n\n", HALF, STOP]
    ),
)
HEADS = st.builds(
    lambda status, kind: http(status, kind),
    st.sampled_from([200, 200, 200, 200, 200, 204, 400, 404, 413, 429, 500, 503]),
    st.sampled_from(["text/event-stream", "application/json", "text/html"]),
)


@pytest.mark.promise("E12", "E13", "E15")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(head=HEADS, events=st.lists(EVENTS, max_size=6), size=st.integers(1, 400), cut=st.none() | st.integers(0, 400))
def test_any_mixture_of_what_providers_say_has_a_stated_outcome(
    hostile: HostileProvider, head: bytes, events: list[bytes], size: int, cut: int | None
) -> None:
    text = b"".join(events)[:cut]

    hold(outcome(hostile, lambda: [head, *split(text, size)]))
