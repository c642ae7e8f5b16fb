"""Reading a session's documents from the command line: what there is, one of them, and how it came to be."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from brainhands.shared.cli.door import open_client
from brainhands.shared.cli.submit import AsJson
from brainhands.shared.cli.terminal import one_line, say, say_json, width
from brainhands.shared.client import Client
from brainhands.shared.errors import BadInput
from brainhands.shared.model import wire
from brainhands.shared.model.document import RESERVED, DocumentVersion


def document(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    name: Annotated[str | None, typer.Argument(help="The document; without it, all are listed.")] = None,
    version: Annotated[int | None, typer.Option(min=1, help="This version of it.")] = None,
    at: Annotated[int | None, typer.Option(min=0, help="As it was when the event of this seq was committed.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Each version with its change to the one before.")] = False,
    json: AsJson = False,
) -> None:
    """Show a document of a session as it is stored, now or as it was; without a name, list what documents it has."""
    if name is None and (history or version is not None):
        raise BadInput("name the document whose versions you want")
    if history and (version is not None or at is not None):
        raise BadInput("--history shows all versions; leave --version and --at away")
    with open_client() as client:
        if name is None:
            _list(client, session, at, json)
        elif history:
            _print_history(client.document_history(session, name), json)
        else:
            found = client.document(session, name, version=version, at=at)
            if json:
                say_json(wire.document(found))
            else:
                say(dumps(found.value, ensure_ascii=False, indent=2))


def _list(client: Client, session: str, at: int | None, json: bool) -> None:
    """The documents that were written; the views, which every session has, by name only."""
    found = client.documents(session, at=at)
    if json:
        say_json([wire.document(each) for each in found])
        return
    for each in found:
        size = f"{len(dumps(each.value, ensure_ascii=False)):>9,} characters"
        say(f"{one_line(each.name, 40):<40} version {each.version:<6} event {each.seq:<8} {size}")
    if at is None:
        say(f"views: {', '.join(sorted(RESERVED))}")


def _print_history(versions: list[DocumentVersion], json: bool) -> None:
    if json:
        say_json([wire.document_version(each) for each in versions])
        return
    for each in versions:
        when = "" if each.at is None else each.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        head = f"{each.version:>5}  event {each.seq:<7} {when:<19}  "
        say(head + one_line(dumps(each.change, ensure_ascii=False), max(20, width() - len(head))))
