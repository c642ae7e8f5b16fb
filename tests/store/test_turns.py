"""Turns: who floods the backlog gets in nobody's way, and a pass over a long one reads no more than over a short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import RawCursor

from brainhands.outbox.relay import limits_of
from brainhands.outbox.rotation import Rotation
from brainhands.shared.model.ids import TaskId
from brainhands.shared.model.task import Priority
from brainhands.shared.model.worker import Offer
from brainhands.shared.store import slots, turns
from brainhands.shared.store.database import Row
from brainhands.shared.store.turns import NO_LIMITS, SESSION_HINTS, Limits
from tests.store.stage import PLAY, POOL, Stage

ADD = """
INSERT INTO brainhands.outbox
       (task_id, session_id, tenant, priority, requires_name, requires_version, not_before, published_at)
SELECT gen_random_uuid(), session, {tenant}, %s, %s, %s, now() + n * interval '1 us' + %s * interval '1 s',
       CASE WHEN %s THEN now() END
  FROM (SELECT {session} AS session, s FROM generate_series(1, %s) AS s) AS each, generate_series(1, %s) AS n
"""


def add(
    stage: Stage,
    tenant: str,
    *,
    rows: int = 1,
    sessions: int = 1,
    session: UUID | None = None,
    priority: Priority = Priority.INTERACTIVE,
    name: str = PLAY,
    version: int = 1,
    seconds: float = -3600,
    sent: bool = False,
) -> None:
    """So many hints in each of so many sessions of a tenant (`*`: each session has a tenant of its own)."""
    stage.sql(
        ADD.format(
            tenant="'tenant ' || s" if tenant == "*" else f"'{tenant}'",
            session="gen_random_uuid()" if session is None else f"'{session}'::uuid",
        ),
        *(priority, name, version, seconds, sent, sessions, rows),
    )


class FleetOfOne:
    """A relay and a fleet with room for so many hints, all of which it claims before the next pass."""

    def __init__(self, stage: Stage, *, room: int, limits: Limits = NO_LIMITS) -> None:
        self._stage = stage
        self._room = room
        self._limits = limits
        self._rotation = Rotation()

    def one_pass(self) -> list[Row]:
        place = self._rotation.place(self._room)
        (found,) = self._stage.database.run(turns.take(POOL, self._room, place, self._limits))
        return self._rotation.moved_on(found.rows)

    def passes(self, number: int) -> Iterator[Row]:
        """What goes out in so many passes, in order."""
        for _ in range(number):
            taken = self.one_pass()
            claim(self._stage, taken)
            yield from taken


def claim(stage: Stage, taken: Sequence[Row]) -> None:
    stage.sql("DELETE FROM brainhands.outbox WHERE task_id = ANY (%s)", [row["task_id"] for row in taken])


@pytest.fixture
def bare(shared_stage: Stage) -> Stage:
    """A stage without any hint or slot."""
    shared_stage.sql("TRUNCATE brainhands.outbox, brainhands.slots")
    return shared_stage


@pytest.mark.promise("H10")
@pytest.mark.hazard(15)
@pytest.mark.parametrize("room", [1, 3, 16])
def test_a_flood_of_one_tenant_delays_another_ones_single_hint_by_one(bare: Stage, room: int) -> None:
    add(bare, "flood", rows=100, sessions=50)
    fleet = FleetOfOne(bare, room=room)
    list(fleet.passes(3))
    add(bare, "single", seconds=-1)

    after = [row["tenant"] for row in fleet.passes(2)]

    assert after.index("single") <= 1


@pytest.mark.promise("H10")
@pytest.mark.hazard(15)
@pytest.mark.parametrize("room", [1, 3, 16])
def test_a_flood_of_one_session_delays_a_single_hint_of_the_same_tenant_by_one(bare: Stage, room: int) -> None:
    flood, single = uuid4(), uuid4()
    add(bare, "one", rows=5000, session=flood)
    fleet = FleetOfOne(bare, room=room)
    list(fleet.passes(3))
    add(bare, "one", session=single, seconds=-1)

    after = [row["session_id"] for row in fleet.passes(2)]

    assert after.index(single) <= 1


@pytest.mark.promise("H10")
@pytest.mark.parametrize("room", [1, 4, 64])
def test_tenants_and_sessions_that_all_wait_take_turns_however_many_they_are(bare: Stage, room: int) -> None:
    add(bare, "*", rows=3, sessions=40)
    add(bare, "many", rows=3, sessions=40)

    fleet = FleetOfOne(bare, room=room)
    in_order = list(fleet.passes(41 * 3 // room + 1))
    first = Counter(row["tenant"] for row in in_order[:41])
    sessions_of_many = [row["session_id"] for row in chain(in_order, fleet.passes(400)) if row["tenant"] == "many"]

    assert set(first.values()) == {1}
    assert len(first) == 41
    assert len(sessions_of_many) == 120
    assert len(set(sessions_of_many[:40])) == 40, "a session had a second turn before another had its first"


@pytest.mark.promise("H10", "H6")
def test_several_relays_are_fair_together(bare: Stage) -> None:
    add(bare, "flood", rows=10, sessions=100)
    relays = [FleetOfOne(bare, room=2) for _ in range(3)]
    for relay in relays:
        list(relay.passes(2))
    for number in range(5):
        add(bare, f"single {number}", seconds=-1)

    tenants = [row["tenant"] for _ in range(3) for relay in relays for row in relay.passes(1)]

    assert max(tenants.index(f"single {number}") for number in range(5)) < 10


@pytest.mark.promise("H10")
@pytest.mark.parametrize("room", [1, 4, 7])
def test_batch_work_has_one_turn_of_four_while_interactive_work_waits_and_all_of_them_otherwise(
    bare: Stage, room: int
) -> None:
    add(bare, "one", rows=5, sessions=20, priority=Priority.BATCH, seconds=-7200)
    add(bare, "one", rows=5, sessions=12)
    add(bare, "other", rows=1, sessions=15)

    fleet = FleetOfOne(bare, room=room)
    lanes = [Priority(row["priority"]) for row in fleet.passes(200)]

    both = lanes[:100]
    assert [sum(both[start : start + 4]) for start in range(0, 100, 4)] == [1] * 25
    assert lanes[100:] == [Priority.BATCH] * 75


@pytest.mark.hazard(38)
@pytest.mark.parametrize("room", [10, 64])
def test_of_one_session_no_more_than_sixteen_hints_are_on_their_way(bare: Stage, room: int) -> None:
    session = uuid4()
    add(bare, "one", rows=100, session=session)
    fleet = FleetOfOne(bare, room=room)

    taken = [*fleet.one_pass(), *fleet.one_pass(), *fleet.one_pass()]
    claim(bare, taken[:5])
    more = fleet.one_pass()
    add(bare, "one")
    other = fleet.one_pass()

    assert (len(taken), len(more)) == (SESSION_HINTS, 5)
    assert [row["session_id"] == session for row in other] == [False]


@pytest.mark.promise("F11")
@pytest.mark.hazard(16)
def test_what_a_limit_would_refuse_is_not_sent_and_keeps_nothing_else_back(bare: Stage) -> None:
    add(bare, "one", rows=30, name="limited")
    add(bare, "one", rows=2)
    limits = Limits(names={"limited": 3})
    bare.worker(offers=(Offer(name="limited", low=1, high=1),))

    def take() -> list[str]:
        (found,) = bare.database.run(turns.take(POOL, 4, limits=limits))
        return sorted(row["requires_name"] for row in found.rows)

    first, second, third = take(), take(), take()
    hold(bare, "limited", 2)
    claim(bare, bare.sql("SELECT task_id FROM brainhands.outbox WHERE published_at IS NOT NULL"))

    assert Counter(first + second) == {"limited": 3, PLAY: 2}
    assert third == []
    assert take() == ["limited"]


@pytest.mark.promise("H10")
def test_a_tenant_at_its_limit_is_passed_over_and_no_other_one_is(bare: Stage) -> None:
    for tenant in ("a", "b", "c"):
        add(bare, tenant, rows=5, sessions=2)
    hold(bare, "tenant:a", 2)
    hold(bare, "tenant:b", 1)

    fleet = FleetOfOne(bare, room=4, limits=Limits(tenant=2))
    taken = [*fleet.one_pass(), *fleet.one_pass(), *fleet.one_pass()]

    assert Counter(row["tenant"] for row in taken) == {"b": 1, "c": 2}


def hold(stage: Stage, name: str, number: int) -> None:
    """Let somebody hold so many slots of a name."""
    stage.database.run(slots.make({name: number}))
    for _ in range(number):
        stage.database.run(slots.take(TaskId(uuid4()), {name: number}))


def test_the_limits_are_those_of_the_worker_that_was_started_last() -> None:
    def worker(started_at: int, tenant: int | None, **names: int | None) -> Row:
        offers = [{"name": name, "low": 1, "high": 1, "concurrency": most} for name, most in names.items()]
        return {"started_at": started_at, "tenant_concurrency": tenant, "offers": offers}

    relay: Row = {"started_at": 9, "tenant_concurrency": None, "offers": []}

    found = limits_of([worker(3, 7, mail=5, sms=None), relay, worker(1, None, mail=3, sms=2)])

    assert found == Limits(names={"mail": 5}, tenant=7)


@pytest.mark.promise("H7", "H9")
def test_only_what_is_due_and_fits_the_pool_is_taken(bare: Stage) -> None:
    add(bare, "a", rows=50, version=2)
    add(bare, "a", rows=50, name="other")
    add(bare, "b", rows=20, sessions=20, seconds=3600)
    add(bare, "b", rows=2)

    fleet = FleetOfOne(bare, room=3)

    assert len(list(fleet.passes(5))) == 2


@pytest.mark.promise("H3")
def test_the_quick_look_takes_all_where_all_has_room_and_else_says_that_something_waits(shared_stage: Stage) -> None:
    bare = shared_stage
    bare.sql("TRUNCATE brainhands.outbox, brainhands.slots")

    def look(room: int, limits: Limits = NO_LIMITS) -> tuple[int, int]:
        (found,) = bare.database.run(turns.take_few(POOL, room, limits))
        taken = [row for row in found.rows if row["task_id"] is not None]
        bare.sql("UPDATE brainhands.outbox SET published_at = NULL WHERE task_id = ANY (%s)", _ids(taken))
        return found.rows[0]["waiting"], len(taken)

    nothing = look(4)
    add(bare, "one", rows=4)
    add(bare, "one", rows=9, sent=True)

    assert nothing == (0, 0)
    assert look(4) == (4, 4)
    assert look(3) == (4, 0)
    assert look(4, Limits(names={PLAY: 9})) == (4, 0)
    assert look(4, Limits(names={"other": 9})) == (4, 4)
    assert look(4, Limits(tenant=9))[1] == 0
    add(bare, "one", rows=SESSION_HINTS - 12, sent=True)
    assert look(4) == (4, 0), "with more a session could have too many on their way"


def _ids(rows: Sequence[Row]) -> list[TaskId]:
    return [row["task_id"] for row in rows]


SHAPES: dict[str, dict[str, Any]] = {
    "one session": {"sessions": 1},
    "one tenant": {"rows": 1},
    "a tenant each": {"tenant": "*", "rows": 1},
    "another pool's": {"name": "other", "sessions": 1},
    "another version's": {"version": 2, "sessions": 1},
    "batch": {"rows": 1, "priority": Priority.BATCH},
    "a tool at its limit": {"name": "full", "sessions": 1},
    "a tenant at its limit": {"tenant": "full", "sessions": 1},
    "a session with all it may have on its way": {"session": UUID(int=7)},
}


@pytest.mark.promise("H10")
@pytest.mark.hazard(15)
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_pass_over_a_long_backlog_reads_what_one_over_a_short_backlog_reads(bare: Stage, shape: str) -> None:
    options = {"tenant": "one", **SHAPES[shape]}

    def backlog(hints: int) -> None:
        number = {"sessions": hints} if options.get("rows") == 1 else {"rows": hints}
        add(bare, **{**options, **number})
        bare.sql("VACUUM ANALYZE brainhands.outbox")

    bare.worker(offers=(Offer(name="full", low=1, high=1),))
    add(bare, "few", sessions=3)
    add(bare, "few", session=UUID(int=7), rows=SESSION_HINTS, sent=True)
    hold(bare, "full", 2)
    hold(bare, "tenant:full", 20)
    backlog(200)
    few = read_by_a_pass(bare)
    backlog(10_000)
    many = read_by_a_pass(bare)

    assert few["rows"] > 0
    assert many["buffers"] <= 2 * few["buffers"] + 50, (few, many)


def read_by_a_pass(stage: Stage) -> dict[str, int]:
    """The rows that a pass marks, and the pages that it touches for it."""
    limits = Limits(names={"full": 2}, tenant=20)
    call = turns.take(POOL, 8, limits=limits)
    with stage.database.connection() as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        cursor = RawCursor(connection)
        cursor.execute(b"BEGIN")
        cursor.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + call.sql.text.encode(),
            [call.parameters[name] for name in call.sql.names],
        )
        ((explained,),) = cursor.fetchall()
        cursor.execute(b"ROLLBACK")
        cursor.execute(b"RESET plan_cache_mode")
    plan = explained[0]["Plan"]
    return {"rows": plan["Actual Rows"], "buffers": plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]}
