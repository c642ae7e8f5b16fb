"""What the author of a flow can write, and what one run of a phase decides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import EmailStr

from brainhands.hands.arguments import BadArguments
from brainhands.hands.flow import AnyDocument, Flow, FlowStep, FlowTransition, TaskResult, Update, phase, run_phase
from brainhands.hands.tool import tool
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.document import Document
from brainhands.shared.model.ids import TaskId, new_task_id
from brainhands.shared.model.task import Done, Fail, Interrupt, Next, Outcome, Sleep, Wait, WaitSignal


class Mails(Document, kind="test_mails"):
    sent: tuple[str, ...] = ()


@tool(version=3)
def send_mail(to: EmailStr, copies: int = 1) -> str:
    """Send a mail."""
    return f"{copies} to {to}"


class SendNotices(Flow, name="send_notices", version=2, pool="hands.mail"):
    """Send one notice
    to several customers.
    """

    @phase(timeout=30)
    def plan(self, customers: list[EmailStr], due: datetime, subject: str = "Notice") -> FlowTransition:
        assert isinstance(due, datetime)
        assert self.input.subject == subject
        self.update(Mails, lambda mails: mails or Mails())
        self.progress(f"{len(customers)} mails")
        return Wait(
            (self.spawn(send_mail, {"to": customer}) for customer in customers),  # type: ignore[arg-type]
            self.report,
            checkpoint={"due": due},
        )

    @phase
    async def report(self) -> FlowTransition:
        mails = self.document(Mails)
        return Done({"sent": list(mails.sent) if mails else None, "due": self.checkpoint["due"]})

    def described(self) -> str:
        return "no phase"


INPUT = {"customers": ["customer-1@example.com", "customer-2@example.com"], "due": "2026-10-01T08:00:00Z"}


def enter(
    flow: type[Flow],
    arguments: object = None,
    *,
    checkpoint: Any = None,
    documents: tuple[Document, ...] = (),
    results: dict[TaskId, TaskResult] | None = None,
    shown: list[str] | None = None,
) -> Any:
    def read_document(document: type[AnyDocument], /) -> AnyDocument | None:
        return next((found for found in documents if isinstance(found, document)), None)

    return flow(
        task_id=new_task_id(),
        arguments={} if arguments is None else arguments,
        checkpoint=checkpoint,
        read_document=read_document,
        read_result=(results or {}).get,
        write_progress=([] if shown is None else shown).append,
    )


def step(flow: Flow, name: str) -> FlowStep:
    return run_phase(flow, name)


@pytest.mark.promise("F12")
def test_a_flow_is_published_like_a_tool_with_the_entry_phase_as_its_input() -> None:
    spec = SendNotices.definition.spec()

    assert (spec.kind, spec.name, spec.version, spec.pool) == ("flow:send_notices", "send_notices", 2, "hands.mail")
    assert spec.description == "Send one notice\nto several customers."
    assert spec.parameters["required"] == ["customers", "due"]
    assert {found.name: found.timeout for found in SendNotices.definition.phases.values()} == {"plan": 30, "report": 60}
    assert SendNotices.definition.entry.name == "plan"
    with pytest.raises(BadArguments, match=r"customers\.0: "):
        SendNotices.definition.validate({**INPUT, "customers": ["nobody"]})


@pytest.mark.promise("C11", "F12")
def test_a_phase_decides_children_changes_and_where_to_go_on_as_one_step() -> None:
    shown: list[str] = []

    decided = step(enter(SendNotices, SendNotices.definition.validate(INPUT), shown=shown), "plan")

    first, second = decided.spawns
    assert (first.kind, first.name, first.version) == ("tool:send_mail", "send_mail", 3)
    assert first.arguments == {"to": "customer-1@example.com"}
    assert decided.transition == Wait((first.id, second.id), "report", {"due": "2026-10-01T08:00:00Z"})
    assert [change.document for change in decided.updates] == [Mails]
    assert shown == ["2 mails"]


@pytest.mark.promise("C3")
def test_a_later_phase_reads_checkpoint_and_documents() -> None:
    flow = enter(SendNotices, INPUT, checkpoint={"due": "today"}, documents=(Mails(sent=("customer-1@example.com",)),))

    assert step(flow, "report") == FlowStep(
        transition=Done({"sent": ["customer-1@example.com"], "due": "today"}), spawns=(), updates=()
    )


@pytest.mark.hazard(9)
def test_a_change_of_a_document_is_a_function_of_what_the_document_then_is() -> None:
    class Add(Flow, name="add"):
        @phase
        def start(self) -> FlowTransition:
            self.update(Mails, lambda mails: Mails(sent=(*(mails or Mails()).sent, "mine")))
            return Done()

    (update,) = step(enter(Add), "start").updates

    assert isinstance(update, Update)
    assert update.change(Mails(sent=("theirs",))) == Mails(sent=("theirs", "mine"))
    assert update.change(None) == Mails(sent=("mine",))


def test_input_that_no_longer_fits_is_refused_before_a_phase_runs() -> None:
    with pytest.raises(BadArguments, match="due: is required"):
        enter(SendNotices, {"customers": []})


def test_children_are_tools_flows_or_names_with_or_without_a_version() -> None:
    class Spawning(Flow, name="spawning"):
        @phase
        def start(self) -> FlowTransition:
            self.spawn(SendNotices, {"customers": [], "due": datetime(2026, 10, 1, tzinfo=UTC)})
            self.spawn("charge", {"amount": 1})
            self.spawn("charge@2", {"amount": 1})
            return Done()

    spawned = [(made.kind, made.name, made.version) for made in step(enter(Spawning), "start").spawns]

    assert spawned == [("flow:send_notices", "send_notices", 2), (None, "charge", None), (None, "charge", 2)]
    flow = enter(Spawning)
    with pytest.raises(BadArguments, match="to: is required"):
        flow.spawn(send_mail, {})
    with pytest.raises(BadDefinition, match="'charge@two' names no version"):
        flow.spawn("charge@two", {})


def test_the_result_of_a_child_is_there_once_it_has_ended() -> None:
    child = new_task_id()
    ended = TaskResult(outcome=Outcome.FAILED, error="no such customer")
    flow = enter(SendNotices, INPUT, results={child: ended})

    assert flow.result(child) is ended
    with pytest.raises(BadDefinition, match="is no child of this flow that has ended"):
        flow.result(new_task_id())


# What a phase returns


class Returning(Flow, name="returning"):
    @phase
    def start(self, number: int = 0) -> Any:
        assert number == 0
        return self.checkpoint(self)

    @phase
    def finish(self) -> FlowTransition:
        return Done()

    def no_phase(self) -> None: ...


def returned(give: Any) -> Any:
    return step(enter(Returning, checkpoint=give), "start").transition


@pytest.mark.parametrize(
    ("give", "transition"),
    [
        (lambda flow: Next(flow.finish), Next("finish")),
        (
            lambda _: Next("finish", {"at": datetime(2026, 1, 1, tzinfo=UTC)}),
            Next("finish", {"at": "2026-01-01T00:00:00Z"}),
        ),
        (lambda flow: Sleep(60, flow.start), Sleep(60, "start")),
        (lambda flow: Wait([], flow.finish), Wait((), "finish")),
        (lambda _: Done(Mails(sent=("a\x00",))), Done({"sent": ["a\ufffd"]})),
        (lambda _: Done("x" * 70_000), Done({"truncated": True, "text": "x" * 65_536})),
        (lambda _: Fail("no\x00", result=1), Fail("no\ufffd", result=1)),
    ],
)
def test_a_transition_comes_out_in_values_that_can_be_stored(give: Any, transition: FlowTransition) -> None:
    assert returned(give) == transition


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda _: None, "returning.start returned NoneType"),
        (lambda _: Done, "returning.start returned type"),
        (lambda _: Interrupt("?"), "returning.start returned Interrupt"),
        (lambda _: Next("end"), "flow returning has no phase 'end'"),
        (lambda flow: Next(flow.no_phase), "flow returning has no phase 'no_phase'"),
        (lambda _: Sleep(float("inf"), "finish"), "returning.start returned Sleep"),
        (lambda _: WaitSignal("n" * 501, "finish", 1.0), "the name must be 1 to 500 characters"),
        (lambda _: WaitSignal("n", "finish", 1.0, "k" * 501), "the key must be text, of 500 characters"),
        (lambda _: Sleep(0, "finish", until=datetime(2026, 1, 1)), "returning.start returned Sleep"),  # noqa: DTZ001
    ],
)
def test_what_is_no_transition_is_refused_by_the_name_of_its_phase(give: Any, said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        returned(give)


def test_a_checkpoint_that_is_no_json_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]

    with pytest.raises(
        BadDefinition, match=r"returning\.start returned Next: its checkpoint cannot be stored: .*nested"
    ):
        returned(lambda _: Next("finish", deep))


def test_an_unknown_phase_cannot_be_entered() -> None:
    with pytest.raises(BadDefinition, match="flow returning has no phase 'poll'"):
        step(enter(Returning), "poll")


# Definitions


def test_a_later_version_inherits_phases_and_their_order() -> None:
    class Later(SendNotices, name="send_notices", version=3):
        @phase
        def report(self) -> FlowTransition:
            return Next(self.check)

        @phase
        def check(self) -> FlowTransition:
            return Done("checked")

    assert list(Later.definition.phases) == ["plan", "report", "check"]
    assert list(SendNotices.definition.phases) == ["plan", "report"]
    assert step(enter(Later, INPUT), "report").transition == Next("check")


def test_a_flow_without_a_phase_is_refused() -> None:
    with pytest.raises(BadDefinition, match="flow empty has no phase"):
        type("Empty", (Flow,), {}, name="empty")


@pytest.mark.parametrize("taken", ["result", "input", "spawn", "definition"])
def test_a_phase_cannot_hide_what_every_flow_has(taken: str) -> None:
    with pytest.raises(BadDefinition, match=rf"Hiding\.{taken} hides what every flow has"):
        type("Hiding", (Flow,), {taken: phase(lambda self: Done())}, name="hiding")  # noqa: ARG005


def test_only_the_first_phase_takes_parameters() -> None:
    with pytest.raises(
        BadDefinition, match=r"two\.second takes parameters, which only the first phase, first, can have"
    ):

        class Two(Flow, name="two"):
            @phase
            def first(self) -> FlowTransition:
                return Done()

            @phase
            def second(self, number: int) -> FlowTransition:
                return Done(number)


def test_a_phase_that_is_overridden_without_being_one_is_refused() -> None:
    with pytest.raises(BadDefinition, match=r"Plain\.report overrides a phase and is none"):

        class Plain(SendNotices, name="plain"):
            def report(self) -> FlowTransition:
                return Done()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "send notices"}, "'send notices' cannot name"),
        ({"name": "a", "version": 0}, "version=0 is not possible"),
        ({"name": "a", "pool": "brain.default"}, "is no pool of hands"),
    ],
)
def test_a_flow_that_could_not_be_published_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        type("Odd", (Flow,), {"start": phase(lambda self: Done())}, **options)  # noqa: ARG005


def test_a_phase_needs_a_timeout_that_ends() -> None:
    with pytest.raises(BadDefinition, match="timeout=0 is no duration"):
        phase(timeout=0)(lambda self: Done())  # noqa: ARG005
