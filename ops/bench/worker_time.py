"""How much processor time the worker takes for an iteration: 256 running requests, one thread.

`tandem bench worker-time`. The worker's own loop, core, codec and ZeroMQ sockets, with a scheduler
and a gateway at the other ends; the device is simulated in real time, and its own cost (polling,
launching) is taken off. Target: 1 ms an iteration. What a core shared with other programs makes of
it shows in the yardstick, a loop of fixed work: 1 ms or less on an idle core of today.
"""

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from ops.bench.engine_metrics import percentile
from ops.bench.scheduler_time import yardstick
from protocol import PROTOCOL_VERSION
from protocol.control_link import ControlToWorker, Lane, Partition, ToScheduler
from protocol.data_link import Finished, Hello, Submit, ToGateway, ToWorker
from protocol.endpoint import Down, Endpoint, Lost, Received, Up
from protocol.ids import RequestRef, pack_tokens
from protocol.link import LINK
from protocol.sampling import Sampling
from protocol.settings import parse
from protocol.transport.zeromq import bind, connect
from scheduler.core import CoreConfig as SchedulerConfig
from scheduler.core import Exit, Link, SchedulerCore
from scheduler.policy import Objectives
from scheduler.registry import make
from worker.core.config import CoreConfig
from worker.core.machine import WorkerCore
from worker.executors.base import Completion, DeviceInfo, Launch, ModelShape
from worker.executors.cpu.topology import processor_name
from worker.executors.simulated.executor import SimulatedExecutor
from worker.executors.simulated.latency import LatencyModel
from worker.server import TICK_S, Server
from worker.suspects import Suspects, after

WARM = 50
"""Iterations at full size before the measurement."""
PATIENCE_S = 120.0
LATENCY = LatencyModel(
    prefill_launch_s=2e-4,
    prefill_token_s=2e-5,
    prefill_pair_s=0.0,
    decode_launch_s=8e-3,
    decode_row_s=2e-5,
    decode_context_s=0.0,
    saturation=0.1,
    prefill_slowdown=1.1,
    decode_slowdown=1.1,
)
"""Iterations of about 13 ms at 256 rows, as an 8B model takes on a large GPU."""


class WorkerTimeSettings(Struct, frozen=True, kw_only=True):
    """What to measure."""

    scheduler: Annotated[str, Meta(description="policy that is attached")] = "muxwise"
    running: Annotated[int, Meta(ge=1, le=4096, description="requests that decode")] = 256
    iterations: Annotated[int, Meta(ge=10, description="decode iterations to measure")] = 400
    output: Annotated[str | None, Meta(description="JSON file to write")] = None


class Metered:
    """A simulated device that notes what its own calls cost, in nanoseconds of this thread."""

    def __init__(self, device: SimulatedExecutor) -> None:
        self._device = device
        self.spent = 0
        self.iterations = 0
        self.rows = 0

    @property
    def info(self) -> DeviceInfo:
        """See Executor."""
        return self._device.info

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        began = time.thread_time_ns()
        result = call(*arguments)
        self.spent += time.thread_time_ns() - began
        return result

    def launch(self, work: Launch) -> None:
        """See Executor."""
        self._timed(self._device.launch, work)

    def discard(self, batch: int) -> None:
        """See Executor."""
        self._timed(self._device.discard, batch)

    def poll(self) -> list[Completion]:
        """See Executor."""
        done: list[Completion] = self._timed(self._device.poll)
        for each in done:
            if each.lane is Lane.DECODE:
                self.iterations += 1
                self.rows = len(each.tokens)
        return done

    def fileno(self) -> int | None:
        """See Executor."""
        return None

    def close(self) -> None:
        """See Executor."""
        self._device.close()


