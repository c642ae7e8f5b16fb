"""The demo's tools: a flow that plans a notice as one mail for each customer, and the tool that sends one mail.

The mail service is at MAILBOX_URL. What it can do decides what may be done when it is unknown whether a mail was sent,
so the operator says it: MAILBOX_DEDUPES=0 where it accepts one operation id twice, MAILBOX_LOOKUP=0 where it cannot be
asked for an operation.

| dedupes | look-up | replay |
|---|---|---|
| yes | yes | reconcile: look it up, send again if it is not there |
| no | yes | reconcile, but "not there" counts only once nothing sent before can still arrive |
| yes | no | safe: send again, the service drops the second |
| no | no | unsafe: say that it is unknown |
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, EmailStr

from brainhands import Document, Done, Flow, NotFound, Retry, ToolContext, ToolError, Unknown, Wait, phase, tool
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.task import Outcome

DEDUPES = os.environ.get("MAILBOX_DEDUPES", "1") == "1"
LOOKS_UP = os.environ.get("MAILBOX_LOOKUP", "1") == "1"
TIMEOUT_SECONDS = float(os.environ.get("MAILBOX_TIMEOUT_SECONDS", "30"))
SETTLE_SECONDS = float(os.environ.get("MAILBOX_SETTLE_SECONDS", "5"))
"""How long after a request was given up the service may still accept its mail."""


class Receipt(BaseModel):
    """The mail service's word that it has accepted a mail."""

    mail_id: str
    operation_id: str
    to: str
    accepted_at: float


def mail_key(mail: Any) -> str:
    """The same notice to the same customer is one mail, whoever asks for it and however often."""
    text = json.dumps([mail.to, mail.subject, mail.body]).encode()
    return f"{mail.to}:{hashlib.sha256(text).hexdigest()[:16]}"


@tool(
    replay="reconcile" if LOOKS_UP else "safe" if DEDUPES else "unsafe",
    timeout=TIMEOUT_SECONDS,
    settle=SETTLE_SECONDS,
    operation=mail_key,
)
def send_email(ctx: ToolContext, to: EmailStr, subject: str, body: str) -> Receipt:
    """Send one mail."""
    mail = {"operation_id": ctx.operation_id, "to": to, "subject": subject, "body": body}
    try:
        return Receipt.model_validate_json(_ask("/mails", json.dumps(mail).encode()))
    except urllib.error.HTTPError as error:
        if 400 <= error.code < 500:
            raise ToolError(f"the mail service refused the mail: {error.code} {error.reason}") from error
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            raise Retry("the mail service cannot be reached") from error
        raise


def find_email(ctx: ToolContext) -> Receipt | type[NotFound] | type[Unknown]:
    """Ask the mail service for the mail of an operation."""
    try:
        return Receipt.model_validate_json(_ask(f"/operations/{quote(ctx.operation_id, safe='')}"))
    except urllib.error.HTTPError as error:
        return NotFound if error.code == 404 else Unknown


if LOOKS_UP:
    send_email.lookup(dedupes=DEDUPES)(find_email)


def _ask(path: str, body: bytes | None = None) -> bytes:
    """The answer of the mail service; each wait for it is shorter than the tool's own time."""
    if not (url := os.environ.get("MAILBOX_URL")):
        raise ToolError("MAILBOX_URL is not set for this Hands worker, so nothing can be sent")
    request = urllib.request.Request(url + path, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS * 0.8) as answer:
        received: bytes = answer.read()
    return received


class PlannedMail(BaseModel):
    """One mail of a plan with what became of it; `unknown` may have been sent."""

    to: EmailStr
    task: TaskId
    outcome: Literal["planned", "sent", "unknown", "failed"] = "planned"
    detail: str = ""


class MailPlan(Document, kind="mail_plan"):
    """A notice, and the mails that carry it."""

    subject: str
    body: str
    mails: tuple[PlannedMail, ...]


class SendNotices(Flow, name="send_notices", version=1):
    """Send a notice by mail: one mail to each customer, each exactly once. Reports what became of every mail."""

    @phase
    def plan(self, customers: list[EmailStr], subject: str, body: str) -> Wait:
        """One owned task for each mail, and the plan that lists them, in one commit."""
        mails = tuple(
            PlannedMail(to=to, task=self.spawn(send_email, {"to": to, "subject": subject, "body": body}))
            for to in dict.fromkeys(customers)
        )
        self.update(MailPlan, lambda _earlier: MailPlan(subject=subject, body=body, mails=mails))
        tasks = [mail.task for mail in mails]
        return Wait(tasks, phase="report", checkpoint=[mail.model_dump(mode="json") for mail in mails])

    @phase
    def report(self) -> Done:
        """All mails have ended, each in its own way."""
        mails = tuple(self._settled(PlannedMail.model_validate(mail)) for mail in self.checkpoint)
        subject, body = self.input.subject, self.input.body
        self.update(MailPlan, lambda _planned: MailPlan(subject=subject, body=body, mails=mails))
        return Done({mail.to: f"{mail.outcome}: {mail.detail}" if mail.detail else mail.outcome for mail in mails})

    def _settled(self, mail: PlannedMail) -> PlannedMail:
        ended = self.result(mail.task)
        match ended.outcome:
            case Outcome.SUCCEEDED:
                return mail.model_copy(update={"outcome": "sent"})
            case Outcome.INTERRUPTED:
                return mail.model_copy(update={"outcome": "unknown", "detail": ended.error or ""})
            case _:
                return mail.model_copy(update={"outcome": "failed", "detail": ended.error or ""})
