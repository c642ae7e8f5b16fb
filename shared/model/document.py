"""Documents: typed, versioned JSON state of a session that later phases read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from brainhands.shared.errors import BadDefinition, Incompatible
from brainhands.shared.model import edge
from brainhands.shared.model.bounds import check_count
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.json import Json, clean_text, duplicate

MAX_KIND = 200
RESERVED = frozenset({"agent_settings", "inbox", "live", "usage"})
"""Documents that every session has: views of its rows, which nobody writes."""

Migration: TypeAlias = Callable[[Any], Json]
"""A pure function from a stored value of one schema version to that of the next."""


class Document(BaseModel):
    """Base of an application's document kinds.

    A subclass names itself: `class MailPlan(Document, kind="mail_plan", schema_version=2, migrations={1: add_state})`.
    `migrations` has for each older schema version that can still be read the step to the next one. Values are frozen; a
    change is a pure function from the present value to the next. Raises BadDefinition.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1
    migrations: ClassVar[Mapping[int, Migration]] = {}
    derived: ClassVar[bool] = False
    """Whether this is a view of rows, which nobody writes."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        kind: str = "",
        schema_version: int = 1,
        migrations: Mapping[int, Migration] | None = None,
        derived: bool = False,
        **options: Any,
    ) -> None:
        super().__pydantic_init_subclass__(**options)
        if not kind:
            next_step = f'write class {cls.__name__}(Document, kind="...")'
            raise BadDefinition(f"document {cls.__name__} has no kind", next_step)
        if (kind in RESERVED) is not derived:
            raise BadDefinition(f"document {cls.__name__} cannot be of kind {kind!r}", "choose another kind")
        if len(kind) > MAX_KIND or clean_text(kind) != kind:
            raise BadDefinition(
                f"document {cls.__name__} cannot be of kind {kind[:20]!r}...",
                f"give {MAX_KIND} plain characters at most",
            )
        cls.kind = kind
        cls.schema_version = schema_version
        cls.migrations = dict(sorted((migrations or {}).items()))
        cls.derived = derived
        _check_chain(cls)

    @classmethod
    def read(cls, stored: StoredDocument) -> Self:
        """A stored version as this class has it, an older one through its migrations; what is stored stays as it is.

        Raises Incompatible, with the reason, if this class cannot read it.
        """
        what = f"document {stored.name!r} is stored with schema version {stored.schema_version}"
        if stored.schema_version > cls.schema_version:
            raise Incompatible(f"{what}, and this code reads {cls.schema_version} at most", NEWER)
        if stored.schema_version < min(cls.migrations, default=cls.schema_version):
            raise Incompatible(f"{what}, from which no migration of {cls.__name__} leads on", MIGRATE)
        value = stored.value
        if stored.schema_version < cls.schema_version:
            value = duplicate(value)
        for version in range(stored.schema_version, cls.schema_version):
            try:
                value = edge.call(cls.migrations[version], value)
            except edge.ForeignError as error:
                raise Incompatible(f"{what}, and the migration from {version} fails: {error}", MIGRATE) from error
        try:
            return edge.call(cls.model_validate, value, words=(ValidationError,))
        except (ValidationError, edge.ForeignError) as error:
            problem = _one_line(error) if isinstance(error, ValidationError) else error
            raise Incompatible(f"{what}, and does not fit {cls.__name__}: {problem}", MIGRATE) from error


NEWER = "run a worker that reads it"
MIGRATE = "raise the schema version of the class, and give it the migrations that lead there"


def _check_chain(document: type[Document]) -> None:
    """One step from each version to the next, without a gap, up to the present one."""
    check_count("schema version", document.schema_version, f"document {document.__name__}")
    steps = list(document.migrations)
    if steps != list(range(max(1, document.schema_version - len(steps)), document.schema_version)):
        raise BadDefinition(
            f"document {document.__name__} has migrations from {', '.join(map(str, steps))}, which do not lead"
            f" to schema version {document.schema_version} without a gap",
            "give one for each version from the oldest that is stored to the present one",
        )


def _one_line(invalid: ValidationError) -> str:
    problems = invalid.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)[:500]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDocument:
    """One version of a document, as it was stored; `seq` is the last event of the commit that wrote it."""

    session_id: SessionId
    name: str
    version: int
    """From 1 without gaps; 0 for a view of rows, which has no versions."""
    kind: str
    schema_version: int
    value: Json
    seq: int
    delta: Json = None
    """The change to the version before, where the row holds that; None where it holds the whole value."""
    deltas: int = 0
    """How many changes lead here from the last version that is stored whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentVersion:
    """One entry in a document's history; `change` is a list of edits to the version before (see kernel/delta.py)."""

    name: str
    version: int
    kind: str
    schema_version: int
    seq: int
    at: datetime | None
    """When it was committed; None if its event is stored with another session."""
    change: Json
