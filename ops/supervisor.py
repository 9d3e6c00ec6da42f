"""The launcher's decisions as a state machine: events in, effects out, no processes and no clock.

Which process to start, restart, replace or end, and when to give up (DESIGN 2, "Fencing"). It is
kept apart from the shell (`ops.launch`) so that crash loops, swaps that fail half-way and signals
in the middle of a start are tested in microseconds, in every order.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from ops.children import Child, Service, Swap, why
from ops.events import (
    Choice,
    Done,
    Effect,
    Event,
    Exited,
    Key,
    Note,
    Reported,
    Role,
    Serving,
    Signal,
    Start,
    StopAsked,
    SwapAnswered,
    SwapAsked,
)
from ops.restarts import Crashes, RestartPolicy
from protocol.lifecycle import EXIT_CONFIG, Ready, Report, Stage, Stopped

DRAIN_ORDER = (Role.GATEWAY, Role.SCHEDULER, Role.WORKER)
"""Streams end before the processes that feed them."""


BECOME_READY = "become ready, or report a stage of its start,"


@dataclass(frozen=True)
class SupervisorConfig:
    """Deadlines in seconds, and what to fall back to."""

    start_timeout_s: float
    """Longest silence of a process that starts; every stage that it reports extends it."""
    swap_timeout_s: float
    """The same for a scheduler that is to replace another."""
    fence_timeout_s: float
    """Longest life of a scheduler after its replacement acts."""
    drain_timeout_s: float
    """For the gateways to end their streams."""
    stop_timeout_s: float
    """For the scheduler, and then the worker, to end."""
    fallback: Choice
    """The scheduler of last resort."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class Supervisor:
    """Starts, watches, replaces and ends the processes of one server.

    Call `on` for each event, and with `Tick` not later than `deadline`; carry out what it returns,
    in order.
    """

    def __init__(self, config: SupervisorConfig, choice: Choice, gateways: int = 1) -> None:
        self._config = config
        self._next_key = 1
        self._children: dict[Key, Child] = {}
        roles = [Role.WORKER, Role.SCHEDULER] + [Role.GATEWAY] * gateways
        self._services = [Service(role, Crashes(config.restarts)) for role in roles]
        self._scheduler = next(s for s in self._services if s.role == Role.SCHEDULER)
        self._scheduler.choice = choice
        self._worked: list[Choice] = []
        """Schedulers that have acted, the newest last."""
        self._broken: list[Choice] = []
        self._swap: Swap | None = None
        self._served = False
        self._drain: list[Role] | None = None
        self._status = 0
        self._effects: list[Effect] = []

    # --- what others may look at ---

    @property
    def services(self) -> tuple[Service, ...]:
        """The places and what runs in them. Not to be changed."""
        return tuple(self._services)

    @property
    def draining(self) -> bool:
        """Whether everything is being ended."""
        return self._drain is not None

    def deadline(self) -> float | None:
        """When `on` must be called with `Tick` at the latest; None: no need."""
        times = [c.deadline for c in self._children.values() if c.deadline is not None]
        times += [s.restart_at for s in self._services if s.restart_at is not None]
        return min(times, default=None)

    # --- events ---

    def start(self, now: float) -> list[Effect]:
        """Start every process. Called once, first."""
        for service in self._services:
            self._fill(service, now)
        return self._taken()

    def on(self, event: Event, now: float) -> list[Effect]:
        """Take one event in and return what to do."""
        match event:
            case Reported(key, report) if key in self._children:
                self._reported(self._children[key], report, now)
            case Exited(key) if key in self._children:
                self._exited(self._children.pop(key), event, now)
            case SwapAsked(ticket, choice):
                self._swap_asked(ticket, choice, now)
            case StopAsked():
                self._stop_asked(now)
            case _:
                pass
        self._pass_time(now)
        return self._taken()

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _note(self, text: str) -> None:
        self._effects.append(Note(text))

    # --- starting ---

    def _new_child(self, role: Role, choice: Choice | None, now: float) -> Child:
        child = Child(self._next_key, role, now, choice)
        self._next_key += 1
        self._children[child.key] = child
        self._effects.append(Start(child.key, role, choice))
        return child

    def _fill(self, service: Service, now: float) -> None:
        service.restart_at = None
        service.child = self._new_child(service.role, service.choice, now)
        if service.role == Role.WORKER or self._worker_ready():
            service.child.must(BECOME_READY, self._config.start_timeout_s, now)

    def _worker_ready(self) -> bool:
        return any(s.child is not None and s.child.ready for s in self._of(Role.WORKER))

    def _of(self, role: Role) -> list[Service]:
        return [s for s in self._services if s.role == role]

    def _reported(self, child: Child, report: Report, now: float) -> None:
        match report:
            case Stage():
                if child.deadline is not None and not child.ready and not child.signalled:
                    child.must(BECOME_READY, self._config.start_timeout_s, now)
            case Ready(facts):
                child.facts = facts
                if not child.ready:
                    self._became_ready(child, now)
            case Stopped():
                child.stopped = report

    def _became_ready(self, child: Child, now: float) -> None:
        child.ready = True
        if not child.signalled:
            child.is_free()
        if child.role == Role.WORKER:
            # What the others wait for is there: from now on their silence counts.
            for other in self._children.values():
                if not other.ready and other.deadline is None:
                    other.must(BECOME_READY, self._config.start_timeout_s, now)
        if child.choice is not None:
            self._worked = [c for c in self._worked if c != child.choice] + [child.choice]
        if self._swap is not None and child is self._swap.child:
            self._take_over(self._swap, now)
        if not self._served and all(s.child and s.child.ready for s in self._services):
            self._served = True
            self._effects.append(Serving())

    # --- ends ---

    def _exited(self, child: Child, event: Exited, now: float) -> None:
        reason = why(child, event)
        if self._drain is not None:
            self._ended_in_drain(child, event, reason)
        elif self._swap is not None and child is self._swap.child:
            self._swap_failed(self._swap, reason, now)
        else:
            for service in self._services:
                if service.child is child:
                    self._died(service, child, event, reason, now)

    def _died(self, service: Service, child: Child, event: Exited, reason: str, now: float) -> None:
        service.child = None
        if self._swap is not None and service is self._scheduler:
            self._swap.old_gone = True
            return
        if event.status == 0 and child.stopped is not None and child.stopped.fenced:
            self._note(f"{service.role} gave way to another: {reason}")
            return
        if event.status == EXIT_CONFIG:
            self._give_up(service, f"cannot work: {reason}", EXIT_CONFIG, now)
            return
        delay = service.crashes.record(now)
        if delay is None:
            crashes = len(service.crashes)
            self._give_up(service, f"ended {crashes} times in a short while: {reason}", 1, now)
            return
        service.restart_at = now + delay
        service.restarts += 1
        self._note(f"{service.role} ended ({reason}); starts again in {delay:g} s")

    def _give_up(self, service: Service, reason: str, status: int, now: float) -> None:
        """Fall back to another scheduler, or end everything with `status`."""
        other = self._next_best() if service is self._scheduler else None
        # A first scheduler that cannot work is the operator's mistake: better shown than mended.
        if other is None or (status == EXIT_CONFIG and not self._worked):
            self._note(f"{service.role} {reason}; giving up")
            self._status = status
            self._begin_drain()
            return
        assert service.choice is not None
        self._note(f"scheduler {service.choice.policy} {reason}; falls back to {other.policy}")
        service.choice = other
        service.crashes.forget()
        service.restart_at = now

    def _next_best(self) -> Choice | None:
        if self._scheduler.choice is not None:
            self._broken.append(self._scheduler.choice)
        candidates: Iterable[Choice] = (*reversed(self._worked), self._config.fallback)
        return next((c for c in candidates if c not in self._broken), None)

    # --- swap ---

    def _swap_asked(self, ticket: int, choice: Choice, now: float) -> None:
        refusal = ""
        if self._drain is not None:
            refusal = "the server is ending"
        elif self._swap is not None:
            refusal = "another swap is under way"
        elif not self._worker_ready():
            refusal = "the worker is not ready"
        if refusal:
            self._effects.append(SwapAnswered(ticket, error=refusal))
            return
        child = self._new_child(Role.SCHEDULER, choice, now)
        child.must(BECOME_READY, self._config.swap_timeout_s, now)
        self._swap = Swap(ticket, now, child)
        # An old one that does not act yet must not start to act after the new one.
        old, self._scheduler.restart_at = self._scheduler.child, None
        if old is None:
            self._swap.old_gone = True
        elif not old.ready:
            self._kill(old)

    def _take_over(self, swap: Swap, now: float) -> None:
        """The new scheduler acts: the old one is fenced, and has a while to notice."""
        self._swap = None
        service, old = self._scheduler, self._scheduler.child
        if old is not None:
            old.must("leave after it was fenced", self._config.fence_timeout_s, now)
        service.child, service.choice = swap.child, swap.child.choice
        service.restart_at = None
        service.crashes.forget()
        self._broken.clear()
        self._effects.append(SwapAnswered(swap.ticket, swap.child.key, now - swap.began))

    def _swap_failed(self, swap: Swap, reason: str, now: float) -> None:
        self._swap = None
        self._effects.append(SwapAnswered(swap.ticket, error=reason))
        if swap.old_gone:
            self._fill(self._scheduler, now)

    # --- the end ---

    def _stop_asked(self, now: float) -> None:
        if self._drain is None:
            self._begin_drain()
            return
        self._note("ending at once")
        self._status = 1
        for child in self._children.values():
            self._effects.append(Signal(child.key, signal.SIGKILL))

    def _begin_drain(self) -> None:
        self._drain = list(DRAIN_ORDER)
        for service in self._services:
            service.restart_at = None
        if self._swap is not None:
            self._effects.append(SwapAnswered(self._swap.ticket, error="the server is ending"))
            self._swap = None
        self._note("ending: open streams are finished first")

    def _ended_in_drain(self, child: Child, event: Exited, reason: str) -> None:
        if event.status != 0 and child.ready:
            self._status = self._status or 1
            self._note(f"{child.role} did not end well: {reason}")

    def _drain_on(self, now: float) -> None:
        assert self._drain is not None
        while self._drain:
            living = [c for c in self._children.values() if c.role == self._drain[0]]
            if not living:
                self._drain.pop(0)
                continue
            for child in living:
                self._ask_to_end(child, now)
            return
        self._effects.append(Done(self._status))

    def _ask_to_end(self, child: Child, now: float) -> None:
        if child.signalled:
            return
        child.signalled = True
        if not child.ready:
            # It has nothing to finish, and may not look at signals before its start is over.
            self._effects.append(Signal(child.key, signal.SIGKILL))
            return
        config, gateway = self._config, child.role == Role.GATEWAY
        child.must("end", config.drain_timeout_s if gateway else config.stop_timeout_s, now)
        self._effects.append(Signal(child.key, signal.SIGTERM))

    # --- time ---

    def _pass_time(self, now: float) -> None:
        for child in self._children.values():
            if child.deadline is not None and child.deadline <= now:
                self._kill(child)
        for service in self._services:
            if service.restart_at is not None and service.restart_at <= now:
                self._fill(service, now)
        if self._drain is not None:
            self._drain_on(now)

    def _kill(self, child: Child) -> None:
        child.is_free()
        child.overdue = True
        self._effects.append(Signal(child.key, signal.SIGKILL))
