"""`python -m tests.crash.driver MODULE PLAY RUN`: play the client's part of a run, and print its submissions.

A process of its own, so that it can die like any other. It is then started again from the beginning, as a backend is
that finds its work undone: so each step of a play must be one that can be taken twice.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from brainhands.shared.client import Client
from brainhands.shared.model.approval import AnswerName
from brainhands.shared.model.event import Event
from brainhands.shared.model.submission import Receipt
from brainhands.shared.model.task import Status, Task
from tests.instruments.fleet import wait_until

PATIENCE_SECONDS = 90.0


class Door:
    """What a play does and waits for; every request has an id that is the same when the play begins again.

    `run` names the run: whatever a play leaves in files, mails and gates should carry it.
    """

    def __init__(self, client: Client, run: str) -> None:
        self.client = client
        self.run = run
        self.receipts: list[Receipt] = []

    def submit(self, text: str, *, agent: str = "swift", **options: Any) -> Receipt:
        """Submit an input, under the run's name and its place in the play; `session` and `mode` as the client's."""
        request_id = f"{self.run}/{len(self.receipts)}"
        receipt = self.client.submit(agent=agent, input=text, request_id=request_id, **options)
        self.receipts.append(receipt)
        return receipt

    def script(self, *steps: dict[str, Any], **options: Any) -> Receipt:
        """Submit an input that makes the model play these steps."""
        return self.submit(json.dumps({"script": steps}), **options)

    def call(self, tool: str, *, then: str = "done", **arguments: Any) -> Receipt:
        """Let the model call one tool and answer with `then`; the tool's `key` is the run's name."""
        call = {"name": tool, "arguments": {"key": self.run, **arguments}, "id": f"call_{tool}"}
        return self.script({"calls": [call]}, {"text": then})

    def wait_for_event(self, receipt: Receipt, type: str) -> Event:
        """The first event of this type, once it is there."""

        def found() -> list[Event]:
            return [event for event in self.client.events(receipt.session_id) if event.type == type]

        wait_until(lambda: bool(found()), PATIENCE_SECONDS, f"event {type}")
        return found()[0]

    def wait_for_task(self, receipt: Receipt, kind: str, status: Status) -> None:
        """Until a task of this kind has this status, or has ended: in a play that began again it may be past it."""

        def there(task: Task) -> bool:
            return task.kind == kind and (task.status is status or not task.is_open)

        wait_until(
            lambda: any(there(task) for task in self.client.session(receipt.session_id).tasks),
            PATIENCE_SECONDS,
            f"{kind} {status}",
        )

    def answer(self, receipt: Receipt, answer: AnswerName, **more: Any) -> None:
        """Answer the session's first question; the second time it is a late answer, which changes nothing."""
        asked = json.loads(self.wait_for_event(receipt, "human_approval_requested").payload_text)
        self.client.answer(asked["approval"], answer, **more)

    def approve_with(self, receipt: Receipt, arguments: dict[str, Any], **more: Any) -> None:
        """Approve the session's first question with other arguments, and wait until a worker has looked at them."""
        asked = json.loads(self.wait_for_event(receipt, "human_approval_requested").payload_text)["approval"]
        self._until_looked_at(asked)
        self.client.answer(asked, "approved", arguments=arguments, **more)
        self._until_looked_at(asked)

    def _until_looked_at(self, asked: str) -> None:
        wait_until(lambda: not self.client.approval(asked).is_proposed, PATIENCE_SECONDS, "a look at the arguments")

    def signal(self, receipt: Receipt, name: str, payload: object) -> None:
        """Send a signal with the run's name as its key."""
        self.client.signal(receipt.session_id, name, payload, key=self.run, request_id=f"{self.run}/{name}")

    def cancel(self, receipt: Receipt) -> None:
        self.client.cancel(submission=receipt.submission_id)

    def open_gate(self) -> None:
        """Let the tools go on that wait for the gate of this run."""
        Path(f"{os.environ['SAMPLE_EFFECTS']}.{self.run}").touch()


def main() -> None:
    module, name, run = sys.argv[1:]
    play: Callable[[Door], None] = getattr(importlib.import_module(module), name)
    with closing(Client()) as client:
        door = Door(client, run)
        play(door)
    print(json.dumps([str(receipt.submission_id) for receipt in door.receipts]))


if __name__ == "__main__":
    main()
