"""Launches in flight, lane by lane, and what has completed.

A lane completes its launches in order, so one number a lane, the last completed ticket, says
whether launched work can still touch something. Also the watchdog: a device is wedged when the head
of a lane does not move while the worker itself does.
"""

from collections import deque

from protocol.control_link import Lane
from worker.core.batch import Flight
from worker.core.request import Stay
from worker.executors.base import Completion, Ticket

AWAKE_STEP_S = 1.0
"""Of a longer time between two events only so much counts: the process itself stood still."""


class OutOfOrder(Exception):
    """A completion that no launch explains: the executor is broken."""


class Flights:
    """What is launched and not completed."""

    def __init__(self) -> None:
        self.lanes: dict[Lane, deque[Flight]] = {Lane.PREFILL: deque(), Lane.DECODE: deque()}
        self.completed = 0
        """Launches completed since boot."""
        self.decode_done: Ticket = 0
        """Last completed ticket of the lane."""
        self.prefill_done: Ticket = 0
        self._issued: Ticket = 0
        self._awake = 0.0
        self._moved: dict[Lane, float] = {Lane.PREFILL: 0.0, Lane.DECODE: 0.0}
        self._last_now: float | None = None

    @property
    def next_ticket(self) -> Ticket:
        """The number of the next launch."""
        return self._issued + 1

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not any(self.lanes.values())

    def count(self, lane: Lane) -> int:
        """Return the launches in flight in `lane`."""
        return len(self.lanes[lane])

    def launch(self, flight: Flight) -> None:
        """Note a launch; its work carries `next_ticket`."""
        lane = self.lanes[flight.work.lane]
        if not lane:
            self._moved[flight.work.lane] = self._awake
        self._issued = flight.work.ticket
        lane.append(flight)

    def land(self, completion: Completion) -> Flight:
        """Take the launch that has completed. Raises OutOfOrder."""
        lane = self.lanes[completion.lane]
        if not lane or lane[0].work.ticket != completion.ticket:
            head = lane[0].work.ticket if lane else "none"
            raise OutOfOrder(
                f"{completion.lane} completed ticket {completion.ticket}, the oldest is {head}"
            )
        self.completed += 1
        self._moved[completion.lane] = self._awake
        if completion.lane is Lane.DECODE:
            self.decode_done = completion.ticket
        else:
            self.prefill_done = completion.ticket
        return lane.popleft()

    def is_clear(self, stay: Stay) -> bool:
        """Return whether nothing launched, or sure to be launched, can touch `stay`."""
        return (
            stay.chunk is None
            and stay.last_decode <= self.decode_done
            and stay.last_prefill <= self.prefill_done
        )

    def in_other_lane(self, stay: Stay, lane: Lane) -> bool:
        """Return whether work on `stay` is in flight in the lane that is not `lane`."""
        if lane is Lane.DECODE:
            return stay.last_prefill > self.prefill_done
        return stay.last_decode > self.decode_done

    def tell_time(self, now: float) -> None:
        """Count the time in which the worker was awake."""
        if self._last_now is not None:
            self._awake += min(max(0.0, now - self._last_now), AWAKE_STEP_S)
        self._last_now = now

    def wedged(self, deadline_s: float) -> str | None:
        """Return what has been at the head of a lane for longer than `deadline_s`, if anything."""
        for lane, flights in self.lanes.items():
            waited = self._awake - self._moved[lane]
            if flights and waited > deadline_s:
                ticket = flights[0].work.ticket
                return f"{lane} ticket {ticket} has run {waited:.1f} s, limit {deadline_s:.1f} s"
        return None
