"""Where a context that is too long is cut, and what its older part says: pure.

The context is a row of pieces: what an earlier summary left, the user's messages, and rounds (a reply with the results
of its calls). It is cut before a user's message, so that whole turns stay. Only where the last turn alone is more than
half of it, it is cut between two rounds of that turn. A call and its result are one piece and never part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from brainhands.brain import prompt
from brainhands.shared.model.event import (
    REDACTED,
    ContextCompacted,
    ModelOutput,
    RedactedPayload,
    TaskGiven,
    UserMessage,
)

UNANSWERED_CHARACTERS = 8_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What is to be replaced: all up to `upto`."""

    upto: int
    texts: tuple[str, ...]
    """What the older part says, message by message."""
    unanswered: str | None
    """What the user said last, where the cut lies in the middle of the work on it."""

    @property
    def characters(self) -> int:
        """How much is replaced, without what stays word for word."""
        return sum(map(len, self.texts)) - len(self.unanswered or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Piece:
    seq: int
    texts: tuple[str, ...]
    asks: str | None = None
    """What the user said in it, or in what it sums up, and has no answer yet."""
    answers: bool = False
    """It ends what the user asked for before."""
    is_summary: bool = False
    is_round: bool = False
    closed_at: int | None = 0
    """Seq of the last result that its calls needed; None while one is missing."""

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))


def cut(events: Sequence[prompt.ContextEvent]) -> Cut | None:
    """The cut that leaves as many whole turns as make up half of the context, None where it cannot be cut."""
    pieces = _pieces(events)
    places = list(_places(pieces))
    if not places:
        return None
    turns = [place for place in places if pieces[place].asks is not None]
    older_size = list(accumulate(piece.size for piece in pieces))
    half = older_size[-1] / 2
    # The older part in front of a place must be the half at least.
    place = next((place for place in (*turns, *places) if older_size[place - 1] >= half), places[-1])
    older = pieces[:place]
    return Cut(
        upto=pieces[place].seq - 1,
        texts=tuple(text for piece in older for text in piece.texts),
        unanswered=None if pieces[place].asks is not None else _unanswered(older),
    )


def shorten(texts: Sequence[str], room: int) -> list[str]:
    """The texts in `room` characters: the longest are shortened in their middle, the others stay as they are."""
    longest = _longest(sorted(map(len, texts)), room)
    return [text if len(text) <= longest else _without_middle(text, longest) for text in texts]


def _pieces(events: Sequence[prompt.ContextEvent]) -> list[_Piece]:
    compacted = prompt.newest_compaction(events)
    shown, redacted = prompt.result_texts(events), prompt.redacted_results(events)
    results: dict[str, int] = {}
    for event in events:
        if isinstance(event.payload, prompt.Result) and event.payload.call_id is not None:
            results.setdefault(event.payload.call_id, event.seq)
    pieces = []
    if compacted is not None and isinstance(compacted.payload, ContextCompacted):
        summary = compacted.payload
        texts = tuple(filter(None, (f"Summary of what came before: {summary.summary}", summary.unanswered)))
        pieces.append(_Piece(seq=summary.upto, texts=texts, asks=summary.unanswered, is_summary=True))
    for event in events:
        if pieces and compacted is not None and event.seq <= pieces[0].seq:
            continue
        match event.payload:
            case UserMessage(text=text) | TaskGiven(text=text):
                pieces.append(_Piece(seq=event.seq, texts=(f"User: {text}",), asks=text))
            case ModelOutput() as output if prompt.is_shown(output):
                pieces.append(_round(event.seq, output, shown, results, redacted.get(event.seq)))
            case RedactedPayload() if event.type == ModelOutput.event_type:
                pieces.append(_Piece(seq=event.seq, texts=(f"Assistant: {REDACTED}",), is_round=True))
            case RedactedPayload() if event.type in prompt.SPEAKERS:
                pieces.append(_Piece(seq=event.seq, texts=(f"User: {REDACTED}",), asks=REDACTED))
            case _:
                pass
    return pieces


def _round(
    seq: int, output: ModelOutput, shown: dict[str, str], results: dict[str, int], redacted: int | None
) -> _Piece:
    """A reply with its results; `redacted` is the last of them that does not say any more which call it was of."""
    texts = [f"Assistant: {output.text}"] if output.text.strip() else []
    for call in output.calls:
        texts.append(f"Assistant calls {call.name} with {call.arguments}")
        if call.call_id in shown:
            texts.append(f"Result of {call.name}: {shown[call.call_id]}")
    ends = [results.get(call.call_id, redacted) for call in output.calls]
    closed_at = None if None in ends else max([0, *(end for end in ends if end is not None)])
    return _Piece(seq=seq, texts=tuple(texts), answers=not output.calls, is_round=True, closed_at=closed_at)


def _places(pieces: Sequence[_Piece]) -> Iterator[int]:
    """Where something can be replaced, and every call before has its result before."""
    closed_at, rounds = 0, 0
    for place in range(1, len(pieces)):
        before = pieces[place - 1]
        if before.closed_at is None:
            return
        closed_at = max(closed_at, before.closed_at)
        rounds += before.is_round
        replaces = rounds > 0 if pieces[place].is_round else not (place == 1 and before.is_summary)
        if replaces and closed_at < pieces[place].seq:
            yield place


def _unanswered(older: Sequence[_Piece]) -> str | None:
    asked: list[str] = []
    for piece in older:
        if piece.answers:
            asked.clear()
        if piece.asks is not None:
            asked.append(piece.asks)
    text = "\n\n".join(asked)
    if len(text) > UNANSWERED_CHARACTERS:
        text = _without_middle(text, UNANSWERED_CHARACTERS)
    return text or None


def _longest(lengths: Sequence[int], room: int) -> int:
    """How long a text may be, so that all together, the longer ones shortened to it, fit the room."""
    left = room
    for place, length in enumerate(lengths):
        share = left // (len(lengths) - place)
        if length > share:
            return share
        left -= length
    return max(lengths, default=0)


def _without_middle(text: str, longest: int) -> str:
    head, tail = longest - longest // 3, longest // 3
    return f"{text[:head]} [{len(text) - head - tail:,} characters left out] {text[len(text) - tail :]}"
