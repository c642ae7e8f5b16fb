"""Logs: one line a record, `time level process event key=value`, or the same as JSON.

A record made by `logger(...)` is an event with a stable name and fields. Records of libraries have their message in the
event's place. An exception adds `error` and `trace` (innermost call first), and never more than one line.

With `json`, what a process writes without logging is made JSON too (`shared/runtime/lines.py`).
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime

from brainhands.shared.runtime.faults import told
from brainhands.shared.runtime.lines import wrap_outputs
from brainhands.shared.runtime.settings import settings

TRACE_DEPTH = 6
TALKATIVE = ("celery.worker.strategy", "celery.app.trace", "httpx2", "alembic")
"""Libraries that log each hint or request, of which the session's log has what came, or each look at the schema."""


logging.getLogger("brainhands").addHandler(logging.NullHandler())  # in a program that configures no logs, it is silent


ONE_LINE_A_TRY = ("celery.worker.consumer.consumer",)
"""Libraries that log each try to connect; the transport logs when the broker went and when it was back."""


class EventLogger:
    """Logs named events with fields; fields never hold prompts, arguments, results or secrets."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"brainhands.{name}")

    def debug(self, event: str, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Logs at ERROR with the exception being handled."""
        self._log(logging.ERROR, event, fields, with_exception=True)

    def _log(self, level: int, event: str, fields: dict[str, object], with_exception: bool = False) -> None:
        self._logger.disabled = False  # a module's logging configuration disables loggers that it does not name
        if logging.root.manager.disable:
            logging.disable(logging.NOTSET)
        self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=with_exception)


def logger(name: str) -> EventLogger:
    """The logger of one part, such as `relay`."""
    return EventLogger(name)


def configure_logs(process: str) -> None:
    """Sends all records of this process, and of those that it forks, to standard error in the form the settings choose.

    What they print is not held back either, and no character of it is an error. Called once, before other threads run.
    """
    chosen = settings()
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(line_buffering=True, errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines(process))
    if chosen.log_format == "json":
        handler.setStream(wrap_outputs(process))
        handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(chosen.log_level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ONE_LINE_A_TRY:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def logs_are_json() -> bool:
    """Whether this process logs JSON by now."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


class TextLines(logging.Formatter):
    """Formats a record as one line for people."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        event = _event(record).replace("\r", "\\r").replace("\n", "\\n")
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        return f"{_time(record)} {record.levelname:<7} {self._process}[{os.getpid()}] {event}{fields}"


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": _time(record),
            "level": record.levelname,
            "process": self._process,
            "pid": os.getpid(),
            "logger": record.name,
            "event": _event(record),
        }
        return json.dumps(_fields(record) | head, default=str)


def _event(record: logging.LogRecord) -> str:
    """The message; of a Celery task that raised without the error's own words, which may quote what it worked on."""
    if record.exc_info and record.exc_info[1] and isinstance(record.args, Mapping) and "exc" in record.args:
        return str(record.msg) % {**record.args, "exc": told(record.exc_info[1]), "traceback": ""}
    return record.getMessage()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1]:
        fields["error"] = told(record.exc_info[1])
        fields["trace"] = _trace(record.exc_info[1])
    return fields


def _trace(error: BaseException) -> str:
    calls = reversed(traceback.extract_tb(error.__traceback__)[-TRACE_DEPTH:])
    return " < ".join(f"{os.path.basename(call.filename)}:{call.lineno}:{call.name}" for call in calls)


def _shown(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")
