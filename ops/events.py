"""What the supervisor is told and what it answers, as plain data.

Apart from the supervisor so that its shell, its tests and its display name the same things without
reading its rules.
"""

import signal
from dataclasses import dataclass
from enum import StrEnum

from protocol.lifecycle import Report

Key = int
"""Number of a started process; never used again."""


class Role(StrEnum):
    """What a process is, in the order in which they are started."""

    WORKER = "worker"
    SCHEDULER = "scheduler"
    GATEWAY = "gateway"


@dataclass(frozen=True)
class Choice:
    """A scheduling policy and its options (`name=value`)."""

    policy: str
    options: tuple[str, ...] = ()


# --- events ---


@dataclass(frozen=True)
class Reported:
    """A process said something on its readiness pipe."""

    key: Key
    report: Report


@dataclass(frozen=True)
class Exited:
    """A process has ended: exit status, or minus the signal that killed it."""

    key: Key
    status: int
    last_words: str = ""
    """The end of its error output, for a message."""


@dataclass(frozen=True)
class SwapAsked:
    """The operator wants another scheduler. `ticket` names the caller in the answer."""

    ticket: int
    choice: Choice


@dataclass(frozen=True)
class StopAsked:
    """SIGTERM or Ctrl-C: drain; the second time: at once."""


@dataclass(frozen=True)
class Tick:
    """A deadline may have passed."""


Event = Reported | Exited | SwapAsked | StopAsked | Tick

# --- effects ---


@dataclass(frozen=True)
class Start:
    """Start a process. `choice` is set for a scheduler."""

    key: Key
    role: Role
    choice: Choice | None = None


@dataclass(frozen=True)
class Signal:
    """Send a signal to a process."""

    key: Key
    number: signal.Signals


@dataclass(frozen=True)
class SwapAnswered:
    """The end of a swap: `error` is empty when the new scheduler acts."""

    ticket: int
    key: Key = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Note:
    """A change of state that the operator should read."""

    text: str


@dataclass(frozen=True)
class Serving:
    """Every process has become ready for the first time."""


@dataclass(frozen=True)
class Done:
    """Nothing runs any more: exit with `status`."""

    status: int


Effect = Start | Signal | SwapAnswered | Note | Serving | Done
