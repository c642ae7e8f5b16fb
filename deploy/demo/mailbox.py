"""The demo's mail service: accepts mails over HTTP, keeps them on disk, and can be made slow, forgetful or mute.

    POST /mails {operation_id, to, subject, body}   201 and the receipt; 200 and the first receipt for a known operation
    GET  /mails?at_least=N&timeout=SECONDS          {"mails": [...]} in order of acceptance; waits until N are there,
                                                    and answers with fewer when the time is over
    GET  /operations/{operation_id}                 the receipt; 404 if no such mail was accepted; 501 without look-up
    GET  /requests                                  {"requests": [{operation_id, at}, ...]}: each mail asked for
    GET, POST /switches {accept_delay, ...}         the switches now; a POST changes those it names

A mail is on disk before its receipt is sent. It is also accepted when its client leaves before that.
"""

import argparse
import asyncio
import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from tornado.web import Application, HTTPError

from deploy.demo.web import JsonHandler, ThreadedServer, application, serve

Mail = dict[str, Any]

RECEIPT_FIELDS = ("mail_id", "operation_id", "to", "accepted_at")


class Switches(BaseModel, frozen=True, extra="forbid"):
    accept_delay: float = Field(
        default=0.0, ge=0, description="seconds between being asked for a mail and accepting it"
    )
    reply_delay: float = Field(default=0.0, ge=0, description="seconds between accepting a mail and saying so")
    hold_reply: int = Field(
        default=0, ge=0, description="number of the accepted mail that is never answered for; 0 for none"
    )
    dedup: bool = Field(default=True, description="one operation id is accepted once")
    lookup: bool = Field(default=True, description="an operation can be asked for")


class AskedMail(BaseModel, frozen=True, extra="forbid"):
    operation_id: str = Field(min_length=1)
    to: str = Field(min_length=1)
    subject: str
    body: str


class Mailbox:
    """The accepted mails, in memory and in `mails.jsonl` of its folder."""

    def __init__(self, folder: Path, switches: Switches) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.switches = switches
        self.asked: list[dict[str, Any]] = []
        self.mails: list[Mail] = []
        self.by_operation: dict[str, Mail] = {}
        self.arrived = asyncio.Condition()
        self._pending: set[asyncio.Task[tuple[int, Mail]]] = set()
        self._path = folder / "mails.jsonl"
        for mail in _stored(self._path):
            self._remember(mail)

    def ask(self, mail: AskedMail) -> "asyncio.Task[tuple[int, Mail]]":
        """Begin to accept a mail; the task gives status and mail, and ends also when nobody waits for it."""
        self.asked.append({"operation_id": mail.operation_id, "at": time.time()})
        task = asyncio.create_task(self._accept(mail))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    async def _accept(self, mail: AskedMail) -> tuple[int, Mail]:
        await asyncio.sleep(self.switches.accept_delay)
        known = self.by_operation.get(mail.operation_id)
        if known and self.switches.dedup:
            return 200, known
        accepted = {"mail_id": str(uuid.uuid4()), **mail.model_dump(), "accepted_at": time.time()}
        _store(self._path, accepted)
        self._remember(accepted)
        async with self.arrived:
            self.arrived.notify_all()
        return 201, accepted

    def _remember(self, mail: Mail) -> None:
        self.mails.append(mail)
        self.by_operation.setdefault(mail["operation_id"], mail)


def _stored(path: Path) -> list[Mail]:
    """Read what was accepted before, and drop a last line cut short by a crash: no receipt was sent for it."""
    with path.open("a+b") as file:
        file.seek(0)
        lines = file.read()
        whole = lines.rfind(b"\n") + 1
        file.truncate(whole)
    return [json.loads(line) for line in lines[:whole].splitlines()]


def _store(path: Path, mail: Mail) -> None:
    with path.open("ab") as file:
        file.write(json.dumps(mail).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class _Handler(JsonHandler):
    def initialize(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox


class _Mails(_Handler):
    async def post(self) -> None:
        try:
            mail = AskedMail.model_validate(self.body())
        except ValidationError as problem:
            raise HTTPError(400, reason="a mail is operation_id, to, subject and body, all text") from problem
        status, accepted = await self.mailbox.ask(mail)
        if status == 201 and self.mailbox.mails.index(accepted) + 1 == self.mailbox.switches.hold_reply:
            await self.gone.wait()
        await asyncio.sleep(self.mailbox.switches.reply_delay)
        await self.answer(status, _receipt(accepted))

    async def get(self) -> None:
        wanted = int(self.get_query_argument("at_least", "0"))
        timeout = float(self.get_query_argument("timeout", "30"))
        with suppress(TimeoutError):  # the answer shows how many there are
            async with asyncio.timeout(timeout), self.mailbox.arrived:
                await self.mailbox.arrived.wait_for(lambda: len(self.mailbox.mails) >= wanted)
        await self.answer(200, {"mails": self.mailbox.mails})


class _Operation(_Handler):
    async def get(self, operation_id: str) -> None:
        if not self.mailbox.switches.lookup:
            raise HTTPError(501, reason="this mail service has no look-up")
        mail = self.mailbox.by_operation.get(operation_id)
        if mail is None:
            raise HTTPError(404, reason="no mail was accepted for this operation")
        await self.answer(200, _receipt(mail))


class _Requests(_Handler):
    async def get(self) -> None:
        await self.answer(200, {"requests": self.mailbox.asked})


class _Switches(_Handler):
    async def get(self) -> None:
        await self.answer(200, self.mailbox.switches.model_dump())

    async def post(self) -> None:
        try:
            self.mailbox.switches = Switches.model_validate({**self.mailbox.switches.model_dump(), **self.body()})
        except ValidationError as problem:
            raise HTTPError(400, reason="no such switch, or not a value for it") from problem
        await self.get()


def _receipt(mail: Mail) -> dict[str, Any]:
    return {field: mail[field] for field in RECEIPT_FIELDS}


def mailbox_application(folder: Path, switches: Switches) -> Application:
    box = {"mailbox": Mailbox(folder, switches)}
    return application(
        [
            ("/mails", _Mails, box),
            ("/operations/(.+)", _Operation, box),
            ("/requests", _Requests, box),
            ("/switches", _Switches, box),
        ]
    )


def start(folder: Path, switches: Switches | None = None, port: int = 0) -> ThreadedServer:
    """Serve a mailbox on a thread of this process."""
    return ThreadedServer(mailbox_application(folder, switches or Switches()), port)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.mailbox", description="Serve the demo's mailbox.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--folder", type=Path, required=True, help="where mails are kept")
    parser.add_argument("--accept-delay", type=float, default=0.0, metavar="SECONDS", help="accept late")
    parser.add_argument("--reply-delay", type=float, default=0.0, metavar="SECONDS", help="accept, and say so late")
    parser.add_argument("--hold-reply", type=int, default=0, metavar="N", help="accept the N-th mail and never say so")
    parser.add_argument("--no-dedup", dest="dedup", action="store_false", help="accept an operation id again")
    parser.add_argument("--no-lookup", dest="lookup", action="store_false", help="do not answer for an operation")
    options = vars(parser.parse_args())
    port, folder = options.pop("port"), options.pop("folder")
    serve(mailbox_application(folder, Switches(**options)), port)


if __name__ == "__main__":
    main()
