"""The scheduler process: an asyncio shell that owns the socket, the clock and the signals.

Everything that is decided is decided in `scheduler.core`; a test drives `Shell` over any transport.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from protocol import PROTOCOL_VERSION, logs, settings
from protocol.control_link import ControlToWorker, ToScheduler
from protocol.endpoint import Down, Endpoint, Lost, PeerEvent, Received, Up
from protocol.ids import new_id
from protocol.lifecycle import EXIT_CONFIG, Ready, Reporter, Stage, Stopped
from protocol.link import LINK
from protocol.pump import pump
from protocol.transport.base import AddressRefused
from protocol.transport.zeromq import connect
from scheduler.core import CoreConfig, Exit, Input, Link, SchedulerCore, Terminate, Tick
from scheduler.estimator import library, profile
from scheduler.estimator.automatic import AutomaticEstimator
from scheduler.estimator.fitted import FittedEstimator
from scheduler.estimator.soft_state import Keeper
from scheduler.explain import Explanation, Window
from scheduler.metrics import MetricsServer, SchedulerCollector
from scheduler.policy import Objectives
from scheduler.registry import make
from scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

TICK_S = 0.2
"""Period of the core's ticks: late snapshots, and policies that wait for time to pass."""

ControlEndpoint = Endpoint[ToScheduler, ControlToWorker]
Predictor = FittedEstimator | AutomaticEstimator

AUTO_PROFILE, NO_PROFILE = "auto", "none"


class Shell:
    """Moves events into the core and its messages out, until it says `Exit`."""

    def __init__(
        self,
        core: SchedulerCore,
        endpoint: ControlEndpoint,
        reporter: Reporter,
        policy: str,
        clock: Callable[[], float],
        keeper: Keeper | None = None,
        window: Window | None = None,
        collector: SchedulerCollector | None = None,
    ) -> None:
        self._window, self._collector = window, collector
        self._core, self._endpoint, self._reporter = core, endpoint, reporter
        self._policy, self._clock, self._keeper = policy, clock, keeper
        self._told = False
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def run(self) -> Exit:
        """Run until the core exits."""
        if self._window is not None:
            await self._window.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.terminate)
        tasks = [loop.create_task(self._events()), loop.create_task(self._ticks())]
        ends: list[asyncio.Future[Any]] = [self._exit, *tasks]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self._endpoint.close()
            if self._keeper is not None:
                self._keeper.save()
            if self._window is not None:
                self._window.close()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self._exit.result()

    def terminate(self) -> None:
        """Give the epoch back and exit."""
        self._take(Terminate())

    async def _events(self) -> None:
        async for event in pump(self._endpoint, self._clock):
            self._take(_translate(event))

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._take(Tick())
            if self._keeper is not None:
                self._keeper.tick(self._clock())

    def _take(self, event: Input) -> None:
        now = self._clock()
        messages = self._core.on(event, now)
        if self._collector is not None:
            self._collector.events += 1
            self._collector.busy_s += self._clock() - now
        for message in messages:
            if isinstance(message, Exit):
                if not self._exit.done():
                    self._exit.set_result(message)
            else:
                # What cannot be sent shows as a gap: the link says Lost, or Down, by itself.
                self._endpoint.send(message, now)
        if self._core.ready and not self._told:
            self._told = True
            gc.collect()
            gc.freeze()  # a full collection of what stays would take milliseconds of a decision
            if self._window is not None and not self._core.config.observe_only:
                self._window.publish()
            epoch = self._core.epoch.n if self._core.epoch else 0
            self._reporter.send(Ready({"policy": self._policy, "epoch": epoch}))


def _translate(event: PeerEvent[ToScheduler]) -> Input:
    match event:
        case Received(message=message):
            return message
        case Up():
            return Link.UP
        case Lost():
            return Link.LOST
        case Down():
            return Link.DOWN


async def serve(
    chosen: SchedulerSettings,
    core: SchedulerCore,
    reporter: Reporter,
    estimator: Predictor | None = None,
    keeper: Keeper | None = None,
) -> Exit:
    """Connect to the worker in `chosen.run_dir` and run. Raises AddressRefused."""
    address = f"ipc://{os.path.join(chosen.run_dir, 'control')}"
    transport = connect(address, core.config.peer.encode())
    endpoint: ControlEndpoint = Endpoint(transport, ToScheduler, LINK)
    reporter.send(Stage("connecting"))
    window = Window(Path(chosen.run_dir), lambda: explanation(core, estimator))
    collector = SchedulerCollector(core, lambda: estimator.errors if estimator else None)
    shell = Shell(
        core, endpoint, reporter, chosen.scheduler, time.monotonic, keeper, window, collector
    )
    async with scraping(collector, chosen):
        return await shell.run()


