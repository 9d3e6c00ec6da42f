"""The decode lane: which rows and fused chunks go into the next iteration, and what comes of one.

Sampled ids feed the next iteration on the device, so iterations are launched ahead: at most
depth + 1 are in flight, the running one counted. What a request drew after its end is discarded.
A row has a page for the position it writes when it is launched, so the token slots of all
iterations ahead of what the host knows are reserved (DuetServe 4.3).
"""

from protocol.control_link import Lane, PrefillDone, PrefillStarted, RequestState, StepDone
from worker.core.batch import Flight, Introductions, measure, row_of
from worker.core.order import Order
from worker.core.parts import Parts, device_work
from worker.core.request import Request, Stay
from worker.core.views import pool_state, progress, view
from worker.executors.base import Completion, DecodeBatch, ModelShape, PrefillRow

Fused = list[tuple[Stay, PrefillRow]]


class DecodeLane:
    """Iterations over requests whose prefill is done."""

    def __init__(self, parts: Parts, max_rows: int) -> None:
        self.blocked: Request | None = None
        """The listed request that did not fit, when chunks were last looked for."""
        self._parts = parts
        self._max_rows = max_rows
        self._running: dict[Stay, None] = {}
        self._models = list(parts.info.models)
        self._rows: dict[str, list[Stay]] = {}
        self._rows_of: tuple[Order | None, int, int] = (None, 0, 0)
        self._joined = 0

    def join(self, stay: Stay) -> None:
        """All of a prefill is launched in this lane, or completed: it decodes from now on."""
        self._running[stay] = None
        self._joined += 1

    def has_work(self, order: Order) -> bool:
        """Return whether an iteration could be launched, were there no limit in flight."""
        rows = self._wanted(order).values()
        if any(stay.left > 0 for stays in rows for stay in stays):
            return True
        return any(self._can_ride(request) for request in self._listed(order))

    def launch(self, order: Order, partition: int, now: float) -> bool:
        """Launch one iteration, if there is work and the depth allows it."""
        limit = order.decode.depth + 1
        if self._parts.flights.count(Lane.DECODE) >= limit:
            return False
        for model in list(self._models):
            flight = self._assemble(model, order, partition, now)
            if flight is not None:
                self._models.remove(model)  # the next iteration begins with another one
                self._models.append(model)
                flight.limit = limit
                self._parts.flights.launch(flight)
                self._parts.outbox.launch(flight.work)
                return True
        return False

    # --- what goes into an iteration ---

    def _wanted(self, order: Order) -> dict[str, list[Stay]]:
        """Return the running set by model, in the order of joining."""
        version = (order, self._parts.memory.closings, self._joined)
        if version != self._rows_of:
            self._running = {stay: None for stay in self._running if stay.open}
            wanted = order.wanted
            rows: dict[str, list[Stay]] = {}
            for stay in self._running:
                if wanted is None or stay.request.ref in wanted:
                    rows.setdefault(stay.request.model.name, []).append(stay)
            self._rows, self._rows_of = rows, version
        return self._rows

    def _assemble(
        self, model: ModelShape, order: Order, partition: int, now: float
    ) -> Flight | None:
        ticket = self._parts.flights.next_ticket
        rows = self._ready(self._wanted(order).get(model.name, []), order)
        news = Introductions()
        fused = self._ride(model, order, len(rows), ticket)
        if not rows and not fused:
            return None
        positions = []
        for stay in rows:
            positions.append(stay.launched)
            stay.launched += 1
            stay.left -= 1
            stay.last_decode = ticket
            if stay.table.sent < len(stay.table.pages):
                news.add(stay)
        for stay, _ in fused:
            news.add(stay)
        chunks = tuple(row for _, row in fused)
        batch = DecodeBatch(
            ticket=ticket,
            model=model.name,
            partition=partition,
            slots=tuple([stay.slot for stay in rows]),
            positions=tuple(positions),
            chunks=chunks,
            inits=tuple(news.inits),
            tables=tuple(news.tables),
        )
        sizes = measure(chunks, len(rows), sum(positions), model.num_layers)
        return Flight(batch, sizes, now, limit=0, rows=rows, fused=fused)

    def _ready(self, stays: list[Stay], order: Order) -> list[Stay]:
        """Return rows that have a token to draw and a page to write; retract for those without."""
        ready: list[Stay] = []
        short: list[Stay] = []
        for stay in stays:
            if stay.left > 0:
                (ready if stay.launched < stay.table.capacity else short).append(stay)
                if len(ready) + len(short) == self._max_rows:
                    break
        if short:
            short.sort(key=lambda stay: stay.request.age)
            ready += [stay for stay in short if stay.open and self._reserve(stay, order)]
            ready = [stay for stay in ready if stay.open]
        return ready

    def _reserve(self, stay: Stay, order: Order) -> bool:
        """Get a page for `stay`. False: it is retracted itself, or waits for pages to come."""
        memory, endings = self._parts.memory, self._parts.endings
        while not memory.pool.available:
            if memory.coming():
                return False
            victim = endings.victim(order.victims)
            if victim is None:
                return False
            endings.retract(victim)
            if not stay.open:
                return False
        stay.table.grow(stay.launched + 1)
        return True

    # --- fused chunks ---

    def _listed(self, order: Order) -> list[Request]:
        fused = order.decode.fused
        if not fused.max_chunk or not fused.token_budget:
            return []
        found = (self._parts.table.find(ref) for ref in fused.requests)
        return [request for request in found if request is not None]

    def _can_ride(self, request: Request) -> bool:
        stay = request.stay
        if stay is None:
            return self._parts.memory.fits(request)
        if stay.chunk is not None or stay.prefilled:
            return False
        return not self._parts.flights.in_other_lane(stay, Lane.DECODE)

    def _ride(self, model: ModelShape, order: Order, rows: int, ticket: int) -> Fused:
        """Return the prefill rows of the next iteration; start those that are not on the device."""
        self.blocked = None
        fused = order.decode.fused
        limit = self._parts.info.max_prefill_tokens
        budget = min(fused.max_chunk, min(fused.token_budget, limit) - rows)
        riding: Fused = []
        for request in self._listed(order) if budget > 0 else ():
            stay = request.stay
            if request.model is not model or (stay is not None and stay.last_decode == ticket):
                continue
            if stay is None and self.blocked is not None:
                continue  # nothing new starts past one that does not fit
            if not self._can_ride(request):
                self.blocked = self.blocked or (request if stay is None else None)
                continue
            stay = stay or self._parts.start(request)
            row = row_of(stay, min(budget, stay.total - stay.launched))
            self._launch_row(stay, row, ticket)
            riding.append((stay, row))
            budget -= len(row.token_ids)
            if budget <= 0:
                break
        return riding

    def _launch_row(self, stay: Stay, row: PrefillRow, ticket: int) -> None:
        stay.launched += len(row.token_ids)
        stay.last_decode = ticket
        if row.sample:
            stay.left -= 1
            self.join(stay)
        if stay.lane is Lane.DECODE and stay.state is RequestState.PREFILLING:
            return
        stay.lane, stay.state = Lane.DECODE, RequestState.PREFILLING
        self._parts.groups.leave(stay)
        request, memory = stay.request, self._parts.memory
        self._parts.outbox.publish(
            lambda n: PrefillStarted(n, Lane.DECODE, (view(request),), pool_state(memory.pool))
        )

    # --- what comes of one ---

    def complete(self, flight: Flight, completion: Completion, now: float) -> None:
        """Take the drawn tokens, and end what they end."""
        parts = self._parts
        page_size = parts.memory.page_size
        push = parts.streams.push
        moved: list[Stay] = []
        for stay, drawn in zip(flight.rows, completion.tokens, strict=False):
            if not stay.open:
                continue
            stay.computed += 1
            if not stay.computed % page_size:
                parts.memory.written(stay, stay.computed)
            push(stay.request, drawn)
            moved.append(stay)
        done = self._complete_fused(flight, completion, moved)
        parts.outbox.publish(
            lambda n: StepDone(
                n,
                device_work(flight, completion, now),
                tuple([progress(stay) for stay in moved]),
                pool_state(parts.memory.pool),
            )
        )
        if done:
            parts.outbox.publish(
                lambda n: PrefillDone(
                    n, tuple(progress(stay) for stay in done), pool_state(parts.memory.pool)
                )
            )
        parts.streams.flush()

    def _complete_fused(
        self, flight: Flight, completion: Completion, moved: list[Stay]
    ) -> list[Stay]:
        """Count written chunks; return those whose prefill is done."""
        draws = iter(completion.tokens[len(flight.rows) :])
        done = []
        for stay, row in flight.fused:
            drawn = next(draws) if row.sample else None
            if not stay.open:
                continue
            self._parts.memory.written(stay, row.start + len(row.token_ids))
            moved.append(stay)
            if drawn is not None:
                self._parts.streams.push(stay.request, drawn)
                stay.state = RequestState.DECODING
                done.append(stay)
        return done
