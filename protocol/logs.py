"""Log lines of every process: one line a state change, fields as key=value, nothing per token.

Written to standard error, where the launcher, a container and a terminal all look. For those who
collect them, each line may be one JSON object instead.
"""

import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

LEVELS = ("debug", "info", "warning", "error")


class LogForm(StrEnum):
    """What a line looks like."""

    TEXT = "text"
    JSON = "json"


LogFormat = Annotated[LogForm, Meta(description="lines for people, or a JSON object each")]


def configure(process: str, level: str, form: LogForm = LogForm.TEXT) -> None:
    """Set up logging of this process. Raises ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r}: one of {', '.join(LEVELS)} is needed")
    handler = logging.StreamHandler(sys.stderr)
    if form is LogForm.JSON:
        handler.setFormatter(JsonFormatter(process))
    else:
        text = f"%(asctime)s %(levelname).1s {process} %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text, datefmt="%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC, ISO 8601), `level`, `process`, `logger`, `message`, and
    `exception` where there is one.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
