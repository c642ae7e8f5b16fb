"""The Responses API as the demo's model server speaks it: requests as the scripts read them, replies as responses."""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deploy.demo.model_scripts import Call, Fault, Message, Reply, Request

PENDING = ("queued", "in_progress")
NAMES = {"prompt": "input", "completion": "output"}
"""What the two halves of a count of tokens are called for chat completions, and here."""
DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}


@dataclass(kw_only=True)
class Stored:
    """A response under way or ended; `left` is what the next looks at it show before it has ended."""

    body: Request
    reply: Reply
    usage: dict[str, Any] | None
    left: list[str]
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(24)}")
    created_at: float = field(default_factory=time.time)
    looks: int = 0
    cancels: int = 0
    ended: bool = False
    cancelled: bool = False

    def created(self) -> dict[str, Any]:
        """Return it as the creating request is answered: in the background it is queued."""
        return self.shown("queued" if self.body.get("background") else None)

    def shown(self, status: str | None) -> dict[str, Any]:
        """Return it in a status in which it is still worked on; None: as it ends."""
        if self.cancelled:
            return self._response("cancelled")
        if status is not None or self.reply.fault is Fault.STUCK:
            return self._response(status or "in_progress")
        self.ended = True
        return self._response(self._end())

    def cancel(self) -> dict[str, Any]:
        """Stop it, unless it has ended, and return it."""
        self.cancelled = self.cancelled or not self.ended
        return self.shown(None)

    def counts(self) -> dict[str, Any]:
        return {"id": self.id, "body": self.body, "looks": self.looks, "cancels": self.cancels}

    def _end(self) -> str:
        if self.reply.fault in (Fault.FAILED, Fault.CANCELLED, Fault.EXPIRED):
            return self.reply.fault.value
        return "completed" if self.reply.finish_reason in (None, "stop", "tool_calls") else "incomplete"

    def _response(self, status: str) -> dict[str, Any]:
        said = status in ("completed", "incomplete")
        failed = status == "failed"
        reason = {"length": "max_output_tokens"}.get(self.reply.finish_reason or "", self.reply.finish_reason)
        asked = self.body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": bool(asked.get("background")),
            "error": {"code": self.reply.error_code, "message": "The model failed."} if failed else None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "metadata": asked.get("metadata") or {},
            "model": asked.get("model", ""),
            "output": list(_output(self.reply, asked)) if said else [],
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": asked.get("store", True),
            "temperature": asked.get("temperature", 1.0),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": _usage(self.usage) if said else None,
        }


def as_chat(request: Request) -> Request:
    """Return the request with messages and tools as chat completions have them; raises ValueError."""
    if request.get("background") and request.get("store") is False:
        raise ValueError("A response in the background must be stored.")
    given = request.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise ValueError("No input.")
    messages: list[Message] = []
    if instructions := request.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item["role"], "content": item["content"]})
            case "function_call":
                _said_before(messages)["tool_calls"].append(_chat_call(item))
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            case other:
                raise ValueError(f"input[{place}] has the unknown type {other!r}.")
    chat = {"model": request.get("model", ""), "messages": messages}
    return chat | ({"tools": [_chat_tool(tool) for tool in request["tools"]]} if request.get("tools") else {})


def _said_before(messages: list[Message]) -> Message:
    """Return the assistant's message that a call belongs to: the last one, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _chat_call(item: dict[str, Any]) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function" or not tool.get("name"):
        raise ValueError("Missing required parameter: 'tools[].name'.")
    return {"type": "function", "function": {"name": tool["name"], "parameters": tool.get("parameters")}}


def _output(reply: Reply, asked: Request) -> Iterator[dict[str, Any]]:
    yield {"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "summary": []}
    content: list[dict[str, Any]] = []
    if reply.text:
        likely = "message.output_text.logprobs" in (asked.get("include") or ())
        logprobs = [{"token": reply.text, "logprob": -0.693, "bytes": [], "top_logprobs": []}] if likely else []
        content.append({"type": "output_text", "text": reply.text, "annotations": [], "logprobs": logprobs})
    if reply.refusal:
        content.append({"type": "refusal", "refusal": reply.refusal})
    if content:
        head = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant", "status": "completed"}
        yield {**head, "content": content}
    yield from (_call(call) for call in reply.calls)


def _call(call: Call) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{secrets.token_hex(12)}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments_text,
        "status": "completed",
    }


def _usage(counted: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a count of tokens under the names that it has here."""
    text = json.dumps(counted)
    for chat_name, name in NAMES.items():
        text = text.replace(f'"{chat_name}_', f'"{name}_')
    usage: dict[str, Any] | None = json.loads(text)
    return None if usage is None else DETAILS | usage
