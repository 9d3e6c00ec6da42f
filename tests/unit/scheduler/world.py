"""Builders of snapshots, and a small model of a worker that says what happens to it in events."""

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.control_link import (
    Arrived,
    DeviceWork,
    Event,
    Lane,
    Left,
    Partition,
    PoolState,
    PrefillDone,
    PrefillStarted,
    Progress,
    QuantumDone,
    RequestState,
    RequestView,
    Retracted,
    Snapshot,
    StartedBatch,
    StepDone,
)
from protocol.data_link import ModelInfo, WorkerLimits
from protocol.ids import Epoch, RequestRef
from protocol.slo import Slo
from scheduler.view import WorkerView

H200 = (
    Partition(0, 132, 132),
    Partition(1, 116, 16),
    Partition(2, 100, 32),
    Partition(3, 84, 48),
    Partition(4, 68, 64),
)
TWO_CORES = (Partition(0, 2, 2), Partition(1, 1, 1))
ONE_CORE = (Partition(0, 1, 1),)
LAYERS = 32
PAGE = 16


def request(
    name: str,
    state: RequestState = RequestState.QUEUED,
    *,
    prompt: int = 100,
    computed: int | None = None,
    cached: int = 0,
    output: int = 0,
    max_tokens: int = 64,
    arrival: float = 0.0,
    priority: int = 0,
    tbt_s: float | None = None,
    model: str = "m",
) -> RequestView:
    if computed is None:
        computed = prompt if state is RequestState.DECODING else 0
    return RequestView(
        ref=RequestRef(name),
        model=model,
        tenant="",
        state=state,
        prompt_tokens=prompt,
        computed=computed,
        cached=cached,
        output_tokens=output,
        max_tokens=max_tokens,
        arrival=arrival,
        priority=priority,
        slo=Slo(tbt_s=tbt_s),
    )


def queued(count: int, **sizes: int) -> list[RequestView]:
    return [request(f"q{i:03}", arrival=float(i), **sizes) for i in range(count)]


def decoding(count: int, **sizes: int) -> list[RequestView]:
    return [
        request(f"d{i:03}", RequestState.DECODING, arrival=-100.0 + i, output=1, **sizes)
        for i in range(count)
    ]


def snapshot(
    *requests: RequestView,
    partitions: tuple[Partition, ...] = H200,
    batches: tuple[StartedBatch, ...] = (),
    pages: int = 100_000,
    max_num_seqs: int = 256,
    event: int = 0,
    boot: str = "boot",
    epoch: int = 0,
    acting: bool = False,
    plan_seq: int = 0,
    device: str = "H200",
) -> Snapshot:
    return Snapshot(
        boot=boot,
        event=event,
        epoch=Epoch(boot, epoch),
        acting=acting,
        now=0.0,
        device=device,
        unit="SM" if partitions[0].decode_units > 8 else "core",
        units=partitions[0].decode_units,
        partitions=partitions,
        models=(
            ModelInfo(name="m", num_layers=LAYERS, vocab_size=1, max_model_len=1, page_size=PAGE),
        ),
        limits=WorkerLimits(
            max_queued_requests=1000, max_queued_tokens=10**9, max_num_seqs=max_num_seqs
        ),
        pool=PoolState(pages, pages, 0),
        requests=requests,
        batches=batches,
        plan_seq=plan_seq,
    )


def view(*requests: RequestView, **settings) -> WorkerView:
    return WorkerView(snapshot(*requests, **settings))


def work(lane: Lane, partition: int, seconds: float, **sizes: int) -> DeviceWork:
    given = {
        "units": 1,
        "new_tokens": 0,
        "new_squared": 0,
        "new_times_reused": 0,
        "reused_tokens": 0,
        "batch_size": 1,
        "context_tokens": 0,
        "layers": LAYERS,
    }
    return DeviceWork(lane=lane, partition=partition, seconds=seconds, **(given | sizes))


def stepped(number: int, partition: int, seconds: float, rows: int) -> StepDone:
    """A decode iteration that moved nobody on, for what it says about time."""
    done = work(Lane.DECODE, partition, seconds, batch_size=rows)
    return StepDone(number, done, (), PoolState(100_000, 100_000, 0))


def quantum(number: int, partition: int, seconds: float, tokens: int, layers: int) -> QuantumDone:
    done = work(Lane.PREFILL, partition, seconds, new_tokens=tokens, layers=layers)
    return QuantumDone(number, (), layers, LAYERS, done, ())


@dataclass
class Batch:
    refs: list[RequestRef]
    layers: int = 0


