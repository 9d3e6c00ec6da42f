"""The three roles as processes of the simulated world: real cores, endpoints and links.

A process turns when something arrives, or something of its own is due. It can be paused, as by
SIGSTOP, and killed. Each has its own monotonic clock, which may jump.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol import PROTOCOL_VERSION
from protocol.control_link import ControlToWorker, ToScheduler
from protocol.data_link import ToGateway, ToWorker
from protocol.endpoint import Down, Endpoint, Lost, Received, Up
from protocol.ids import pack_tokens
from protocol.prefix import page_hashes, root_hash
from protocol.transport.memory import MemoryTransport
from scheduler.core import CoreConfig as SchedulerConfig
from scheduler.core import Exit, Input, Link, SchedulerCore
from scheduler.core import Tick as SchedulerTick
from scheduler.policy import Objectives
from scheduler.registry import BUILT_IN, make
from tests.simulation.history import Call
from tests.simulation.oracles import WatchedCore
from tests.unit.worker.world import LATENCY
from tokenizer_service.events import (
    Begin,
    Cancel,
    Event,
    FromWorker,
    Job,
    LinkDown,
    LinkLost,
    LinkUp,
    Send,
    StopAt,
    Tell,
    Tick,
)
from tokenizer_service.registry import Registry
from worker.executors.base import Launch
from worker.executors.simulated.executor import SimulatedExecutor
from worker.server import DeviceFailed, Server
from worker.suspects import Suspects, after

if TYPE_CHECKING:
    from tests.simulation.world import World

WORKER_TICK_S = 0.25
"""Longer than in production: each tick is a frame to every gateway."""
SCHEDULER_TICK_S = 0.25
GATEWAY_TICK_S = 1.0
LATE_S = 1e-6
"""A process wakes this much after its deadline, so that rounding never wakes it before."""
NEVER = float("inf")
ROOT = root_hash(b"", "m")
CLASSES = {**BUILT_IN, "reckless": "tests.simulation.reckless:Reckless"}
"""Without a look at installed entry points, which takes longer than a life."""


class Killed(Exception):
    """The worker dies in the middle of a turn."""


class Process:
    """What all roles have in common. Times of the world, but for `clock`."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.paused_until = 0.0
        self.alive = True
        self.ahead = world.new_clock()
        """Seconds by which its clock is ahead of the world's."""

    def clock(self) -> float:
        """Its monotonic clock."""
        return self.world.now + self.ahead

    def wake(self) -> float:
        """When it next turns."""
        due = min(self.arrival(), self.deadline() - self.ahead + LATE_S)
        return max(due, self.paused_until)

    def transports(self) -> list[MemoryTransport]:
        """Its sockets."""
        raise NotImplementedError

    def arrival(self) -> float:
        """When something next arrives."""
        return min(transport.next_arrival() for transport in self.transports())

    def deadline(self) -> float:
        """When it next has something to do by itself, on its own clock."""
        raise NotImplementedError

    def turn(self) -> None:
        """Do what is due."""
        raise NotImplementedError


class DeviceClock:
    """The device's time: it may go slower than the world's, or stand still."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since, self._shown, self._rate = now(), 0.0, 1.0

    def __call__(self) -> float:
        """Return seconds of the device."""
        return self._shown + (self._now() - self._since) * self._rate

    def run(self, rate: float) -> None:
        """Go on at `rate` seconds a second."""
        self._shown, self._since = self(), self._now()
        self._rate = rate

    def when(self, shown: float) -> float:
        """Return when it will show `shown`."""
        if not self._rate:
            return NEVER
        return self._since + (shown - self._shown) / self._rate + LATE_S


class WorkerProcess(Process):
    """The worker's real loop over a simulated device."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        setting, network = world.setting, world.network
        self.device = DeviceClock(lambda: world.now)
        self.failing = 0
        """Launches that are still to fail."""
        world.suspects = bytearray(after(bytes(world.suspects)))
        suspects = Suspects(world.suspects)
        self.core = WatchedCore(
            setting.core, setting.device, name, world.history, world.worker_event, suspects
        )
        self.executor = SimulatedExecutor(
            setting.device, LATENCY, verify=True, clock=self.device, fault=self._fault
        )
        self._sockets = [network.bind("data"), network.bind("control")]
        data, control = self._sockets
        self.server = Server(
            self.core,
            self.executor,
            Endpoint(data, ToWorker, setting.link, sessions=world.session),
            Endpoint(control, ControlToWorker, setting.link, sessions=world.session),
            self.clock,
            WORKER_TICK_S,
            suspects,
        )

    def transports(self) -> list[MemoryTransport]:
        """Data and control."""
        return self._sockets

    def deadline(self) -> float:
        """Of the loop."""
        return self.server.deadline()

    def arrival(self) -> float:
        """Of a message or a completion."""
        done = self.executor.next_completion()
        when = self.device.when(done) if done is not None else NEVER
        return min(when, super().arrival())

    def turn(self) -> None:
        """One turn of the loop; a device that failed ends the process."""
        self._do(self.server.turn)

    def stop(self) -> None:
        """Its drain is over."""
        self._do(self.server.stop)

    def _do(self, what: Callable[[], object]) -> None:
        try:
            what()
        except Killed:
            pass  # in the middle of a turn
        except DeviceFailed as error:
            self.world.worker_failed(str(error))

    def _fault(self, work: Launch) -> str | None:
        if not self.failing:
            return None
        self.failing -= 1
        return f"ticket {work.ticket}: a fault of the test"


