"""The Python door as a whole: every method over lost connections, and every parameter with what it cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import redis
import sqlalchemy
import sqlalchemy.orm

from brainhands.shared.client import NAME_LIMIT, Client
from brainhands.shared.errors import BadInput, BrainhandsError, ServerUnavailable, UnfitConnection
from brainhands.shared.runtime.settings import libpq_url
from tests.instruments.fleet import wait_until
from tests.instruments.proxy import Proxy
from tests.store.stage import AGENT, NO_REDIS, Stage, call_of_unknown_effect, finish
from tests.store.test_seams import in_review

METHODS = {
    name: method
    for name, method in inspect.getmembers(Client, inspect.isfunction)
    if not name.startswith("_") and name != "close"
}


class Scene:
    """A session with all that a client can name: an answered input, a document, a question, a call to settle."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        ended = stage.submit("first")
        self.ended = ended.submission_id
        self.at_rest = ended.session_id
        stage.advance(stage.open_generation(self.at_rest), finish("done"))
        self.session, generation = stage.session()
        in_review(stage, self.session, generation)
        (approval,) = (each for each in stage.client.approvals() if each.session_id == self.session)
        self.approval = approval.id
        self.unknown = call_of_unknown_effect(stage, self.session)
        self.open = stage.add(self.session)

    def arguments(self) -> dict[str, dict[str, Any]]:
        """Of each method a call that works."""
        return {
            "submit": {"agent": AGENT, "input": "hello"},
            "submission": {"id": self.ended},
            "session": {"id": self.session},
            "sessions": {},
            "tasks": {"session": self.session},
            "events": {"session": self.session},
            "documents": {"session": self.session},
            "document": {"session": self.session, "name": "usage"},
            "document_history": {"session": self.session, "name": "absent"},
            "watch": {"session": self.session},
            "wait": {"submission": self.ended},
            "waits_for": {"submission": self.ended},
            "effects": {"session": self.session, "seq": 1},
            "verify": {"session": self.session},
            "cancel": {"task": self.open},
            "approvals": {},
            "approval": {"approval": self.approval},
            "event": {"session": self.session, "seq": 1},
            "answer": {"approval": self.approval, "answer": "unknown"},
            "settle": {"task": self.unknown, "answer": "happened"},
            "signal": {"session": self.session, "name": "mail"},
            "redact": {"session": self.at_rest, "seqs": [2], "reason": "why"},
            "erase": {"session": self.at_rest, "reason": "why"},
            "awake": {"session": self.session},
            "fork": {"session": self.session, "at": 2},
            "next_wake": {"pool": "hands.default"},
            "for_tenant": {"tenant": "other"},
        }


def _call(client: Client, name: str, arguments: dict[str, Any]) -> Any:
    result = getattr(client, name)(**arguments)
    return next(result) if name == "watch" else result


@pytest.fixture(scope="module")
def scene(shared_stage: Stage) -> Scene:
    return Scene(shared_stage)


@pytest.fixture
def proxy(shared_stage: Stage) -> Iterator[Proxy]:
    address = urlsplit(shared_stage.database_url)
    assert address.hostname is not None
    assert address.port is not None
    with Proxy(address.hostname, address.port) as made:
        yield made


def _through(stage: Stage, proxy: Proxy) -> str:
    return stage.database_url.replace(f":{urlsplit(stage.database_url).port}/", f":{proxy.port}/")


def _fill_pool(client: Client) -> None:
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(client._database.connection())


# -- lost connections ------------------------------------------------------------------------------------------------


@pytest.mark.promise("H5")
@pytest.mark.parametrize("name", [*METHODS, "submit within"])
def test_the_first_call_after_all_idle_connections_were_cut_succeeds(
    shared_stage: Stage, proxy: Proxy, name: str
) -> None:
    """One way through the client: each of its methods, whatever it reads and stores."""
    scene = Scene(shared_stage)
    arguments = scene.arguments()
    assert arguments.keys() == METHODS.keys()
    with closing(Client(_through(shared_stage, proxy), NO_REDIS)) as client, ExitStack() as held:
        if name == "submit within":
            caller = held.enter_context(psycopg.connect(libpq_url(shared_stage.database_url)))
            arguments[name] = {"agent": AGENT, "input": "hello", "connection": caller}
        call = partial(_call, client, name.partition(" ")[0], arguments[name])
        _fill_pool(client)
        proxy.cut()

        if name == "document_history":
            with pytest.raises(BadInput, match="no document"):
                call()
        else:
            call()


