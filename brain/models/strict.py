"""A request in the form that the strictest public server takes: pure, and the same for the same request.

| what some server refuses | what is sent |
|---|---|
| two messages of one role in a row | one message with both texts |
| a user's message right behind a tool's result | a word of the assistant between them |
| a dialogue that begins or ends with the assistant | a word of the user before or behind it |
| an empty text | `(empty)` |
| a call id of another form than nine letters and digits | nine letters and digits made of the id, the same each time |
| parts of JSON schema | see `brain/models/schema.py` |
| a long description of a tool | its beginning |
"""

from __future__ import annotations

import hashlib
import re
import string
from typing import Any

from brainhands.brain.models.schema import accepted

EMPTY = "(empty)"
HEARD = "I have the results."
GO_ON = "Go on."
LONGEST_DESCRIPTION = 1_024
CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
DIGITS = string.digits + string.ascii_letters

Message = dict[str, Any]


def strict(body: dict[str, Any]) -> dict[str, Any]:
    """A Chat Completions body as every server takes it."""
    sent = {**body, "messages": _alternating([_filled(_with_short_ids(each)) for each in body["messages"]])}
    if "tools" in body:
        sent["tools"] = [_tool(tool) for tool in body["tools"]]
    return sent


def short_id(call_id: str) -> str:
    """A call's id on the wire: itself where it has the form that all take, else made of its digest."""
    if CALL_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:16])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(DIGITS))
        digits.append(DIGITS[digit])
    return "".join(digits)


def _with_short_ids(message: Message) -> Message:
    if message["role"] == "tool":
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [{**call, "id": short_id(call["id"])} for call in calls]}
    return message


def _filled(message: Message) -> Message:
    """Only a message with calls may say nothing."""
    if (message["content"] or "").strip():
        return message
    return {**message, "content": None if message.get("tool_calls") else EMPTY}


def _alternating(messages: list[Message]) -> list[Message]:
    """User and assistant by turns, calls with their results in between, and the last word not the assistant's."""
    sent: list[Message] = []
    for message in messages:
        last = sent[-1] if sent else None
        role = message["role"]
        if last is not None and last["role"] == role and role != "tool" and not last.get("tool_calls"):
            sent[-1] = _joined(last, message)
            continue
        if role == "user" and last is not None and last["role"] == "tool":
            sent.append({"role": "assistant", "content": HEARD})
        elif role == "assistant" and (last is None or last["role"] == "system"):
            sent.append({"role": "user", "content": GO_ON})
        sent.append(message)
    if not sent or sent[-1]["role"] in ("assistant", "system"):
        sent.append({"role": "user", "content": GO_ON})
    return sent


def _joined(first: Message, second: Message) -> Message:
    texts = [text for text in (first["content"], second["content"]) if text]
    return {**first, **second, "content": "\n\n".join(texts)}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    description = function.get("description") or function["name"]
    if len(description) > LONGEST_DESCRIPTION:
        description = description[: LONGEST_DESCRIPTION - 4] + " ..."
    parameters = accepted(function["parameters"])
    return {**tool, "function": {**function, "description": description, "parameters": parameters}}
