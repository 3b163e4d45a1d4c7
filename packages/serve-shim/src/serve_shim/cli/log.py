"""How log records are written: one line of text or one JSON object each. It logs nothing itself.

Only the loggers of this project are set up; a library's own records go where they always went.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LOGGERS = ("serve_shim", "ir_core", "ir_passes", "ir_kernels")
"""The roots of our loggers; `serve_shim.access` has requests that went wrong."""

_TEXT = "%(levelname)s %(asctime)s [%(name)s:%(lineno)d] %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the error where one is."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON text without a line break."""
        entry = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """RFC 3339 with milliseconds, in UTC."""
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineFormatter(logging.Formatter):
    """One line of text per record; line breaks inside a message are kept, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        return super().format(record).replace("\n", "\n    ")


def configure_logging(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send our loggers' records from `level` up to `stream` (stderr) as `text` or `json`.

    A second call replaces the first. Records do not reach the root logger: a library that
    configures it would print them twice.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(form))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def _formatter(form: str) -> logging.Formatter:
    return JsonFormatter() if form == "json" else LineFormatter(_TEXT, "%m-%d %H:%M:%S")
