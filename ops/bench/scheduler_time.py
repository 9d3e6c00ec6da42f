"""How long a scheduler takes to decide: 256 running and 1,000 queued requests, on one core.

`python -m ops.bench.scheduler_time`. Feeds the scheduler's core the events of a busy worker and
measures the processor time from an event to what it answers: folding, estimating, planning,
checking. Sockets and the codec are not in it. Target: P99 of at most 0.3 ms.
"""

import json
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from ops.bench.engine_metrics import percentile
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
    Snapshot,
    StepDone,
)
from protocol.data_link import ModelInfo, WorkerLimits
from protocol.ids import Epoch, RequestRef
from protocol.settings import parse
from scheduler.core import CoreConfig, Link, SchedulerCore
from scheduler.estimator import profile
from scheduler.estimator.fitted import FittedEstimator
from scheduler.policy import Objectives
from scheduler.registry import make

LAYERS = 32
QUANTA = 8
"""Of a prefill."""
POOL = PoolState(200_000, 100_000, 0)
WARM = 500
"""Events before the measurement."""


class TimeSettings(Struct, frozen=True, kw_only=True):
    """What to measure."""

    schedulers: Annotated[tuple[str, ...], Meta(description="policies")] = (
        "muxwise",
        "drift",
        "chunked",
        "prefill_first",
    )
    running: Annotated[int, Meta(ge=1, description="requests that decode")] = 256
    queued: Annotated[int, Meta(ge=1, description="requests that wait")] = 1000
    events: Annotated[int, Meta(ge=100, description="events to measure")] = 5000
    profile: Annotated[str | None, Meta(description="profile to predict from")] = None
    output: Annotated[str | None, Meta(description="JSON file to write")] = None


class BusyWorker:
    """Says what a worker says that always has so many requests. No model, no time."""

    def __init__(self, running: int, queued: int) -> None:
        self._rng = random.Random(1)
        self._names = 0
        self._event = 0
        self._rows = deque(self._request(RequestState.DECODING) for _ in range(running))
        self._queue = deque(self._request(RequestState.QUEUED) for _ in range(queued))

    def _request(self, state: RequestState) -> RequestView:
        self._names += 1
        prompt = self._rng.randint(100, 8000)
        decoding = state is RequestState.DECODING
        return RequestView(
            ref=RequestRef(f"{self._names:032x}"),
            model="m",
            tenant="",
            state=state,
            prompt_tokens=prompt,
            computed=prompt if decoding else 0,
            cached=0,
            output_tokens=1 if decoding else 0,
            max_tokens=1_000_000,
            arrival=self._names * 1e-3,
        )

    def snapshot(self, *, acting: bool) -> Snapshot:
        """Return it as it is."""
        table = (Partition(0, 132, 132), *(Partition(i, 132 - 16 * i, 16 * i) for i in range(1, 7)))
        return Snapshot(
            boot="boot",
            event=self._event,
            epoch=Epoch("boot", 1),
            acting=acting,
            now=0.0,
            unit="SM",
            units=132,
            partitions=table,
            models=(
                ModelInfo(
                    name="m", num_layers=LAYERS, vocab_size=1, max_model_len=131072, page_size=16
                ),
            ),
            limits=WorkerLimits(
                max_queued_requests=10_000, max_queued_tokens=10**9, max_num_seqs=1024
            ),
            pool=POOL,
            requests=(*self._rows, *self._queue),
        )

    def events(self) -> Iterator[Event]:
        """Yield events for ever: prefills by quanta with iterations, then one out and one in."""
        while True:
            head = self._queue.popleft()
            running = replace(head, state=RequestState.PREFILLING)
            yield PrefillStarted(self._next(), Lane.PREFILL, (running,), POOL)
            for quantum in range(1, QUANTA + 1):
                layers = quantum * LAYERS // QUANTA
                yield QuantumDone(
                    self._next(), (head.ref,), layers, LAYERS, self._prefill_work(head), ()
                )
                yield self._step()
            done = Progress(head.ref, head.prompt_tokens, 1)
            yield PrefillDone(self._next(), (done,), POOL)
            self._rows.append(replace(head, computed=head.prompt_tokens, output_tokens=1))
            yield Left(self._next(), self._rows.popleft().ref, "stop", POOL)
            self._queue.append(self._request(RequestState.QUEUED))
            yield Arrived(self._next(), self._queue[-1])

    def _next(self) -> int:
        self._event += 1
        return self._event

    def _prefill_work(self, head: RequestView) -> DeviceWork:
        n = head.prompt_tokens
        return DeviceWork(
            lane=Lane.PREFILL, partition=2, units=100, seconds=n / 42_000 / QUANTA, new_tokens=n,
            new_squared=n * n, new_times_reused=0, reused_tokens=0, batch_size=1,
            context_tokens=0, layers=LAYERS // QUANTA,
        )  # fmt: skip

    def _step(self) -> StepDone:
        for _ in range(len(self._rows)):
            row = self._rows.popleft()
            self._rows.append(
                replace(row, computed=row.computed + 1, output_tokens=row.output_tokens + 1)
            )
        context = sum(row.computed for row in self._rows)
        seconds = self._rng.uniform(0.022, 0.026)
        work = DeviceWork(
            lane=Lane.DECODE, partition=2, units=32, seconds=seconds, new_tokens=0, new_squared=0,
            new_times_reused=0, reused_tokens=0, batch_size=len(self._rows),
            context_tokens=context, layers=LAYERS, overlap_s=seconds,
        )  # fmt: skip
        told = tuple(Progress(row.ref, row.computed, row.output_tokens) for row in self._rows)
        return StepDone(self._next(), work, told, POOL)


def measure(name: str, settings: TimeSettings) -> dict[str, float | str | int]:
    """Return percentiles of one policy's decisions, milliseconds."""
    estimator = None
    if settings.profile:
        estimator = FittedEstimator(profile.load(Path(settings.profile)))
    objectives = Objectives(tbt_s=0.05, ttft_s=2.0, ttft_per_token_s=1e-3)
    policy = make(name, objectives, (), estimator)
    core = SchedulerCore(policy, CoreConfig(peer="bench", policy=name, version=1))
    worker = BusyWorker(settings.running, settings.queued)
    core.on(Link.UP, 0.0)
    core.on(worker.snapshot(acting=False), 0.0)
    core.on(worker.snapshot(acting=True), 0.0)
    times, plans = [], 0
    for number, event in enumerate(islice(worker.events(), WARM + settings.events)):
        began = time.thread_time_ns()
        answers = core.on(event, number * 0.012)
        took = time.thread_time_ns() - began
        if number >= WARM:
            times.append(took / 1e6)
            plans += len(answers)
    if not core.ready:
        raise RuntimeError(f"{name} has stopped planning")
    return {
        "scheduler": name,
        "running": settings.running,
        "queued": settings.queued,
        "p50_ms": round(percentile(times, 0.5), 4),
        "p99_ms": round(percentile(times, 0.99), 4),
        "max_ms": round(max(times), 4),
        "events": len(times),
        "plans": plans,
    }


def main() -> None:
    """Measure every policy; print a line each."""
    title = (__doc__ or "").splitlines()[0]
    settings = parse(TimeSettings, sys.argv[1:], {}, prog="bench scheduler_time", description=title)
    found = []
    for name in settings.schedulers:
        found.append(measure(name, settings))
        print("  ".join(f"{key} {value}" for key, value in found[-1].items()), flush=True)
    if settings.output:
        Path(settings.output).write_text(json.dumps({"schedulers": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
