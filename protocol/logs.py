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


def json_line(
    process: str,
    level: str,
    logger: str,
    message: str,
    *,
    at: datetime | None = None,
    exception: str | None = None,
) -> str:
    """Return an object in one line: `time` (UTC, ISO 8601), `level`, `process`, `logger`,
    `message`, and `exception` where there is one.
    """
    line = {
        "time": (at or datetime.now(UTC)).isoformat(timespec="milliseconds"),
        "level": level,
        "process": process,
        "logger": logger,
        "message": message,
    }
    if exception is not None:
        line["exception"] = exception
    return msgspec.json.encode(line).decode()


class JsonFormatter(logging.Formatter):
    """A record as `json_line` has it."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        return json_line(
            self._process,
            record.levelname.lower(),
            record.name,
            record.getMessage(),
            at=datetime.fromtimestamp(record.created, UTC),
            exception=self.formatException(record.exc_info) if record.exc_info else None,
        )
