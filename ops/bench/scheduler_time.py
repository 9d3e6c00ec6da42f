"""How long a scheduler takes to decide: 256 running and 1,000 queued requests, on one core.

`python -m ops.bench.scheduler_time`. Feeds the scheduler's core the events of a busy worker and
measures the time from an event to what it answers: folding, estimating, planning, checking. Sockets
and the codec are not in it. Target: P99 of at most 0.3 ms.

Processor time of the thread stands beside wall time: what other programs on the core take is in the
second only. What they do to its caches and clock is in both, and in the yardstick, a loop of fixed
work that is timed between the rounds.
"""

import gc
import json
import os
import platform
import random
import statistics
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
from worker.executors.cpu.topology import processor_name

LAYERS = 32
QUANTA = 8
"""Of a prefill."""
POOL = PoolState(200_000, 100_000, 0)
WARM = 500
"""Events before the measurement."""
YARDSTICK = 20_000
"""Steps of the loop of fixed work: 1 ms or less on an idle core of today."""


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
    events: Annotated[int, Meta(ge=100, description="events of a round")] = 3000
    rounds: Annotated[int, Meta(ge=1, description="policies take turns so many times")] = 5
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
            device="",
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


class Round(Struct, frozen=True):
    """Decision times of one policy in one round, milliseconds."""

    cpu: tuple[float, ...]
    wall: tuple[float, ...]
    plans: int


def play(name: str, settings: TimeSettings) -> Round:
    """Let one policy decide on a round's events."""
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
    cpu, wall, plans = [], [], 0
    gc.collect()
    gc.freeze()  # as the process does when it is ready
    for number, event in enumerate(islice(worker.events(), WARM + settings.events)):
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        answers = core.on(event, number * 0.012)
        took_cpu, took = time.thread_time_ns() - began_cpu, time.perf_counter_ns() - began
        if number >= WARM:
            cpu.append(took_cpu / 1e6)
            wall.append(took / 1e6)
            plans += len(answers)
    gc.unfreeze()
    if not core.ready:
        raise RuntimeError(f"{name} has stopped planning")
    return Round(tuple(cpu), tuple(wall), plans)


def yardstick() -> float:
    """Return milliseconds of processor time that a loop of fixed work takes."""
    began = time.thread_time_ns()
    table = dict.fromkeys(range(256), 1)
    total = 0
    for step in range(YARDSTICK):
        total += table[step & 255]
    return (time.thread_time_ns() - began) / 1e6


Row = dict[str, float | str | int | list[float]]


def summed(name: str, settings: TimeSettings, rounds: list[Round]) -> Row:
    """Return medians over the rounds, with the lowest and the highest of the P99."""
    found: Row = {"scheduler": name, "running": settings.running, "queued": settings.queued}
    for kind in ("cpu", "wall"):
        times = [getattr(each, kind) for each in rounds]
        p99 = [percentile(each, 0.99) for each in times]
        found[f"{kind}_p50_ms"] = round(statistics.median(percentile(t, 0.5) for t in times), 4)
        found[f"{kind}_p99_ms"] = round(statistics.median(p99), 4)
        found[f"{kind}_p99_range_ms"] = [round(min(p99), 4), round(max(p99), 4)]
        found[f"{kind}_max_ms"] = round(max(map(max, times)), 4)
    return found | {"events": settings.events * len(rounds), "plans": sum(r.plans for r in rounds)}


def main() -> None:
    """Measure every policy on one core; print a line each."""
    title = (__doc__ or "").splitlines()[0]
    settings = parse(TimeSettings, sys.argv[1:], {}, prog="bench scheduler_time", description=title)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rounds: dict[str, list[Round]] = {name: [] for name in settings.schedulers}
    sticks = [yardstick()]
    for _ in range(settings.rounds):
        for name, played in rounds.items():
            played.append(play(name, settings))
        sticks.append(yardstick())
    rows = [summed(name, settings, played) for name, played in rounds.items()]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    sticks = [round(each, 3) for each in sticks]
    print(f"yardstick {min(sticks)} to {max(sticks)} ms")
    if settings.output:
        found = {"schedulers": rows, "yardstick_ms": sticks, "cpu": processor_name(),
                 "python": platform.python_version()}  # fmt: skip
        Path(settings.output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