class SchedulerProcess(Process):
    """A scheduler's core behind its link."""

    def __init__(self, world: "World", name: str, policy: str, options: tuple[str, ...]) -> None:
        super().__init__(world, name)
        config = SchedulerConfig(peer=name, policy=policy, version=PROTOCOL_VERSION)
        chosen = make(CLASSES[policy], Objectives(tbt_s=0.05, ttft_s=1.0), options)
        self.core = SchedulerCore(chosen, config)
        self.transport = world.network.connect("control", name.encode())
        self.endpoint: Endpoint[ToScheduler, ControlToWorker] = Endpoint(
            self.transport, ToScheduler, world.setting.link, sessions=world.session
        )
        self._next_tick = self.clock()

    def transports(self) -> list[MemoryTransport]:
        """Its one socket."""
        return [self.transport]

    def deadline(self) -> float:
        """Of its link or its tick."""
        return min(self._next_tick, self.endpoint.deadline(self.clock()))

    def turn(self) -> None:
        """Take what has come."""
        for event in self.endpoint.poll(self.clock()):
            match event:
                case Received(message=message):
                    self.take(message)
                case Up():
                    self.take(Link.UP)
                case Lost():
                    self.take(Link.LOST)
                case Down():
                    self.take(Link.DOWN)
        if self.alive and self.clock() >= self._next_tick:
            self._next_tick = self.clock() + SCHEDULER_TICK_S
            self.take(SchedulerTick())

    def take(self, event: Input) -> None:
        """Feed the core and send what it says."""
        if not self.alive:
            return
        for message in self.core.on(event, self.clock()):
            if isinstance(message, Exit):
                self.world.scheduler_left(self, message)
            else:
                self.endpoint.send(message, self.clock())


class GatewayProcess(Process):
    """A gateway's registry behind its link, with its clients."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        wait = world.setting.worker_wait_s
        self.registry = Registry(name, worker_wait_s=wait, now=self.clock())
        self.transport = world.network.connect("data", name.encode())
        self.endpoint: Endpoint[ToGateway, ToWorker] = Endpoint(
            self.transport, ToGateway, world.setting.link, sessions=world.session
        )
        self.calls: dict[str, Call] = {}
        self._next_tick = self.clock()

    def transports(self) -> list[MemoryTransport]:
        """Its one socket."""
        return [self.transport]

    def deadline(self) -> float:
        """Of its link or its tick."""
        return min(self._next_tick, self.endpoint.deadline(self.clock()))

    def turn(self) -> None:
        """Take what has come."""
        for event in self.endpoint.poll(self.clock()):
            match event:
                case Received(message=message):
                    self._feed(FromWorker(message))
                case Up():
                    self._feed(LinkUp())
                case Lost():
                    self._feed(LinkLost())
                case Down():
                    self._feed(LinkDown())
        if self.clock() >= self._next_tick:
            self._next_tick = self.clock() + GATEWAY_TICK_S
            self._feed(Tick())

    # --- clients ---

    def begin(self, call: Call) -> None:
        """A client asks."""
        page_size = self.world.setting.device.page_size
        names = page_hashes(ROOT, call.prompt, page_size) if call.cached else []
        call.began, call.gateway = self.world.now, self.name
        self.calls[call.request] = call
        job = Job(
            request=call.request,
            model="m",
            prompt=pack_tokens(call.prompt),
            sampling=call.sampling,
            page_hashes=b"".join(names),
            root_hash=ROOT if call.cached else b"",
        )
        self._feed(Begin(job))

    def cancel(self, call: Call) -> None:
        """The client left."""
        call.cancelled = True
        self._feed(Cancel(call.request))

    def stop(self, call: Call) -> None:
        """A stop string was found in what the client got so far."""
        call.stopped_at = len(call.tokens) // 2
        self._feed(StopAt(call.request, call.stopped_at))

    def _feed(self, event: Event) -> None:
        for effect in self.registry.on(event, self.clock()):
            match effect:
                case Send(message):
                    self.endpoint.send(message, self.clock())
                case Tell(request, news):
                    self.world.tell(self.calls[request], news)
