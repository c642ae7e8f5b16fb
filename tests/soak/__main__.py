"""`python -m tests.soak [--seed N] [--minutes M]`: a soak on servers of its own; exits with 1 if it found something."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from brainhands.shared.local.servers import postgres_binaries, redis_binary, start_postgres, start_redis
from brainhands.shared.runtime.settings import settings
from brainhands.shared.store import migrate
from tests.soak.soak import plan, soak


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000), help="a random one")
    arguments.add_argument("--minutes", type=float, default=3.5, help="of sessions and faults; rest comes after them")
    options = arguments.parse_args()
    planned = plan(options.seed, options.minutes * 60)
    print(f"seed {planned.seed}, {len(planned.shapes)} sessions, {len(planned.faults)} faults:")
    for fault in planned.faults:
        print(f"  {fault}")

    folder = Path(tempfile.mkdtemp(prefix="brainhands-soak-"))
    folder.chmod(0o711)  # the account that runs Postgres must reach its data
    postgres = start_postgres(folder, postgres_binaries(settings().servers))
    redis_server = start_redis(folder, redis_binary(settings().servers))
    try:
        migrate.upgrade(postgres.url)
        found = soak(planned, folder, database_url=postgres.url, postgres=postgres, redis_server=redis_server, say=_say)
    finally:
        redis_server.stop()
        postgres.stop()
    for problem in found:
        print(f"WRONG: {problem}")
    if found:
        print(f"seed {planned.seed}: {len(found)} problems; logs are in {folder}")
        return 1
    print(f"seed {planned.seed}: nothing lost, nothing doubled, nothing stuck, nothing grown")
    shutil.rmtree(folder)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
