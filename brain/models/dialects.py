"""How OpenAI-compatible providers differ: one row each, and what follows from all of them.

What is read is read by the words of all rows together: a gateway passes on what the provider behind it says, and no
word means one thing here and another there. A row names where its words are from; what no document or error text
shows is marked as assumed. A new provider is a row and a line in its test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

Ending: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "broken"]
"""Why a reply ended, in the words of Chat Completions, and `broken` for one that a new try may mend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The words of one provider, where they are not those of Chat Completions."""

    name: str
    source: str
    hosts: tuple[str, ...] = ()
    """Ends of the host names at which it is found."""
    wants_back: tuple[str, ...] = ()
    """Fields of its messages that it wants back with the calls of a turn under way."""
    json_schema: bool = False
    """Whether its `response_format` takes a JSON schema, by its documents on structured outputs."""
    overflow: tuple[str, ...] = ()
    """Regular expressions for the message of a request that is too long for the model."""
    overflow_codes: tuple[str, ...] = ()
    final_codes: tuple[str, ...] = ()
    """Codes and types of refusals that no waiting mends, whatever their status."""
    final: tuple[str, ...] = ()
    """The same, by regular expressions for the message."""
    key_codes: tuple[str, ...] = ()
    """Codes and types of refusals of the worker's key, whatever their status."""
    key: tuple[str, ...] = ()
    """The same, by regular expressions for the message."""
    filter_codes: tuple[str, ...] = ()
    """Codes and types by which a content filter refuses a request."""
    endings: Mapping[str, Ending] = field(default_factory=dict)
    """Finish reasons; case does not matter."""


