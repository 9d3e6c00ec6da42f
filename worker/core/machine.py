"""The worker's state machine: one event in, effects out (DESIGN 4).

No clock, no randomness, no I/O, and nothing is iterated in an order that is not its own: the same
events at the same times give the same effects. All that is decided here is decided again at the
next event; nothing waits.
"""

import logging
from collections.abc import Container

from protocol.activity import Activity
from protocol.control_link import Lane, Snapshot
from protocol.data_link import Credits, FailCode, Load, ModelInfo, Status
from protocol.ids import RequestRef
from worker.core.activity import ActivityMeter
from worker.core.batch import Flight
from worker.core.config import CoreConfig
from worker.core.control import Control
from worker.core.decode import DecodeLane
from worker.core.dispatch import Dispatcher
from worker.core.endings import Endings
from worker.core.events import (
    Completed,
    CoreEvent,
    DiscardBatch,
    Drain,
    Effect,
    Fatal,
    FromGateway,
    FromScheduler,
    PeerDown,
    Tick,
)
from worker.core.flights import Flights, OutOfOrder
from worker.core.groups import Groups
from worker.core.intake import Intake
from worker.core.memory import Memory
from worker.core.outbox import Outbox
from worker.core.parts import Parts
from worker.core.prefill import PrefillLane
from worker.core.request import Request
from worker.core.streams import Streams
from worker.core.table import RequestTable
from worker.executors.base import Completion, DeviceInfo, ModelShape

log = logging.getLogger(__name__)


