"""`make demo`: five mails, and Hands killed in the worst moment; exit status 0 only if exactly five arrived.

    the mailbox accepts the fourth mail and holds its reply  ->  kill -9 of the Hands worker and all that it started
    `brainhands up` starts another  ->  the fourth is found by its operation id, the fifth is sent

One Hands process at a time and a lease of three seconds. The mailbox and, unless OPENAI_API_KEY is set, the model are
servers of this process; everything else is `brainhands up`, on DATABASE_URL and REDIS_URL or on servers of its own.
Whatever this process starts ends with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from brainhands import Client
from brainhands.shared.local.servers import GUARD
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.submission import Submission
from brainhands.shared.model.task import Outcome
from deploy.demo import mailbox, model_server
from deploy.demo.model_scripts import BODY, CUSTOMERS
from deploy.demo.show import Mail, Story, print_mails, print_timeline

INPUT = f'Send this notice to these five customers, {", ".join(CUSTOMERS)}: "{BODY}"'
HELD_MAIL = 4
PATIENCE_SECONDS = 120
STOP_SECONDS = 60


def main() -> int:
    """Run the demo and return its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    story = Story()
    with ExitStack() as running:
        folder = running.enter_context(_folder())
        box = running.enter_context(mailbox.start(folder / "mailbox", mailbox.Switches(hold_reply=HELD_MAIL)))
        os.environ.update(_settings(folder, box.url))
        if not os.environ.get("OPENAI_API_KEY"):
            model = running.enter_context(model_server.start())
            os.environ.update(OPENAI_API_KEY="demo", OPENAI_BASE_URL=f"{model.url}/v1", BRAINHANDS_MODEL="demo")
        story.tell("demo", "starting Postgres, Redis, relay, Brain and Hands")
        up = running.enter_context(_everything(folder / "log"))
        client = Client()
        running.callback(client.close)
        receipt = client.submit(agent="notices", input=INPUT)
        story.tell("demo", INPUT)
        follower = threading.Thread(target=_follow, args=(client, receipt.session_id, story), daemon=True)
        follower.start()
        _kill_hands_in_the_worst_moment(up, box.url, story)
        done = client.wait(receipt.submission_id, timeout=PATIENCE_SECONDS)
        follower.join(PATIENCE_SECONDS)
        mails = _mails(box.url)
        print_timeline(client.events(receipt.session_id))
        print_mails(mails)
        problems = list(_problems(mails, done))
        for problem in problems:
            story.tell("demo", problem, "bold red")
        if not problems:
            story.tell("demo", "exactly five mails arrived, one for each customer", "bold green")
        return 1 if problems else 0


def _settings(folder: Path, mailbox_url: str) -> Mapping[str, str]:
    """What the parts are started with; BRAINHANDS_HOME is kept where it is set."""
    return {
        "BRAINHANDS_HOME": os.environ.get("BRAINHANDS_HOME") or str(folder / "home"),
        "BRAINHANDS_LEASE_SECONDS": "3",
        "MAILBOX_URL": mailbox_url,
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for this run, which the account of an embedded Postgres can reach too."""
    folder = Path(tempfile.mkdtemp(prefix="brainhands-demo-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _everything(log: Path) -> Iterator[int]:
    """Run `brainhands up` until the context is left; gives its process id once every part is registered."""
    command = [
        *(sys.executable, "-m", "brainhands.shared.cli.main", "up", "--no-flower", "--hands-concurrency", "1"),
        *("--agents", "deploy.demo.agents", "--tools", "deploy.demo.tools"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    # Where this process dies without a word, the pipe ends and the guard ends `up` for it.
    guard = subprocess.Popen(
        ["/bin/sh", "-c", GUARD, "TERM", str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        _wait_until_ready(process, log)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        guard.kill()
        guard.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while "ready:" not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > give_up:
            sys.exit(f"the parts did not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


def _follow(client: Client, session: SessionId, story: Story) -> None:
    for event in client.watch(session):
        story.tell_event(event)
        if event.type == "submission_done":
            return


def _kill_hands_in_the_worst_moment(up: int, mailbox_url: str, story: Story) -> None:
    """SIGKILL for the Hands worker and its children while the fourth mail is accepted and not recorded."""
    if len(_mails(mailbox_url, at_least=HELD_MAIL)) < HELD_MAIL:
        return
    story.tell("mailbox", "the fourth mail is accepted, and its reply is held back: nobody knows yet", "bold yellow")
    (hands,) = _hands(up)
    killed = [hands, *hands.children(recursive=True)]
    for process in killed:
        process.kill()
    story.tell("demo", f"kill -9 of Hands: processes {', '.join(str(each.pid) for each in killed)}", "bold red")
    while not (others := [each.pid for each in _hands(up) if each != hands]):
        time.sleep(0.1)
    story.tell("up", f"starts another Hands: process {others[0]}")


def _hands(up: int) -> list[psutil.Process]:
    """The Hands workers that `up` runs now; one that has just ended cannot be asked what it was."""
    found = []
    for child in psutil.Process(up).children():
        with suppress(psutil.NoSuchProcess):
            if "brainhands.hands.app" in child.cmdline():
                found.append(child)
    return found


def _mails(mailbox_url: str, at_least: int = 0) -> list[Mail]:
    """The accepted mails, once there are so many; fewer when the time is over."""
    query = f"/mails?at_least={at_least}&timeout={PATIENCE_SECONDS}"
    with urllib.request.urlopen(mailbox_url + query, timeout=PATIENCE_SECONDS + 10) as answer:
        mails: list[Mail] = json.load(answer)["mails"]
    return mails


def _problems(mails: Sequence[Mail], done: Submission) -> Iterator[str]:
    """What keeps the run from being what it promises."""
    if done.outcome is not Outcome.SUCCEEDED:
        yield f"the submission {done.outcome}: {done.error}"
    if sorted(mail["to"] for mail in mails) != sorted(CUSTOMERS):
        yield f"{len(mails)} mails arrived: {', '.join(mail['to'] for mail in mails)}"
    if len({mail["operation_id"] for mail in mails}) != len(mails):
        yield "two mails have the same operation id"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
