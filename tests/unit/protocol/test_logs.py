"""Log lines: text for people, or an object each, never more than a line."""

import json
import logging
import sys

import pytest

from protocol.logs import JsonFormatter, configure


def record(message: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    info = None
    if error:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, arguments, info)


def test_a_line_of_json_has_what_happened_where_and_when():
    told = json.loads(JsonFormatter("worker").format(record("ready: %d pages", 7)))
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "process": "worker",
        "logger": "a.b",
        "message": "ready: 7 pages",
    }


def test_an_exception_stays_in_its_line():
    line = JsonFormatter("worker").format(record("failed", error=True))
    assert "\n" not in line
    assert "ValueError: two\nlines" in json.loads(line)["exception"]


def test_an_unknown_level_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'loud': one of debug, info"):
        configure("worker", "loud")
