"""Times of device events, and overlap of the lanes, with events that carry their own time."""

import time
from dataclasses import dataclass

import pytest

from protocol.control_link import Lane
from worker.executors.cuda.clock import DeviceClock, Overlap, Span


@dataclass
class At:
    """An event that has passed at a given second."""

    second: float

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: "At") -> float:
        return (end_event.second - self.second) * 1e3


def test_events_are_placed_on_the_monotonic_clock():
    before = time.monotonic()
    clock = DeviceClock(At(100.0))
    after = time.monotonic()
    assert before + 0.5 <= clock.read(At(100.5)) <= after + 0.5


def test_the_reference_moves_along_so_that_small_differences_stay_visible():
    clock = DeviceClock(At(0.0))
    zero = clock.read(At(0.0))
    for second in range(2, 10_000, 2):
        clock.read(At(float(second)))
    assert clock.read(At(9_999.000001)) - zero == pytest.approx(9_999.000001, abs=1e-7)
    assert clock._reference.second >= 9_998


def test_overlap_counts_only_what_both_lanes_ran():
    overlap = Overlap()
    overlap.add(Lane.PREFILL, Span(0.0, 1.0))
    overlap.add(Lane.PREFILL, Span(2.0, 3.0))
    assert overlap.beside(Lane.DECODE, Span(0.5, 2.25), None) == pytest.approx(0.75)


def test_work_that_still_runs_counts_up_to_the_end_of_the_span():
    assert Overlap().beside(Lane.DECODE, Span(1.0, 2.0), Span(1.5, None)) == pytest.approx(0.5)
    assert Overlap().beside(Lane.DECODE, Span(1.0, 2.0), Span(2.5, None)) == 0.0


def test_a_lane_does_not_overlap_itself():
    overlap = Overlap()
    overlap.add(Lane.DECODE, Span(0.0, 1.0))
    assert overlap.beside(Lane.DECODE, Span(0.0, 1.0), None) == 0.0