@dataclass
class SmallWorker:
    """Keeps its own books and tells events; `random` drives it through every kind of change."""

    rng: random.Random
    event: int = 0
    free: int = 5000
    requests: dict[RequestRef, RequestView] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        batches = tuple(StartedBatch(tuple(b.refs), b.layers, LAYERS) for b in self.batches)
        base = snapshot(*self.requests.values(), event=self.event, batches=batches)
        return replace(base, pool=self._pool())

    def happen(self) -> Event | None:
        """Let something happen; None when the chosen thing cannot happen now."""
        kind = self.rng.choice(
            ("arrive", "arrive", "start", "fuse", "quantum", "quantum", "step", "retract", "leave")
        )
        event = getattr(self, "_" + kind)(self.event + 1)
        if event is not None:
            self.event += 1
        return event

    def _pool(self) -> PoolState:
        return PoolState(10_000, self.free, 0)

    def _in(self, *states: RequestState) -> list[RequestView]:
        return [r for r in self.requests.values() if r.state in states]

    def _arrive(self, number: int) -> Event:
        new = request(f"r{number}", prompt=self.rng.randint(1, 900), arrival=float(number))
        self.requests[new.ref] = new
        return Arrived(number, new)

    def _start(self, number: int) -> Event | None:
        if any(self._state(b) is RequestState.PREFILLING for b in self.batches):
            return None
        free = self._in(RequestState.QUEUED)
        if self.batches and (not free or self.rng.random() < 0.5):
            batch = self.rng.choice(self.batches)
            self.batches.remove(batch)
        elif free:
            batch = Batch([r.ref for r in self.rng.sample(free, min(2, len(free)))])
        else:
            return None
        self.batches.insert(0, batch)
        return self._started(number, batch.refs, Lane.PREFILL)

    def _fuse(self, number: int) -> Event | None:
        free = self._in(RequestState.QUEUED)
        return self._started(number, [free[0].ref], Lane.DECODE) if free else None

    def _started(self, number: int, refs: list[RequestRef], lane: Lane) -> Event:
        for ref in refs:
            old = self.requests[ref]
            hit = min(self.rng.choice((0, 0, 64)), old.prompt_tokens - 1)
            self.requests[ref] = replace(
                old,
                state=RequestState.PREFILLING,
                cached=hit,
                computed=max(old.computed, hit),
            )
        self.free -= self.rng.randint(0, 5)
        return PrefillStarted(number, lane, tuple(self.requests[r] for r in refs), self._pool())

    def _state(self, batch: Batch) -> RequestState:
        return self.requests[batch.refs[0]].state

    def _quantum(self, number: int) -> Event | None:
        running = [b for b in self.batches if self._state(b) is RequestState.PREFILLING]
        if not running:
            return None
        batch = running[0]
        batch.layers += 8
        done = work(Lane.PREFILL, 1, 0.01, new_tokens=10, layers=8)
        if batch.layers >= LAYERS:
            self.batches.remove(batch)
            return self._prefilled(number, batch)
        suspended = self.rng.random() < 0.3
        state = RequestState.SUSPENDED if suspended else RequestState.PREFILLING
        for ref in batch.refs:
            self.requests[ref] = replace(self.requests[ref], state=state)
        return QuantumDone(
            number, tuple(batch.refs), batch.layers, LAYERS, done, (), suspended=suspended
        )

    def _prefilled(self, number: int, batch: Batch) -> Event:
        for ref in batch.refs:
            old = self.requests[ref]
            self.requests[ref] = replace(
                old,
                state=RequestState.DECODING,
                computed=old.prompt_tokens,
                output_tokens=old.output_tokens + 1,
            )
        return PrefillDone(number, self._progress(batch.refs), self._pool())

    def _progress(self, refs: list[RequestRef]) -> tuple[Progress, ...]:
        views = [self.requests[ref] for ref in refs]
        return tuple(Progress(v.ref, v.computed, v.output_tokens) for v in views)

    def _step(self, number: int) -> Event | None:
        rows = [r.ref for r in self._in(RequestState.DECODING)]
        for ref in rows:
            old = self.requests[ref]
            self.requests[ref] = replace(
                old, computed=old.computed + 1, output_tokens=old.output_tokens + 1
            )
        self.free -= len(rows) // 8
        done = work(Lane.DECODE, 1, 0.02, batch_size=len(rows))
        return StepDone(number, done, self._progress(rows), self._pool()) if rows else None

    def _retract(self, number: int) -> Event | None:
        rows = self._in(RequestState.DECODING)
        if not rows:
            return None
        old = self.rng.choice(rows)
        self.free += 3
        back = replace(
            old,
            state=RequestState.QUEUED,
            computed=0,
            prompt_tokens=old.prompt_tokens + old.output_tokens,
        )
        self.requests[old.ref] = back
        return Retracted(number, back, self._pool())

    def _leave(self, number: int) -> Event | None:
        if not self.requests or self.rng.random() < 0.5:
            return None
        ref = self.rng.choice(list(self.requests))
        del self.requests[ref]
        for batch in list(self.batches):
            if ref in batch.refs:
                batch.refs.remove(ref)
            if not batch.refs:
                self.batches.remove(batch)
        self.free += 2
        return Left(number, ref, "aborted", self._pool())
