"""The scenarios that are struck at each of their commits and publishes; `tests.crash.scenario` says how to add one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product

from brainhands.shared.model.event import LOG_FORMAT
from brainhands.shared.model.task import Outcome, Status
from brainhands.shared.store import workers
from deploy.demo.mailbox import Switches
from deploy.demo.model_scripts import CUSTOMERS
from tests.crash.driver import Door
from tests.crash.plugin import How, Plan, Point, When
from tests.crash.scenario import House, Run, Scenario, every_kill
from tests.instruments.builds import NEXT_FORMAT

# --- five mails ---------------------------------------------------------------------------------------------------


def play_five_mails(door: Door) -> None:
    door.submit(f'Send this notice to {", ".join(CUSTOMERS)}: "Notice {door.run}"', agent="notices")


def check_five_mails(run: Run) -> None:
    assert run.outcomes() == [Outcome.SUCCEEDED]
    mails = sorted((mail["to"], mail["operation_id"]) for mail in run.mails if mail["body"] == f"Notice {run.name}")
    assert [to for to, _ in mails] == sorted(CUSTOMERS), f"arrived: {mails}"
    assert len({operation for _, operation in mails}) == len(CUSTOMERS), f"arrived: {mails}"
    (plan,) = run.fleet.client.session(run.submissions[0].session_id).documents
    outcomes = {mail["to"]: mail["outcome"] for mail in plan.value["mails"]}
    assert outcomes == dict.fromkeys(CUSTOMERS, "sent"), f"planned: {outcomes}"


def also_whole_workers(points: Sequence[Point]) -> list[Plan]:
    """Every kill, and for Hands also of the worker's main process together with the one that runs the call."""
    hands = [point for point in points if point.role == "hands"]
    whole = [Plan(point=point, when=when, how="worker") for point in hands for when in ("before", "after")]
    return [*every_kill(points), *whole]


FIVE_MAILS = Scenario(
    name="five mails",
    play=play_five_mails,
    check=check_five_mails,
    promises=("A2", "C4", "G4", "H6"),
    plans=also_whole_workers,
    part=5,
)

LATE = House(
    switches=Switches(accept_delay=3.0, dedup=False),
    slots=5,
    lease_seconds=1.5,
    settings=(("MAILBOX_DEDUPES", "0"), ("MAILBOX_TIMEOUT_SECONDS", "6"), ("MAILBOX_SETTLE_SECONDS", "3.5")),
)
"""A mailbox that accepts three seconds after it was asked, and accepts an operation id as often as it is asked.

So a mail whose sender died is not there yet when its lease has ended, and the look-up must not believe that.
"""

WAYS: tuple[How, ...] = ("process", "stop")
BETWEEN_INTENT_AND_RESULT: tuple[tuple[str, When], ...] = (
    ("commit tool_call_start send_email", "after"),
    ("reply to a POST", "before"),
    ("commit tool_call_success send_email", "before"),
)
"""The moments of a mail: its intent is stored, its request is sent, its reply is known."""


def between_intent_and_result(points: Sequence[Point]) -> list[Plan]:
    plans = []
    for name, when in BETWEEN_INTENT_AND_RESULT:
        between = [point for point in points if (point.role, point.name) == ("hands", name)]
        assert len(between) == len(CUSTOMERS)
        plans += [Plan(point=point, when=when, how=how) for point, how in product(between, WAYS)]
    return plans


LATE_MAILS = Scenario(
    name="late mails",
    play=play_five_mails,
    check=check_five_mails,
    promises=("D3", "F5", "G4"),
    hazards=(1,),
    house=LATE,
    plans=between_intent_and_result,
    part=2,
)

# --- calls of every replay kind -----------------------------------------------------------------------------------


def play_every_replay_kind(door: Door) -> None:
    tools = ("post_once", "post_often", "post_findable", "post_late")
    calls = [{"name": tool, "arguments": {"key": door.run}, "id": f"call_{tool}"} for tool in tools]
    door.script({"calls": calls}, {"text": "posted"})


def check_every_replay_kind(run: Run) -> None:
    assert run.outputs() == ["posted"]
    run.may_be_unknown("post_once")
    run.succeeded("post_often")
    run.succeeded_once("post_findable")
    run.succeeded_once("post_late")


EVERY_REPLAY_KIND = Scenario(
    name="every replay kind",
    play=play_every_replay_kind,
    check=check_every_replay_kind,
    promises=("C4", "F3", "F4", "F5", "F9"),
    part=3,
)

# --- approval then tool -------------------------------------------------------------------------------------------


def play_approval(door: Door) -> None:
    receipt = door.call("post_if_allowed", then="posted")
    door.answer(receipt, "approved", who="ann")


def check_approval(run: Run) -> None:
    assert run.outputs() == ["posted"]
    run.may_be_unknown("post_if_allowed")
    assert [run.types().count(f"human_approval_{step}") for step in ("requested", "answered")] == [1, 1]


