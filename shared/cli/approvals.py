"""Questions to people on the command line: listing them, and answering."""

from __future__ import annotations

import time
from json import dumps
from typing import Annotated, Literal

import typer

from brainhands.shared.cli.door import TENANT, open_client, open_database, who
from brainhands.shared.cli.terminal import escaped, say, say_json, styled
from brainhands.shared.cli.timeline import moment
from brainhands.shared.client import MOST_A_PAGE, Client
from brainhands.shared.model import wire
from brainhands.shared.model.approval import Answer, AnswerName, AnswerReceipt, Question
from brainhands.shared.model.json import Json, canonical, parse
from brainhands.shared.store import reads
from brainhands.shared.store.questions import OpenQuestion, with_what_led_there

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
OneQuestion = Annotated[str, typer.Argument(help="The question's id, as `brainhands approvals` lists it.")]
Comment = Annotated[str | None, typer.Option(help="What the log and the model shall know about it.")]
Result = Annotated[str, typer.Option(help="What the call gave, as JSON.")]

VERDICT_SECONDS = 20.0
"""How long `approve` waits for a worker to take other arguments or not."""
LOOK_SECONDS = 0.2


ANSWER_LINES = {
    Question.APPROVAL: ("approve {id}", "approve {id} --arguments JSON", "deny {id} --comment TEXT"),
    Question.REVIEW: (
        "review {id} happened --result JSON",
        "review {id} did_not_happen",
        "review {id} unknown --comment TEXT",
    ),
}

WHOLE = 4_000
"""Characters of arguments that are listed; of more the beginning is, with the command that shows all."""

GLANCE = 400
"""Characters of what led to a question."""


def approvals(json: AsJson = False) -> None:
    """List the questions that wait for an answer, oldest first, with what led there and the lines to answer with."""
    with open_database() as database:
        found = reads.open_approvals(database, TENANT, most=MOST_A_PAGE)
        if json:
            say_json([wire.approval(each) for each in found])
            return
        for each in with_what_led_there(database, found):
            _print_question(each)
    if not found:
        say("no question waits for an answer")


def _print_question(question: OpenQuestion) -> None:
    asked, session = question.approval, question.approval.session_id
    without = f"{asked.default_answer} where nobody answers until {moment(asked.answer_by)}"
    say(styled((f"{asked.id}  {asked.question} of {asked.tool}@{asked.version}", "bold"), f"  {without}"))
    say(f"  asked      {moment(asked.asked_at)}, {escaped(asked.about)}")
    say(f"  session    {session}, agent {escaped(question.agent or 'unknown')}")
    if question.input is not None:
        say(f"  input      {_glance(question.input, f'brainhands show {session} --full')}")
    if question.said is not None:
        say(f"  said       {_glance(question.said, f'brainhands event {session} {question.said_at}')}")
    if question.earlier:
        say(f"  before     {question.earlier} more calls: brainhands show {session}")
    for call in question.calls:
        came = call.error if call.error is not None else canonical(call.result)
        came = call.status if call.is_open else f"{call.outcome}: {came}"
        name = call.kind.partition(":")[2]
        told = f"{name} {canonical(call.input.get('arguments'))} -> {came}"
        say(f"  call       {_glance(told, f'brainhands show {session} --full --task {call.id}')}")
    say("  arguments")
    _print_arguments(asked.arguments, f"brainhands event {session} {question.asked}")
    say("  answer with")
    for line in ANSWER_LINES[asked.question]:
        say(f"    brainhands {line.format(id=asked.id)}")
    say()


def _print_arguments(arguments: Json, see: str) -> None:
    text = dumps(arguments, ensure_ascii=False, indent=2)
    for line in text[:WHOLE].split("\n"):
        say(f"    {line}")
    if len(text) > WHOLE:
        say(
            styled(
                (f"    THIS IS NOT ALL: {len(text):,} characters. See the rest before you answer: {see}", "bold red")
            )
        )


