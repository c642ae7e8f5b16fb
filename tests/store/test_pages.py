"""Lists in pages: each thing once and in order, whatever is made meanwhile, and with filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from brainhands import Client
from brainhands.shared.errors import BadCursor, BadInput, BrainhandsError, UnknownSession
from brainhands.shared.model.ids import SessionId
from brainhands.shared.model.page import Page, cursor, every
from brainhands.shared.rules.verify import Flaw
from brainhands.shared.store import reads
from tests.store.stage import AGENT, NO_REDIS, Stage, finish

MANY = 2_500


@pytest.fixture
def tenant(shared_stage: Stage, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A tenant of the test's own."""
    with Client(shared_stage.database_url, NO_REDIS, tenant=request.node.name) as client:
        yield client


def copies(stage: Stage, session: SessionId, count: int) -> None:
    """So many more sessions like this one, of one moment, so that their times do not order them."""
    stage.sql(
        "WITH copy AS (INSERT INTO brainhands.sessions SELECT"
        " (jsonb_populate_record(s, jsonb_build_object('id', gen_random_uuid()))).*"
        " FROM brainhands.sessions s, generate_series(1, %s) WHERE s.id = %s RETURNING id)"
        " INSERT INTO brainhands.conversations SELECT (jsonb_populate_record(c, jsonb_build_object('id',"
        " gen_random_uuid(), 'session_id', copy.id))).* FROM brainhands.conversations c, copy WHERE c.session_id = %s",
        count,
        session,
        session,
    )


@pytest.mark.promise("I10")
def test_pages_of_sessions_have_each_once_though_new_ones_are_made_meanwhile(
    shared_stage: Stage, tenant: Client
) -> None:
    first = tenant.submit(agent=AGENT, input="hello").session_id
    copies(shared_stage, first, MANY)
    seen: list[SessionId] = []
    after, pages = None, 0
    while True:
        page = tenant.sessions(after=after, limit=1000)
        seen += [each.id for each in page]
        tenant.submit(agent=AGENT, input="hello")
        pages += 1
        if (after := page.next) is None:
            break

    assert (len(seen), len(set(seen)), pages) == (MANY + 1, MANY + 1, 3)
    times = [each.created_at for each in every(lambda after: tenant.sessions(after=after, limit=7 * 100))]
    assert times == sorted(times, reverse=True)
    assert len(times) == MANY + 1 + pages


def test_sessions_are_filtered_by_agent_state_and_time_of_one_tenant(shared_stage: Stage, tenant: Client) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    idle = tenant.submit(agent=AGENT, input="hello").session_id
    shared_stage.advance(shared_stage.open_generation(idle), finish("done"))
    busy = tenant.submit(agent=AGENT, input="hello").session_id
    other = tenant.submit(agent="other", input="hello").session_id
    old = tenant.submit(agent="other", input="hello").session_id
    shared_stage.sql("UPDATE brainhands.sessions SET created_at = now() - interval '1 hour' WHERE id = %s", old)

    def found(**filters: object) -> list[SessionId]:
        return [each.id for each in tenant.sessions(**filters)]  # type: ignore[arg-type]

    assert found() == [other, busy, idle, old]
    assert found(agent=AGENT) == [busy, idle]
    assert found(open=False) == [idle]
    assert found(open=True) == [other, busy, old]
    assert found(since=before) == [other, busy, idle]
    assert found(until=before) == [old]
    assert found(agent="other", open=True, since=before) == [other]
    assert found(agent="nobody") == []
    (summary,) = tenant.sessions(limit=1, agent=AGENT)
    session = tenant.session(busy).session
    assert (summary.agent, summary.open_tasks, summary.last_seq) == (AGENT, 1, session.last_seq)
    assert summary.head == f"{session.last_seq}:{session.last_hash.hex()}"