APPROVAL = Scenario(name="approval", play=play_approval, check=check_approval, promises=("F13",), hazards=(20,))


def play_other_arguments(door: Door) -> None:
    receipt = door.call("post_if_allowed", then="posted", key="what nobody allowed")
    door.approve_with(receipt, {"key": 7}, who="ann")
    door.approve_with(receipt, {"key": door.run}, who="ann")


def check_other_arguments(run: Run) -> None:
    assert run.outputs() == ["posted"]
    run.may_be_unknown("post_if_allowed")
    # A play that began again may have given the wrong ones twice.
    assert 2 <= run.types().count("human_approval_requested") <= 3
    assert run.types().count("human_approval_answered") == run.types().count("human_approval_requested") + 1


OTHER_ARGUMENTS = Scenario(
    name="approval with other arguments",
    play=play_other_arguments,
    check=check_other_arguments,
    promises=("F13",),
    hazards=(20,),
)

# --- steer during a tool round ------------------------------------------------------------------------------------


def play_steer(door: Door) -> None:
    first = door.call("linger", then="not steered")
    door.wait_for_event(first, "tool_call_start")
    door.script({"text": "steered"}, session=first.session_id, mode="steer")
    door.script({"text": "later"}, session=first.session_id)
    door.open_gate()


def check_steer(run: Run) -> None:
    assert run.outputs() == ["steered", "steered", "later"]
    types = run.types()
    steered = [place for place, type in enumerate(types) if type == "user_message"][1]
    assert types[steered - 1] == "tool_call_success"
    assert types[steered + 1] == "model_request"
    assert len(run.call_ends("linger")) == 1


STEER = Scenario(name="steer", play=play_steer, check=check_steer, promises=("A9", "E11"), hazards=(18,))

# --- a flow that waits for a signal, then fails fast --------------------------------------------------------------


def play_fail_fast(door: Door) -> None:
    receipt = door.call("venture", then="told")
    door.wait_for_task(receipt, "flow:venture", Status.WAITING)
    door.signal(receipt, "go", {"with": door.run})


def check_fail_fast(run: Run) -> None:
    assert run.outputs() == ["told"]
    ((_, payload),) = run.call_ends("venture")
    result = payload["result"]
    assert (result["go"], result["fails"]) == ({"with": run.name}, Outcome.FAILED)
    assert result["lingers"] in (Outcome.CANCELLED, Outcome.INTERRUPTED)
    assert [run.types().count(type) for type in ("signal_received", "signal_taken", "signal_missed")] == [1, 1, 0]


FAIL_FAST = Scenario(
    name="fail fast", play=play_fail_fast, check=check_fail_fast, promises=("C7", "C11", "C15"), hazards=(5, 33)
)

# --- a response that the provider works on in the background -------------------------------------------------------


def play_background(door: Door) -> None:
    call = {"name": "post_often", "arguments": {"key": door.run}, "id": "call_post_often"}
    thinking = {"calls": [call], "looks": ["queued", "in_progress"]}
    door.script(thinking, {"text": "thought over", "looks": ["queued"]}, agent="swift_thoughtful")


def check_background(run: Run) -> None:
    """A handle that is stored is polled; only a Brain that died before it could store one asks a second time."""
    assert run.outputs() == ["thought over"]
    run.succeeded("post_often")
    types = run.types()
    assert (types.count("model_accepted"), types.count("model_output")) == (2, 2)
    assert "model_cancelled" not in types


BACKGROUND = Scenario(
    name="background response", play=play_background, check=check_background, promises=("E1", "E7"), hazards=(26,)
)

# --- an overflow that is compacted ---------------------------------------------------------------------------------

LONG = "x" * 900


def play_compaction(door: Door) -> None:
    summary = json.dumps({"summary": {"text": "They said x very often."}})
    first = door.submit(f"{summary} {json.dumps({'script': [{'text': LONG}]})} {LONG}", agent="swift_forgetful")
    for text in ("second", "third"):
        door.script({"text": f"{text} {LONG}"}, session=first.session_id, agent="swift_forgetful")


def check_compaction(run: Run) -> None:
    assert run.outputs() == [LONG, f"second {LONG}", f"third {LONG}"]
    types = run.types()
    assert types.count("context_compacted") == types.count("model_request_voided") >= 1
    assert types.count("user_message") == 3


COMPACTION = Scenario(
    name="compaction on overflow", play=play_compaction, check=check_compaction, promises=("B8", "E10"), hazards=(27,)
)

# --- agents that fail fast -----------------------------------------------------------------------------------------


