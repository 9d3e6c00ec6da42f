"""What the gateway knows of a worker: who it is, what it still takes, and whether it gets on.

Readiness is about progress from end to end, not about an open socket: a worker that hangs with work
at hand is not ready, however well its connection looks.
"""

from dataclasses import dataclass, field
from enum import Enum

from protocol.activity import Activity
from protocol.data_link import Credits, Load, ModelInfo, Status, Welcome


class Phase(Enum):
    """How far the conversation with the worker has got."""

    DOWN = "down"
    GREETING = "greeting"
    """The link is up and the hello is out."""
    READY = "ready"
    REFUSED = "refused"
    """The worker speaks another version of the protocol."""


@dataclass
class WorkerState:
    """Mirror of one worker. Times in seconds on the caller's monotonic clock."""

    since: float
    """When the current phase began."""
    phase: Phase = Phase.DOWN
    boot: str = ""
    """Of the last welcome; kept while the link is down."""
    models: tuple[ModelInfo, ...] = ()
    credits: Credits = field(default_factory=lambda: Credits(requests=0, tokens=0))
    max_prompt_tokens: int = 0
    """The worker's queue takes no longer prompt, ever."""
    max_requests: int = 0
    """The worker's queue takes no more at once, ever."""
    load: Load = field(default_factory=Load)
    activity: Activity | None = None
    """What the device did when it last said so; None: it has not since it was greeted."""
    progress_at: float = 0.0
    """When the worker last did something, or had nothing to do."""

    def enter(self, phase: Phase, now: float) -> None:
        """Change the phase."""
        if phase is not self.phase:
            self.phase, self.since = phase, now

    def welcome(self, message: Welcome, now: float) -> bool:
        """Take a welcome; return whether it is another boot than before."""
        self.enter(Phase.READY, now)
        changed = message.boot != self.boot
        self.boot, self.models, self.credits = message.boot, message.models, message.credits
        self.activity = None
        self.max_prompt_tokens = message.limits.max_queued_tokens
        self.max_requests = message.limits.max_queued_requests
        self.progress_at = now
        return changed

    def status(self, message: Status, now: float) -> None:
        """Take credits and load."""
        idle = message.load.running == 0 and message.load.queued == 0
        if idle or message.load.iterations != self.load.iterations:
            self.progress_at = now
        self.credits, self.load = message.credits, message.load
        self.activity = message.activity or self.activity

    def spend(self, tokens: int) -> None:
        """Count a request that is on its way against the credits, until the next status."""
        self.credits = Credits(
            requests=max(0, self.credits.requests - 1),
            tokens=max(0, self.credits.tokens - tokens),
        )

    def not_ready(self, now: float, stall_s: float) -> str | None:
        """Return why this worker is not ready; None: it is."""
        if self.phase is Phase.REFUSED:
            return "the worker speaks another protocol version"
        if self.phase is not Phase.READY:
            return "no worker"
        if self.load.draining:
            return "the worker is draining"
        if not self.load.scheduler:
            return "no scheduler"
        if now - self.progress_at > stall_s:
            return f"no progress for {now - self.progress_at:.0f} s"
        return None