@pytest.mark.promise("H5")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "for_tenant"])
def test_while_postgres_is_away_each_method_says_so_in_words_of_ours(
    scene: Scene, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brainhands.shared.store.database.Pause.again", lambda _: False)  # once is enough to hear it
    with closing(Client(_through(scene.stage, proxy), NO_REDIS)) as client:
        proxy.refuse()
        if name == "watch":
            with pytest.raises(ServerUnavailable):
                next(client.watch(scene.session))
            return
        with pytest.raises(BrainhandsError) as refusal:
            _call(client, name, scene.arguments()[name])
    assert type(refusal.value).__name__ in ("ServerUnavailable", "Unsettled")


# -- what cannot be taken --------------------------------------------------------------------------------------------

WRONG: dict[str, object] = {
    "dict": {"text": "hello"},
    "empty dict": {},
    "list": ["hello"],
    "None": None,
    "int": 42,
    "negative": -1,
    "huge": 10**30,
    "float": 1.5,
    "nan": float("nan"),
    "bool": True,
    "bytes": b"hello",
    "object": object(),
    "set": {1, 2},
    "UUID": uuid4(),
    "text": "hello",
    "lone surrogate": "\ud800",
    "NUL": "a\x00b",
    "long text": "x" * 2_000,
    "empty text": "",
}
PARAMETERS = [
    (name, parameter)
    for name, method in METHODS.items()
    for parameter in inspect.signature(method).parameters
    if parameter != "self"
]


@pytest.mark.promise("B12")
@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=[".".join(each) for each in PARAMETERS])
def test_whatever_a_parameter_is_given_is_taken_or_refused_in_words_of_ours(
    scene: Scene, name: str, parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brainhands.shared.client.SILENCE_SECONDS", 0.01)
    good = scene.arguments()[name]
    for kind, value in WRONG.items():
        if name == "watch" and kind in ("int", "huge"):
            continue  # it waits for events after such a number
        try:
            with suppress(BrainhandsError):
                _call(scene.stage.client, name, {**good, parameter: value})
        except Exception as problem:
            raise AssertionError(f"{name}({parameter}={kind})") from problem


@pytest.mark.parametrize("parameter", ["database_url", "redis_url", "tenant"])
def test_whatever_a_client_is_made_with_is_taken_or_refused_in_words_of_ours(scene: Scene, parameter: str) -> None:
    good = {"database_url": scene.stage.database_url, "redis_url": NO_REDIS}
    for kind, value in WRONG.items():
        try:
            with suppress(BrainhandsError):
                Client(**{**good, parameter: value}).close()  # type: ignore[arg-type]
        except Exception as problem:
            raise AssertionError(f"{parameter}={kind}") from problem


@pytest.mark.promise("A2")
def test_ids_are_uuids_or_their_text_and_a_request_id_may_be_one(scene: Scene) -> None:
    client, request_id = scene.stage.client, uuid4()

    first = client.submit(agent=AGENT, input="hello", request_id=request_id)  # type: ignore[arg-type]
    again = client.submit(agent=AGENT, input="hello", request_id=str(request_id))
    keyed = client.signal(scene.session, "mail", key=request_id)  # type: ignore[arg-type]

    assert first.submission_id == again.submission_id
    assert first.request_id == str(request_id)
    assert keyed.session_id == client.session(str(scene.session)).session.id
    assert scene.stage.sql("SELECT key FROM brainhands.signals WHERE id = %s", keyed.signal_id)[0]["key"] == str(
        request_id
    )


def test_an_input_that_is_no_text_says_how_to_make_text_of_it(scene: Scene) -> None:
    with pytest.raises(BadInput, match="the input is text, not dict") as refusal:
        scene.stage.client.submit(agent=AGENT, input={"order": 7})  # type: ignore[arg-type]
    assert "json.dumps" in refusal.value.next_step
    assert refusal.value.__notes__ == [refusal.value.next_step]  # which a traceback shows


@pytest.mark.promise("C15")
@pytest.mark.parametrize("part", ["name", "key"])
def test_a_signals_name_or_key_is_stored_whole_or_refused(scene: Scene, part: str) -> None:
    given = {"name": "mail", "key": "k"}
    receipt = scene.stage.client.signal(scene.session, **{**given, part: "x" * NAME_LIMIT})
    (stored,) = scene.stage.sql("SELECT name, key FROM brainhands.signals WHERE id = %s", receipt.signal_id)
    assert len(stored[part]) == NAME_LIMIT
    for wrong in ("x" * (NAME_LIMIT + 1), "a\x00b"):
        with pytest.raises(BadInput, match=part):
            scene.stage.client.signal(scene.session, **{**given, part: wrong})


# -- a caller's connection -------------------------------------------------------------------------------------------


def _unfit(scene: Scene, connection: object) -> UnfitConnection:
    with pytest.raises(UnfitConnection) as refusal:
        scene.stage.client.submit(agent=AGENT, input="no", connection=connection)  # type: ignore[arg-type]
    return refusal.value


def _named(module: str, name: str) -> object:
    """Something whose type has this name."""
    return type(name, (), {"__module__": module})()


@pytest.mark.promise("A7")
@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda url: sqlalchemy.orm.Session(sqlalchemy.create_engine(url)), "connection=session.connection())"),
        (lambda _: _named("sqlalchemy.ext.asyncio.engine", "AsyncConnection"), "AsyncClient"),
        (lambda _: object.__new__(psycopg.AsyncConnection), "AsyncClient"),
        (lambda _: _named("django.utils.connection", "ConnectionProxy"), "connection=django.db.connection.connection)"),
        (lambda url: sqlalchemy.create_engine(url), "psycopg.connect"),
        (lambda url: url, "psycopg.connect"),
        (lambda _: SimpleNamespace(cursor=None), "psycopg.connect"),
    ],
    ids=["Session", "AsyncConnection of SQLAlchemy", "AsyncConnection", "Django", "Engine", "address", "other"],
)
def test_what_is_no_connection_that_would_do_is_refused_with_the_lines_that_do(
    scene: Scene, made: Callable[[str], object], line: str
) -> None:
    url = scene.stage.database_url.replace("postgresql://", "postgresql+psycopg://")

    refusal = _unfit(scene, made(url))

    assert line in refusal.next_step
    assert len(refusal.next_step.splitlines()) == 3


