"""What the supervisor knows of the processes that it keeps: mutable records, changed only by it."""

import signal
from dataclasses import dataclass, field

from ops.events import Choice, Exited, Key, Role
from ops.restarts import Crashes
from protocol.lifecycle import Stopped


@dataclass
class Child:
    """A process that runs."""

    key: Key
    role: Role
    started: float
    choice: Choice | None = None
    deadline: float | None = None
    """When it is killed, unless something happens before."""
    expected: str = ""
    """What should have happened by then, as the end of "did not …"."""
    ready: bool = False
    signalled: bool = False
    stopped: Stopped | None = None
    facts: dict[str, str | int | float] = field(default_factory=dict)
    overdue: bool = False
    """Whether the supervisor killed it at its deadline."""

    def must(self, do: str, within_s: float, now: float) -> None:
        """Set the deadline for what is expected next."""
        self.deadline, self.expected = now + within_s, f"{do} within {within_s:g} s"

    def is_free(self) -> None:
        """Nothing is expected by any time."""
        self.deadline = None


@dataclass
class Service:
    """A place that should always have a process in it."""

    role: Role
    crashes: Crashes
    choice: Choice | None = None
    child: Child | None = None
    restart_at: float | None = None
    restarts: int = 0


@dataclass
class Swap:
    """A scheduler that is to take over."""

    ticket: int
    began: float
    child: Child
    old_gone: bool = False
    """The old one has left already."""


def why(child: Child, event: Exited) -> str:
    """Say why a process ended, from the best source there is."""
    if child.overdue:
        return f"did not {child.expected}"
    if child.stopped is not None:
        return child.stopped.reason
    if event.status < 0:
        text = f"killed by {signal.Signals(-event.status).name}"
    else:
        text = f"exit status {event.status}"
    last = event.last_words.strip().rsplit("\n", 1)[-1]
    return f"{text}: {last}" if last else text
