"""Reports reach the parent as they were meant, and a parent that has gone hurts nobody."""

import os

import msgspec
import pytest

from protocol.lifecycle import Ready, Reporter, Stage, Stopped, parse_report

REPORTS = [
    Stage("weights", done=3, total=30),
    Stage("warm up"),
    Ready({"address": "127.0.0.1:8000", "pages": 4096, "share": 0.5}),
    Stopped("another scheduler acts", fenced=True),
    Stopped("line\nbreak"),
]


def test_each_report_is_one_line_that_is_read_back():
    reader, writer = os.pipe()
    reporter = Reporter(writer)
    for report in REPORTS:
        reporter.send(report)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert [parse_report(line) for line in lines] == REPORTS


def test_a_parent_that_has_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    reporter = Reporter(writer)
    reporter.send(REPORTS[0])
    os.close(writer)
    reporter.send(REPORTS[1])


def test_after_the_parent_has_gone_its_descriptor_number_is_left_alone():
    reader, writer = os.pipe()
    os.close(reader)
    reporter = Reporter(writer)
    reporter.send(REPORTS[0])
    os.close(writer)
    reader, reused = os.pipe()
    os.dup2(reused, writer)
    os.set_blocking(reader, False)
    reporter.send(REPORTS[1])
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    for descriptor in {reader, reused, writer}:
        os.close(descriptor)


def test_a_process_started_by_hand_reports_to_nobody():
    Reporter(None).send(REPORTS[0])


@pytest.mark.parametrize("line", [b"", b"\n", b"starting\n", b'{"type":"Done"}\n', b"[]", b"\xff"])
def test_a_line_that_is_no_report_is_refused(line):
    with pytest.raises(msgspec.DecodeError):
        parse_report(line)
