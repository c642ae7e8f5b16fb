"""What the sessions of a soak do: random shapes, made of a seed, that say of themselves what may come of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

Twist = Literal["plain", "follow-ups", "steer", "cancel"]

TWISTS: dict[Twist, int] = {"plain": 4, "follow-ups": 3, "steer": 2, "cancel": 3}
POSTS = ("post_once", "post_often", "post_findable", "post_late", "post_if_allowed", "post_at_length")
ONCE = ("post_once", "post_findable", "post_late", "post_if_allowed")
"""Tools whose effect is there once at most, whatever happens; the others repeat one operation."""
SLOW = ("post_once", "post_often", "post_findable", "post_late")
"""Tools that can take a time, so that faults meet them before and after their effect."""
FLOWS = ("errand", "venture", "drift")
FAULTS: tuple[dict[str, Any], ...] = (
    {"fault": "429", "retry_after": 0.3, "times": 1},
    {"fault": "503", "times": 1},
    {"fault": "cut", "chunks": 1, "times": 1},
)
DENIED_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a tool, by the model or by a flow of the model's; its key is its own in the whole soak."""

    tool: str
    key: str
    denied: bool = False
    """What the person says who is asked about it."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One submission: when it is made, in seconds after its session's first, what the model plays, what comes of it."""

    key: str
    after: float
    mode: Literal["follow_up", "steer"]
    steps: tuple[dict[str, Any], ...]
    answer: str
    calls: tuple[Call, ...]
    signals: tuple[tuple[str, float], ...]
    """Keys of the signal `go`, and seconds after the submission at which it is sent: before anybody waits, or after."""
    gates: tuple[tuple[str, float], ...]
    """Keys of lingering tools, and when they may end."""
    cancel_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A session; `at` is when it begins, in seconds of the soak."""

    at: float
    twist: Twist
    inputs: tuple[Input, ...]


def shape(chance: random.Random, name: str, at: float) -> Shape:
    (twist,) = chance.choices(list(TWISTS), list(TWISTS.values()))
    first = _input(chance, f"{name}-0", cancel_after=chance.uniform(0, 6) if twist == "cancel" else None)
    more: list[Input] = []
    match twist:
        case "follow-ups":
            more = [_input(chance, f"{name}-{n}", after=chance.uniform(0, 5)) for n in range(1, chance.randint(2, 3))]
        case "steer":
            more = [_steer(f"{name}-1", after=chance.uniform(0, 3))]
        case "cancel":
            more = [_input(chance, f"{name}-1", after=chance.uniform(0, 8))]
        case "plain":
            pass
    return Shape(at=at, twist=twist, inputs=(first, *sorted(more, key=lambda each: each.after)))


def _steer(key: str, after: float) -> Input:
    """A word thrown in, which is all that the model says from then on."""
    answer = f"{key} is steered"
    steps = ({"text": answer},)
    return Input(key=key, after=after, mode="steer", steps=steps, answer=answer, calls=(), signals=(), gates=())


def _input(chance: random.Random, key: str, *, after: float = 0.0, cancel_after: float | None = None) -> Input:
    steps: list[dict[str, Any]] = []
    calls: list[Call] = []
    signals: list[tuple[str, float]] = []
    gates: list[tuple[str, float]] = []
    for round in range(chance.randint(1, 3)):
        wanted: list[dict[str, Any]] = []
        for place in range(chance.randint(1, 3)):
            own = f"{key}.{round}{place}"
            arguments: dict[str, Any] = {"key": own}
            if chance.random() < 0.65:
                call = _post(chance, chance.choice(POSTS), own)
                if call.tool in SLOW:
                    arguments["seconds"] = chance.choice((0.2, 0.7, 1.4))
            else:
                call = Call(tool=chance.choice(FLOWS), key=own)
            if call.tool == "errand":
                children = [_post(chance, chance.choice(POSTS), f"{own}.{n}") for n in range(chance.randint(1, 3))]
                calls += children
                arguments |= {"tools": [child.tool for child in children], "listen": chance.random() < 0.4}
                arguments["nap"] = chance.choice((0.0, 0.3, 1.5))
            if call.tool == "venture" or arguments.get("listen"):
                signals.append((own, chance.uniform(0, 6)))
            if call.tool == "drift":
                gates.append((own, chance.uniform(0, 6)))
            calls.append(call)
            wanted.append({"name": call.tool, "arguments": arguments, "id": f"call_{own}"})
        steps.append({"calls": wanted, **_fault(chance)})
    answer = f"{key} is done"
    steps.append({"text": answer, **_fault(chance)})
    return Input(
        key=key,
        after=after,
        mode="follow_up",
        steps=tuple(steps),
        answer=answer,
        calls=tuple(calls),
        signals=tuple(signals),
        gates=tuple(gates),
        cancel_after=cancel_after,
    )


def _post(chance: random.Random, tool: str, key: str) -> Call:
    return Call(tool=tool, key=key, denied=tool == "post_if_allowed" and chance.random() < DENIED_SHARE)


def _fault(chance: random.Random) -> dict[str, Any]:
    """Now and then the provider fails first; now and then it is slow."""
    if chance.random() < 0.15:
        return chance.choice(FAULTS)
    return {"chunk_delay": 0.1} if chance.random() < 0.2 else {}
