"""The components that both lanes work with, and what they report of a launch."""

from dataclasses import dataclass

from protocol.control_link import DeviceWork
from worker.core.batch import Flight
from worker.core.endings import Endings
from worker.core.flights import Flights
from worker.core.groups import Groups
from worker.core.memory import Memory
from worker.core.outbox import Outbox
from worker.core.request import Request, Stay
from worker.core.streams import Streams
from worker.core.table import RequestTable
from worker.executors.base import Completion, DeviceInfo


@dataclass(frozen=True, slots=True)
class Parts:
    """One worker's components."""

    info: DeviceInfo
    table: RequestTable
    memory: Memory
    flights: Flights
    endings: Endings
    streams: Streams
    groups: Groups
    outbox: Outbox

    def start(self, request: Request) -> Stay:
        """Bring a queued request, which fits, onto the device."""
        self.table.dequeue(request)
        request.started = True
        return self.memory.start(request)


def device_work(flight: Flight, completion: Completion, now: float) -> DeviceWork:
    """Return what a launch did.

    The executor's clock is its own, so the wait on the device is what is left of the time from
    launch to `now`, when its end was seen.
    """
    sizes = flight.sizes
    seconds = max(0.0, completion.finished - completion.started)
    return DeviceWork(
        lane=completion.lane,
        partition=flight.work.partition,
        units=completion.units,
        seconds=seconds,
        new_tokens=sizes.new_tokens,
        new_squared=sizes.new_squared,
        new_times_reused=sizes.new_times_reused,
        reused_tokens=sizes.reused_tokens,
        batch_size=sizes.batch_size,
        context_tokens=sizes.context_tokens,
        layers=sizes.layers,
        overlap_s=min(max(0.0, completion.overlap_s), seconds),
        queued_s=max(0.0, now - flight.launched_at - seconds),
        started=completion.started,
    )
