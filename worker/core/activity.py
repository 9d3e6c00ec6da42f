"""Counts what the lanes have done, and says what they do: nothing in the core reads it back."""

from dataclasses import dataclass

from protocol.activity import MAX_REASON_CHARS, Activity, LaneActivity, PlanInForce, Sharing
from protocol.control_link import Disjoint, Exclusive, Lane, Plan
from worker.core.batch import Flight
from worker.core.flights import Flights
from worker.core.order import Order
from worker.executors.base import Completion, DeviceInfo, PrefillQuantum


@dataclass(slots=True)
class _Lane:
    launches: int = 0
    busy_s: float = 0.0
    tokens: float = 0.0


class ActivityMeter:
    """Totals since boot, by lane."""

    def __init__(self, info: DeviceInfo, flights: Flights) -> None:
        self._info = info
        self._flights = flights
        self._partitions = {partition.index: partition for partition in info.partitions}
        self._lanes = {Lane.PREFILL: _Lane(), Lane.DECODE: _Lane()}
        self._both_s = 0.0

    def landed(self, flight: Flight, completion: Completion) -> None:
        """Count a launch that has completed without an error."""
        seconds = max(0.0, completion.finished - completion.started)
        lane = self._lanes[completion.lane]
        lane.launches += 1
        lane.busy_s += seconds
        self._lanes[Lane.DECODE].tokens += len(completion.tokens)
        if completion.lane is Lane.DECODE:
            self._both_s += min(max(0.0, completion.overlap_s), seconds)
        self._lanes[Lane.PREFILL].tokens += _prefilled(flight)

    def tell(self, order: Order, plan: Plan | None, retractions: int) -> Activity:
        """Return what is so now, under `order`, which follows `plan`."""
        return Activity(
            unit=self._info.unit,
            units=self._info.units,
            plan=self._plan(order, plan),
            prefill=self._lane(Lane.PREFILL),
            decode=self._lane(Lane.DECODE),
            both_s=self._both_s,
            retractions=retractions,
        )

    def _lane(self, lane: Lane) -> LaneActivity:
        flights, done = self._flights.lanes[lane], self._lanes[lane]
        return LaneActivity(
            units=self._units_of(flights[-1]) if flights else 0,
            launches=done.launches,
            busy_s=done.busy_s,
            tokens=round(done.tokens),
        )

    def _units_of(self, flight: Flight) -> int:
        partition = self._partitions[flight.work.partition]
        prefills = isinstance(flight.work, PrefillQuantum)
        return partition.prefill_units if prefills else partition.decode_units

    def _plan(self, order: Order, plan: Plan | None) -> PlanInForce:
        prefill = decode = self._info.units
        sharing = Sharing.SHARED
        if isinstance(order.sharing, Disjoint):
            partition = self._partitions[order.sharing.partition]
            prefill, decode = partition.prefill_units, partition.decode_units
            sharing = Sharing.DISJOINT
        elif isinstance(order.sharing, Exclusive):
            sharing = Sharing.EXCLUSIVE
        return PlanInForce(
            seq=plan.seq if plan else 0,
            sharing=sharing,
            prefill_units=prefill,
            decode_units=decode,
            depth=order.decode.depth,
            layers_per_quantum=order.prefill.layers_per_quantum,
            autopilot=order.autopilot,
            reason=plan.reason[:MAX_REASON_CHARS] if plan else "",
        )


def _prefilled(flight: Flight) -> float:
    """Return the prompt tokens that a launch computed; some of the layers count as their share."""
    chunk, sizes = flight.chunk, flight.sizes
    return sizes.new_tokens * (sizes.layers / chunk.model.num_layers if chunk else 1.0)
