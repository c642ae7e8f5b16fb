"""Settings: what the environment may say, and what is said back where it may not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from brainhands.shared.errors import ServerUnavailable, SettingsError
from brainhands.shared.runtime.settings import (
    Settings,
    addresses,
    libpq_url,
    servers_file,
    settings,
    settings_table,
    sqlalchemy_url,
)


def test_with_an_empty_environment_the_defaults_hold() -> None:
    defaults = settings()
    assert (defaults.database_url, defaults.redis_url, defaults.home) == (None, None, Path(".brainhands"))
    assert (defaults.lease_seconds, defaults.restart_limit, defaults.agents, defaults.tools) == (30.0, 3, (), ())


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("BRAINHANDS_RESTART_LIMIT", "")
    assert settings().database_url is None
    assert settings().restart_limit == 3


def test_module_lists_are_split_by_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAINHANDS_AGENTS", "shop.agents, shop.more_agents,")
    assert settings().agents == ("shop.agents", "shop.more_agents")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_URL", "mysql://localhost/shop"),
        ("REDIS_URL", "localhost:6379"),
        ("BRAINHANDS_SERVERS", "docker"),
        ("BRAINHANDS_LEASE_SECONDS", "soon"),
        ("BRAINHANDS_LEASE_SECONDS", "0"),
        ("BRAINHANDS_LEASE_SECONDS", "inf"),
        ("BRAINHANDS_RESTART_LIMIT", "0"),
        ("BRAINHANDS_AGENTS", "shop agents"),
        ("BRAINHANDS_TOOLS", "shop/tools.yaml"),
        ("BRAINHANDS_TOOLS", "shop..tools"),
        ("BRAINHANDS_LOG", "xml"),
        ("BRAINHANDS_LOG_LEVEL", "chatty"),
    ],
)
def test_a_bad_value_is_one_error_that_names_its_variable(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        settings()
    assert refused.value.variable == variable
    assert str(refused.value).startswith(f"{variable}: ")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_a_postgres_address_names_the_same_driver(scheme: str) -> None:
    address = f"{scheme}://user:pass@host:5432/shop?sslmode=require"
    assert sqlalchemy_url(address) == "postgresql+psycopg://user:pass@host:5432/shop?sslmode=require"
    assert libpq_url(address) == "postgresql://user:pass@host:5432/shop?sslmode=require"


def test_the_printed_settings_hold_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:hidden@host/shop")
    monkeypatch.setenv("REDIS_URL", "redis://:hidden@host/0")
    monkeypatch.setenv("OPENAI_API_KEY", "hidden")
    assert "hidden" not in repr(settings())


def test_the_environment_decides_before_the_embedded_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = {"pid": os.getpid(), "database_url": "postgresql://embedded/one", "redis_url": "redis://embedded/0"}
    servers_file(tmp_path).write_text(json.dumps(note))
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", "postgresql://given/two")
    found = addresses()
    assert found.database_url == "postgresql+psycopg://given/two"
    assert found.redis_url == "redis://embedded/0"


def test_without_any_server_the_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", "postgresql://given/two")
    with pytest.raises(ServerUnavailable, match="REDIS_URL not set") as missing:
        addresses()
    assert "DATABASE_URL" not in missing.value.next_step


def test_the_table_has_a_line_for_every_setting() -> None:
    lines = settings_table().splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == [field.alias for field in Settings.model_fields.values()]
    assert all(field.description for field in Settings.model_fields.values())
