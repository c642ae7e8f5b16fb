"""What the demo's model server says: pure functions from a chat request to the reply to play.

`converse` is the script of every model name that has no script of its own. It looks at nothing but the messages since
the last one of the user, so an equal request gets an equal reply:

- text with `{"script": [step, ...]}` in it: the n-th request since that message plays step n (fields of `Reply`);
- `echo X`, with a tool `echo` offered: calls `echo(text=X)`, then answers with the tool's result;
- any text, with a tool `send_notices` offered: calls it once, then answers with its report;
- otherwise the text is said back.

A message that an answer was not taken counts as no message of the user's: the script goes on.

A model called `window-N` refuses messages of more than N characters. Asked for a summary, each of them gives a short
one, or plays the step of the last `{"summary": step}` in the text to be summarised.
"""

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Request = dict[str, Any]
Message = dict[str, Any]

CUSTOMERS = [f"customer-{number}@example.com" for number in range(1, 6)]
SUBJECT = "A notice for our customers"
WINDOW = re.compile(r"window-([0-9]+)")
ASKS_FOR_SUMMARY = "Answer with the summary alone."
NOT_TAKEN = "Your answer was not taken; "
BODY = "Our opening hours change: from next month we open at nine."


class Fault(StrEnum):
    UNAUTHORIZED = "401"
    RATE_LIMIT = "429"
    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "400"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    CUT = "cut"  # `chunks` chunks, then the connection is closed
    HANG = "hang"  # `chunks` chunks, then nothing, until the client leaves
    TRUNCATED = "truncated"  # ends in order, without finish reason
    EMPTY = "empty"
    CONTENT_FILTER = "content_filter"
    LENGTH = "length"
    # Of the Responses API, where CUT and HANG concern the creating request: the response is there all the same.
    NOT_FOUND = "404"
    FORGOTTEN = "forgotten"  # accepted, and then nobody knows it
    STUCK = "stuck"  # in progress until it is cancelled
    FAILED = "failed"  # ends so, with `error_code`
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class Call:
    name: str
    arguments: Any = ""
    """Text is sent as it is, well formed or not; any other value as JSON."""
    id: str | None = field(default_factory=lambda: secrets.token_hex(5)[:9])

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str = ""
    calls: tuple[Call, ...] = ()
    refusal: str | None = None
    finish_reason: str | None = None
    """None: `tool_calls` with calls, else `stop`."""
    usage: dict[str, Any] | str | None = "counted"
    """`counted`: an estimate from the sizes; None: no usage is reported."""
    delay: float = 0.0
    """Seconds before the first byte."""
    chunk_delay: float = 0.0
    """Seconds before each chunk of a stream."""
    fault: Fault | None = None
    times: int | None = None
    """How many equal requests meet the fault before the rest of the reply is played; None: all."""
    retry_after: float | None = None
    chunks: int = 0
    looks: tuple[str, ...] = ()
    """What each look at a background response shows before it has ended: `queued`, `in_progress`, or a fault."""
    error_code: str = "server_error"


Script = Callable[[Request], Reply]
SCRIPT = re.compile(r'\{\s*"script"')


def converse(request: Request) -> Reply:
    """Return the reply of the built-in script; raises ValueError for a script step that makes no sense."""
    window = WINDOW.fullmatch(request.get("model", ""))
    if window and len(json.dumps(request["messages"], ensure_ascii=False)) > int(window[1]):
        return Reply(fault=Fault.CONTEXT_LENGTH)
    text, answered, results = _since_last_user(request["messages"])
    if ASKS_FOR_SUMMARY in _text(request["messages"][0].get("content") or ""):
        return _summary(text)
    offered = {tool["function"]["name"] for tool in request.get("tools") or []}
    if (steps := _steps(text)) is not None:
        return reply_of(steps[answered]) if answered < len(steps) else Reply(text="The script has no further step.")
    if text.startswith("echo ") and "echo" in offered:
        return Reply(text=results[-1]) if results else _call("echo", text=text.removeprefix("echo "))
    if "send_notices" in offered:
        return Reply(text=f"The notices are done: {results[-1][:500]}") if results else _send_notices(text)
    return Reply(text=f"You said: {text}")


def reply_of(step: dict[str, Any]) -> Reply:
    """Read one step of a script; raises ValueError if it is not made of the fields of `Reply`."""
    try:
        fields = {
            **step,
            "calls": tuple(Call(**call) for call in step.get("calls", ())),
            "fault": Fault(step["fault"]) if "fault" in step else None,
            "looks": tuple(step.get("looks", ())),
        }
        return Reply(**fields)
    except TypeError as problem:
        raise ValueError(f"not a step: {problem}") from problem


def _since_last_user(messages: list[Message]) -> tuple[str, int, list[str]]:
    """Return the last user message's text, the replies given since, and the tool results received since."""
    said = [place for place, message in enumerate(messages) if message["role"] == "user"]
    last = max((place for place in said if not _text(messages[place]["content"]).startswith(NOT_TAKEN)), default=-1)
    since = messages[last + 1 :]
    text = _text(messages[last]["content"]) if last >= 0 else ""
    answered = sum(message["role"] == "assistant" for message in since)
    return text, answered, [_text(message["content"]) for message in since if message["role"] == "tool"]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _steps(text: str) -> list[dict[str, Any]] | None:
    """The last script of the text, which may be several messages that were joined."""
    steps, place = None, 0
    while brace := SCRIPT.search(text, place):
        try:
            value, place = json.JSONDecoder().raw_decode(text, brace.start())
        except ValueError as problem:
            raise ValueError(f"the script is not JSON: {problem}") from problem
        if isinstance(value["script"], list):
            steps = value["script"]
    return steps


def _summary(text: str) -> Reply:
    for brace in reversed(list(re.finditer(r'\{\s*"summary"', text))):
        value, _ = json.JSONDecoder().raw_decode(text, brace.start())
        return reply_of(value["summary"])
    return Reply(text=f"They exchanged {len(text)} characters.")


def _call(name: str, **arguments: Any) -> Reply:
    return Reply(calls=(Call(name=name, arguments=arguments),))


def _send_notices(text: str) -> Reply:
    quoted = re.search(r'"([^"]+)"', text)
    addresses = re.findall(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", text)
    return _call(
        "send_notices",
        subject=SUBJECT,
        body=quoted[1] if quoted else BODY,
        customers=list(dict.fromkeys(addresses)) or CUSTOMERS,
    )