class WorkerCore:
    """Requests, pages, plan and lanes of one worker."""

    def __init__(
        self,
        config: CoreConfig,
        device: DeviceInfo,
        boot: str,
        barred: Container[str] = frozenset(),
    ) -> None:
        """`barred`: ids of requests that are refused as suspects (`worker.suspects`)."""
        self.dead = False
        """After a `Fatal`: nothing is launched any more."""
        self._config = config
        self._flights = Flights()
        self._meter = ActivityMeter(device, self._flights)
        self._table = RequestTable(config)
        self._memory = Memory(device, self._flights)
        self._outbox = Outbox()
        endings = Endings(self._table, self._memory, self._outbox)
        self._parts = Parts(
            info=device,
            table=self._table,
            memory=self._memory,
            flights=self._flights,
            endings=endings,
            streams=Streams(self._outbox, endings),
            groups=Groups(),
            outbox=self._outbox,
        )
        models = tuple(model_info(model, device.page_size) for model in device.models)
        self._intake = Intake(config, self._parts, boot, models, barred)
        self._control = Control(config, self._parts, boot, models)
        self._decode = DecodeLane(self._parts, config.max_num_seqs)
        self._prefill = PrefillLane(self._parts, self._decode)
        self._dispatcher = Dispatcher(device, self._flights, self._decode, self._prefill)
        self._errors = 0
        self._told: Credits = self._table.credits()

    def on(self, event: CoreEvent, now: float) -> list[Effect]:
        """Take one event at `now` (monotonic, seconds) and return what to do, in order."""
        self._flights.tell_time(now)
        self._intake.tick(now)
        match event:
            case Completed(completion=completion):
                self._complete(completion, now)
            case FromGateway(peer=peer, message=message):
                self._intake.on(peer, message, now)
            case FromScheduler(peer=peer, message=order):
                self._control.on(peer, order, now)
            case PeerDown(link="data", peer=peer):
                self._intake.down(peer, now)
            case PeerDown(peer=peer):
                self._control.down(peer)
            case Tick():
                self._tick()
            case Drain(final=final):
                self._drain(final=final)
        self._prefill.sweep()
        if not self.dead:
            self._dispatch(now)
        self._tell_credits()
        return self._outbox.take()

    @property
    def idle(self) -> bool:
        """Whether no request is live and nothing is in flight: a drained worker may exit."""
        return not self._table.live and self._flights.idle

    @property
    def observers(self) -> list[bytes]:
        """Schedulers that are sent events."""
        return list(self._outbox.observers)

    @property
    def referenced_pages(self) -> int:
        """Pages that requests or fences hold."""
        return self._memory.pool.referenced

    @property
    def retractions(self) -> int:
        """Requests that lost their pages since boot."""
        return self._parts.endings.retractions

    @property
    def skipped(self) -> int:
        """Names in plans of requests that had gone when the plan came."""
        return self._control.skipped

    def in_flight(self, lane: Lane) -> int:
        """Return the launches of `lane` that have not completed."""
        return self._flights.count(lane)

    def on_device(self) -> list[RequestRef]:
        """Return the requests that work in flight touches: the suspects, should it crash."""
        requests: dict[Request, None] = {}
        for flights in self._flights.lanes.values():
            for flight in flights:
                requests.update(dict.fromkeys([stay.request for stay in flight.stays]))
        return [request.ref for request in requests]

    def snapshot(self, now: float) -> Snapshot:
        """Return what a scheduler that observes would be told now."""
        return self._control.snapshot(b"", now)

    def load(self) -> Load:
        """Return the worker's state in numbers."""
        pool = self._memory.pool
        return Load(
            queued=len(self._table.queued),
            running=len(self._memory.stays),
            pages_total=pool.num_pages,
            pages_referenced=pool.referenced,
            pages_cached=pool.cached,
            iterations=self._flights.completed,
            draining=self._intake.draining,
            scheduler=self._control.policy,
        )

    def activity(self) -> Activity:
        """Return what the device does, for people and metrics."""
        control = self._control
        return self._meter.tell(control.order, control.plan, self.retractions)

    def check(self) -> list[str]:
        """Return violated invariants (DESIGN 6); empty when all is well."""
        wrong = self._table.check() + self._memory.check()
        for lane, flights in self._flights.lanes.items():
            for index, flight in enumerate(flights):
                if index >= flight.limit:
                    wrong.append(f"{lane}: launch {index + 1} in flight, limit {flight.limit}")
                wrong += self._check_held(flight)
        for stay in self._memory.stays:
            if self._table.find(stay.request.ref) is not stay.request:
                wrong.append(f"{stay.request.ref.request} is terminal and on the device")
        if self.idle and self.referenced_pages:
            wrong.append(f"{self.referenced_pages} pages are referenced and the worker is idle")
        return wrong

    # --- what happens ---

    def _dispatch(self, now: float) -> None:
        self._dispatcher.run(self._control.order, now)
        while self._flights.idle and self._make_room():
            self._dispatcher.run(self._control.order, now)

    def _make_room(self) -> bool:
        """Nothing runs, because what the order starts next does not fit: retract a newer one."""
        blocked = self._prefill.blocked or self._decode.blocked
        victim = self._parts.endings.newest_after(blocked.age) if blocked else None
        if victim is None:
            return False
        self._parts.endings.retract(victim)
        self._prefill.sweep()
        return True

    def _complete(self, completion: Completion, now: float) -> None:
        try:
            flight = self._flights.land(completion)
        except OutOfOrder as error:
            self._die(str(error))
            return
        if flight.chunk is not None:
            self._prefill.landed(flight.chunk)
        if completion.error is None and len(completion.tokens) == len(flight.draws):
            self._errors = 0
            self._meter.landed(flight, completion)
            if flight.chunk is None:
                self._decode.complete(flight, completion, now)
            else:
                self._prefill.complete(flight, completion, self._control.order, now)
        else:
            self._fail(flight, completion)
        self._memory.settle()

    def _fail(self, flight: Flight, completion: Completion) -> None:
        """A launch failed: so do its requests, and the device when it happens again and again."""
        why = completion.error or (
            f"{len(completion.tokens)} tokens drawn, {len(flight.draws)} expected"
        )
        log.error("ticket %d failed: %s", completion.ticket, why)
        message = f"ticket {completion.ticket} ({completion.lane}) failed on the device"
        for stay in flight.stays:
            if stay.open:
                self._parts.endings.fail(stay.request, FailCode.INTERNAL, message)
        if flight.ends_chunk and flight.chunk is not None:
            self._outbox.effect(DiscardBatch(flight.chunk.number))
        self._errors += 1
        limit = self._config.max_launch_errors
        if self._errors >= limit:
            self._die(f"{self._errors} launches in a row failed, limit {limit}; the last: {why}")

    def _tick(self) -> None:
        wedged = self._flights.wedged(self._config.ticket_deadline_s)
        if wedged is not None and not self.dead:
            self._die(wedged)
        self._told = self._table.credits()
        self._intake.broadcast(Status(self._told, self.load(), self.activity()))

    def _drain(self, *, final: bool) -> None:
        self._intake.draining = True
        if final:
            self._intake.give_up()
        self._intake.broadcast(Status(self._table.credits(), self.load()))

    def _die(self, reason: str) -> None:
        self.dead = True
        log.critical("fatal: %s", reason)
        self._outbox.effect(Fatal(reason))

    def _tell_credits(self) -> None:
        left = self._table.credits()
        if left != self._told:
            self._told = left
            self._intake.broadcast(Status(left, self.load()))

    def _check_held(self, flight: Flight) -> list[str]:
        fenced = set(self._memory.fenced)
        return [
            f"ticket {flight.work.ticket} touches {stay.request.ref.request}, whose pages are free"
            for stay in flight.stays
            if not stay.open and stay not in fenced
        ]


def model_info(model: ModelShape, page_size: int) -> ModelInfo:
    """Return a model as peers are told."""
    return ModelInfo(
        name=model.name,
        num_layers=model.num_layers,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        page_size=page_size,
        eos_token_ids=model.eos_token_ids,
    )
