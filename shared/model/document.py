"""Documents: typed, versioned JSON state of a session that later phases read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from shared.errors import BadDefinition
from shared.model.ids import SessionId
from shared.model.json import Json


class Document(BaseModel):
    """Base of an application's document kinds.

    A subclass names itself: `class MailPlan(Document, kind="mail_plan", schema_version=1)`. Values are frozen; a change
    is a pure function from the present value to the next.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, *, kind: str = "", schema_version: int = 1, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if not kind:
            next_step = f'write class {cls.__name__}(Document, kind="...")'
            raise BadDefinition(f"document {cls.__name__} has no kind", next_step)
        cls.kind = kind
        cls.schema_version = schema_version


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDocument:
    """One version of a document; `seq` is the last event of the commit that wrote it."""

    session_id: SessionId
    name: str
    version: int
    kind: str
    schema_version: int
    value: Json
    seq: int
