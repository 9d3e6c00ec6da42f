"""Device times: when a launch began and ended, on the host's monotonic clock, and what ran beside.

Completion is found by querying events, never by waiting (MuxWise 3.2.3). CUDA tells the time
between two events only as float32 milliseconds, so the reference event moves along: times stay
exact to about a microsecond however long the process lives.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from protocol.control_link import Lane

REBASE_S = 1.0
"""A reference older than this is replaced by an event that has just been read."""
KEPT_SPANS = 256
"""Finished spans remembered per lane, for overlap."""


class TimedEvent(Protocol):
    """What is used of `torch.cuda.Event` with timing enabled."""

    def query(self) -> bool:
        """Return whether the device has passed it."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Return milliseconds from this event to `end_event`; both have passed."""
        ...


class DeviceClock:
    """Translates events to seconds on the monotonic clock."""

    def __init__(self, reference: TimedEvent) -> None:
        """`reference` has just been passed: the device was idle and synchronized."""
        self._reference = reference
        self._time = time.monotonic()

    def read(self, event: TimedEvent) -> float:
        """Return when `event`, which the device has passed, happened."""
        seconds = self._reference.elapsed_time(event) / 1e3
        moment = self._time + seconds
        if seconds > REBASE_S:
            self._reference, self._time = event, moment
        return moment


@dataclass(frozen=True, slots=True)
class Span:
    """When a launch ran, in seconds; `end` is None while it runs."""

    start: float
    end: float | None


class Overlap:
    """Remembers what each lane ran when, and says for how long both did."""

    def __init__(self) -> None:
        self._spans: dict[Lane, deque[Span]] = {
            lane: deque(maxlen=KEPT_SPANS) for lane in (Lane.PREFILL, Lane.DECODE)
        }

    def add(self, lane: Lane, span: Span) -> None:
        """Remember a finished span; spans of a lane come in order."""
        self._spans[lane].append(span)

    def beside(self, lane: Lane, span: Span, running: Span | None) -> float:
        """Return seconds of a finished `span` of `lane` during which the other lane was busy.

        `running` is what the other lane runs now, if it has started.
        """
        assert span.end is not None
        other = Lane.DECODE if lane is Lane.PREFILL else Lane.PREFILL
        total = 0.0 if running is None else max(0.0, span.end - max(span.start, running.start))
        for past in reversed(self._spans[other]):
            assert past.end is not None
            if past.end <= span.start:
                break
            total += max(0.0, min(past.end, span.end) - max(past.start, span.start))
        return min(total, span.end - span.start)
