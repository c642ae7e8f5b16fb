"""Addresses are read in one way everywhere; bad ones are refused in a line that repeats nothing of a password."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import redis
from kombu import Connection
from psycopg.conninfo import conninfo_to_dict

from brainhands.shared.client import Client
from brainhands.shared.errors import SettingsError
from brainhands.shared.runtime.address import postgres_address, redis_address, shown
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import connections
from tests.instruments.certificates import make_certificate

SECRET = "tops/3cret"
MARKS = "@:/?#[]% &=+,;'\"\\ü|"


@pytest.mark.parametrize("mark", MARKS)
def test_a_password_with_any_mark_arrives_whole_once_it_is_percent_encoded(mark: str) -> None:
    password = f"a{mark}b{mark}"
    encoded = quote(password, safe="")

    found = conninfo_to_dict(postgres_address(f"postgresql://user:{encoded}@host:5432/shop"))
    address = redis_address(f"redis://user:{encoded}@host:6379/2")
    pool = redis.ConnectionPool.from_url(address)

    assert found == {"user": "user", "password": password, "host": "host", "port": "5432", "dbname": "shop"}
    assert (pool.connection_kwargs["password"], pool.connection_kwargs["db"]) == (password, 2)
    assert Connection(address).password == password


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("form", ["postgresql://user:{}@host:5432/shop", "redis://:{}@host:6379/0"])
def test_a_password_as_it_is_arrives_whole_or_is_refused_without_a_word_of_it(form: str, mark: str) -> None:
    password = f"left{mark}right"
    reads = postgres_address if form.startswith("postgres") else redis_address
    try:
        said = taken = reads(form.format(password))
    except ValueError as refusal:
        taken, said = None, str(refusal)
    if taken is None:
        assert "left" not in said
        assert "right" not in said
    elif reads is postgres_address:
        assert conninfo_to_dict(taken)["password"] == password
    else:
        assert redis.ConnectionPool.from_url(taken).connection_kwargs["password"] == password
        assert Connection(taken).password == password


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("postgresql://user:secret@host:5432/shop", "host:5432/shop"),
        ("postgres://host/shop", "host/shop"),
        ("postgresql+psycopg://host/shop?sslmode=require", "host/shop"),
        ("postgresql://user@[::1]:5432/shop", "[::1]:5432/shop"),
        ("postgresql://[fe80::1%25eth0]/shop", "[fe80::1%eth0]/shop"),
        ("postgresql://a:1,b:2/shop?target_session_attrs=read-write", "a:1,b:2/shop"),
        ("postgresql:///shop?host=/var/run&password=secret", "/var/run/shop"),
        ("postgresql://%2Fvar%2Frun/shop", "/var/run/shop"),
        ("postgresql:///shop", "the local socket/shop"),
        ("postgresql://user:secret@/shop", "the local socket/shop"),
        ("redis://:secret@host:6379/0", "host:6379/0"),
        ("rediss://[::1]:6379/1?ssl_cert_reqs=required", "[::1]:6379/1"),
        ("rediss://host", "host/"),
    ],
)
def test_what_is_shown_of_an_address_is_where_it_leads(address: str, where: str) -> None:
    assert shown(address) == where
    reads = postgres_address if address.startswith("postgres") else redis_address
    assert shown(reads(address)) == where


BAD_POSTGRES = {
    "mysql://host/shop": "must begin with",
    f"host:5432/{SECRET}": "must begin with",
    "postgresql://": "no database",
    "postgresql://host": "no database",
    "postgresql://host:/": "no database",
    f"postgresql://user:{SECRET}@host/shop": "percent-encoded",
    "postgresql://user:tops@3cret@host/shop": "percent-encoded",
    "postgresql://user:tops%3cret%zz@host/shop": "hex digits",
    "postgresql://user:tops 3cret@host/shop": "spaces",
    "postgresql://user:tops\n3cret@host/shop": "control characters",
    "postgresql://user:3cret@host:port/shop": "port",
    "postgresql://user:3cret@host:99999/shop": "port",
    "postgresql://user:3cret@[::1/shop": "host",
    "postgresql://user:3cret@::1/shop": "port",
    "postgresql://user:3cret@[::1]5432/shop": "no port",
    "postgresql://user:3cret@ho$t/shop": "host",
    "postgresql://user:3cret@host/shop?3cret": "name=value",
    "postgresql://user:3cret@host/shop?passwort=3cret": "option 1",
    "postgresql://host/shop?password=tops&3cret=1": "option 2",
}
BAD_REDIS = {
    "localhost:6379": "must begin with",
    "http://3cret@host": "must begin with",
    f"redis://:{SECRET}@host/0": "percent-encoded",
    "redis://:tops#3cret@host/0": "percent-encoded",
    "redis://:tops[3cret@host/0": "percent-encoded",
    "redis://:3cret@host:port/0": "port",
    "redis://:3cret@host/3cret": "no number",
    "redis://:3cret@a,b/0": "several hosts",
    "redis://:3cret@[::1/0": "host",
    "redis://:3cret@host/0?db=1": "redis:// takes no options",
    "redis://:3cret@host/0?ssl_cert_reqs=required": "with TLS it is rediss://",
    "rediss://:3cret@host/0?db=1": "its option 1 is none of ssl_cert_reqs",
    "rediss://:3cret@host/0?ssl_keyfile=a&passwort=3cret": "its option 2 is none of",
    "rediss://:3cret@host/0?SSL_CERT_REQS=none": "its option 1 is none of",
    "rediss://host/0?ssl_cert_reqs=optional": "neither required nor none",
    "rediss://host/0?ssl_cert_reqs=": "neither required nor none",
    "rediss://host/0?ssl_check_hostname=0": "neither true nor false",
    "rediss://host/0?ssl_cert_reqs=none&ssl_cert_reqs=required": "ssl_cert_reqs twice",
    "rediss://host/0?ssl_cert_reqs=none&ssl_check_hostname=true": "no certificate is checked",
    "rediss://host/0?ssl_cert_reqs=none&ssl_ca_certs=/3cret.pem": "no certificate is checked",
    "rediss://host/0?ssl_ca_certs=/3cret/none.pem": "ssl_ca_certs names no file of certificates",
    "rediss://host/0?ssl_ca_certs=/dev/null": "ssl_ca_certs names no file of certificates",
    "rediss://host/0?ssl_ca_certs=": "ssl_ca_certs names no file of certificates",
    "rediss://host/0?ssl_ca_certs=/3cret%00": "ssl_ca_certs names no file of certificates",
    "rediss://host/0?ssl_keyfile=/3cret.key": "ssl_keyfile without ssl_certfile",
    "rediss://host/0?ssl_certfile=/3cret.pem": "no certificate with its key",
}


@pytest.mark.parametrize(
    ("variable", "address", "said"),
    [
        *(("DATABASE_URL", address, said) for address, said in BAD_POSTGRES.items()),
        *(("REDIS_URL", address, said) for address, said in BAD_REDIS.items()),
    ],
)
def test_a_bad_address_is_refused_alike_by_settings_and_client_in_a_line_that_repeats_nothing_of_it(
    variable: str, address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, address)
    given = {"DATABASE_URL": "postgresql://host/shop", "REDIS_URL": "redis://host/0", variable: address}

    with pytest.raises(SettingsError, match=variable) as by_settings:
        settings()
    with pytest.raises(SettingsError) as by_client:
        Client(given["DATABASE_URL"], given["REDIS_URL"])

    assert str(by_settings.value) == str(by_client.value)
    line = str(by_client.value)
    assert said in line
    assert "\n" not in line
    assert not any(part in line for part in ("3cret", "tops", "passwort"))


SECURE = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
INSECURE = {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ("", SECURE),
        ("?", SECURE),
        ("?ssl_cert_reqs=required", SECURE),
        ("?ssl_check_hostname=true&ssl_cert_reqs=required", SECURE),
        ("?ssl_check_hostname=false", {**SECURE, "ssl_check_hostname": False}),
        ("?ssl_cert_reqs=none", INSECURE),
        ("?ssl_cert_reqs=none&ssl_check_hostname=false", INSECURE),
        ("?ssl_ca_certs={file}", {**SECURE, "ssl_ca_certs": "{file}"}),
        ("?ssl_certfile={file}&ssl_keyfile={key}", {**SECURE, "ssl_certfile": "{file}", "ssl_keyfile": "{key}"}),
    ],
)
def test_all_that_read_a_secure_address_do_the_same_and_check_the_certificate_unless_told_not_to(
    options: str, meant: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "a b+c;d#e%&"
    folder.mkdir()
    made = make_certificate(folder)
    names = {"file": str(made.certificate), "key": str(made.key)}
    wanted = {name: value.format(**names) if isinstance(value, str) else value for name, value in meant.items()}

    address = redis_address(
        "rediss://:pass;word@host:6379/2" + options.format(**{name: quote(value) for name, value in names.items()})
    )

    assert redis_address(address) == address
    pool = redis.ConnectionPool.from_url(address)
    assert pool.connection_class is redis.SSLConnection
    assert {name: value for name, value in pool.connection_kwargs.items() if name.startswith("ssl_")} == wanted
    reqs = {"required": ssl.CERT_REQUIRED, "none": ssl.CERT_NONE}[str(wanted["ssl_cert_reqs"])]
    assert Connection(address).ssl == Connection(address, transport="redis").ssl == {**wanted, "ssl_cert_reqs": reqs}
    assert Connection(address).password == "pass;word"


@pytest.mark.parametrize("sslmode", ["disable", "require", "verify-full", "nonsense"])
@pytest.mark.parametrize("extra", ["", "&connect_timeout=4", "&application_name=mine"])
def test_an_address_means_to_our_connections_what_it_means_to_libpq(
    database_url: str, sslmode: str, extra: str
) -> None:
    address = f"{database_url}?sslmode={sslmode}{extra}"
    try:
        with psycopg.connect(address) as plain:
            theirs: object = (plain.pgconn.ssl_in_use, plain.info.host, plain.info.port, plain.info.dbname)
    except psycopg.OperationalError as error:
        theirs = str(error)
    try:
        with connections.connect(address) as own:
            ours: object = (own.pgconn.ssl_in_use, own.info.host, own.info.port, own.info.dbname)
    except psycopg.OperationalError as error:
        ours = str(error)

    assert ours == theirs
