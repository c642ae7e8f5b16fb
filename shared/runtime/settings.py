"""The settings of a process, read once from its environment, and the addresses that follow from them."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo, field_validator

from brainhands.shared.errors import ServerUnavailable, SettingsError
from brainhands.shared.model.bounds import MAX_CONCURRENCY, MAX_TRIES
from brainhands.shared.runtime.address import POSTGRES_SCHEMES, postgres_address, redis_address
from brainhands.shared.runtime.modules import is_dotted, is_path

ServerChoice = Literal["auto", "system", "wheel"]

MAX_LEASE_SECONDS = 86_400


class Settings(BaseModel):
    """Everything that the environment decides, by the names of its variables."""

    model_config = ConfigDict(frozen=True)

    database_url: str | None = Field(
        default=None,
        alias="DATABASE_URL",
        repr=False,
        description="Postgres 14 or newer, as `postgresql://user:password@host:port/database`. "
        "Not set: the embedded server.",
    )
    redis_url: str | None = Field(
        default=None,
        alias="REDIS_URL",
        repr=False,
        description="Redis or Valkey 6.2 or newer, a database number used by nothing else; `rediss://` is TLS. "
        "Not set: the embedded server.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None, alias="OPENAI_API_KEY", description="Key for the model provider; needed by Brain workers only."
    )
    openai_base_url: str | None = Field(
        default=None,
        alias="OPENAI_BASE_URL",
        description="Address of an OpenAI-compatible API other than the provider's own.",
    )
    dialect: str | None = Field(
        default=None,
        alias="BRAINHANDS_DIALECT",
        description="How the provider speaks, by a name of `brain/models/dialects.py`. Not set: told from its address.",
    )
    model: str = Field(
        default="gpt-5.6-luna", alias="BRAINHANDS_MODEL", min_length=1, description="Model of agents that name none."
    )
    home: Path = Field(
        default=Path(".brainhands"),
        alias="BRAINHANDS_HOME",
        description="Folder of the embedded servers' data and of generated passwords.",
    )
    servers: ServerChoice = Field(
        default="auto",
        alias="BRAINHANDS_SERVERS",
        description="Programs for the embedded servers: `system` (installed on this machine), `wheel` (installed with "
        "this package), or `auto` (the first, else the second).",
    )
    lease_seconds: float = Field(
        default=30.0,
        alias="BRAINHANDS_LEASE_SECONDS",
        gt=0,
        le=MAX_LEASE_SECONDS,
        description="How long a worker may be silent before its task goes to another one.",
    )
    restart_limit: int = Field(
        default=3,
        alias="BRAINHANDS_RESTART_LIMIT",
        ge=1,
        le=MAX_TRIES,
        description="How many crashes in one phase end a task as failed.",
    )
    blocked_after_seconds: float = Field(
        default=60.0,
        alias="BRAINHANDS_BLOCKED_AFTER_SECONDS",
        ge=0,
        le=24 * 3600,
        description="How long no live worker may offer what a task requires before an event says so.",
    )
    tenant_concurrency: int | None = Field(
        default=None,
        alias="BRAINHANDS_TENANT_CONCURRENCY",
        ge=1,
        le=MAX_CONCURRENCY,
        description="How many tasks of one tenant run at a time, over all workers: the same for each of them. "
        "Not set: as many as there is room for.",
    )
    agents: tuple[str, ...] = Field(
        default=(),
        alias="BRAINHANDS_AGENTS",
        description="Where the agents are that a Brain worker offers: dotted modules, YAML files and folders of these, "
        "separated by commas.",
    )
    tools: tuple[str, ...] = Field(
        default=(),
        alias="BRAINHANDS_TOOLS",
        description="Modules whose tools and flows a Hands worker offers: dotted names, separated by commas.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text",
        alias="BRAINHANDS_LOG",
        description="Form of a log line: `text` for people, `json` for machines.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", alias="BRAINHANDS_LOG_LEVEL", description="Least severe level that is logged."
    )

    @field_validator("database_url")
    @classmethod
    def _with_named_driver(cls, url: str | None) -> str | None:
        return None if url is None else sqlalchemy_url(url)

    @field_validator("redis_url")
    @classmethod
    def _redis_form(cls, url: str | None) -> str | None:
        return None if url is None else redis_address(url)

    @field_validator("agents", "tools", mode="before")
    @classmethod
    def _split_by_comma(cls, names: object) -> object:
        if not isinstance(names, str):
            return names
        return tuple(name.strip() for name in names.split(",") if name.strip())

    @field_validator("agents", "tools")
    @classmethod
    def _dotted_names(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for name in names:
            if not is_dotted(name) and not (info.field_name == "agents" and is_path(name)):
                raise ValueError(f"{name!r} is not a dotted module name")
        return names

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_capitals(cls, level: object) -> object:
        return level.upper() if isinstance(level, str) else level


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where Postgres and Redis are; both carry their password."""

    database_url: str
    redis_url: str


@functools.cache
def settings() -> Settings:
    """The settings of this process; an empty variable counts as not set. Raises SettingsError.

    `settings.cache_clear()` has them read again.
    """
    try:
        return Settings.model_validate({name: value for name, value in os.environ.items() if value})
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        raise SettingsError(str(first["loc"][0]), first["msg"].removeprefix("Value error, ")) from None


def addresses() -> Addresses:
    """DATABASE_URL and REDIS_URL where set, else the embedded servers that run now.

    The database address names its driver, as SQLAlchemy takes it. Raises ServerUnavailable where there is neither.
    """
    current = settings()
    database_url = current.database_url or embedded_address(current.home, "database_url")
    redis_url = current.redis_url or embedded_address(current.home, "redis_url")
    missing = [name for name, url in (("DATABASE_URL", database_url), ("REDIS_URL", redis_url)) if not url]
    if not database_url or not redis_url:
        raise ServerUnavailable(
            "Redis" if database_url else "Postgres",
            f"{' and '.join(missing)} not set, and no embedded server runs for {current.home}",
            f"set {' and '.join(missing)}, or start `brainhands up`",
        )
    return Addresses(database_url=sqlalchemy_url(database_url), redis_url=redis_url)


def servers_file(home: Path) -> Path:
    """The note of running embedded servers: `{"pid", "database_url", "redis_url"}`, the pid of who started them."""
    return home / "servers.json"


def embedded_address(home: Path, name: Literal["database_url", "redis_url"]) -> str | None:
    """The address noted by embedded servers, or None where they do not run any more. Raises SettingsError."""
    file = servers_file(home)
    try:
        note = json.loads(file.read_text())
        pid, address = int(note["pid"]), note[name]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError("BRAINHANDS_HOME", f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        return None  # Nothing of ours: it is written whole or not at all.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # Alive, and another account's.
    return None if address is None else str(address)


def sqlalchemy_url(url: str) -> str:
    """The database address with its driver named, so that a new SQLAlchemy cannot choose another. Raises ValueError."""
    return postgres_address(url).replace(POSTGRES_SCHEMES[1], POSTGRES_SCHEMES[0], 1)


def libpq_url(url: str) -> str:
    """The database address as psycopg and psql take it. Raises ValueError."""
    return postgres_address(url)


def settings_table() -> str:
    """The settings as a Markdown table, for the documentation."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for field in Settings.model_fields.values():
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        shown = f"`{default:g}`" if isinstance(default, float) else f"`{default}`" if default not in (None, "") else ""
        lines.append(f"| `{field.alias}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"
