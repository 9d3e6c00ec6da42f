"""A whole worker, core and simulated executor, in virtual time: for tests and fault simulation.

Events go in with `feed`, time passes with `run_until`; what peers were sent is kept by peer. No
thread, no clock: the same feeds at the same times give the same messages.
"""

from collections.abc import Callable

from protocol.control_link import ControlToWorker, ToScheduler
from protocol.data_link import ToGateway, ToWorker
from worker.core.events import (
    Completed,
    CoreEvent,
    DiscardBatch,
    Effect,
    Fatal,
    FromGateway,
    FromScheduler,
    LaunchWork,
    SendControl,
    SendData,
)
from worker.core.machine import WorkerCore
from worker.executors.base import Launch
from worker.executors.simulated.executor import SimulatedExecutor


class VirtualWorker:
    """Carries effects to the executor and its completions back."""

    def __init__(
        self,
        core: WorkerCore,
        executor: SimulatedExecutor,
        after_event: Callable[[CoreEvent, list[Effect]], None] | None = None,
    ) -> None:
        """`after_event` sees each event with its effects, after they were carried out."""
        self.core = core
        self.executor = executor
        self.now = 0.0
        self.data: dict[bytes, list[ToGateway]] = {}
        """Messages to each gateway."""
        self.control: dict[bytes, list[ToScheduler]] = {}
        self.launches: list[Launch] = []
        self.fatal: str | None = None
        self._after_event = after_event

    def feed(self, event: CoreEvent) -> list[Effect]:
        """Handle one event now; return its effects, which are carried out."""
        effects = self.core.on(event, self.now)
        for effect in effects:
            self._carry_out(effect)
        if self._after_event is not None:
            self._after_event(event, effects)
        return effects

    def gateway(self, message: ToWorker, peer: bytes = b"gw-1") -> list[Effect]:
        """Feed a gateway's message."""
        return self.feed(FromGateway(peer, message))

    def scheduler(self, message: ControlToWorker, peer: bytes = b"sched-1") -> list[Effect]:
        """Feed a scheduler's message."""
        return self.feed(FromScheduler(peer, message))

    def step(self) -> bool:
        """Go to the next completion and feed it; False when nothing runs."""
        when = self.executor.next_completion()
        if when is None:
            return False
        self._go_to(when)
        return True

    def run_until(self, now: float) -> None:
        """Let time pass until `now`, feeding completions as they come."""
        while (when := self.executor.next_completion()) is not None and when <= now:
            self._go_to(when)
        self._go_to(now)

    def run_idle(self) -> None:
        """Go on until nothing runs."""
        while self.step():
            pass

    def _go_to(self, now: float) -> None:
        self.now = max(self.now, now)
        self.executor.advance(self.now)
        for completion in self.executor.poll():
            self.feed(Completed(completion))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case LaunchWork(work=work):
                self.launches.append(work)
                self.executor.launch(work)
            case DiscardBatch(batch=batch):
                self.executor.discard(batch)
            case SendData(peer=peer, message=message):
                self.data.setdefault(peer, []).append(message)
            case SendControl(peer=peer, message=told):
                self.control.setdefault(peer, []).append(told)
            case Fatal(reason=reason):
                self.fatal = reason
