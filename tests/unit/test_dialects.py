"""What public providers say, in the words of their documents and error texts, and what it means here."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from brainhands.brain.models.dialects import DIALECTS, ending_of
from brainhands.brain.models.provider import counted_usage, error_of_answer, provider_error, words_of
from brainhands.shared.model.event import Usage

TOO_LONG: list[tuple[str, int, Any]] = [
    (
        "openai",
        400,
        {
            "message": "This model's maximum context length is 128000 tokens. However, your messages have 130011.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        },
    ),
    ("openai", 429, {"message": "Request too large for gpt-x in organization o on tokens per min (TPM): Limit 30000"}),
    ("openai", 400, {"message": "Your input exceeds the context window of this model."}),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        },
    ),
    ("vllm", 400, {"message": "Input length (9000) exceeds model's maximum context length (8192).", "code": 400}),
    ("sglang", 400, {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."}),
    (
        "llama.cpp",
        400,
        {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
        },
    ),
    ("llama.cpp", 500, {"message": "Requested tokens (2285) exceed context window of 2048", "type": "server_error"}),
    ("ollama", 400, {"message": "the input length exceeds the context length"}),
    ("lmstudio", 400, "The number of tokens to keep from the initial prompt is greater than the context length."),
    (
        "lmstudio",
        400,
        "When context the overflows: the model is loaded with context length of only 4096 tokens",
    ),
    ("tgi", 422, {"message": "Input validation error: `inputs` must have less than 4096 tokens. Given: 9000"}),
    ("litellm", 400, {"message": "litellm.ContextWindowExceededError: BedrockException: too long"}),
    (
        "openrouter",
        400,
        {
            "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000",
            "code": 400,
        },
    ),
    (
        "gemini",
        400,
        {
            "code": 400,
            "message": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).",
            "status": "INVALID_ARGUMENT",
        },
    ),
    (
        "anthropic",
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"},
    ),
    ("anthropic", 413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
    ("bedrock", 400, {"message": "Input is too long for requested model."}),
    (
        "mistral",
        400,
        {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"},
    ),
    ("groq", 413, {"message": "Request too large for model `m`", "type": "tokens", "code": "rate_limit_exceeded"}),
    ("groq", 400, {"message": "Please reduce the length of the messages or completion."}),
    ("xai", 400, {"message": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    (
        "moonshot",
        400,
        {"message": "Invalid request: Your request exceeded model token limit: 8192", "type": "invalid_request_error"},
    ),
    ("zhipu", 400, {"code": "1261", "message": "Prompt exceeds max length"}),
    ("dashscope", 400, {"code": "InvalidParameter", "message": "Range of input length should be [1, 30720]"}),
    ("minimax", 400, {"message": "invalid params, context window exceeds limit (2013)"}),
    ("cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
    (
        "github",
        413,
        {"code": "tokens_limit_reached", "message": "Request body too large for m model. Max size: 8000 tokens."},
    ),
]
FINAL: list[tuple[int, Any]] = [
    (429, {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}),
    (429, {"message": "Your account is suspended, check your plan.", "type": "exceeded_current_quota_error"}),
    (429, {"code": "1113", "message": "Your account is in arrears."}),
    (402, {"message": "Insufficient Balance"}),
    (429, {"message": "Insufficient credits. Add more."}),
    (500, {"message": "Your credit balance is too low to access the API."}),
    (400, {"message": "Access denied, account is overdue.", "code": "Arrearage"}),
]
HEALING: list[tuple[int, Any]] = [
    (429, {"message": "Too many tokens, please wait before trying again."}),
    (429, {"message": "Rate limit reached for m on tokens per min (TPM): Limit 30000, Used 29000, Requested 4000."}),
    (429, {"code": 429, "message": "Resource has been exhausted (e.g. check quota).", "status": "RESOURCE_EXHAUSTED"}),
    (503, {"message": "The model is overloaded.", "status": "UNAVAILABLE"}),
    (529, {"type": "overloaded_error", "message": "Overloaded"}),
    (500, {"message": "Internal error", "type": "server_error"}),
]


def answered(status: int, error: Any) -> Any:
    return error_of_answer(status, httpx2.Headers(), json.dumps({"error": error}).encode(), "")


@pytest.mark.promise("E10")
@pytest.mark.parametrize(("dialect", "status", "error"), TOO_LONG)
def test_a_request_that_is_too_long_is_known_in_each_providers_words(dialect: str, status: int, error: Any) -> None:
    found = answered(status, error)

    assert (found.overflow, found.heals) == (True, False)
    assert dialect in {row.name for row in DIALECTS}


def test_each_row_about_overflow_has_a_text_that_it_knows() -> None:
    assert {row.name for row in DIALECTS if row.overflow or row.overflow_codes} == {name for name, _, _ in TOO_LONG}


WRONG_KEYS: list[tuple[str, int, Any]] = [
    ("openai", 401, {"message": "Incorrect API key provided: sk-***.", "code": "invalid_api_key"}),
    (
        "gemini",
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid key.",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    ("gemini", 400, {"error": {"code": 400, "message": "API key expired. Please renew the API key."}}),
    ("xai", 400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***YA."}),
    ("anthropic", 401, {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}),
]


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("dialect", "status", "body"), WRONG_KEYS)
def test_a_wrong_key_is_known_whatever_its_status_and_is_no_word_about_what_was_said(
    dialect: str, status: int, body: Any
) -> None:
    found = error_of_answer(status, httpx2.Headers(), json.dumps(body).encode(), "")

    assert (found.of_key, found.heals, found.refuses_content) == (True, False, False)
    assert dialect in {row.name for row in DIALECTS}


def test_each_row_about_keys_has_a_text_that_it_knows() -> None:
    assert {row.name for row in DIALECTS if row.key or row.key_codes} == {name for name, _, _ in WRONG_KEYS}


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("status", "error"), FINAL)
def test_what_no_waiting_mends_is_final_whatever_its_status(status: int, error: Any) -> None:
    found = answered(status, error)

    assert (found.heals, found.overflow) == (False, False)


@pytest.mark.promise("E6")
@pytest.mark.parametrize(("status", "error"), HEALING)
def test_what_waiting_mends_is_tried_again_and_taken_for_no_overflow(status: int, error: Any) -> None:
    found = answered(status, error)

    assert (found.heals, found.overflow, found.filtered) == (True, False, False)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "content_filter", "message": "The response was filtered."},
        {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."},
        {"code": "1301", "message": "Unsafe content."},
    ],
)
def test_a_request_that_a_filter_refuses_is_told_apart(error: Any) -> None:
    found = answered(400, error)

    assert (found.filtered, found.heals) == (True, False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "Not so."}}', "Not so."),
        (b'{"error": "Not so."}', "Not so."),
        (b'{"detail": "Not so."}', "Not so."),
        (b'{"object": "error", "message": "Not so.", "code": 400}', "Not so."),
        (b'[{"error": {"code": 400, "message": "Not so."}}]', "Not so."),
        (b'{"detail": [{"loc": ["body"], "msg": "x"}]}', '{"detail": [{"loc": ["body"], "msg": "x"}]}'),
        (b"<p>Not so.</p>", "<p>Not so.</p>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "status 400"),
        (b"{}", "status 400"),
    ],
)
def test_the_providers_words_are_kept_wherever_they_stand(body: bytes, message: str) -> None:
    assert str(error_of_answer(400, httpx2.Headers(), body, "")) == message


@pytest.mark.promise("E15")
def test_words_and_codes_of_a_refusal_are_bounded() -> None:
    error = provider_error({"message": "m" * 10**6, "code": "c" * 10**6, "extra": "x" * 10**6}, 400, None, "")

    assert len(str(error)) <= 2_000
    assert len(error.provider_code or "") <= 100


@pytest.mark.promise("E12")
@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("stop eos eos_token end_turn STOP stop_sequence COMPLETE completed", "stop"),
        ("tool_calls tool_use function_call tool_call", "tool_calls"),
        ("length max_tokens MAX_TOKENS model_length max_output_tokens ERROR_LIMIT", "length"),
        ("content_filter SAFETY RECITATION guardrail_intervened sensitive refusal", "content_filter"),
        ("error network_error insufficient_system_resource MALFORMED_FUNCTION_CALL abort", "broken"),
        ("some_new_word", "some_new_word"),
    ],
)
def test_finish_reasons_are_read_in_each_providers_words(words: str, ending: str) -> None:
    assert {ending_of(word) for word in words.split()} == {ending}


@pytest.mark.promise("E13")
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (
            {"prompt_tokens": 7, "completion_tokens": 3, "prompt_cache_hit_tokens": 5},
            Usage(tokens_in=7, tokens_out=3, tokens_cached=5),
        ),
        (
            {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 5},
            Usage(tokens_in=7, tokens_out=3, tokens_cached=5),
        ),
        ({"input_tokens": 7, "output_tokens": 3}, Usage(tokens_in=7, tokens_out=3)),
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, Usage(tokens_in=7, tokens_out=3)),
        ({"prompt_tokens": True, "completion_tokens": 3}, None),
        ({"prompt_tokens": 2**31, "completion_tokens": 3}, None),
        ({"prompt_tokens": 7, "completion_tokens": float("nan")}, None),
        ([7, 3], None),
        ("7", None),
        (None, None),
    ],
)
def test_tokens_are_read_in_each_providers_names(usage: Any, counted: Usage | None) -> None:
    assert counted_usage(usage) == counted


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("So.", "So."),
        (None, ""),
        ([{"type": "text", "text": "So"}, {"type": "text", "text": "."}], "So."),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "So."}], "So."),
        (["So", "."], "So."),
        ({"type": "text", "text": "So."}, "So."),
        ([], ""),
    ],
)
def test_text_is_read_in_each_of_its_forms(content: Any, text: str) -> None:
    assert words_of(content) == text