class Peers:
    """A gateway that keeps as many requests running, and a scheduler, in the same thread."""

    def __init__(self, folder: Path, settings: WorkerTimeSettings) -> None:
        self._rng, self._sent, self._settings = random.Random(1), 0, settings
        data = connect(f"ipc://{folder / 'data'}", b"gw-bench")
        control = connect(f"ipc://{folder / 'control'}", b"sched-bench")
        self._data = Endpoint[ToGateway, ToWorker](data, ToGateway, LINK)
        self._control = Endpoint[ToScheduler, ControlToWorker](control, ToScheduler, LINK)
        policy = make(settings.scheduler, Objectives(tbt_s=0.05, ttft_s=2.0, ttft_per_token_s=1e-3))
        config = SchedulerConfig(
            peer="sched-bench", policy=settings.scheduler, version=PROTOCOL_VERSION
        )
        self._core = SchedulerCore(policy, config)

    def turn(self, now: float) -> None:
        """Take what the worker sent, and answer it."""
        for event in self._data.poll(now):
            if isinstance(event, Up):
                self._data.send(Hello("gw-bench", PROTOCOL_VERSION), now)
                for _ in range(self._settings.running):
                    self._submit(now)
            elif isinstance(event, Received) and isinstance(event.message, Finished):
                self._submit(now)
        for heard in self._control.poll(now):
            match heard:
                case Up():
                    self._decide(Link.UP, now)
                case Lost():
                    self._decide(Link.LOST, now)
                case Down():
                    self._decide(Link.DOWN, now)
                case Received(message=message):
                    self._decide(message, now)

    def _decide(self, event: Any, now: float) -> None:
        for answer in self._core.on(event, now):
            if isinstance(answer, Exit):
                raise RuntimeError(answer.reason)
            self._control.send(answer, now)

    def _submit(self, now: float) -> None:
        self._sent += 1
        prompt = [self._rng.randrange(1000) for _ in range(self._rng.randint(50, 500))]
        sampling = Sampling(
            max_tokens=self._rng.randint(300, 900), seed=self._sent, ignore_eos=True
        )
        ref = RequestRef(f"{self._sent:032x}")
        request = Submit(
            ref=ref,
            model="m",
            token_ids=pack_tokens(prompt),
            sampling=sampling,
            root_hash=b"r" * 32,
        )
        self._data.send(request, now)

    def close(self) -> None:
        """Close both sockets."""
        self._data.close()
        self._control.close()


def device(running: int) -> SimulatedExecutor:
    """Return a GPU of 132 SMs in real time."""
    table = (Partition(0, 132, 132), *(Partition(i, 132 - 16 * i, 16 * i) for i in range(1, 7)))
    info = DeviceInfo(
        unit="SM",
        units=132,
        partitions=table,
        models=(ModelShape("m", 32, 1000, 8192, ()),),
        num_pages=running * 128,
        page_size=16,
        max_slots=running + 8,
        max_prefill_tokens=8192,
    )
    return SimulatedExecutor(info, LATENCY, verify=False, clock=time.monotonic, blank=True)


def play(settings: WorkerTimeSettings) -> tuple[list[float], list[float]]:
    """Return milliseconds of each iteration: (worker, simulated device)."""
    metered = Metered(device(settings.running))
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name:
        folder = Path(name)
        folder.chmod(0o700)
        suspects = Suspects(bytearray(after(b"")))
        server = Server(
            WorkerCore(CoreConfig(max_num_seqs=settings.running), metered.info, "bench"),
            metered,
            Endpoint(bind(f"ipc://{folder / 'data'}"), ToWorker, LINK),
            Endpoint(bind(f"ipc://{folder / 'control'}"), ControlToWorker, LINK),
            time.monotonic,
            TICK_S,
            suspects,
        )
        peers = Peers(folder, settings)
        try:
            return _measure(server, metered, peers, settings)
        finally:
            peers.close()
            server.close()


def _measure(
    server: Server, metered: Metered, peers: Peers, settings: WorkerTimeSettings
) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    its: list[float] = []
    spent = full = 0
    until = time.monotonic() + PATIENCE_S
    while len(ours) < settings.iterations:
        if time.monotonic() > until:
            raise RuntimeError(f"{metered.rows} of {settings.running} rows after {PATIENCE_S:g} s")
        before, device_before, seen = time.thread_time_ns(), metered.spent, metered.iterations
        if server.turn():  # one that finds nothing is waiting, not bookkeeping
            spent += time.thread_time_ns() - before - (metered.spent - device_before)
        peers.turn(time.monotonic())
        if metered.iterations == seen:
            continue
        full += metered.rows >= 0.95 * settings.running
        if full == WARM:
            gc.collect()
            gc.freeze()
        if full > WARM:
            ours.append(spent / 1e6)
            its.append(metered.spent / 1e6)
        spent = metered.spent = 0
    gc.unfreeze()
    return ours, its


def main() -> None:
    """Measure, print, and write the file if asked for."""
    title = str(__doc__).splitlines()[0]
    settings = parse(
        WorkerTimeSettings, sys.argv[1:], {}, prog="tandem bench worker-time", description=title
    )
    sticks = [yardstick()]
    ours, its = play(settings)
    sticks.append(yardstick())
    told = {
        "cpu": processor_name(),
        "yardstick_ms": [round(each, 3) for each in sticks],
        "scheduler": settings.scheduler,
        "running": settings.running,
        "iterations": len(ours),
        "worker_ms": {f"p{int(p * 100)}": round(percentile(ours, p), 4) for p in (0.5, 0.9, 0.99)},
        "simulated_device_ms_p50": round(percentile(its, 0.5), 4),
    }
    print(json.dumps(told, indent=1))
    if settings.output:
        Path(settings.output).write_text(json.dumps(told | {"worker": ours}, indent=1))


if __name__ == "__main__":
    main()
