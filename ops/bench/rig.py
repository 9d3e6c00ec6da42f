"""A worker and its scheduler in one thread: core, executor and policy, without sockets.

For benchmarks of policies on an executor: what is measured is the engine, by the messages that the
processes exchange and in their order, and nothing of gateways, links and their timers.
"""

import select
from collections import deque
from collections.abc import Callable

from protocol import PROTOCOL_VERSION
from protocol.data_link import Hello, Resync, Submit, ToGateway
from scheduler.core import CoreConfig as SchedulerConfig
from scheduler.core import Exit, Link, SchedulerCore
from scheduler.policy import Policy
from worker.core.config import CoreConfig
from worker.core.events import (
    Completed,
    CoreEvent,
    DiscardBatch,
    Fatal,
    FromGateway,
    FromScheduler,
    LaunchWork,
    SendControl,
    SendData,
    Tick,
)
from worker.core.machine import WorkerCore
from worker.executors.base import Completion, Executor, Launch

GATEWAY, SCHEDULER = b"gw-bench", b"sched-bench"
WAIT_MS = 50


class Stopped(RuntimeError):
    """The core or the scheduler gave up. The message says why."""


class Rig:
    """Feeds events to core and scheduler until nothing is left to do; `clock` in seconds."""

    def __init__(
        self, executor: Executor, config: CoreConfig, policy: Policy, clock: Callable[[], float]
    ) -> None:
        self.core = WorkerCore(config, executor.info, "bench")
        self.on_message: Callable[[ToGateway, float], None] = lambda message, now: None
        self.on_launch: Callable[[Launch], None] = lambda work: None
        self.on_completion: Callable[[Completion], None] = lambda completion: None
        self._executor, self._clock = executor, clock
        self._scheduler = SchedulerCore(
            policy, SchedulerConfig(peer="sched-bench", policy="bench", version=PROTOCOL_VERSION)
        )
        self._events: deque[CoreEvent] = deque()
        self._poller = select.poll()
        if (descriptor := executor.fileno()) is not None:
            self._poller.register(descriptor, select.POLLIN)
        self._events.append(FromGateway(GATEWAY, Hello("gw-bench", PROTOCOL_VERSION)))
        self._ask(Link.UP)
        self._settle()

    def submit(self, request: Submit) -> None:
        """Hand a request to the worker."""
        self._events.append(FromGateway(GATEWAY, request))
        self._settle()

    def drain(self) -> None:
        """Abort all requests and wait until the executor has nothing left: it can be used again."""
        self._events.append(FromGateway(GATEWAY, Resync(())))
        self._settle()
        while not self.core.idle:
            self.turn()

    def turn(self) -> None:
        """Wait for the device, and do what follows from it."""
        self._poller.poll(WAIT_MS)
        for completion in self._executor.poll():
            self.on_completion(completion)
            self._events.append(Completed(completion))
        self._events.append(Tick())
        self._settle()

    def _settle(self) -> None:
        while self._events:
            now = self._clock()
            for effect in self.core.on(self._events.popleft(), now):
                match effect:
                    case LaunchWork(work):
                        self.on_launch(work)
                        self._executor.launch(work)
                    case DiscardBatch(batch):
                        self._executor.discard(batch)
                    case SendData(_, message):
                        self.on_message(message, now)
                    case SendControl(_, order):
                        self._ask(order)
                    case Fatal(reason):
                        raise Stopped(reason)

    def _ask(self, event: object) -> None:
        for answer in self._scheduler.on(event, self._clock()):  # type: ignore[arg-type]
            if isinstance(answer, Exit):
                raise Stopped(answer.reason)
            self._events.append(FromScheduler(SCHEDULER, answer))
