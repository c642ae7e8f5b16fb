"""What it costs to import: processor time and modules, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

CODE = """
import contextlib, json, os, sys, time
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    exec(sys.argv.pop(1))
print(json.dumps([time.process_time(), len(sys.modules)]))
"""

MEASURED = {
    "client": ["from brainhands import Client"],
    "help": ["from brainhands.shared.cli.script import main; main()", "--help"],
}
"""The code of each process, and its arguments."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Processor seconds of a whole process, the interpreter's own beginning included, and the modules in its end."""

    cpu_s: float
    modules: int


def measured(runs: int = 5) -> dict[str, Import]:
    """The median of some runs, after one that leaves compiled files."""
    return {name: _median([_one(arguments) for _ in range(runs + 1)][1:]) for name, arguments in MEASURED.items()}


def _one(arguments: list[str]) -> tuple[float, int]:
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], check=True, capture_output=True, text=True)
    seconds, modules = json.loads(done.stdout)
    return seconds, modules


def _median(runs: list[tuple[float, int]]) -> Import:
    return Import(cpu_s=round(median(seconds for seconds, _ in runs), 3), modules=runs[0][1])
