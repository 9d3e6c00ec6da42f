"""What goes into the worker's state machine and what comes out, as plain data.

The shell (`worker/main.py`) owns sockets, clock and executor and only translates: frames and
completions to events, effects to frames and launches.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.control_link import ControlToWorker, ToScheduler
from protocol.data_link import ToGateway, ToWorker
from worker.executors.base import Completion, Launch


@dataclass(frozen=True, slots=True)
class FromGateway:
    """A message came in on the data link."""

    peer: bytes
    message: ToWorker


@dataclass(frozen=True, slots=True)
class FromScheduler:
    """A message came in on the control link."""

    peer: bytes
    message: ControlToWorker


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A peer is not heard any more."""

    link: Literal["data", "control"]
    peer: bytes


@dataclass(frozen=True, slots=True)
class Completed:
    """A launch has completed on the device."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: deadlines, status. A few times a second is enough."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The process was asked to stop: take nothing new. Final: give up what is left, too."""

    final: bool = False


CoreEvent = FromGateway | FromScheduler | PeerDown | Completed | Tick | Drain


@dataclass(frozen=True, slots=True)
class SendData:
    """Send to a gateway."""

    peer: bytes
    message: ToGateway


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send to a scheduler."""

    peer: bytes
    message: ToScheduler


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """Give `work` to the executor."""

    work: Launch


@dataclass(frozen=True, slots=True)
class DiscardBatch:
    """Drop the parked hidden states of a prefill batch; none of its quanta is in flight."""

    batch: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """The device cannot be relied on any more: the process must end."""

    reason: str


Effect = SendData | SendControl | LaunchWork | DiscardBatch | Fatal