@contextlib.asynccontextmanager
async def scraping(collector: SchedulerCollector, chosen: SchedulerSettings) -> AsyncIterator[None]:
    """Let Prometheus read, if the operator wants it. Raises AddressRefused."""
    server = MetricsServer(collector)
    if chosen.metrics_port is not None:
        try:
            port = await server.open(chosen.metrics_host, chosen.metrics_port)
        except OSError as error:
            where = f"--metrics-port: {chosen.metrics_host}:{chosen.metrics_port}"
            raise AddressRefused(f"{where}: {error.strerror}") from None
        log.info("metrics on http://%s:%d/metrics", chosen.metrics_host, port)
    try:
        yield
    finally:
        server.close()


def explanation(core: SchedulerCore, estimator: Predictor | None) -> Explanation:
    """Return what `tandem explain` shows."""
    return Explanation(
        policy=core.config.policy,
        pid=os.getpid(),
        epoch=core.epoch.n if core.epoch else 0,
        now=time.monotonic(),
        latest=core.latest,
        decisions=tuple(core.decisions),
        errors=estimator.errors if estimator else None,
    )


def learner(chosen: SchedulerSettings) -> tuple[Predictor | None, Keeper | None]:
    """Return the estimator of the chosen profile and what keeps its memory, where there are any.

    Raises ProfileError.
    """
    estimator: Predictor
    if chosen.profile == NO_PROFILE:
        if chosen.soft_state is not None:
            raise profile.ProfileError("--soft-state is of no use with --profile none")
        return None, None
    if chosen.profile == AUTO_PROFILE:
        estimator = AutomaticEstimator(library.folders(os.environ))
    else:
        estimator = FittedEstimator(profile.load(Path(chosen.profile)))
    if chosen.soft_state is None:
        return estimator, None
    keeper = Keeper(Path(chosen.soft_state), estimator)
    keeper.restore()
    return estimator, keeper


def build(chosen: SchedulerSettings, estimator: Predictor | None = None) -> SchedulerCore:
    """Return the core with its policy. Raises PolicyError."""
    objectives = Objectives(
        tbt_s=chosen.slo_tbt_ms / 1e3,
        ttft_s=chosen.slo_ttft_ms / 1e3,
        ttft_per_token_s=chosen.slo_ttft_ms_per_token / 1e3,
    )
    config = CoreConfig(
        peer=f"sched-{new_id()}",
        policy=chosen.scheduler,
        version=PROTOCOL_VERSION,
        observe_only=chosen.observe_only,
    )
    policy = make(chosen.scheduler, objectives, chosen.option, estimator)
    return SchedulerCore(policy, config)


def run(serving: Coroutine[Any, Any, Exit]) -> Exit:
    """Run until the end, and return it."""
    try:
        return asyncio.run(serving)
    except AddressRefused as error:
        return Exit(str(error), status=EXIT_CONFIG)


def main(arguments: list[str] | None = None) -> int:
    """Run a scheduler; return the exit status."""
    chosen = settings.parse(
        SchedulerSettings,
        sys.argv[1:] if arguments is None else arguments,
        os.environ,
        prog="python -m scheduler.main",
        description="A scheduler of one Tandem worker.",
    )
    reporter = Reporter(chosen.ready_fd)
    setproctitle(f"tandem-scheduler {chosen.scheduler}")
    try:
        logs.configure("scheduler", chosen.log_level, chosen.log_format)
        estimator, keeper = learner(chosen)
        core = build(chosen, estimator)
    except ValueError as error:  # of the level, a ProfileError or a PolicyError
        end = Exit(str(error), status=EXIT_CONFIG)
    else:
        end = run(serve(chosen, core, reporter, estimator, keeper))
    reporter.send(Stopped(end.reason, fenced=end.fenced))
    if end.status:
        print(f"scheduler: {end.reason}", file=sys.stderr)
    return end.status


if __name__ == "__main__":
    sys.exit(main())
