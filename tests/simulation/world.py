"""The simulated world: a worker, gateways, schedulers and a launcher on one network and one clock.

One thread, no real time: the world goes from event to event, and is a pure function of its setting.
`live` is chaos, then healing: what is dead is started, what is stopped goes on, and everything must
end and come to rest.
"""

import heapq
from collections.abc import Callable
from hashlib import blake2b
from itertools import count

from protocol.transport.memory import Network, _Pipe
from scheduler.core import Exit, Stage
from tests.simulation.faults import KINDS, Fault
from tests.simulation.history import Call, History
from tests.simulation.oracles import Violation, judge_news
from tests.simulation.processes import (
    GatewayProcess,
    Killed,
    Process,
    SchedulerProcess,
    WorkerProcess,
)
from tests.simulation.setting import POLICIES, Setting
from tokenizer_service.events import Admitted, Broken, Done, News, NewTokens
from tokenizer_service.limits import MAX_ATTEMPTS
from worker.core.events import Drain
from worker.executors.simulated.fake_model import right_stream

HEAL_S = 60.0
"""After healing, everything must have ended in so many seconds (anchor A1)."""
CAPACITY = 8192
MAX_STEPS = 200_000
"""Of one life; more is a world that does not come to rest."""


class TracedNetwork(Network):
    """Hashes every frame with its time: two equal traces were the same life."""

    def __init__(self, latency_s: float) -> None:
        super().__init__(latency_s, capacity=CAPACITY)
        self.trace = blake2b(digest_size=16)

    def put(self, pipe: _Pipe, frame: bytes) -> None:
        """Put a frame in flight."""
        self.trace.update(b"%r %d " % (self.now, len(frame)))
        self.trace.update(frame)
        super().put(pipe, frame)

    def reset_capacity(self) -> None:
        """Take as many frames as ever."""
        self.capacity = CAPACITY


