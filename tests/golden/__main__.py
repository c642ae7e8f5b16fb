"""Adds golden files of what this code stores and no file shows yet: `python -m tests.golden`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brainhands.shared.local.servers import postgres_binaries, start_postgres
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import migrate
from deploy.demo import model_server
from tests.golden import events, tasks


@contextmanager
def theatre() -> Iterator[tasks.Theatre]:
    with tempfile.TemporaryDirectory(prefix="brainhands-") as home, model_server.start() as model:
        folder = Path(home)
        folder.chmod(0o711)  # the account that runs Postgres must reach its data
        os.environ.update(OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=f"{model.url}/v1")
        settings.cache_clear()
        postgres = start_postgres(folder, postgres_binaries(settings().servers))
        try:
            migrate.upgrade(postgres.url)
            with tasks.theatre_of(postgres.url) as made:
                yield made
        finally:
            postgres.stop()


if __name__ == "__main__":
    for file in events.write_missing():
        print(file.name)
    with theatre() as made:
        for file in tasks.write_missing(made):
            print(file.name)
