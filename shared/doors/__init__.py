"""The doors: what comes in from outside, one module a verb, each a commit under its session's lock."""

from brainhands.shared.doors import answer, awake, cancel, fork, redact, signal, submit

__all__ = ["answer", "awake", "cancel", "fork", "redact", "signal", "submit"]
