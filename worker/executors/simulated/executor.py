"""A device that only takes time: two lanes, a latency model, and a fake model over verified pages.

In virtual time whoever drives it asks for `next_completion` and calls `advance`; with a clock it
advances by itself at each call (load tests of the other processes). It is strict where a real
device would go on with wrong results: a launch that contradicts what came before it raises.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.control_link import Lane
from worker.executors.base import Completion, DecodeBatch, DeviceInfo, Launch, SampledToken
from worker.executors.simulated.blank import BlankForward
from worker.executors.simulated.forward import FakeForward
from worker.executors.simulated.latency import LatencyModel

OTHER = {Lane.PREFILL: Lane.DECODE, Lane.DECODE: Lane.PREFILL}

Fault = Callable[[Launch], str | None]
"""Says why a launch fails, or None: it does not."""


@dataclass(slots=True)
class _Running:
    work: Launch
    started: float
    remaining: float
    """Seconds when it runs solo."""
    units: int
    error: str | None
    overlap: float = 0.0


@dataclass(slots=True)
class _Lane:
    queue: deque[Launch] = field(default_factory=deque)
    running: _Running | None = None


class SimulatedExecutor:
    """Implements `worker.executors.base.Executor`."""

    def __init__(
        self,
        info: DeviceInfo,
        latency: LatencyModel,
        *,
        verify: bool,
        clock: Callable[[], float] | None = None,
        fault: Fault | None = None,
        blank: bool = False,
    ) -> None:
        """`verify`: check whole contexts at each read. `clock`: run in real time by it. `blank`:
        without a model, any launch is right.
        """
        self._info = info
        self._latency = latency
        self._clock = clock
        self._fault = fault
        self._layers = {model.name: model.num_layers for model in info.models}
        self._forward: FakeForward | BlankForward = (
            BlankForward(self._layers) if blank else FakeForward(info, verify=verify)
        )
        self._lanes = {Lane.DECODE: _Lane(), Lane.PREFILL: _Lane()}
        self._now = clock() if clock else 0.0
        self._done: list[Completion] = []

    @property
    def info(self) -> DeviceInfo:
        """What was asked for is what is realized."""
        return self._info

    @property
    def parked(self) -> list[int]:
        """Prefill batches with parked hidden states."""
        return self._forward.parked

    def launch(self, work: Launch) -> None:
        """Queue `work` on its lane, at the time last advanced to."""
        self._tell_time()
        lane = self._lanes[work.lane]
        lane.queue.append(work)
        if lane.running is None:
            self._begin(lane)

    def discard(self, batch: int) -> None:
        """Drop parked hidden states. Raises ValueError while a quantum of them is in flight."""
        for lane in self._lanes.values():
            running = [lane.running.work] if lane.running else []
            for work in [*running, *lane.queue]:
                if getattr(work, "batch", None) == batch:
                    raise ValueError(f"batch {batch} is discarded with ticket {work.ticket} queued")
        self._forward.discard(batch)

    def poll(self) -> list[Completion]:
        """Return launches completed since the last call."""
        self._tell_time()
        done, self._done = self._done, []
        return done

    def fileno(self) -> int | None:
        """No descriptor: keep polling."""
        return None

    def close(self) -> None:
        """Forget all that runs."""
        self._lanes = {Lane.DECODE: _Lane(), Lane.PREFILL: _Lane()}

    # --- time ---

    def next_completion(self) -> float | None:
        """Return when the next launch completes, if nothing else is launched before."""
        times = [self._ends(lane, run) for lane, run in self._runs()]
        return min(times, default=None)

    def advance(self, now: float) -> None:
        """Let time pass until `now`, seconds."""
        while (when := self.next_completion()) is not None and when <= now:
            lane = next(lane for lane, run in self._runs() if self._ends(lane, run) == when)
            self._pass(when)
            self._end(lane)
        self._pass(max(now, self._now))

    def _tell_time(self) -> None:
        if self._clock is not None:
            self.advance(self._clock())

    def _runs(self) -> list[tuple[Lane, _Running]]:
        """Return what runs, decode first."""
        return [(name, lane.running) for name, lane in self._lanes.items() if lane.running]

    def _slowdown(self, lane: Lane) -> float:
        if self._lanes[OTHER[lane]].running is None:
            return 1.0
        model = self._latency
        return model.prefill_slowdown if lane is Lane.PREFILL else model.decode_slowdown

    def _ends(self, lane: Lane, running: _Running) -> float:
        return self._now + running.remaining * self._slowdown(lane)

    def _pass(self, now: float) -> None:
        elapsed = now - self._now
        runs = self._runs()
        for lane, running in runs:
            running.remaining = max(0.0, running.remaining - elapsed / self._slowdown(lane))
            if len(runs) > 1:
                running.overlap += elapsed
        self._now = now

    # --- work ---

    def _begin(self, lane: _Lane) -> None:
        work = lane.queue.popleft()
        partition = self._info.partitions[work.partition]
        decode = isinstance(work, DecodeBatch)
        units = partition.decode_units if decode else partition.prefill_units
        share = units / self._info.units
        if isinstance(work, DecodeBatch):
            seconds = self._latency.decode_s(work, share)
        else:
            seconds = self._latency.prefill_s(work, self._layers[work.model], share)
        error = self._fault(work) if self._fault else None
        if error is None:
            self._forward.begin(work)
        else:
            self._forward.fail(work)
        lane.running = _Running(work, self._now, seconds, units, error)

    def _end(self, name: Lane) -> None:
        lane = self._lanes[name]
        running = lane.running
        assert running is not None
        lane.running = None
        tokens: tuple[SampledToken, ...] = ()
        if running.error is None:
            tokens = self._forward.end(running.work)
        self._done.append(
            Completion(
                ticket=running.work.ticket,
                lane=name,
                started=running.started,
                finished=self._now,
                units=running.units,
                overlap_s=running.overlap,
                tokens=tokens,
                error=running.error,
            )
        )
        if lane.queue:
            self._begin(lane)
