"""Databases that are not set up like ours: what is set there changes nothing, or is refused by name."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from brainhands.shared.cli import doctor
from brainhands.shared.client import Client
from brainhands.shared.errors import UnfitDatabase
from brainhands.shared.local.servers import Postgres, free_port
from brainhands.shared.runtime.settings import libpq_url
from brainhands.shared.store import migrate
from brainhands.shared.store.connections import PINNED
from brainhands.shared.store.database import Database, Statement
from tests.conftest import readable_folder
from tests.instruments.fleet import wait_until
from tests.instruments.invariants import violations
from tests.instruments.pooler import Pooler
from tests.store.stage import AGENT, NO_REDIS, finish, stage_of

SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "DateStyle": "SQL, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-5",
    "idle_in_transaction_session_timeout": "54321",
    "idle_session_timeout": "54321",
    "IntervalStyle": "sql_standard",
    "lock_timeout": "54321",
    "search_path": "elsewhere, pg_catalog",
    "standard_conforming_strings": "off",
    "statement_timeout": "54321",
    "TimeZone": "Asia/Kolkata",
    "transform_null_equals": "on",
}
ISOLATION = Statement(text("SELECT current_setting('transaction_isolation') AS level"))
SET = Statement(text("SELECT name, current_setting(name) AS value FROM pg_settings"))
UNTOUCHED = PINNED.keys() & SETTINGS.keys() - {
    *("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"),
}
"""What each part's sessions have alike."""
VARIABLES = {"PGTZ": "Asia/Kolkata", "PGDATESTYLE": "SQL, DMY", "PGCLIENTENCODING": "SQL_ASCII"}


def work(url: str) -> None:
    """What every part does: migrate, check, submit, claim, commit, sweep and read, with all kinds of values."""
    migrate.upgrade(url)
    migrate.require_current(url)
    words = "schön 漢字 ✓ back\\slash 'quoted' NULL"
    with stage_of(url) as stage:
        receipt = stage.submit(words)
        stage.advance(stage.open_generation(receipt.session_id), finish({"n": 0.1 + 0.2, "t": words, "none": None}))
        napping = stage.add(receipt.session_id)
        stage.claim_and_die(napping)
        stage.lose(napping)
        view = stage.client.session(receipt.session_id)
        assert view.submissions[0].input == words
        assert view.submissions[0].output == {"n": 0.1 + 0.2, "t": words, "none": None}
        assert view.session.created_at.utcoffset() is not None
        assert view.session.created_at.utcoffset().total_seconds() == 0  # type: ignore[union-attr]
        assert stage.client.verify(receipt.session_id) is None
        with stage.database.transaction() as transaction:
            isolation, found = transaction.run(ISOLATION(), SET())
        assert isolation.rows == [{"level": "read committed"}]
        ours = {row["name"]: row["value"] for row in found.rows}
        assert {name: ours[name] for name in UNTOUCHED} == {name: PINNED[name] for name in UNTOUCHED}
        assert (ours["statement_timeout"], ours["idle_in_transaction_session_timeout"]) == ("5s", "5s")
    assert violations(url) == []


def alter(postgres: Postgres, url: str, kind: str, settings: dict[str, str]) -> None:
    """Set what new connections to a database begin with."""
    name = sql.Identifier(url.rpartition("/")[2])
    of = {
        "database": sql.SQL("ALTER DATABASE {} ").format(name),
        "role": sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} ").format(name),
    }
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for setting, value in settings.items():
            written = sql.SQL(value) if setting == "search_path" else sql.Literal(value)
            connection.execute(of[kind] + sql.SQL("SET {} = {}").format(sql.Identifier(setting), written))


# -- what is set changes nothing -------------------------------------------------------------------------------------


@pytest.mark.promise("D4", "B12")
@pytest.mark.parametrize("kind", ["database", "role"])
def test_whatever_a_database_or_role_sets_for_its_sessions_changes_nothing(
    postgres: Postgres, empty_database_url: str, kind: str
) -> None:
    alter(postgres, empty_database_url, kind, SETTINGS)

    work(empty_database_url)


