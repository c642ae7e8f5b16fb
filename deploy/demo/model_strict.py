"""What some public server refuses of a request: all of it together, as the demo's model server refuses it too.

Each rule names whose it is, by their documents and error texts.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
KEYWORDS = frozenset(
    {
        "type",
        "description",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "anyOf",
        "allOf",
        "format",
        "default",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "$ref",
        "$defs",
    }
)
MOST_TOOLS = 128


def strict_problem(body: dict[str, Any]) -> str | None:
    """The first thing in a Chat Completions body that some server would refuse, or None."""
    return next(_problems(body), None)


def _problems(body: dict[str, Any]) -> Iterator[str]:
    messages = body["messages"]
    for place, message in enumerate(messages):
        yield from (f"messages[{place}] {problem}" for problem in _message_problems(message))
    yield from _order_problems([message["role"] for message in messages], messages)
    yield from _format_problems(body.get("response_format") or {"type": "text"})
    tools = body.get("tools") or []
    if len(tools) > MOST_TOOLS:  # OpenAI
        yield f"more than {MOST_TOOLS} tools"
    for tool in tools:
        function = tool["function"]
        if not FUNCTION.fullmatch(function["name"]):  # OpenAI, Gemini
            yield f"the function name {function['name']!r}"
        if len(function.get("description", "")) > 1_024:  # OpenAI
            yield f"the description of {function['name']}"
        yield from (
            f"the schema of {function['name']} {problem}" for problem in schema_problems(function["parameters"])
        )
        if function["parameters"].get("type") != "object" or "properties" not in function["parameters"]:
            yield f"the schema of {function['name']} is not that of an object"


def _format_problems(wanted: dict[str, Any]) -> Iterator[str]:
    if wanted.get("type") not in ("text", "json_object", "json_schema"):
        yield f"the response format {wanted.get('type')!r}"
    if wanted.get("type") == "json_schema":
        if not FUNCTION.fullmatch(wanted["json_schema"]["name"]):  # OpenAI
            yield f"the response format's name {wanted['json_schema']['name']!r}"
        yield from (f"the response format {problem}" for problem in schema_problems(wanted["json_schema"]["schema"]))


def _message_problems(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    calls = message.get("tool_calls")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
    if not text.strip() and not (message["role"] == "assistant" and calls):  # Anthropic, Bedrock
        yield "has no text"
    if calls is not None and not calls:  # OpenAI
        yield "has an empty list of calls"
    for call in calls or ():
        if not CALL_ID.fullmatch(call["id"]):  # Mistral
            yield f"has the call id {call['id']!r}"
        if not FUNCTION.fullmatch(call["function"]["name"]):
            yield f"calls the function {call['function']['name']!r}"
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):  # vLLM, Anthropic
            yield "has arguments that are no JSON object"


def _order_problems(roles: list[str], messages: list[dict[str, Any]]) -> Iterator[str]:
    if "system" in roles[1:]:  # Qwen's and other chat templates
        yield "a system message that is not the first"
    spoken = roles[1:] if roles[:1] == ["system"] else roles
    if spoken[:1] != ["user"]:  # Gemma's, Mistral's chat templates
        yield "the first message is not the user's"
    if roles[-1:] and roles[-1] not in ("user", "tool"):  # Mistral
        yield "the last message is the assistant's"
    for place, (before, role) in enumerate(itertools.pairwise(roles), start=1):
        if role == before != "tool":  # Llama's, Gemma's, Mistral's chat templates
            yield f"messages[{place}] has the role of the message before it"
        if before == "tool" and role == "user":  # Mistral
            yield f"messages[{place}] is the user's, right behind a tool's result"
        if role == "user" and messages[place - 1].get("tool_calls"):
            yield f"messages[{place}] comes before the results of the calls"


def schema_problems(schema: Any) -> Iterator[str]:
    """What some server refuses in a JSON schema."""
    if not isinstance(schema, dict):
        yield f"has {schema!r} for a schema"
        return
    if unknown := sorted(schema.keys() - KEYWORDS):
        yield f"uses {', '.join(unknown)}"
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):  # OpenAI, Gemini
        yield "has an array without items"
    for name in ("properties", "$defs"):
        for inner in (schema.get(name) or {}).values():
            yield from schema_problems(inner)
    for name in ("anyOf", "allOf"):
        for inner in schema.get(name) or ():
            yield from schema_problems(inner)
    if isinstance(schema.get("items"), dict):
        yield from schema_problems(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schema_problems(schema["additionalProperties"])