DIALECTS: Final = (
    Dialect(
        name="openai",
        source="API reference: chat completions, error codes",
        hosts=("api.openai.com",),
        json_schema=True,
        overflow=(r"maximum context length", r"exceeds the context window", r"request too large for"),
        overflow_codes=("context_length_exceeded", "string_above_max_length"),
        final_codes=("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"),
        key_codes=("invalid_api_key",),
        filter_codes=("content_policy_violation",),
        endings={
            "stop": "stop",
            "length": "length",
            "tool_calls": "tool_calls",
            "function_call": "tool_calls",
            "content_filter": "content_filter",
        },
    ),
    Dialect(
        name="azure",
        source="Azure OpenAI documentation: content filtering",
        hosts=("openai.azure.com", "cognitiveservices.azure.com"),
        json_schema=True,
        filter_codes=("content_filter", "ResponsibleAIPolicyViolation"),
    ),
    Dialect(
        name="vllm",
        source="server source: serving errors, FinishReason",
        json_schema=True,
        overflow=(r"longer than the maximum model length", r"exceeds model's maximum context length"),
        endings={"abort": "broken", "error": "broken", "eos_token": "stop", "stop_sequence": "stop"},
    ),
    Dialect(
        name="sglang",
        source="server source: tokenizer manager; finish reason abort",
        json_schema=True,
        overflow=(r"longer than the model's context length", r"exceeds the model's maximum context"),
    ),
    Dialect(
        name="llama.cpp",
        source="ggml-org/llama.cpp#15780 and llama-cpp-python's server errors",
        json_schema=True,
        overflow=(
            r"exceeds the available context size",
            r"exceeds? context window of",
            r"context size has been exceeded",
        ),
        overflow_codes=("exceed_context_size_error",),
        endings={"eos": "stop", "limit": "length"},
    ),
    Dialect(
        name="ollama",
        source="server source: runner errors; context_length in the API documentation",
        json_schema=True,
        overflow=(r"input length exceeds .{0,20}context length", r"prompt too long; exceeded"),
    ),
    Dialect(
        name="lmstudio",
        source="lmstudio-ai bug tracker: context overflow",
        json_schema=True,
        overflow=(r"greater than the context length", r"context the overflows", r"context length of only \d+ tokens"),
    ),
    Dialect(
        name="tgi",
        source="text-generation-inference: validation errors and FinishReason",
        overflow=(r"inputs`? must have less than \d+ tokens", r"`inputs` tokens \+ `max_new_tokens` must be <="),
    ),
    Dialect(
        name="litellm",
        source="documentation: exception mapping",
        overflow=(r"ContextWindowExceededError",),
        filter_codes=("ContentPolicyViolationError",),
    ),
    Dialect(
        name="openrouter",
        source="API reference: errors, finish reasons normalized with `error`; reasoning tokens",
        hosts=("openrouter.ai",),
        wants_back=("reasoning_details",),
        overflow=(r"maximum context length is \d+ tokens",),
        final=(r"insufficient credits",),
        endings={"error": "broken"},
    ),
    Dialect(
        name="gemini",
        source="Gemini API reference: FinishReason, thought signatures; error texts; a wrong key is 400",
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        json_schema=True,
        overflow=(r"input token count.{0,40}exceeds the maximum",),
        key=(r"api key not valid", r"api key expired"),
        endings={
            "max_tokens": "length",
            "safety": "content_filter",
            "recitation": "content_filter",
            "prohibited_content": "content_filter",
            "blocklist": "content_filter",
            "spii": "content_filter",
            "image_safety": "content_filter",
            "malformed_function_call": "broken",
            "unexpected_tool_call": "broken",
            "malformed_response": "broken",
        },
    ),
    Dialect(
        name="anthropic",
        source="API reference: errors, stop_reason",
        hosts=("api.anthropic.com",),
        overflow=(r"prompt is too long", r"exceed context limit", r"request exceeds the maximum size"),
        overflow_codes=("request_too_large",),
        key_codes=("authentication_error",),
        final=(r"credit balance is too low",),
        endings={
            "end_turn": "stop",
            "stop_sequence": "stop",
            "tool_use": "tool_calls",
            "max_tokens": "length",
            "model_context_window_exceeded": "length",
            "refusal": "content_filter",
        },
    ),
    Dialect(
        name="bedrock",
        source="Converse API reference: StopReason; validation error text",
        overflow=(r"input is too long for requested model",),
        endings={"guardrail_intervened": "content_filter", "content_filtered": "content_filter"},
    ),
    Dialect(
        name="mistral",
        source="API reference: FinishReason; error text",
        hosts=("api.mistral.ai",),
        json_schema=True,
        overflow=(r"too large for model with \d+ maximum context length",),
        endings={"model_length": "length", "error": "broken"},
    ),
    Dialect(
        name="groq",
        source="documentation: errors (413, and 400 with reduce the length)",
        hosts=("api.groq.com",),
        overflow=(r"reduce the length of the messages",),
    ),
    Dialect(
        name="deepseek",
        source="API reference: finish_reason, error codes (402); thinking mode with tool calls",
        hosts=("api.deepseek.com",),
        wants_back=("reasoning_content",),
        final_codes=("insufficient_balance",),
        final=(r"insufficient balance",),
        endings={"insufficient_system_resource": "broken"},
    ),
    Dialect(
        name="xai",
        source="error texts; a wrong key is 400",
        hosts=("api.x.ai",),
        json_schema=True,
        overflow=(r"maximum prompt length is \d+",),
        key=(r"incorrect api key provided",),
    ),
    Dialect(
        name="moonshot",
        source="API reference: error types; thinking models with tools",
        hosts=("api.moonshot.ai", "api.moonshot.cn"),
        wants_back=("reasoning_content",),
        overflow=(r"exceeded model token limit",),
        final_codes=("exceeded_current_quota_error",),
        filter_codes=("content_filter",),
    ),
    Dialect(
        name="zhipu",
        source="API reference: finish_reason, business error codes (1113, 1261, 1301); thinking mode",
        hosts=("api.z.ai", "open.bigmodel.cn"),
        wants_back=("reasoning_content",),
        overflow=(r"prompt exceeds max length",),
        overflow_codes=("1261",),
        final_codes=("1113",),
        filter_codes=("1301",),
        endings={"network_error": "broken", "sensitive": "content_filter"},
    ),
    Dialect(
        name="dashscope",
        source="Model Studio documentation: error codes",
        overflow=(r"range of input length should be",),
        final_codes=("Arrearage",),
        filter_codes=("data_inspection_failed", "DataInspectionFailed"),
    ),
    Dialect(
        name="minimax",
        source="error text of code 2013; interleaved thinking",
        hosts=("api.minimax.io", "api.minimaxi.com"),
        wants_back=("reasoning_details",),
        overflow=(r"context window exceeds limit",),
    ),
    Dialect(
        name="cohere",
        source="API reference: errors, finish reasons of chat",
        overflow=(r"too many tokens: total number",),
        endings={
            "complete": "stop",
            "tool_call": "tool_calls",
            "error_toxic": "content_filter",
            "error_limit": "length",
        },
    ),
    Dialect(
        name="github",
        source="GitHub Models and Copilot: error text and code of 413",
        overflow=(r"prompt token count of \d+ exceeds the limit",),
        overflow_codes=("tokens_limit_reached", "model_max_prompt_tokens_exceeded"),
    ),
    Dialect(
        name="any",
        source="assumed",
        wants_back=("reasoning_content", "reasoning_details"),
        endings={"completed": "stop", "max_output_tokens": "length"},
    ),
)
"""The last is for an address that no other row has: a server of one's own, or a gateway to any of them."""


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_OVERFLOW = _any(pattern for row in DIALECTS for pattern in row.overflow)
_FINAL = _any(pattern for row in DIALECTS for pattern in row.final)
_KEY = _any(pattern for row in DIALECTS for pattern in row.key)
_ENDINGS: Mapping[str, Ending] = {word.lower(): ending for row in DIALECTS for word, ending in row.endings.items()}
OVERFLOW_CODES = frozenset(code for row in DIALECTS for code in row.overflow_codes)
FINAL_CODES = frozenset(code for row in DIALECTS for code in row.final_codes)
KEY_CODES = frozenset(code for row in DIALECTS for code in row.key_codes)
FILTER_CODES = frozenset(code for row in DIALECTS for code in row.filter_codes)

