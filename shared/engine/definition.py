"""What an engine can run: task kinds, made of named phases.

A phase is a function from a Run (the claimed task and what it may use) to a Decide, which fills the draft of the step's
commit under the session's lock and returns where the task goes. What touches the outside world happens in the phase;
Decide must be quick and touch nothing, since it may be called again when a commit's connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from brainhands.shared.engine.draft import Decide as Decide
from brainhands.shared.engine.draft import Draft
from brainhands.shared.engine.run import Run
from brainhands.shared.errors import Incompatible
from brainhands.shared.model import edge
from brainhands.shared.model.json import Json
from brainhands.shared.model.task import Requirement, Task
from brainhands.shared.model.worker import Offer


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What a phase came to.

    If the commit is refused, `evidence` is kept in the attempt's row (a late tool result), and `left_behind` fills a
    commit of its own, in the name of nobody (work begun elsewhere that must be stopped there). If the commit fails for
    its content, `instead` is committed: the same outcome with the least content, for an effect that has happened.
    """

    decide: Decide
    instead: Decide | None = None
    evidence: Json = None
    left_behind: Callable[[Draft], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A named entry point of a kind, with its deadline in seconds."""

    run: Callable[[Run], PhaseResult]
    seconds: Callable[[Task], float]
    only_decides: bool = False
    """It reads nothing that a claim protects, so it may share the claim's commit."""
    whole_lease: bool = False
    """Nobody may take the phase over, so its lease is its whole deadline."""


DECIDING_SECONDS = 60.0


def deciding_phase(run: Callable[[Run], PhaseResult]) -> Phase:
    """A phase that only decides."""
    return Phase(run=run, seconds=lambda _task: DECIDING_SECONDS, only_decides=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A task kind in one version."""

    name: str
    version: int
    phases: Mapping[str, Phase]
    oldest: int | None = None
    """The oldest version whose stored tasks this one can go on with; None: only its own."""
    migrate: Callable[[Task], Task] | None = None
    """Gives input, phase and checkpoint of an older task in the form of this version; None where they are the same."""

    @property
    def versions(self) -> range:
        return range(self.oldest or self.version, self.version + 1)

    def read(self, task: Task) -> Task:
        """A stored task in the form of this version, which is stored by its next commit and not before.

        Raises Incompatible if it cannot be read.
        """
        if task.version < self.version:
            try:
                migrated = task if self.migrate is None else edge.call(self.migrate, task)
            except edge.ForeignError as error:
                raise Incompatible(
                    f"its state of version {task.version} cannot be made one of version {self.version}: {error}"
                ) from error
            # What a task requires is its own kind, or an agent, which has versions of its own.
            own = task.requires.name == self.name
            requires = Requirement(name=self.name, version=self.version) if own else task.requires
            task = replace(migrated, version=self.version, requires=requires)
        if task.phase not in self.phases:
            raise Incompatible(f"{self.name}@{self.version} has no phase {task.phase!r}")
        return task


@dataclass(frozen=True, kw_only=True, slots=True)
class Registry:
    """What this process runs, and what it offers for it."""

    kinds: Mapping[tuple[str, int], Kind] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()

    def kind(self, task: Task) -> Kind:
        """The kind that runs the task. Raises Incompatible: an agent that is offered says nothing of kinds."""
        kind = self.kinds.get((task.kind, task.version))
        if kind is None:
            raise Incompatible(f"{task.kind}@{task.version} is not known")
        return kind

    def concurrency(self, task: Task) -> int | None:
        """How many tasks that require what this one does may run at a time; None: no limit."""
        return next((offer.concurrency for offer in self.offers if offer.name == task.requires.name), None)


def registry(kinds: tuple[Kind, ...], offers: tuple[Offer, ...]) -> Registry:
    """Where two kinds can run a version, it is the one of that version, else the older one."""
    newest_first = sorted(kinds, key=lambda kind: kind.version, reverse=True)
    older = {(kind.name, version): kind for kind in newest_first for version in kind.versions}
    return Registry(kinds={**older, **{(kind.name, kind.version): kind for kind in kinds}}, offers=offers)
