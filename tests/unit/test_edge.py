"""The edge around code of others: what comes out of it, and what of an exception may be read."""

from __future__ import annotations

import asyncio

import pytest

from brainhands.shared.errors import Incompatible
from brainhands.shared.model import edge


def test_words_come_out_as_they_are_and_anything_else_as_foreign() -> None:
    def raises(error: BaseException) -> None:
        raise error

    assert edge.call(str, 1) == "1"
    with pytest.raises(KeyError):
        edge.call(raises, KeyError("a"), words=(LookupError,))
    for error in (ValueError("a"), asyncio.CancelledError("a"), SystemExit("a"), BaseException("a")):
        with pytest.raises(edge.ForeignError, match=f"{type(error).__name__}: a") as foreign:
            edge.call(raises, error, words=(LookupError,))
        assert foreign.value.__cause__ is error


def test_an_error_of_ours_passes_through_code_that_catches_all_exceptions() -> None:
    def read() -> None:
        raise Incompatible("newer")

    def theirs() -> str:
        try:
            edge.ours(read)()
        except Exception:  # noqa: BLE001 - as authors write it
            return "caught"
        return "read"

    with pytest.raises(Incompatible, match="newer"):
        edge.call(theirs)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("plain", "plain"),
        ("see https://docs.example", "see https://docs.example"),
        ("GET https://api.example/v1/pay?key=hush failed", "GET https://api.example/... failed"),
        ("GET https://api.example:8443/hooks/hush", "GET https://api.example:8443/..."),
        ("postgresql://me:hush@db.example:5432/shop", "postgresql://db.example:5432/..."),
        ("postgresql://me:hu/sh@db.example/shop", "postgresql://..."),
        ("redis://:hush@cache.example", "redis://cache.example/..."),
        ("('https://api.example/a?token=hush')", "('https://api.example/...')"),
        ("Max retries exceeded with url: /v1/pay?api_key=hush&a=b (refused)",
         "Max retries exceeded with url: /v1/pay?... (refused)"),
        ("api_key=hush", "api_key=..."),
        ("{'access-token': 'hush'}", "{'access-token': ..."),
        ("password: hush", "password: ..."),
        ("Authorization: Bearer hush", "Authorization: ..."),
        ("sent Bearer hush", "sent Bearer ..."),
        ("Key (email)=(a) exists", "Key (email)=(a) exists"),
    ],
)  # fmt: skip
def test_what_is_told_of_an_exception_holds_no_address_with_a_key(said: str, told: str) -> None:
    assert edge.told(ValueError(said)) == f"ValueError: {told}"
    assert "hush" not in edge.told(ExceptionGroup("group", [ValueError(said)]))
    assert edge.text(ValueError(said)) == said


def test_a_text_of_any_length_and_any_depth_is_told_shortened() -> None:
    assert len(edge.told(ValueError("https://" * 1_000_000))) <= edge.MAX_TEXT
    assert len(edge.text(ValueError("x" * 1_000_000))) == edge.MAX_TEXT
    nested: BaseExceptionGroup[BaseException] = BaseExceptionGroup("n", [KeyboardInterrupt()])
    for _ in range(100_000):
        nested = BaseExceptionGroup("n", [nested])
    assert edge.told(nested).startswith("BaseExceptionGroup: n (1 sub-exception): BaseExceptionGroup: n")
