"""The prefill lane: which rows run next by the order, chunk by chunk and quantum by quantum.

The head of the order is looked up anew at each boundary. So a started chunk whose batch is not the
head any more is suspended by doing nothing, resumed by being the head again, and discarded when all
of its requests are gone. At most two quanta are in flight (MuxWise 3.3): one runs, one waits.
"""

from collections.abc import Iterator, Sequence

from protocol.control_link import (
    Lane,
    PrefillDone,
    PrefillItem,
    PrefillStarted,
    QuantumDone,
    RequestState,
)
from worker.core.batch import Chunk, Flight, Introductions, measure, row_of
from worker.core.decode import DecodeLane
from worker.core.events import DiscardBatch
from worker.core.order import Order
from worker.core.parts import Parts, device_work
from worker.core.request import Request, Stay
from worker.core.views import pool_state, progress, view
from worker.executors.base import Completion, PrefillQuantum

MAX_QUANTA = 2
"""In flight."""

Fresh = list[tuple[Request, int]]
"""Requests of the next chunk, each with the position to reach."""


class PrefillLane:
    """Quanta of prompts that go through the layers together."""

    def __init__(self, parts: Parts, decode: DecodeLane) -> None:
        self.blocked: Request | None = None
        """The listed request that did not fit, when the head was last looked for."""
        self._parts = parts
        self._decode = decode
        self._started: dict[int, Chunk] = {}
        self._numbers = 0
        self._rest: list[list[PrefillItem]] = []
        self._rest_of: tuple[Order | None, int, int] = (None, 0, 0)

    def has_work(self, order: Order) -> bool:
        """Return whether a quantum could be launched, were there no limit in flight."""
        return self._head(order) is not None

    def launch(self, order: Order, partition: int, now: float) -> bool:
        """Launch one quantum, if there is work and room in the lane."""
        if self._parts.flights.count(Lane.PREFILL) >= MAX_QUANTA:
            return False
        head = self._head(order)
        chunk = head if isinstance(head, Chunk) else self._form(head or [], order)
        if chunk is None:
            return False
        ticket = self._parts.flights.next_ticket
        work = self._quantum(chunk, order, partition, ticket)
        sizes = measure(work.rows, len(work.rows), 0, work.layer_end - work.layer_start)
        self._parts.flights.launch(Flight(work, sizes, now, limit=MAX_QUANTA, chunk=chunk))
        self._parts.outbox.launch(work)
        self._announce(chunk)
        return True

    # --- what runs next ---

    def _head(self, order: Order) -> Chunk | Fresh | None:
        """Return the started chunk that goes on, or what the next chunk may be made of.

        A request that does not fit holds up all that is not on the device yet, lest smaller ones
        overtake it for ever; but not what has started, whose pages it waits for.
        """
        self.blocked = None
        for items in self._listed(order):
            head = self._first_of(items)
            if head:
                return head
        return None

    def _listed(self, order: Order) -> Iterator[Sequence[PrefillItem]]:
        """Yield the listed batches; on autopilot then those that had started, oldest first."""
        yield from self._unfinished(order)
        if order.autopilot:
            live = self._parts.table.live.values()
            begun = (r for r in live if (r.retracted if r.stay is None else not r.stay.prefilled))
            for request in sorted(begun, key=lambda request: request.age):
                yield (PrefillItem(request.ref),)

    def _unfinished(self, order: Order) -> list[list[PrefillItem]]:
        """Return the listed batches without those at the front that are done for good."""
        version = (order, self._parts.endings.retractions, self._parts.table.accepted)
        if version != self._rest_of:
            self._rest_of = version
            self._rest = [list(batch.items) for batch in order.prefill.batches]
        while self._rest:
            first = [item for item in self._rest[0] if not self._is_done(item)]
            if first:
                self._rest[0] = first
                break
            del self._rest[0]
        return self._rest

    def _is_done(self, item: PrefillItem) -> bool:
        request = self._parts.table.find(item.ref)
        if request is None:
            return True
        stay = request.stay
        return stay is not None and stay.launched >= min(item.upto or stay.total, stay.total)

    def _first_of(self, items: Sequence[PrefillItem]) -> Chunk | Fresh:
        """Return what of one batch can run; an empty list when nothing can."""
        fresh: Fresh = []
        for item in items:
            request = self._parts.table.find(item.ref)
            if request is None:
                continue
            if request.stay is not None and request.stay.chunk is not None:
                return request.stay.chunk
            target = self._target(request, item.upto)
            if target and (not fresh or fresh[0][0].model is request.model):
                fresh.append((request, target))
        return fresh

    def _target(self, request: Request, upto: int) -> int:
        """Return the position up to which `request` can be prefilled now; 0: not at all."""
        stay = request.stay
        if stay is not None:
            target = min(upto or stay.total, stay.total)
            busy = self._parts.flights.in_other_lane(stay, Lane.PREFILL)
            return 0 if busy or stay.launched >= target else target
        target = min(upto or request.known, request.known)
        if self.blocked is not None:
            return 0
        if not self._parts.memory.fits(request):
            self.blocked = request
            return 0
        if target < request.known and self._hit_tokens(request) >= target:
            return 0
        return target

    def _hit_tokens(self, request: Request) -> int:
        return len(self._parts.memory.hits(request)) * self._parts.memory.page_size

    def _form(self, fresh: Fresh, order: Order) -> Chunk | None:
        """Start a chunk with the next tokens of `fresh`, in order, as many as may go together."""
        limit = self._parts.info.max_prefill_tokens
        budget = min(order.prefill.token_chunk or limit, limit)
        rows, stays = [], []
        for request, target in fresh:
            stay = request.stay
            if budget <= 0 or (stay is not None and stay in stays):
                continue
            if stay is None:
                if not self._parts.memory.fits(request):
                    break
                stay = self._parts.start(request)
            count = min(target - stay.launched, budget)
            rows.append(row_of(stay, count))
            stays.append(stay)
            budget -= count
        if not rows:
            return None
        self._numbers += 1
        chunk = Chunk(self._numbers, stays[0].request.model, tuple(stays), tuple(rows))
        for stay in stays:
            stay.chunk, stay.lane = chunk, Lane.PREFILL
        self._started[chunk.number] = chunk
        return chunk

    # --- launching ---

    def _quantum(self, chunk: Chunk, order: Order, partition: int, ticket: int) -> PrefillQuantum:
        """Take the next layers of `chunk`."""
        news = Introductions()
        start, total = chunk.next_layer, chunk.model.num_layers
        end = min(total, start + (order.prefill.layers_per_quantum or total))
        for stay in chunk.stays:
            stay.last_prefill = ticket
            if not start:
                news.add(stay)
        chunk.next_layer = end
        chunk.in_flight += 1
        if chunk.launched:
            self._all_launched(chunk)
        return PrefillQuantum(
            ticket=ticket,
            model=chunk.model.name,
            partition=partition,
            batch=chunk.number,
            layer_start=start,
            layer_end=end,
            rows=chunk.rows,
            inits=tuple(news.inits),
            tables=tuple(news.tables),
        )

    def _all_launched(self, chunk: Chunk) -> None:
        del self._started[chunk.number]
        for stay, row in zip(chunk.stays, chunk.rows, strict=True):
            stay.chunk = None
            if stay.open:
                stay.launched += len(row.token_ids)
                stay.left -= row.sample

    def _announce(self, chunk: Chunk) -> None:
        stays = tuple(stay for stay in chunk.stays if stay.open)
        if not self._parts.groups.run(stays):
            return
        requests = tuple(view(stay.request) for stay in stays)
        pool = pool_state(self._parts.memory.pool)
        self._parts.outbox.publish(lambda n: PrefillStarted(n, Lane.PREFILL, requests, pool))

    # --- what comes of it ---

    def complete(self, flight: Flight, completion: Completion, order: Order, now: float) -> None:
        """Take the end of a quantum; of a chunk's last one also its tokens."""
        chunk, work = flight.chunk, flight.work
        assert chunk is not None
        assert isinstance(work, PrefillQuantum)
        parts = self._parts
        stays = tuple(stay for stay in chunk.stays if stay.open)
        suspended = self._parks(chunk, stays, order)
        parts.groups.quantum(stays, work.layer_end, suspended=suspended)
        moved, done = self._written(chunk, completion) if flight.ends_chunk else ([], [])
        parts.outbox.publish(
            lambda n: QuantumDone(
                n,
                tuple(stay.request.ref for stay in stays),
                work.layer_end,
                chunk.model.num_layers,
                device_work(flight, completion, now),
                tuple(progress(stay) for stay in moved),
                suspended,
            )
        )
        if done:
            parts.outbox.publish(
                lambda n: PrefillDone(
                    n, tuple(progress(stay) for stay in done), pool_state(parts.memory.pool)
                )
            )
        parts.streams.flush()

    def _written(self, chunk: Chunk, completion: Completion) -> tuple[list[Stay], list[Stay]]:
        """Count a chunk's tokens; return its requests, and those whose prefill is done."""
        draws = iter(completion.tokens)
        moved, done = [], []
        for stay, row in zip(chunk.stays, chunk.rows, strict=True):
            drawn = next(draws) if row.sample else None
            if not stay.open:
                continue
            self._parts.memory.written(stay, row.start + len(row.token_ids))
            moved.append(stay)
            if drawn is not None:
                self._parts.streams.push(stay.request, drawn)
                stay.state = RequestState.DECODING
                self._decode.join(stay)
                done.append(stay)
        return moved, done

    def _parks(self, chunk: Chunk, stays: tuple[Stay, ...], order: Order) -> bool:
        """Return whether the batch stops here: something is left of it and it is not the head."""
        mine = set(stays)
        ahead = self._parts.flights.lanes[Lane.PREFILL]
        if any(flight.chunk is not None and mine & set(flight.chunk.stays) for flight in ahead):
            return False
        if all(stay.prefilled for stay in stays):
            return False
        head = self._head(order)
        if head is None or isinstance(head, Chunk):
            return head is not chunk
        return not any(request.stay in mine for request, _ in head)

    def landed(self, chunk: Chunk) -> None:
        """One quantum less of `chunk` is in flight."""
        chunk.in_flight -= 1

    def sweep(self) -> None:
        """Discard started chunks that nobody waits for, once nothing of them is in flight."""
        for chunk in [c for c in self._started.values() if not c.in_flight and not c.alive]:
            del self._started[chunk.number]
            for stay in chunk.stays:
                stay.chunk = None
            self._parts.outbox.effect(DiscardBatch(chunk.number))
            self._parts.memory.settle()
