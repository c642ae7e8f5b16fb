"""The addresses of Postgres and Redis: judged in one place, and refused in a line that repeats nothing of them.

What is in a Postgres address (hosts, sockets, options, TLS) is read by libpq alone. It is judged here before, because a
password with a mark that is not percent-encoded makes part of itself a host, a port or an option, which errors of
others would show.

How a Redis connection is secured is written into its address, so that all that read it, which have defaults of their
own, do the same.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, unquote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

POSTGRES_SCHEMES = ("postgresql+psycopg://", "postgresql://", "postgres://")
REDIS_SCHEMES = ("redis://", "rediss://")
POSTGRES_FORM = "postgresql://user:password@host:port/database"
REDIS_FORM = "redis://:password@host:port/0"
TLS_FORM = "rediss://:password@host:port/0?ssl_ca_certs=/path/ca.pem"

TLS_CHOICES = {"ssl_cert_reqs": ("required", "none"), "ssl_check_hostname": ("true", "false")}
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

ENCODE = "in a user or password write %40 for @, %2F for /, %3F for ?, %23 for #, %5B for [, %5D for ] and %25 for %"

_NAMED = re.compile(r"[\w.-]+|%2F[\w.%/ -]*", re.ASCII | re.IGNORECASE)
_IN_BRACKETS = re.compile(r"\[[0-9A-Fa-f:.]+(%25[\w.-]+)?\]", re.ASCII)
_BAD_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


def postgres_address(given: object) -> str:
    """The address as libpq, psycopg and psql take it. Raises ValueError."""
    rest = _after_scheme(given, POSTGRES_SCHEMES, POSTGRES_FORM)
    _, _, options = _judged(rest, POSTGRES_FORM)
    for number, (option, _) in enumerate(options, 1):
        if option.encode() not in _options():
            raise ValueError(f"its option {number} is none that libpq knows, such as sslmode; {_form(POSTGRES_FORM)}")
    address = f"postgresql://{rest}"
    try:
        found = conninfo_to_dict(address)
    except psycopg.Error:
        raise ValueError(f"libpq cannot read it; {_form(POSTGRES_FORM)}") from None
    if not any((found.get("dbname"), found.get("service"), os.environ.get("PGDATABASE"), os.environ.get("PGSERVICE"))):
        raise ValueError(f"it names no database; {_form(POSTGRES_FORM)}")
    return address


def redis_address(given: object) -> str:
    """The address as redis-py and kombu take it; that of `rediss://` says all of its TLS. Raises ValueError."""
    rest = _after_scheme(given, REDIS_SCHEMES, REDIS_FORM)
    hosts, path, options = _judged(rest, REDIS_FORM)
    if len(hosts) > 1:
        raise ValueError(f"it names several hosts; {_form(REDIS_FORM)}")
    if path and not path.isdecimal():
        raise ValueError(f"it names its database by something that is no number; {_form(REDIS_FORM)}")
    where = rest.partition("?")[0].replace(";", "%3B")  # at which kombu would part two addresses
    if str(given).startswith("rediss://"):
        return f"rediss://{where}?{urlencode(_tls(options), quote_via=quote, safe='/')}"
    if options:
        raise ValueError(f"redis:// takes no options; with TLS it is {TLS_FORM}")
    return f"redis://{where}"


def shown(address: str) -> str:
    """What may be printed of an address: where it leads, without user, password and options."""
    rest = address.partition("://")[2]
    hosts, path, _ = _judged(rest, "")
    where = ",".join(unquote(host) + (f":{port}" if port else "") for host, port in hosts)
    if not where:
        where = dict(parse_qsl(rest.partition("?")[2])).get("host", "the local socket")
    return f"{where}/{unquote(path)}"


def _after_scheme(given: object, schemes: tuple[str, ...], form: str) -> str:
    if not isinstance(given, str):
        raise ValueError(f"it is text, not {type(given).__name__}; {_form(form)}")
    for scheme in schemes:
        if given.startswith(scheme):
            return given.removeprefix(scheme)
    raise ValueError(f"it must begin with one of {', '.join(reversed(schemes))}")


def _tls(given: list[tuple[str, str]]) -> dict[str, str]:
    """The options with the defaults: a certificate that an authority vouches for, for this host. Raises ValueError."""
    options: dict[str, str] = {}
    for number, (name, value) in enumerate(given, 1):
        if name not in (*TLS_CHOICES, *TLS_FILES):
            raise ValueError(f"its option {number} is none of {', '.join((*TLS_CHOICES, *TLS_FILES))}")
        if name in options:
            raise ValueError(f"it has {name} twice")
        if name in TLS_CHOICES and value not in TLS_CHOICES[name]:
            raise ValueError(f"its {name} is neither {' nor '.join(TLS_CHOICES[name])}")
        options[name] = value
    if options.get("ssl_cert_reqs") == "none":
        if options.get("ssl_check_hostname") == "true" or "ssl_ca_certs" in options:
            raise ValueError("with ssl_cert_reqs=none no certificate is checked: leave out what it is checked by")
        options["ssl_check_hostname"] = "false"
    _judge_files(options)
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": "true", **options}


def _judge_files(options: Mapping[str, str]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if (authorities := options.get("ssl_ca_certs")) is not None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError):
            raise ValueError("its ssl_ca_certs names no file of certificates (PEM) that can be read here") from None
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    if certificate is None and key is not None:
        raise ValueError("it has ssl_keyfile without ssl_certfile")
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError):
            raise ValueError(
                "its ssl_certfile and ssl_keyfile are no certificate with its key (PEM, without a password) that can be"
                " read here"
            ) from None


def _judged(rest: str, form: str) -> tuple[list[tuple[str, str]], str, list[tuple[str, str]]]:
    """Hosts with their ports, the path, and the options, decoded. Raises ValueError."""
    if not rest.isprintable() or " " in rest:
        raise ValueError(f"it has spaces or control characters; {_form(form)}")
    if _BAD_PERCENT.search(rest):
        raise ValueError(f"it has a % that is followed by no two hex digits; {ENCODE}")
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    user, at, hosts = authority.rpartition("@")
    # A mark that is not encoded lets the user's part end too soon, or leaves an @ for what comes behind.
    if any(mark in user for mark in "@#[]") or "@" in rest[len(authority) :]:
        raise ValueError(f"it has a user or password that is not percent-encoded; {ENCODE}")
    tail = rest[len(authority) :]
    path, _, query = tail.partition("?")
    if not all("=" in part for part in query.split("&") if part):
        raise ValueError(f"it has options that are not name=value; {_form(form)}")
    places = [_host_and_port(each, form) for each in hosts.split(",")] if hosts or at else []
    return places, path.removeprefix("/"), parse_qsl(query, keep_blank_values=True)


def _host_and_port(place: str, form: str) -> tuple[str, str]:
    if place.startswith("["):
        host, bracket, port = place.partition("]")
        host, marked = host + bracket, port[:1] == ":"
        port = port[1:]
        fits = _IN_BRACKETS.fullmatch(host)
    else:
        host, colon, port = place.partition(":")
        marked, fits = bool(colon), _NAMED.fullmatch(host)
    if host and not fits:
        raise ValueError(f"it has a host that is no name, number or [IPv6 number]; {_form(form)}")
    if marked and port and not (port.isdecimal() and port.isascii() and 0 < int(port) < 65536):
        raise ValueError(f"it has a port that is no number from 1 to 65535; {_form(form)}, and {ENCODE}")
    if port and not marked:
        raise ValueError(f"it has something behind its [IPv6 number] that is no port; {_form(form)}")
    return host, port


def _options() -> frozenset[bytes]:
    """What libpq knows; `ssl` it reads as an old word for `sslmode`."""
    return frozenset(each.keyword for each in psycopg.pq.Conninfo.get_defaults()) | {b"ssl"}


def _form(form: str) -> str:
    return f"the form is {form}"
