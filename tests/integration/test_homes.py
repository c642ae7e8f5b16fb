"""Home folders as people have them: any name works, and what cannot be a home is refused in a line."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
import redis

from brainhands.shared.errors import BrainhandsError, SettingsError
from brainhands.shared.local.servers import start_servers
from brainhands.shared.runtime.settings import addresses, settings
from tests.conftest import readable_folder

NAMES = ["with space", "it's", 'say "home"', "$HOME; `id` \\ %s # 1", "schön 漢字", "-x"]


@pytest.mark.parametrize("name", NAMES)
def test_the_servers_of_a_home_with_any_name_start_and_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with readable_folder() as folder:
        home = folder / name
        monkeypatch.setenv("BRAINHANDS_HOME", str(home))
        with start_servers(home, settings().servers):
            found = addresses()
            with redis.Redis.from_url(found.redis_url) as client:
                assert client.config_get("dir") == {"dir": str(home / "redis")}
            with psycopg.connect(found.database_url.replace("+psycopg", "")) as connection:
                assert connection.execute("SHOW data_directory").fetchone() == (str(home / "postgres" / "data"),)
            with pytest.raises(BrainhandsError, match=f"process {os.getpid()} already runs"):
                start_servers(home, settings().servers)


@pytest.mark.parametrize("kind", ["a file", "below a file", "a file named like a folder of it", "a line break"])
def test_what_cannot_be_a_home_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    home = tmp_path / ("two\nlines" if kind == "a line break" else "home")
    if kind == "a file named like a folder of it":
        home.mkdir()
        (home / "redis").touch()
    elif kind != "a line break":
        home.touch()
    with pytest.raises(SettingsError, match="BRAINHANDS_HOME"):
        start_servers(home / "below" if kind == "below a file" else home, settings().servers)


@pytest.mark.parametrize("note", ["", "{", "[]", "7", '{"pid": null}', '{"pid": "x", "database_url": 1}', "{}"])
def test_a_note_of_servers_that_cannot_be_read_counts_as_none(
    note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path))
    (tmp_path / "servers.json").write_text(note)

    with pytest.raises(BrainhandsError, match="no embedded server runs"):
        addresses()


def test_a_home_that_is_a_file_is_named_where_addresses_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("BRAINHANDS_HOME", str(tmp_path / "home"))

    with pytest.raises(SettingsError, match="BRAINHANDS_HOME"):
        addresses()
