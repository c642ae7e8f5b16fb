"""Documents of a session, changed by its commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brainhands.shared.engine.draft import Draft
from brainhands.shared.model.document import StoredDocument
from brainhands.shared.model.json import Json, clean, duplicate
from brainhands.shared.rules import delta


def change(
    draft: Draft, name: str, kind: str, schema_version: int, make: Callable[[StoredDocument | None], Json]
) -> None:
    """Write a document's next version, computed from the one that stands under the lock.

    Several changes in one commit make one version, whose seq is that of the commit's last event.
    """
    before, present = draft.documents.get(name) or (draft.locked.document(name),) * 2
    # Whatever is done to its copy, the delta is made from the value as it was stored.
    shown = None if present is None else replace(present, value=duplicate(present.value))
    after = StoredDocument(
        session_id=draft.session.id,
        name=name,
        version=1 if before is None else before.version + 1,
        kind=kind,
        schema_version=schema_version,
        value=clean(make(shown)),
        seq=0,
    )
    draft.documents[name] = (before, after)


def versions(draft: Draft) -> list[StoredDocument]:
    """The documents' next versions, as changes of the ones before where that is shorter."""
    return [
        delta.next_version(before, replace(after, seq=draft.session.last_seq))
        for before, after in draft.documents.values()
    ]
