"""The launcher: carries out what the supervisor decides, with real processes, pipes and signals.

Thin on purpose: every rule is in `ops.supervisor`. One thread, one event loop.
"""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ops.admin import GetStatus, ProcessStatus, Refused, Reply, Request, ServerStatus, Swap, Swapped
from ops.children import Service
from ops.display import Display
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
    Tick,
)
from ops.process import Process
from ops.supervisor import Supervisor
from protocol.lifecycle import EXIT_CONFIG, Ready, Stage, parse_report

Command = Callable[[Start, int], Sequence[str]]
"""(what to start, readiness descriptor) → command line."""


class Launcher:
    """Runs one server until it is told to stop, or gives up.

    `command` says how each process is started, `environment` is what it inherits.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        command: Command,
        environment: Mapping[str, str],
        display: Display,
        run_dir: str,
    ) -> None:
        self._supervisor, self._command = supervisor, command
        self._environment, self._display, self._run_dir = environment, display, run_dir
        self._processes: dict[Key, Process] = {}
        self._roles: dict[Key, Role] = {}
        self._tickets = itertools.count(1)
        self._swaps: dict[int, asyncio.Future[SwapAnswered]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.serving = asyncio.Event()
        """Set when every process has become ready."""
        self._done: asyncio.Future[int] = self._loop.create_future()

    # --- for whoever runs it ---

    async def run(self) -> int:
        """Start everything and return the exit status when all has ended."""
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        try:
            self._carry_out(self._supervisor.start(self._loop.time()))
            return await self._done
        finally:
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)
            for process in self._processes.values():
                process.signal(signal.SIGKILL)

    def stop(self) -> None:
        """Drain and end; the second time at once."""
        self._feed(StopAsked())

    async def swap(self, choice: Choice) -> SwapAnswered:
        """Replace the scheduler and return how it went."""
        ticket = next(self._tickets)
        answer: asyncio.Future[SwapAnswered] = self._loop.create_future()
        self._swaps[ticket] = answer
        self._feed(SwapAsked(ticket, choice))
        return await answer

    async def handle(self, request: Request) -> Reply:
        """Carry out an order from the admin socket."""
        match request:
            case GetStatus():
                return self.status()
            case Swap(scheduler, options):
                answer = await self.swap(Choice(scheduler, options))
                if answer.error:
                    return Refused(answer.error)
                process = self._processes.get(answer.key)
                return Swapped(scheduler, process.pid if process else 0, answer.seconds)

    @property
    def url(self) -> str:
        """Where the gateway listens, empty until it does."""
        for service in self._supervisor.services:
            if service.role == Role.GATEWAY and service.child is not None:
                return str(service.child.facts.get("url", ""))
        return ""

    def status(self) -> ServerStatus:
        """Say what runs."""
        rows = tuple(self._row(service) for service in self._supervisor.services)
        return ServerStatus(self._run_dir, self.url, os.getpid(), rows)

    def _row(self, service: Service) -> ProcessStatus:
        child, pid, state = service.child, 0, "down"
        if child is not None and child.key in self._processes:
            pid = self._processes[child.key].pid
            state = "ready" if child.ready else "starting"
            state = "ending" if child.signalled else state
        detail = service.choice.policy if service.choice is not None else ""
        return ProcessStatus(service.role, pid, state, service.restarts, detail)

    # --- events ---

    def _feed(self, event: Event) -> None:
        self._carry_out(self._supervisor.on(event, self._loop.time()))

    def _reap(self) -> None:
        for key, process in list(self._processes.items()):
            if (status := process.ended()) is not None:
                del self._processes[key]
                self._display.forget(key)
                self._feed(Exited(key, status, process.last_words))

    def _report(self, key: Key, line: bytes) -> None:
        role = self._roles[key]
        try:
            report = parse_report(line)
        except msgspec.DecodeError as error:
            self._display.note(f"{role} sent a report that is none: {error}")
            return
        if isinstance(report, Stage):
            self._display.stage(key, role, report)
        elif isinstance(report, Ready):
            self._display.forget(key)
        self._feed(Reported(key, report))

    # --- effects ---

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    self._start(effect)
                case Signal(key, number):
                    if key in self._processes:
                        self._processes[key].signal(number)
                case SwapAnswered(ticket):
                    self._answered(ticket, effect)
                case Note(text):
                    self._display.note(text)
                case Serving():
                    self._display.close()
                    self.serving.set()
                case Done(status):
                    self._display.close()
                    if not self._done.done():
                        self._done.set_result(status)
        self._set_timer()

    def _start(self, start: Start) -> None:
        key, role = start.key, start.role
        self._roles[key] = role
        try:
            self._processes[key] = Process(
                lambda descriptor: self._command(start, descriptor),
                self._environment,
                lambda line: self._report(key, line),
                lambda text: self._display.line(role, text),
            )
        except OSError as error:
            reason = f"cannot be started: {error}"
            self._loop.call_soon(self._feed, Exited(key, EXIT_CONFIG, reason))

    def _answered(self, ticket: int, answer: SwapAnswered) -> None:
        waiting = self._swaps.pop(ticket)
        if not waiting.done():  # the caller may have left
            waiting.set_result(answer)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._supervisor.deadline()
        if due is not None and not self._done.done():
            self._timer = self._loop.call_at(due, self._feed, Tick())
