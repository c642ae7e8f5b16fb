"""What an engine can run: task kinds, made of named phases.

A phase is a function from a Run (the claimed task and what it may use) to a Decide, which fills the draft of the step's
commit under the session's lock and returns where the task goes. What touches the outside world happens in the phase;
Decide must be quick and touch nothing, since it may be called again when a commit's connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from shared.model.json import Json
from shared.model.task import Task, Transition
from shared.model.worker import Offer

if TYPE_CHECKING:
    from shared.engine.draft import Draft
    from shared.engine.run import Run

Decide: TypeAlias = "Callable[[Draft], Transition]"


@dataclass(frozen=True, slots=True)
class Step:
    """What a phase came to.

    If the commit is refused, `evidence` is kept in the attempt's row (a late tool result), and `left_behind` fills a
    commit of its own, in the name of nobody (work begun elsewhere that must be stopped there).
    """

    decide: Decide
    evidence: Json = None
    left_behind: Callable[[Draft], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A named entry point of a kind, with its deadline in seconds."""

    run: Callable[[Run], Step]
    seconds: Callable[[Task], float]
    pinned: bool = False
    """The phase only decides: it reads nothing that a claim protects, so it may share the claim's commit."""
    whole_lease: bool = False
    """Nobody may take the phase over, so its lease is its whole deadline."""


PINNED_SECONDS = 60.0


def pinned_phase(run: Callable[[Run], Step]) -> Phase:
    """A phase that only decides."""
    return Phase(run=run, seconds=lambda _task: PINNED_SECONDS, pinned=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A task kind in one version; `first` is the phase that a new task starts in."""

    name: str
    version: int
    first: str
    phases: Mapping[str, Phase]


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """What this process runs, and what it offers for it."""

    kinds: Mapping[tuple[str, int], Kind] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()

    def find(self, task: Task) -> Kind | None:
        """The kind that runs the task, if this process has it and offers what the task requires."""
        if not any(offer.fits(task.requires) for offer in self.offers):
            return None
        return self.kinds.get((task.kind, task.version))

    def concurrency(self, task: Task) -> int | None:
        """How many tasks that require what this one does may run at a time; None: no limit."""
        return next((offer.concurrency for offer in self.offers if offer.fits(task.requires)), None)


def registry(kinds: tuple[Kind, ...], offers: tuple[Offer, ...]) -> Registry:
    return Registry(kinds={(kind.name, kind.version): kind for kind in kinds}, offers=offers)