class World:
    """One life."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now = 0.0
        self.network = TracedNetwork(setting.latency_s)
        self.history = History([_call(number, setting) for number in range(len(setting.calls))])
        if setting.core.max_queued_requests < len(setting.calls):
            self.history.excuses.add("full queue")
        self.worker: WorkerProcess | None = None
        self.gateways: list[GatewayProcess] = []
        self.schedulers: list[SchedulerProcess] = []
        self.suspects = bytearray()
        """The file in which workers note whose work is on the device."""
        self.at_event: tuple[int, Callable[[], None]] = (-1, lambda: None)
        """What happens before a worker's core handles its event of this index, once."""
        self._sessions, self._names, self._clocks = count(1), count(1), count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = count()
        self.healed = False
        """Whether faults are over."""
        self._away_since: float | None = None

    # --- a whole life ---

    def live(self) -> None:
        """Chaos, then healing. Raises Violation, and whatever a process raises."""
        self.populate()
        for plan, call in zip(self.setting.calls, self.history.calls, strict=True):
            self.after(plan.at, lambda call=call, which=plan.gateway: self.begin(call, which))
        for fault in self.setting.faults:
            self.after(fault.at, lambda fault=fault: self.break_by(fault))
        self.run(until=self.setting.chaos_s)
        self.heal()

    def populate(self) -> None:
        """Start one of each, and all gateways."""
        self.start_worker()
        self.start_scheduler()
        for _ in range(self.setting.gateways):
            self.start_gateway()

    def begin(self, call: Call, which: int) -> None:
        """A client asks a gateway that lives; with none it gets nowhere."""
        if self.gateways:
            self.gateways[which % len(self.gateways)].begin(call)

    def break_by(self, fault: Fault) -> None:
        """Let a fault happen."""
        self.history.faults += 1
        self.note(f"fault {fault}")
        KINDS[fault.kind](self, fault)

    def heal(self) -> None:
        """End all faults; then everything must end, and come to rest."""
        self.note("heal")
        self.healed = True
        for _, _, action in sorted(self._timers, key=lambda timer: timer[:2]):
            action()
        self._timers = []
        self.network.reset_capacity()
        for process in self.processes():
            process.paused_until = self.now
        self._ensure()
        begun = self.now
        while not self.at_rest():
            self.run(until=self.now + 0.05)
            if self.now - begun > HEAL_S:
                raise Violation(f"not at rest {HEAL_S:g} s after healing: {self.unrest()}")

    def at_rest(self) -> bool:
        """Whether all has ended and nothing is left (O1, O3, O4), and one scheduler acts."""
        return not self.unrest()

    def unrest(self) -> str:
        """Return what still goes on; empty when nothing does."""
        if waiting := [call.request for call in self.history.calls if call.waits]:
            return f"O1: {waiting} wait"
        worker = self.worker
        if worker is None or not worker.core.idle or worker.core.referenced_pages:
            return "O3: the worker is not idle"
        if worker.executor.parked:
            return f"O3: batches {worker.executor.parked} are parked"
        if left := [gateway.name for gateway in self.gateways if gateway.registry.live()]:
            return f"O4: requests are left in {left}"
        stages = [scheduler.core.stage for scheduler in self.schedulers]
        if stages != [Stage.ACTING]:
            return f"schedulers are {stages}"
        if self.schedulers[0].core.epoch != worker.core.snapshot(0.0).epoch:
            return "the scheduler that acts is not the worker's"
        return ""

    def trace(self) -> str:
        """Return a hash of every frame that was sent and when."""
        return self.network.trace.hexdigest()

    # --- time ---

    def run(self, until: float) -> None:
        """Go from event to event until `until`."""
        for _ in range(MAX_STEPS):
            if not self._step(until):
                return
        raise Violation(f"{MAX_STEPS} steps and no end, at {self.now}")

    def _step(self, until: float) -> bool:
        processes = self.processes()
        wakes = [process.wake() for process in processes]
        due = min((*wakes, self.network.next_connection()))
        if self._timers:
            due = min(due, self._timers[0][0])
        if due > until:
            self.now = max(self.now, until)
            self.network.advance(self.now)
            return False
        self.now = max(self.now, due)
        self.network.advance(self.now)
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
        for process, wake in zip(processes, wakes, strict=True):
            if process.alive and max(wake, process.paused_until) <= self.now:
                process.turn()
        return True

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen later, or when the world is healed."""
        entry = (self.now + seconds, next(self._timer_numbers), action)
        heapq.heappush(self._timers, entry)

    def worker_event(self) -> None:
        """A worker's core is about to handle an event. Raises Killed when it dies instead."""
        index, action = self.at_event
        worker = self.worker
        if self.history.events == index:
            action()
        self.history.events += 1
        self.history.times.append(self.now)
        if self.worker is not worker:
            raise Killed

    # --- processes ---

    def processes(self) -> list[Process]:
        """All that live."""
        worker = [self.worker] if self.worker is not None else []
        return [*worker, *self.gateways, *self.schedulers]

    def session(self) -> int:
        """Return a new session id of a link."""
        return next(self._sessions)

    def new_clock(self) -> float:
        """Return by how much a new process's clock is ahead."""
        return self.setting.clocks[next(self._clocks) % len(self.setting.clocks)]

    def start_worker(self) -> None:
        """Start a worker, unless there is one."""
        if self.worker is None:
            self.history.boots += 1
            self.worker = WorkerProcess(self, f"boot-{self.history.boots}")
            self.note(f"worker {self.worker.name} starts")

    def kill_worker(self, why: str, keep: int, restart_s: float) -> None:
        """End the worker at once; the launcher starts another."""
        worker = self.worker
        if worker is None:
            return
        self.note(f"worker {worker.name} dies: {why}")
        self.history.deaths.append(why)
        if len(self.history.deaths) >= MAX_ATTEMPTS:
            self.history.excuses.add("many attempts")
        if why != "drained":
            for ref in worker.core.on_device():
                self.history.calls[int(ref.request[1:])].deaths_on_device += 1
        worker.alive = False
        self.worker = None
        for socket in worker.transports():
            self.network.kill(socket, keep)
        if restart_s > self.setting.worker_wait_s / 2:
            self.history.excuses.add("no worker for long")
        self.after(0.0 if self.healed else restart_s, self.start_worker)

    def worker_failed(self, why: str) -> None:
        """The device failed: the process ends, and is started again."""
        # Of a time in which it stood still the worker counts a second: often enough is too long.
        if not self.history.excuses & {"stuck device", "device error", "stood still"}:
            raise Violation(f"the device fails without a cause: {why}")
        self.kill_worker(why, keep=CAPACITY, restart_s=0.1)

    def drain_worker(self, seconds: float) -> None:
        """SIGTERM: what runs has `seconds`, the rest is failed; then another worker starts."""
        worker = self.worker
        if worker is None or worker.paused_until > self.now:
            return
        self.history.excuses.add("drain")
        worker.server._feed(Drain())

        def over() -> None:
            if self.worker is worker:
                worker.stop()
                self.kill_worker("drained", keep=CAPACITY, restart_s=0.05)

        self.after(seconds, over)

    def start_scheduler(self) -> None:
        """Start a scheduler, beside those that live."""
        number = next(self._names)
        chosen = self.setting.policies[number % len(self.setting.policies)]
        policy, options = POLICIES[chosen]
        self.schedulers.append(SchedulerProcess(self, f"sched-{number}", policy, options))
        self.note(f"sched-{number} starts: {policy} {options}")

    def kill_scheduler(self, victim: SchedulerProcess, keep: int, restart_s: float) -> None:
        """End a scheduler at once; the launcher sees to it that there is one."""
        self.note(f"{victim.name} dies")
        self._remove(victim, keep)
        self.after(restart_s, self._ensure_scheduler)

    def scheduler_left(self, leaver: SchedulerProcess, how: Exit) -> None:
        """A scheduler exits by itself: only because another one acts."""
        self.note(f"{leaver.name} exits: {how.reason}")
        self.history.exits.append((leaver.name, how.reason, how.fenced, how.status))
        if how.status or not how.fenced:
            raise Violation(f"{leaver.name} exits with status {how.status}: {how.reason}")
        self._remove(leaver, CAPACITY)
        self.after(0.1, self._ensure_scheduler)

    def _remove(self, scheduler: SchedulerProcess, keep: int) -> None:
        scheduler.alive = False
        self.schedulers.remove(scheduler)
        self.network.kill(scheduler.transport, keep)

    def _ensure_scheduler(self) -> None:
        if not self.schedulers:
            self.start_scheduler()

    def start_gateway(self) -> None:
        """Start a gateway."""
        self.gateways.append(GatewayProcess(self, f"gw-{next(self._names)}"))

    def kill_gateway(self, which: int, keep: int, restart_s: float) -> None:
        """End a gateway at once, and its clients' connections with it."""
        victim = self.gateways.pop(which)
        self.note(f"{victim.name} dies")
        victim.alive = False
        self.network.kill(victim.transport, keep)
        for call in victim.calls.values():
            call.vanished = call.waits
        self.after(restart_s, self.start_gateway)

    def _ensure(self) -> None:
        self.start_worker()
        self._ensure_scheduler()
        if not self.gateways:
            self.start_gateway()

    # --- clients ---

    def waiting(self, which: int) -> list[Call]:
        """Return one of the calls that wait for their end, in turns; none when none does."""
        calls = [call for call in self.history.calls if call.waits]
        return [calls[which % len(calls)]] if calls else []

    def gateway_of(self, call: Call) -> GatewayProcess:
        """Return the gateway of a call that waits."""
        return next(gateway for gateway in self.gateways if gateway.name == call.gateway)

    def tell(self, call: Call, news: News) -> None:
        """A client hears something: it is judged, then noted."""
        judge_news(call, news, self.history)
        match news:
            case Admitted():
                call.admitted = True
            case NewTokens(ids):
                call.tokens += ids
            case Done() | Broken():
                call.end, call.ended = news, self.now

    def note(self, line: str) -> None:
        """Write a line of the story."""
        self.history.log.append(f"{self.now:9.4f} {line}")


def _call(number: int, setting: Setting) -> Call:
    plan = setting.calls[number]
    right = right_stream(plan.prompt, plan.sampling, setting.model)
    return Call(number, plan.prompt, plan.sampling, right, plan.cached)
