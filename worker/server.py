"""The worker's shell: sockets, clock and executor around the core; one thread, no asyncio.

Separate from `main` so that tests run the same loop over in-memory transports. A turn takes what
has completed on the device first, since a lane that runs dry costs more than a late message.
"""

import logging
import select
from collections.abc import Callable

from protocol.control_link import ControlToWorker, Lane, ToScheduler
from protocol.data_link import ToGateway, ToWorker
from protocol.endpoint import Down, Endpoint, Received
from worker.core.events import (
    Completed,
    CoreEvent,
    DiscardBatch,
    Drain,
    Effect,
    Fatal,
    FromGateway,
    FromScheduler,
    LaunchWork,
    PeerDown,
    SendControl,
    SendData,
    Tick,
)
from worker.core.machine import WorkerCore
from worker.executors.base import Executor
from worker.suspects import Suspects

log = logging.getLogger(__name__)

MAX_FRAMES = 64
"""Messages of one socket in one turn: a flood cannot keep the lanes waiting."""
TICK_S = 0.05
"""Period of deadlines and status in the core."""

DataEndpoint = Endpoint[ToWorker, ToGateway]
ControlEndpoint = Endpoint[ControlToWorker, ToScheduler]


class DeviceFailed(RuntimeError):
    """The device or the core cannot go on; the process must end and be started again."""


class Server:
    """Turns of one worker. `clock` returns monotonic seconds."""

    def __init__(
        self,
        core: WorkerCore,
        executor: Executor,
        data: DataEndpoint,
        control: ControlEndpoint,
        clock: Callable[[], float],
        tick_s: float,
        suspects: Suspects,
    ) -> None:
        """`tick_s`: period of the core's ticks, normally TICK_S."""
        self._suspects = suspects
        self._core, self._executor = core, executor
        self._data, self._control, self._clock = data, control, clock
        self._tick_s = tick_s
        self._next_tick = clock()
        self._poller = select.poll()
        for descriptor in (data.fileno(), control.fileno(), executor.fileno()):
            if descriptor is not None and descriptor >= 0:  # in memory there is none
                self._poller.register(descriptor, select.POLLIN)

    def run(self, drain: Callable[[], bool], drain_timeout_s: float) -> None:
        """Turn until `drain` says so, then until what runs has finished or its time is over.

        Raises DeviceFailed.
        """
        while not drain():
            if not self.turn():
                self.wait()
        log.info("draining: %d s at most", drain_timeout_s)
        self._feed(Drain())
        over = self._clock() + drain_timeout_s
        while not self._core.idle and self._clock() < over:
            if not self.turn():
                self.wait()
        self.stop()

    def stop(self) -> None:
        """End all that is left; what runs on the device is no suspect. Raises DeviceFailed."""
        self._feed(Drain(final=True))
        self.turn()
        self._suspects.close()

    def close(self) -> None:
        """Close the sockets."""
        self._data.close()
        self._control.close()

    def turn(self) -> bool:
        """Do what is due; return whether anything was. Raises DeviceFailed."""
        try:
            completions = self._executor.poll()
        except RuntimeError as error:  # CUDA's sticky errors among them: nothing here mends one
            raise DeviceFailed(f"the device failed: {error}") from error
        for completion in completions:
            self._feed(Completed(completion))
        messages = self._take_data() + self._take_control()
        if (now := self._clock()) >= self._next_tick:
            self._next_tick = now + self._tick_s
            self._feed(Tick())
        return bool(completions) or messages > 0

    def deadline(self) -> float:
        """When the next turn is due at the latest, if no message and no completion comes before."""
        now = self._clock()
        return min(self._next_tick, self._data.deadline(now), self._control.deadline(now))

    def wait(self) -> None:
        """Return when there may be something to do. An executor without a descriptor is polled."""
        if self._executor.fileno() is None and self._in_flight():
            return
        self._poller.poll(max(0.0, self.deadline() - self._clock()) * 1000)

    def _in_flight(self) -> bool:
        return any(self._core.in_flight(lane) for lane in Lane)

    def _take_data(self) -> int:
        events = self._data.poll(self._clock(), MAX_FRAMES)
        for event in events:
            if isinstance(event, Received):
                self._feed(FromGateway(event.peer, event.message))
            elif isinstance(event, Down):
                self._feed(PeerDown("data", event.peer))
        return len(events)

    def _take_control(self) -> int:
        events = self._control.poll(self._clock(), MAX_FRAMES)
        for event in events:
            if isinstance(event, Received):
                self._feed(FromScheduler(event.peer, event.message))
            elif isinstance(event, Down):
                self._feed(PeerDown("control", event.peer))
        return len(events)

    def _feed(self, event: CoreEvent) -> None:
        effects = self._core.on(event, self._clock())
        if isinstance(event, Completed) or any(isinstance(e, LaunchWork) for e in effects):
            self._suspects.note([ref.request for ref in self._core.on_device()])
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case LaunchWork(work):
                try:
                    self._executor.launch(work)
                except RuntimeError as error:
                    raise DeviceFailed(f"the device refused a launch: {error}") from error
            case SendData(peer, message):
                self._data.send(message, self._clock(), peer)
            case SendControl(peer, message):
                self._control.send(message, self._clock(), peer)
            case DiscardBatch(batch):
                self._executor.discard(batch)
            case Fatal(reason):
                raise DeviceFailed(reason)
