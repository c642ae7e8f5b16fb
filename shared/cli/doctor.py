"""Examining a running system: each finding says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import typer

from brainhands.shared.bus import health as redis_health
from brainhands.shared.cli.submit import AsJson
from brainhands.shared.cli.terminal import say, say_json
from brainhands.shared.errors import BrainhandsError, ServerUnavailable
from brainhands.shared.runtime.address import shown
from brainhands.shared.runtime.settings import addresses
from brainhands.shared.store import health, migrate
from brainhands.shared.store.connections import OLDEST_POSTGRES
from brainhands.shared.store.database import TRANSIENT, Database, unavailable
from brainhands.shared.store.health import Finding

CLOCK_SECONDS = 5
"""Between this machine's clock and the database's: Celery's own times come from the former."""

PATIENCE_SECONDS = 30.0

FEW = 3
"""Tasks without a mover that are named; of more of a kind there is the number."""

LOOKS = 3
"""How often the register and the queues must disagree."""


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
    with closing(Database(found.database_url, step_seconds=PATIENCE_SECONDS)) as database:
        pools: set[str] = set()
        try:
            findings += looks_at_postgres(database)
            pools = {part.pool for part in health.parts(database)}
        except (*TRANSIENT, BrainhandsError) as error:
            told = error if isinstance(error, BrainhandsError) else unavailable(error)
            findings.append(_unreachable("Postgres", found.database_url, told))
            exit_code = told.exit_code
        try:
            of_redis = list(redis_health.findings(found.redis_url, shown(found.redis_url), pools))
            findings += of_redis
            if not exit_code and not of_redis:
                findings += _census(database, found.redis_url)
        except BrainhandsError as error:
            findings.append(_unreachable("Redis", found.redis_url, error))
            exit_code = error.exit_code
    return Report(findings=findings, exit_code=exit_code or (1 if findings else 0))


def _census(database: Database, redis_url: str) -> list[Finding]:
    """Where the register and the queues disagree on who works; who starts or ends just now is given a moment."""
    # It brings Celery along, which no other command needs.
    from brainhands.shared.bus import census

    for _ in range(LOOKS):
        findings = health.not_in_both(health.parts(database), census.readers(redis_url))
        if not findings:
            break
    return findings


def _unreachable(name: str, address: str, error: BrainhandsError) -> Finding:
    return Finding(
        check=name.lower(),
        subject=shown(address) if address else "no address",
        problem=str(error),
        next_step=error.next_step,
    )


def looks_at_postgres(database: Database) -> list[Finding]:
    """Raises ServerUnavailable, SchemaNotCurrent, CodeTooOld, UnfitDatabase."""
    migrate.require_current(database.url)
    return [
        *server_findings(database),
        *health.missing_roles(database),
        *health.lost(health.parts(database)),
        *health.blocked(database),
        *_shortened(health.without_mover(database)),
        *health.failed_model_calls(database),
    ]


def _shortened(findings: list[Finding]) -> Iterator[Finding]:
    """The first few of those that are ended in one and the same way, the last of these with the number of the rest."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(finding.next_step, []).append(finding)
    for group in alike.values():
        *first, last = group[:FEW]
        yield from first
        rest = len(group) - FEW
        yield replace(last, problem=f"{last.problem} (and {rest} more tasks like it)") if rest > 0 else last


def server_findings(database: Database) -> Iterator[Finding]:
    """What is wrong with the database server itself: its version, and its clock against this machine's."""
    server = health.server(database)
    away = (datetime.now(UTC) - server.clock).total_seconds()
    if server.version < OLDEST_POSTGRES * 10_000:
        yield Finding(
            check="postgres",
            subject=shown(database.url),
            problem=f"it is version {server.version // 10_000}, {OLDEST_POSTGRES} or newer is needed",
            next_step=f"use Postgres {OLDEST_POSTGRES} or newer",
        )
    if abs(away) > CLOCK_SECONDS:
        yield Finding(
            check="clock",
            subject=shown(database.url),
            problem=f"this machine's clock is {away:+.0f} seconds from the database's",
            next_step="keep both by NTP",
        )