MESSAGE_EXTRAS = tuple(dict.fromkeys(field for row in DIALECTS for field in row.wants_back))
CALL_EXTRAS = ("extra_content",)
"""Fields of calls that go back with them: Gemini's thought signatures."""
NAMES = tuple(row.name for row in DIALECTS)

NOT_ABOUT_LENGTH = frozenset({401, 402, 403, 404})
"""Statuses that say by themselves what was wrong."""


def host_of(base_url: str | None) -> str:
    """The host of a provider's address, with its port where it names one."""
    if base_url is None:
        return "api.openai.com"
    return urlsplit(base_url).netloc.rpartition("@")[2].lower()


def dialect_of(base_url: str | None, named: str | None = None) -> Dialect:
    """The dialect of this name, else that of the address, else the one for any."""
    host = host_of(base_url).partition(":")[0]
    found = (row for row in DIALECTS if row.name == named or (named is None and _is_at(host, row.hosts)))
    return next(found, DIALECTS[-1])


def _is_at(host: str, hosts: Iterable[str]) -> bool:
    return any(host == each or host.endswith(f".{each}") for each in hosts)


def is_overflow(status: int | None, names: Iterable[str], message: str) -> bool:
    """Whether a refusal means that the request is too long for the model; `names` are its code and type."""
    if status == 413 or not OVERFLOW_CODES.isdisjoint(names):
        return True
    return status not in NOT_ABOUT_LENGTH and _OVERFLOW.search(message) is not None


def is_final(names: Iterable[str], message: str) -> bool:
    """Whether no waiting mends a refusal, such as that of a quota that is used up, whatever its status says."""
    return not FINAL_CODES.isdisjoint(names) or _FINAL.search(message) is not None


def is_of_key(status: int | None, names: Iterable[str], message: str) -> bool:
    """Whether a refusal is of the worker's key, so that no other request of this worker would be answered either."""
    return status == 401 or not KEY_CODES.isdisjoint(names) or _KEY.search(message) is not None


def ending_of(finish_reason: str) -> str:
    """A provider's finish reason as an `Ending`; a word that nobody knows here stays as it is."""
    return _ENDINGS.get(finish_reason.lower(), finish_reason)
