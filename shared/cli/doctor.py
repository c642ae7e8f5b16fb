"""Examining a running system: each finding says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import redis
import typer
from sqlalchemy.engine import make_url

from shared.bus import bell
from shared.cli.submit import AsJson
from shared.cli.terminal import say, say_json
from shared.errors import BrainhandsError, ServerUnavailable
from shared.runtime.servers import OLDEST_POSTGRES, OLDEST_REDIS
from shared.runtime.settings import addresses
from shared.store import health, migrate
from shared.store.database import TRANSIENT, Database
from shared.store.health import Finding

CLOCK_SECONDS = 5
"""Between this machine's clock and the database's: Celery's own times come from the former."""

PATIENCE_SECONDS = 30.0
REDIS_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found, and the command's exit status."""

    findings: list[Finding]
    exit_code: int


def doctor(json: AsJson = False) -> None:
    """Look for what is wrong: servers, schema, workers, and tasks that nothing will move."""
    report = examine()
    if json:
        say_json({"ok": not report.findings, "findings": [asdict(finding) for finding in report.findings]})
    elif not report.findings:
        say("ok: nothing is wrong")
    else:
        for finding in report.findings:
            say(f"{finding.check}: {finding.subject}: {finding.problem}\n  {finding.next_step}")
    raise typer.Exit(report.exit_code)


def examine() -> Report:
    """All findings; where a server is away or the schema is not current, only what can be known without them."""
    try:
        found = addresses()
    except ServerUnavailable as error:
        return Report(findings=[_unreachable(error.name, "", error)], exit_code=error.exit_code)
    findings: list[Finding] = []
    exit_code = 0
    try:
        findings += _redis(found.redis_url)
    except BrainhandsError as error:
        findings.append(_unreachable("Redis", found.redis_url, error))
        exit_code = error.exit_code
    database = Database(found.database_url, step_seconds=PATIENCE_SECONDS)
    try:
        findings += _postgres(database)
    except BrainhandsError as error:
        findings.append(_unreachable("Postgres", found.database_url, error))
        exit_code = error.exit_code
    finally:
        database.close()
    return Report(findings=findings, exit_code=exit_code or (1 if findings else 0))


def _unreachable(name: str, address: str, error: BrainhandsError) -> Finding:
    return Finding(check=name.lower(), subject=_shown(address), problem=str(error), next_step=error.next_step)


def _redis(address: str) -> Iterator[Finding]:
    info = _redis_info(address)
    version = tuple(int(number) for number in str(info["redis_version"]).split(".")[:2])
    if version < OLDEST_REDIS:
        oldest = ".".join(map(str, OLDEST_REDIS))
        yield Finding(
            check="redis",
            subject=_shown(address),
            problem=f"it is version {info['redis_version']}, {oldest} or newer is needed",
            next_step=f"use Redis {oldest} or newer",
        )
    if info["maxmemory_policy"] != "noeviction":
        yield Finding(
            check="redis",
            subject=_shown(address),
            problem=f"its maxmemory-policy is {info['maxmemory_policy']}: it may drop queues and messages",
            next_step="set maxmemory-policy to noeviction",
        )


def _redis_info(address: str) -> dict[str, Any]:
    try:
        with bell.connect(address, timeout=REDIS_SECONDS) as client:
            info: dict[str, Any] = client.info()
            return info
    except redis.RedisError as error:
        raise ServerUnavailable("Redis", str(error), "check REDIS_URL and that the server runs") from error


def _postgres(database: Database) -> list[Finding]:
    """Raises ServerUnavailable, SchemaNotCurrent."""
    migrate.require_current(database.url)
    try:
        return [
            *server_findings(database),
            *health.missing_roles(database),
            *health.blocked(database),
            *health.without_mover(database),
        ]
    except TRANSIENT as error:
        raise ServerUnavailable("Postgres", str(error), "check DATABASE_URL and that the server runs") from error


def server_findings(database: Database) -> Iterator[Finding]:
    """What is wrong with the database server itself: its version, and its clock against this machine's."""
    server = health.server(database)
    away = (datetime.now(UTC) - server.clock).total_seconds()
    if server.version < OLDEST_POSTGRES * 10_000:
        yield Finding(
            check="postgres",
            subject=_shown(database.url),
            problem=f"it is version {server.version // 10_000}, {OLDEST_POSTGRES} or newer is needed",
            next_step=f"use Postgres {OLDEST_POSTGRES} or newer",
        )
    if abs(away) > CLOCK_SECONDS:
        yield Finding(
            check="clock",
            subject=_shown(database.url),
            problem=f"this machine's clock is {away:+.0f} seconds from the database's",
            next_step="keep both by NTP",
        )


def _shown(address: str) -> str:
    """An address without its password."""
    return make_url(address).render_as_string(hide_password=True) if address else "no address"
