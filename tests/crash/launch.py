"""`python -m tests.crash.launch ROLE MODULE [ARGUMENT ...]`: run a module as a program, the crash plug-in in it."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from tests.crash.plugin import Folder, install

FOLDER = "CRASH_FOLDER"


def main() -> None:
    role, module, *arguments = sys.argv[1:]
    install(role, Folder(Path(os.environ[FOLDER])))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