@pytest.mark.promise("I10")
def test_tasks_and_questions_and_events_come_in_pages_too(shared_stage: Stage, tenant: Client) -> None:
    session = tenant.submit(agent=AGENT, input="hello").session_id
    made = [shared_stage.open_generation(session), *(shared_stage.add(session) for _ in range(9))]
    for each in made[1:4]:
        shared_stage.advance(each)
    shared_stage.sql(
        "INSERT INTO brainhands.approvals (id, session_id, task_id, operation_id, question, tool, version, arguments,"
        " digest, about, default_answer, use_seconds, edited_arguments, result, asked_at, answer_by, answer)"
        " SELECT gen_random_uuid(), session_id, id, id, 'approval', 'echo', 1, '{}', '', '', 'denied', 60, 'null',"
        " 'null', now(), now() + interval '1 hour', 'pending' FROM brainhands.tasks WHERE session_id = %s",
        session,
    )

    def all_of(ask: Callable[..., Page[object]], limit: int, **filters: object) -> list[object]:
        return list(every(lambda after: ask(after=after, limit=limit, **filters)))

    tasks = list(every(lambda after: tenant.tasks(session, after=after, limit=3)))
    assert [each.id for each in tasks] == made
    assert [each.id for each in tenant.tasks(session, open=True)] == [made[0], *made[4:]]
    assert [each.id for each in tenant.tasks(session, open=False)] == made[1:4]
    questions = list(every(lambda after: tenant.approvals(after=after, limit=4)))
    assert {each.task_id for each in questions} == set(made)
    assert len(questions) == len(made)
    assert tenant.approvals(session=session) == questions
    assert tenant.approvals(session=tenant.submit(agent=AGENT, input="hello").session_id) == []
    events = tenant.events(session)
    assert tenant.events(session, limit=2) == events[:2]
    assert tenant.events(session, events[1].seq, limit=2) == events[2:4]


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**30, True, "10", None, 1.5])
def test_a_limit_that_no_page_could_have_is_refused(tenant: Client, limit: object) -> None:
    for ask in (tenant.sessions, tenant.approvals):
        with pytest.raises(BadInput, match="limit"):
            ask(limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place",
    ["", "x", "é", "MQ", cursor(), cursor("1"), cursor("now", "1"), cursor("2026-01-01", "1"), cursor("1", "2", "3")],
)
def test_a_place_that_no_page_gave_is_refused_in_words_of_ours(tenant: Client, place: str) -> None:
    session = tenant.submit(agent=AGENT, input="hello").session_id
    for ask in (tenant.sessions, tenant.approvals, lambda after: tenant.tasks(session, after=after)):
        with pytest.raises(BadCursor) as refusal:
            ask(after=place)
        assert refusal.value.code == "bad_cursor"


def test_a_time_without_its_zone_and_a_session_of_another_tenant_are_refused(tenant: Client) -> None:
    refused: list[tuple[type[BrainhandsError], dict[str, object]]] = [
        (BadInput, {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001
        (BadInput, {"until": "yesterday"}),
        (BadInput, {"open": "yes"}),
    ]
    for error, filters in refused:
        with pytest.raises(error):
            tenant.sessions(**filters)  # type: ignore[arg-type]
    session = tenant.submit(agent=AGENT, input="hello").session_id
    with pytest.raises(UnknownSession):
        tenant.for_tenant("somebody else").tasks(session)


@pytest.mark.promise("I10", "I2")
def test_a_log_is_verified_page_by_page(shared_stage: Stage, tenant: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tenant.submit(agent=AGENT, input="hello").session_id
    for number in range(30):
        tenant.signal(session, "news", payload=number)
    read = reads.event_page
    pages: list[int] = []

    def small(database: object, parts: object, after: int, most: int = 4) -> object:
        page = read(database, parts, after, most)  # type: ignore[arg-type]
        pages.append(len(page))
        return page

    monkeypatch.setattr(reads, "event_page", small)
    assert tenant.verify(session) is None
    assert max(pages) == 4

    shared_stage.sql("UPDATE brainhands.events SET payload = '{}' WHERE session_id = %s AND seq = 21", session)
    assert tenant.verify(session) == Flaw(seq=21, problem="its payload was changed")
    assert sum(pages[-6:]) == 24, "what lies behind a flaw is not read"
