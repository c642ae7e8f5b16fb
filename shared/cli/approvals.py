"""Questions to people on the command line: listing them, and answering."""

from __future__ import annotations

from json import dumps
from typing import Annotated, Literal

import typer

from shared.cli.door import TENANT, open_client, open_database, who
from shared.cli.terminal import escaped, say, say_json, styled
from shared.cli.timeline import moment
from shared.engine.answering import AnswerReceipt
from shared.model import wire
from shared.model.approval import Answer, AnswerName, Question
from shared.model.json import Json, canonical, parse
from shared.store import reads
from shared.store.questions import OpenQuestion, with_what_led_there

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
OneQuestion = Annotated[str, typer.Argument(help="The question's id, as `brainhands approvals` lists it.")]
Comment = Annotated[str | None, typer.Option(help="What the log and the model shall know about it.")]
Result = Annotated[str, typer.Option(help="What the call gave, as JSON.")]


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
        found = reads.open_approvals(database, TENANT)
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
    """Let a call run, as it is or with other arguments, which are validated and judged again."""
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
    _print(receipt, json)
    if not receipt.accepted:
        raise typer.Exit(1)


def _print(receipt: AnswerReceipt, json: bool) -> None:
    if json:
        say_json({"accepted": receipt.accepted, "approval": wire.approval(receipt.approval)})
        return
    say(f"{'answered' if receipt.accepted else 'not accepted, it stands at'} {receipt.approval.answer}")
