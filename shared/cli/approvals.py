"""Questions to people on the command line: listing them, and answering."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from shared.cli.door import open_client, who
from shared.cli.terminal import one_line, say, say_json
from shared.engine.answering import AnswerReceipt
from shared.model import wire
from shared.model.approval import Answer, AnswerName
from shared.model.json import Json, canonical, parse

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Question = Annotated[str, typer.Argument(help="The question's id, as `brainhands approvals` lists it.")]
Comment = Annotated[str | None, typer.Option(help="What the log and the model shall know about it.")]
Result = Annotated[str, typer.Option(help="What the call gave, as JSON.")]


def approvals(json: AsJson = False) -> None:
    """List the questions that wait for an answer, oldest first."""
    with open_client() as client:
        found = client.approvals()
    if json:
        say_json([wire.approval(each) for each in found])
        return
    for each in found:
        say(f"{each.id}  {each.question}  {each.tool}@{each.version}  until {each.answer_by:%Y-%m-%d %H:%M:%S} UTC")
        say(f"    {one_line(canonical(each.arguments), 90)}\n    {one_line(each.about, 90)}")


def approve(
    question: Question,
    arguments: Annotated[str | None, typer.Option(help="Run it with these arguments instead, as JSON.")] = None,
    comment: Comment = None,
    json: AsJson = False,
) -> None:
    """Let a call run, as it is or with other arguments, which are validated and judged again."""
    _answer(question, Answer.APPROVED, None if arguments is None else parse(arguments), None, comment, json)


def deny(question: Question, comment: Comment = None, json: AsJson = False) -> None:
    """Refuse a call; the model is told, with the comment."""
    _answer(question, Answer.DENIED, None, None, comment, json)


def review(
    question: Question,
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