def _glance(text: str, see: str) -> str:
    if len(text) <= GLANCE:
        return escaped(text)
    return f"{escaped(text[:GLANCE])}… ({len(text):,} characters: {see})"


def approve(
    question: OneQuestion,
    arguments: Annotated[str | None, typer.Option(help="Run it with these arguments instead, as JSON.")] = None,
    comment: Comment = None,
    json: AsJson = False,
) -> None:
    """Let a call run, as it is or with other arguments.

    Those count once a worker has validated and judged them; if they do not do, the question stays open.
    """
    _answer(question, Answer.APPROVED, None if arguments is None else parse(arguments), None, comment, json)


def deny(question: OneQuestion, comment: Comment = None, json: AsJson = False) -> None:
    """Refuse a call; the model is told, with the comment."""
    _answer(question, Answer.DENIED, None, None, comment, json)


def review(
    question: OneQuestion,
    answer: Annotated[
        Literal["happened", "did_not_happen", "unknown"], typer.Argument(help="What became of it.", metavar="ANSWER")
    ],
    result: Result = "null",
    comment: Comment = None,
    json: AsJson = False,
) -> None:
    """Say whether the effect of a call happened, and what it gave."""
    _answer(question, answer, None, parse(result), comment, json)


def settle(
    task: Annotated[str, typer.Argument(help="The call that ended as unknown.")],
    answer: Annotated[
        Literal["happened", "did_not_happen"], typer.Argument(help="What became of it.", metavar="ANSWER")
    ],
    result: Result = "null",
    comment: Comment = None,
    json: AsJson = False,
) -> None:
    """Say what became of a call that the model was already told is unknown."""
    gave = parse(result)
    with open_client() as client:
        receipt = client.settle(task, answer, result=gave, comment=comment, who=who())
    if receipt is not None:
        _print(receipt, json)
        return
    say("it was settled before")
    raise typer.Exit(1)


def _answer(question: str, answer: AnswerName, arguments: Json, result: Json, comment: str | None, json: bool) -> None:
    with open_client() as client:
        receipt = client.answer(question, answer, arguments=arguments, result=result, comment=comment, who=who())
        if receipt.accepted and receipt.approval.is_proposed:
            receipt = _verdict(client, receipt)
    _print(receipt, json)
    if not receipt.accepted or receipt.approval.answer is Answer.PENDING:
        raise typer.Exit(1)


def _verdict(client: Client, receipt: AnswerReceipt) -> AnswerReceipt:
    """What became of other arguments, or how they stand after a while."""
    proposed, end = receipt.approval, time.monotonic() + VERDICT_SECONDS
    stands = proposed
    while stands.is_proposed and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        stands = client.approval(proposed.id)
    counts = stands.answer is Answer.APPROVED or stands.is_proposed
    same = (stands.edited_arguments, stands.answered_by) == (proposed.edited_arguments, proposed.answered_by)
    return AnswerReceipt(approval=stands, accepted=counts and same)


def _print(receipt: AnswerReceipt, json: bool) -> None:
    if json:
        say_json({"accepted": receipt.accepted, "approval": wire.approval(receipt.approval)})
        return
    stands = receipt.approval
    if stands.is_proposed:
        said = "no worker has looked at the arguments yet, and" if receipt.accepted else "not accepted:"
        by = escaped(stands.answered_by or "somebody")
        say(f"{said} other arguments do not count before one does ({by} gave some)")
        say(f"`brainhands show {stands.session_id}` says what becomes of them")
    elif stands.answer is Answer.PENDING:
        say(f"not accepted, the question is open: {escaped(stands.about)}")
        say(f"answer it again with `brainhands approve {stands.id}` or `brainhands deny {stands.id}`")
    else:
        say(f"{'answered' if receipt.accepted else 'not accepted, it stands at'} {stands.answer}")