@pytest.mark.promise("A7")
def test_the_lines_for_a_session_of_sqlalchemy_and_for_djangos_connection_do(scene: Scene) -> None:
    """Django hands out the psycopg connection, out of autocommit inside `atomic`."""
    client = scene.stage.client
    engine = sqlalchemy.create_engine(scene.stage.database_url.replace("postgresql://", "postgresql+psycopg://"))
    with sqlalchemy.orm.Session(engine) as session, session.begin():
        first = client.submit(agent=AGENT, input="yes", connection=session.connection())
    engine.dispose()
    with psycopg.connect(libpq_url(scene.stage.database_url), autocommit=True) as connection:
        connection.autocommit = False
        second = client.submit(agent=AGENT, input="yes", connection=connection)
        connection.commit()

    assert {client.submission(each.submission_id).input for each in (first, second)} == {"yes"}


@pytest.mark.promise("A7")
@pytest.mark.parametrize("kind", ["closed", "closed of SQLAlchemy", "failed", "read-only"])
def test_a_connection_that_cannot_write_now_is_refused_in_words_of_ours(scene: Scene, kind: str) -> None:
    url = libpq_url(scene.stage.database_url)
    with ExitStack() as held:
        connection: Any
        if kind == "closed of SQLAlchemy":
            engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
            connection = held.enter_context(engine.connect())
        else:
            connection = held.enter_context(psycopg.connect(url))
        if kind.startswith("closed"):
            connection.close()
        elif kind == "failed":
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1 / 0")
        elif kind == "read-only":
            connection.read_only = True

        assert kind.partition(" ")[0] in str(_unfit(scene, connection))


@pytest.mark.promise("A7")
@pytest.mark.parametrize(
    "setting",
    [
        "client_encoding = 'LATIN1'",
        "client_encoding = 'SQL_ASCII'",
        "DateStyle = 'SQL, DMY'",
        "TimeZone = 'Asia/Tokyo'",
    ],
)
def test_a_callers_settings_are_kept_and_change_nothing_that_is_stored(scene: Scene, setting: str) -> None:
    name = setting.partition(" ")[0]
    with psycopg.connect(libpq_url(scene.stage.database_url)) as connection:
        connection.execute(f"SET {setting}".encode())
        before = connection.info.parameter_status(name)
        receipt = scene.stage.client.submit(agent=AGENT, input="schön 漢字 ✓", connection=connection)
        connection.commit()
        assert connection.info.parameter_status(name) == before

    assert scene.stage.client.submission(receipt.submission_id).input == "schön 漢字 ✓"


def test_a_closed_client_holds_no_connection(shared_stage: Stage, redis_url: str) -> None:
    client = Client(shared_stage.database_url, redis_url)
    with redis.Redis.from_url(redis_url) as other:
        alone = len(other.client_list())
        client.submit(agent=AGENT, input="hello")
        assert len(other.client_list()) == alone + 1

        client.close()

        wait_until(lambda: len(other.client_list()) == alone, 10, "the end of its connection")
