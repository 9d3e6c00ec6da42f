"""What happened in a life: calls and what came of them, and what could explain a failure.

The offline half of the oracles reads only this, so that a life is judged by what clients saw and
not by what the processes believe.
"""

from dataclasses import dataclass, field

from protocol.control_link import Plan
from protocol.sampling import Sampling
from tokenizer_service.events import Broken, Done
from worker.executors.simulated.fake_model import Stream


@dataclass(eq=False)
class Call:
    """One client's request."""

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    right: Stream
    """The output of a run without faults."""
    cached: bool
    """Whether its pages have names in the prefix cache."""
    began: float | None = None
    gateway: str = ""
    tokens: list[int] = field(default_factory=list)
    admitted: bool = False
    cancelled: bool = False
    stopped_at: int | None = None
    deaths_on_device: int = 0
    """Deaths of workers while it was on the device."""
    vanished: bool = False
    """Its gateway has died."""
    end: Done | Broken | None = None
    ended: float = 0.0

    @property
    def request(self) -> str:
        """Its id on the wire."""
        return f"r{self.number}"

    @property
    def waits(self) -> bool:
        """Whether somebody still waits for its end."""
        open_ = self.end is None and not self.cancelled and not self.vanished
        return self.began is not None and open_


@dataclass
class History:
    """One life, as far as it is judged afterwards."""

    calls: list[Call]
    boots: int = 0
    plans: list[Plan] = field(default_factory=list)
    """Plans that some worker was sent, for those who send them again."""
    deaths: list[str] = field(default_factory=list)
    """Of workers, and why."""
    exits: list[tuple[str, str, bool, int]] = field(default_factory=list)
    """Of schedulers: name, reason, fenced, status."""
    excuses: set[str] = field(default_factory=set)
    """Faults that allow a request to fail, by name."""
    events: int = 0
    """Events that worker cores were fed."""
    times: list[float] = field(default_factory=list)
    """When they were."""
    prefilled: int = 0
    """Prompt tokens that were launched."""
    retracted_in_flight: int = 0
    """Retractions of requests that launched work still touched."""
    faults: int = 0
    """Faults that took place."""
    log: list[str] = field(default_factory=list)
    """One line a fault, death, start or exit, with its time."""