def play_agents(door: Door) -> None:
    def ask(id: str, *steps: Mapping[str, object]) -> dict[str, object]:
        return {"name": "swift_scout", "arguments": {"task": json.dumps({"script": steps})}, "id": id}

    lingers = {"calls": [{"name": "linger", "arguments": {"key": door.run}}]}
    calls = [ask("call_lingers", lingers, {"text": "never"}), ask("call_refuses", {"refusal": "no", "delay": 0.5})]
    door.script({"calls": calls}, {"text": "stopped"}, agent="swift_lead")


def check_agents(run: Run) -> None:
    assert run.outputs() == ["stopped"]
    ends = {payload["call_id"]: type for type, payload in run.call_ends("swift_scout")}
    assert ends == {"call_lingers": "tool_call_error", "call_refuses": "tool_call_error"}
    outcomes = {task.input["call_id"]: task.outcome for task in run.tasks("agent:swift_scout")}
    assert outcomes == {"call_lingers": Outcome.CANCELLED, "call_refuses": Outcome.FAILED}


AGENTS = Scenario(
    name="agents that fail fast", play=play_agents, check=check_agents, promises=("A10", "C7"), hazards=(5,)
)

# --- a fleet in the middle of a rolling upgrade --------------------------------------------------------------------


def play_rolling_upgrade(door: Door) -> None:
    door.call("post_findable", then="first")
    door.call("post_often", then="second")


def check_rolling_upgrade(run: Run) -> None:
    """Nothing is written that the workers of this release, the older ones here, could not read."""
    assert run.outputs() == ["first", "second"]
    run.succeeded_once("post_findable")
    assert not {"remark", "task_blocked"} & set(run.types())
    reads = {worker["role"]: worker["log_format"] for worker in workers.live(run.fleet.database)}
    assert (reads["brain"], reads["hands"]) == (NEXT_FORMAT, LOG_FORMAT)


ROLLING_UPGRADE = Scenario(
    name="rolling upgrade",
    play=play_rolling_upgrade,
    check=check_rolling_upgrade,
    promises=("K5", "H7"),
    hazards=(24,),
    house=House(next_release=("brain",)),
    part=1,
)

# --- cancel in the middle of each status --------------------------------------------------------------------------


def play_cancel_pending(door: Door) -> None:
    receipt = door.submit("hello", agent="offered_by_nobody")
    door.wait_for_event(receipt, "task_blocked")
    door.cancel(receipt)


def play_cancel_running_model(door: Door) -> None:
    receipt = door.script({"text": "word after word " * 50, "chunk_delay": 0.5})
    door.wait_for_event(receipt, "model_request")
    door.cancel(receipt)


def play_cancel_running_tool(door: Door) -> None:
    receipt = door.call("linger")
    door.wait_for_task(receipt, "tool:linger", Status.RUNNING)
    door.cancel(receipt)


def play_cancel_waiting(door: Door) -> None:
    receipt = door.call("venture")
    door.wait_for_task(receipt, "flow:venture", Status.WAITING)
    door.cancel(receipt)


def play_cancel_sleeping(door: Door) -> None:
    receipt = door.script({"fault": "429", "retry_after": 600}, {"text": "never"})
    door.wait_for_task(receipt, "generation", Status.SLEEPING)
    door.cancel(receipt)


def play_cancel_completing(door: Door) -> None:
    receipt = door.call("drift")
    door.wait_for_task(receipt, "flow:drift", Status.COMPLETING)
    door.cancel(receipt)


def check_cancelled(run: Run) -> None:
    assert run.outcomes() == [Outcome.CANCELLED]
    types = run.types()
    assert types.count("submission_done") == 1
    assert "model_output" not in types[types.index("cancel_requested") :]


def check_cancelled_completing(run: Run) -> None:
    """What was decided stands, though what it owns was cancelled."""
    check_cancelled(run)
    (flow,), (lingering,) = run.tasks("flow:drift"), run.tasks("tool:linger")
    assert (flow.outcome, flow.result) == (Outcome.SUCCEEDED, "adrift")
    assert lingering.outcome in (Outcome.CANCELLED, Outcome.INTERRUPTED)


CANCELS = tuple(
    Scenario(name=f"cancel {status}", play=play, check=check, promises=("C12",), hazards=(11,), part=1)
    for status, play, check in (
        ("pending", play_cancel_pending, check_cancelled),
        ("running model", play_cancel_running_model, check_cancelled),
        ("running tool", play_cancel_running_tool, check_cancelled),
        ("waiting", play_cancel_waiting, check_cancelled),
        ("sleeping", play_cancel_sleeping, check_cancelled),
        ("completing", play_cancel_completing, check_cancelled_completing),
    )
)

SCENARIOS = (
    LATE_MAILS,
    FIVE_MAILS,
    EVERY_REPLAY_KIND,
    APPROVAL,
    OTHER_ARGUMENTS,
    STEER,
    FAIL_FAST,
    BACKGROUND,
    COMPACTION,
    AGENTS,
    ROLLING_UPGRADE,
    *CANCELS,
)
