"""Which lane launches next, and on which partition: the sharing part of an order.

A split change drains nothing: each lane takes it at its own next launch, the one that shrinks at
once, the one that grows as soon as what is in flight of the other lane leaves it the room. Until
then it goes on with its old share, so the overlap is bounded by two quanta (MuxWise 3.3).
"""

from protocol.control_link import WHOLE, Disjoint, Exclusive, Lane
from worker.core.decode import DecodeLane
from worker.core.flights import Flights
from worker.core.order import Order
from worker.core.prefill import PrefillLane
from worker.executors.base import DeviceInfo

OTHER = {Lane.PREFILL: Lane.DECODE, Lane.DECODE: Lane.PREFILL}


class Dispatcher:
    """Launches all that the order allows."""

    def __init__(
        self, info: DeviceInfo, flights: Flights, decode: DecodeLane, prefill: PrefillLane
    ) -> None:
        self._flights = flights
        self._units = info.units
        self._share = {
            Lane.PREFILL: {p.index: p.prefill_units for p in info.partitions},
            Lane.DECODE: {p.index: p.decode_units for p in info.partitions},
        }
        self._lanes: dict[Lane, DecodeLane | PrefillLane] = {
            Lane.PREFILL: prefill,
            Lane.DECODE: decode,
        }
        self._last = {Lane.PREFILL: WHOLE, Lane.DECODE: WHOLE}
        """Partition of each lane's newest launch."""
        self._used = {Lane.PREFILL: 0, Lane.DECODE: 0}
        """Launches in this round of turns, exclusive mode."""

    def run(self, order: Order, now: float) -> bool:
        """Launch until nothing more is due; return whether anything was. Decode goes first."""
        launched = False
        while self._step(order, now):
            launched = True
        return launched

    def _step(self, order: Order, now: float) -> bool:
        if isinstance(order.sharing, Exclusive):
            return self._take_turns(order, order.sharing, now)
        return self._launch(Lane.DECODE, order, now) or self._launch(Lane.PREFILL, order, now)

    def _launch(self, lane: Lane, order: Order, now: float) -> bool:
        partition = self._partition(lane, order)
        if not self._lanes[lane].launch(order, partition, now):
            return False
        self._last[lane] = partition
        return True

    # --- partitions ---

    def _partition(self, lane: Lane, order: Order) -> int:
        """Return the partition of the next launch in `lane`."""
        if not isinstance(order.sharing, Disjoint):
            return WHOLE
        other = OTHER[lane]
        busy = self._flights.count(other) > 0 or self._lanes[other].has_work(order)
        want = order.sharing.partition if busy else order.alone
        last = self._last[lane]
        share = self._share[lane]
        if share[want] <= share[last]:
            return want
        room = self._units - share[want]
        beside = (flight.work.partition for flight in self._flights.lanes[other])
        fits = all(self._share[other][partition] <= room for partition in beside)
        return want if fits else last

    # --- one lane at a time ---

    def _take_turns(self, order: Order, sharing: Exclusive, now: float) -> bool:
        lane = self._turn(order, sharing)
        other = OTHER[lane]
        if self._flights.count(other):
            # The other lane's launches must end first. It goes on only if nobody waits.
            idle = not self._flights.count(lane) and not self._lanes[lane].has_work(order)
            return idle and self._launch(other, order, now)
        if self._launch(lane, order, now):
            self._count(lane, order)
            return True
        return not self._flights.count(lane) and self._launch(other, order, now)

    def _turn(self, order: Order, sharing: Exclusive) -> Lane:
        """Return whose turn it is when both lanes have work."""
        first, second = sharing.first, OTHER[sharing.first]
        quota = {Lane.PREFILL: sharing.quanta, Lane.DECODE: sharing.iterations}
        if not sharing.iterations or self._used[first] < quota[first]:
            return first
        if self._used[second] < quota[second]:
            return second
        self._used = {Lane.PREFILL: 0, Lane.DECODE: 0}
        return first

    def _count(self, lane: Lane, order: Order) -> None:
        """Count a turn; while the other lane has no work there is nothing to share."""
        if self._lanes[OTHER[lane]].has_work(order):
            self._used[lane] += 1
        else:
            self._used = {Lane.PREFILL: 0, Lane.DECODE: 0}