@pytest.mark.promise("D4", "B12")
@pytest.mark.parametrize("how", ["PGOPTIONS", "variables", "in the address"])
def test_whatever_the_environment_or_the_address_sets_for_sessions_changes_nothing(
    empty_database_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SETTINGS.items())
    url = empty_database_url
    if how == "PGOPTIONS":
        monkeypatch.setenv("PGOPTIONS", options)
    elif how == "variables":
        for name, value in VARIABLES.items():
            monkeypatch.setenv(name, value)
    else:
        url += "?options=" + options.replace("%", "%25").replace(" ", "%20").replace("\\", "%5C").replace("=", "%3D")

    work(url)


def test_what_is_pinned_is_what_a_connection_says_and_a_setting_of_the_operators_stays(
    postgres: Postgres, database_url: str
) -> None:
    alter(postgres, database_url, "database", {"work_mem": "7MB"})
    database = Database(f"{database_url}?application_name=mine&connect_timeout=3", size=1)
    with database.connection() as connection:
        said = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("work_mem", "TimeZone")}
        name = connection.info.parameter_status("application_name")
    database.close()

    assert (said, name) == ({"work_mem": ("7MB",), "TimeZone": ("UTC",)}, "mine")


# -- what cannot be pinned is refused --------------------------------------------------------------------------------


def refused(url: str) -> UnfitDatabase:
    """As `migrate`, a part's start and `doctor` say it."""
    problems = []
    for check in (migrate.upgrade, migrate.require_current):
        with pytest.raises(UnfitDatabase) as refusal:
            check(url)
        problems.append(refusal.value)
        assert refusal.value.next_step
        assert "\n" not in f"{refusal.value}{refusal.value.next_step}"
    assert str(problems[0]) == str(problems[1])
    return problems[0]


@contextmanager
def new_database_in(postgres: Postgres, encoding: str) -> Iterator[str]:
    name = f"in_{encoding.lower()}"
    made = "CREATE DATABASE {} ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL(made).format(sql.Identifier(name), sql.Literal(encoding)))
        yield f"{postgres.url.rpartition('/')[0]}/{name}"
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.promise("B12")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_in_an_encoding_that_does_not_hold_any_text_is_refused(postgres: Postgres, encoding: str) -> None:
    with new_database_in(postgres, encoding) as url:
        assert f"the encoding {encoding}" in str(refused(url))


@pytest.mark.parametrize("kind", ["database", "role"])
@pytest.mark.parametrize(
    ("setting", "value"), [("default_transaction_read_only", "on"), ("session_replication_role", "replica")]
)
def test_a_setting_that_its_owner_must_take_back_is_refused_by_its_name(
    postgres: Postgres, database_url: str, kind: str, setting: str, value: str
) -> None:
    alter(postgres, database_url, kind, {setting: value})

    assert setting in str(refused(database_url))


