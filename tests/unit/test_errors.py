"""The codes by which programs know errors."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from brainhands.shared import errors
from brainhands.shared.errors import BrainhandsError, WaitTimeout

CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, BrainhandsError)]


def test_every_error_has_a_code_of_its_own_and_the_readme_lists_them_all() -> None:
    codes = {each.__name__: vars(each).get("code", "none") for each in CLASSES}
    readme = (Path(__file__).parents[2] / "README.md").read_text().partition("### Errors\n")[2].partition("\n### ")[0]
    listed = {name: code for code, name in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", readme, re.MULTILINE)}

    assert listed == codes
    assert len(set(codes.values())) == len(CLASSES)
    assert [code for code in codes.values() if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code)] == []


def test_who_waits_in_vain_can_catch_it_as_pythons_own_timeout() -> None:
    error = WaitTimeout("it still runs", "wait again")

    assert isinstance(error, TimeoutError)
    assert (str(error), error.next_step, error.code) == ("it still runs", "wait again", "wait_timeout")
