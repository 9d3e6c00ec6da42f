"""Everything that goes wrong on purpose. Each fault is data, so that a life can do without it.

A fault that finds nothing to break (no scheduler to pause, nothing in flight) does nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.transport.base import SERVER

if TYPE_CHECKING:
    from tests.simulation.processes import GatewayProcess, Process, SchedulerProcess
    from tests.simulation.world import World

LONG_PAUSE_S = 30.0


@dataclass(frozen=True)
class Fault:
    """What goes wrong, when, and numbers whose meaning is the kind's."""

    at: float
    kind: str
    which: int
    """Whom it meets, in turns."""
    span: float
    """Seconds that it lasts, or until a restart."""
    keep: int
    """Frames in flight that still arrive."""
    back: int
    """The same in the other direction."""


def _crash_worker(world: "World", fault: Fault) -> None:
    """Kill -9; the launcher starts it again."""
    world.kill_worker("killed", fault.keep, fault.span)


def _crash_loop(world: "World", fault: Fault) -> None:
    """The worker dies twice, both times while something runs on its device."""

    def die(times: int) -> None:
        if world.healed or not times:
            return
        running = world.worker is not None and world.worker.core.on_device()
        if running:
            world.kill_worker("killed", fault.keep, 0.02)
        world.after(0.01, lambda: die(times - bool(running)))

    die(2)


def _crash_scheduler(world: "World", fault: Fault) -> None:
    if (victim := _scheduler(world, fault)) is not None:
        world.kill_scheduler(victim, fault.keep, fault.span)


def _crash_gateway(world: "World", fault: Fault) -> None:
    """Its clients vanish with it."""
    if world.gateways:
        world.kill_gateway(fault.which % len(world.gateways), fault.keep, fault.span)


def _pause(world: "World", fault: Fault) -> None:
    """Stop any process; sometimes for long."""
    everybody: list[Process] = world.processes()
    if everybody:
        world.history.excuses.add("stood still")
        long = fault.which >= 10
        span = LONG_PAUSE_S if long and fault.span > 1 else fault.span
        everybody[fault.which % len(everybody)].paused_until = world.now + span


def _break(world: "World", fault: Fault) -> None:
    """A connection breaks and loses some suffix of what was in flight."""
    if victims := _connectors(world):
        victim = victims[fault.which % len(victims)]
        world.network.cut(victim.transport, fault.keep, fault.back)


def _stall(world: "World", fault: Fault) -> None:
    """Nothing arrives for a while."""
    if victims := _connectors(world):
        victim = victims[fault.which % len(victims)]
        world.network.stall(victim.transport, world.now + fault.span)


def _full(world: "World", fault: Fault) -> None:
    """Queues take few frames for a while: what does not fit is refused."""
    world.network.capacity = 1 + fault.keep
    world.after(fault.span, world.network.reset_capacity)


def _slow_device(world: "World", fault: Fault) -> None:
    _run_device(world, fault, 0.1)


def _stuck_device(world: "World", fault: Fault) -> None:
    _run_device(world, fault, 0.0)


def _run_device(world: "World", fault: Fault, rate: float) -> None:
    worker = world.worker
    if worker is not None:
        world.history.excuses.add("stuck device")
        worker.device.run(rate)
        world.after(fault.span, lambda: worker.device.run(1.0))


def _device_error(world: "World", fault: Fault) -> None:
    """The next launches fail: so do their requests, and the device when it is three in a row."""
    if world.worker is not None:
        world.history.excuses.add("device error")
        world.worker.failing += 1 + fault.which % 4


def _swap(world: "World", fault: Fault) -> None:
    """Another scheduler starts beside the one that acts."""
    world.start_scheduler()


def _double_swap(world: "World", fault: Fault) -> None:
    """Two start at the same time, so that they overtake each other."""
    world.start_scheduler()
    world.after(min(fault.span, 0.1) / 100, world.start_scheduler)


def _stale_scheduler(world: "World", fault: Fault) -> None:
    """One is stopped, another takes its place, and the first wakes up."""
    if (victim := _scheduler(world, fault)) is not None:
        victim.paused_until = world.now + fault.span
        world.start_scheduler()


def _old_plan(world: "World", fault: Fault) -> None:
    """A scheduler sends plans from the past now and then: of another boot, if there was one."""

    def send() -> None:
        sender = _scheduler(world, fault)
        boot = f"boot-{world.history.boots}"
        other_boots = [plan for plan in world.history.plans if plan.epoch.boot != boot]
        if sender is not None and (plans := other_boots or world.history.plans):
            sender.endpoint.send(plans[fault.keep % len(plans)], sender.clock())

    for number in range(6):
        world.after(0.1 * number, send)


def _cancel(world: "World", fault: Fault) -> None:
    """A client leaves."""
    for call in world.waiting(fault.which):
        world.gateway_of(call).cancel(call)


def _stop(world: "World", fault: Fault) -> None:
    """A stop string is found."""
    for call in world.waiting(fault.which):
        if call.tokens:
            world.gateway_of(call).stop(call)


def _clock_jump(world: "World", fault: Fault) -> None:
    """A process's monotonic clock goes on by up to an hour at once, as after a suspended machine.

    It never goes back: that is what monotonic says.
    """
    everybody: list[Process] = world.processes()
    if everybody:
        world.history.excuses |= {"no worker for long", "stood still"}
        everybody[fault.which % len(everybody)].ahead += fault.span * 1000


def _garbage(world: "World", fault: Fault) -> None:
    """A peer sends bytes that are no frames, or frames that are no messages."""
    if victims := _connectors(world):
        victim = victims[fault.which % len(victims)]
        frames = (b"", b"\x80\x05cos\nsystem\n.", bytes(range(200)), b"TL\x01\x01" + bytes(48))
        victim.transport.send(SERVER, frames[fault.keep % len(frames)])


def _drain(world: "World", fault: Fault) -> None:
    """The worker is asked to stop, and is started again."""
    world.drain_worker(fault.span)


KINDS: dict[str, Callable[["World", Fault], None]] = {
    "crash_worker": _crash_worker,
    "crash_loop": _crash_loop,
    "crash_scheduler": _crash_scheduler,
    "crash_gateway": _crash_gateway,
    "pause": _pause,
    "break": _break,
    "stall": _stall,
    "full": _full,
    "slow_device": _slow_device,
    "stuck_device": _stuck_device,
    "device_error": _device_error,
    "swap": _swap,
    "double_swap": _double_swap,
    "stale_scheduler": _stale_scheduler,
    "old_plan": _old_plan,
    "cancel": _cancel,
    "stop": _stop,
    "clock_jump": _clock_jump,
    "garbage": _garbage,
    "drain": _drain,
}
"""All kinds of fault by name."""


def _scheduler(world: "World", fault: Fault) -> "SchedulerProcess | None":
    return world.schedulers[fault.which % len(world.schedulers)] if world.schedulers else None


def _connectors(world: "World") -> "list[GatewayProcess | SchedulerProcess]":
    return [*world.gateways, *world.schedulers]