def test_doctor_says_what_is_wrong_with_the_database_and_what_to_do(
    postgres: Postgres, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(postgres, database_url, "database", {"default_transaction_read_only": "on"})
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("REDIS_URL", redis_url)

    report = doctor.examine()

    (finding,) = (each for each in report.findings if each.check == "postgres")
    assert "default_transaction_read_only is on" in finding.problem
    assert "RESET" in finding.next_step
    assert report.exit_code == UnfitDatabase.exit_code
    assert str(urlsplit(database_url).password) not in repr(report)


def test_a_standby_is_refused(postgres: Postgres) -> None:
    with readable_folder() as folder:
        standby = Postgres(folder, postgres._binaries)
        standby.start()
        try:
            url = standby.url
            migrate.upgrade(url)
            standby.stop()
            signal_file = folder / "data" / "standby.signal"
            signal_file.touch()
            shutil.chown(signal_file, (folder / "data").stat().st_uid, (folder / "data").stat().st_gid)
            # Its lock file says `standby` where it would say `ready`.
            standby._status = lambda: (standby.pid, "ready")  # type: ignore[method-assign]
            standby._clear_leftover = lambda: None  # type: ignore[method-assign]
            standby.start()
            wait_until(lambda: _answers(url), 30, "the standby's answers")

            assert "is a standby" in str(refused(url))
        finally:
            standby.stop()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def stranger(postgres: Postgres) -> Iterator[str]:
    """A role without rights: `name:password`."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN PASSWORD 'secret'")
        yield "stranger:secret"
        connection.execute("DROP OWNED BY stranger")
        connection.execute("DROP ROLE stranger")


def _as(role: str, url: str) -> str:
    return f"postgresql://{role}@{url.rpartition('@')[2]}"


def test_a_role_that_may_not_create_the_schema_is_told_whom_to_ask(empty_database_url: str, stranger: str) -> None:
    with pytest.raises(UnfitDatabase, match="permission denied for database") as refusal:
        migrate.upgrade(_as(stranger, empty_database_url))
    assert "GRANT CREATE ON DATABASE" in refusal.value.next_step


@pytest.mark.parametrize("missing", ["all", "the schema", "INSERT", "DELETE"])
def test_a_role_that_may_not_do_all_that_a_worker_does_is_refused_at_the_start(
    database_url: str, stranger: str, missing: str
) -> None:
    with psycopg.connect(libpq_url(database_url), autocommit=True) as connection:
        if missing != "all":
            connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA brainhands TO stranger")
            if missing != "the schema":
                connection.execute("GRANT USAGE ON SCHEMA brainhands TO stranger")
                connection.execute(f"REVOKE {missing} ON brainhands.outbox FROM stranger".encode())
        with pytest.raises(UnfitDatabase, match="the role may not") as refusal:
            migrate.require_current(_as(stranger, database_url))
        assert "GRANT" in refusal.value.next_step
        connection.execute("REVOKE ALL ON ALL TABLES IN SCHEMA brainhands FROM stranger")
        connection.execute("REVOKE ALL ON SCHEMA brainhands FROM stranger")


# -- poolers ---------------------------------------------------------------------------------------------------------


@contextmanager
def pgbouncer(url: str, mode: str) -> Iterator[str]:
    """The real one, where it is installed."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    address = urlsplit(url)
    account = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    with readable_folder() as folder:
        folder.chmod(0o777)
        configuration, log = folder / "pgbouncer.ini", folder / "pgbouncer.log"
        # A port is free only until somebody takes it, so one that was taken is passed over.
        for _ in range(10):
            port = free_port()
            configuration.write_text(
                f"[databases]\n* = host={address.hostname} port={address.port} user={address.username}"
                f" password={address.password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
                f"auth_type = any\npool_mode = {mode}\nunix_socket_dir =\nlogfile = {log}\n"
            )
            pooled = f"postgresql://{address.username}@127.0.0.1:{port}{address.path}"
            command = ["-q", str(configuration)]
            with subprocess.Popen([program, *command], stderr=subprocess.DEVNULL, **account) as process:  # type: ignore[call-overload]
                try:
                    wait_until(lambda: process.poll() is not None or _answers(pooled), 30, "pgbouncer")  # noqa: B023
                    if process.poll() is None:
                        yield pooled
                        return
                finally:
                    process.terminate()
        pytest.fail(f"pgbouncer does not start:\n{log.read_text()}")


@contextmanager
def imitation(url: str, mode: str) -> Iterator[str]:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    with Pooler(address.hostname, address.port, "transaction" if mode == "transaction" else "session") as pooler:
        yield url.replace(f":{address.port}/", f":{pooler.port}/")


POOLERS = {"imitation": imitation, "pgbouncer": pgbouncer}


@pytest.mark.parametrize("pooler", POOLERS)
def test_a_pooler_that_gives_each_transaction_another_session_is_refused_and_left_as_it_was(
    database_url: str, pooler: str
) -> None:
    with POOLERS[pooler](database_url, "transaction") as url:
        assert "pool_mode = transaction" in str(refused(url))
        client = Client(url, NO_REDIS)
        with pytest.raises(UnfitDatabase):
            client.submit(agent=AGENT, input="hello")
        client.close()
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)


@pytest.mark.parametrize("pooler", POOLERS)
def test_a_pooler_that_keeps_a_session_together_is_worked_with(empty_database_url: str, pooler: str) -> None:
    with POOLERS[pooler](empty_database_url, "session") as url:
        work(url)
