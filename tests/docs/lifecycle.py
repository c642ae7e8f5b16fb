"""Draws the life of a task from the move table, as Mermaid text: `python -m tests.docs.lifecycle`."""

from __future__ import annotations

from brainhands.shared.model.task import Status
from brainhands.shared.rules.moves import TASK_MOVES, Move


def diagram() -> str:
    """The state diagram of TASK_MOVES, one arrow for all moves between two statuses."""
    arrows: dict[tuple[Status, Status], list[Move]] = {}
    for (before, move), after in TASK_MOVES.items():
        arrows.setdefault((before, after), []).append(move)
    lines = [f"    {before} --> {after}: {', '.join(moves)}" for (before, after), moves in arrows.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> pending", *lines, "    done --> [*]", ""])


if __name__ == "__main__":
    print(diagram(), end="")
