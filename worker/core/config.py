"""What the worker's state machine must be told, besides what its device says of itself."""

from dataclasses import dataclass

from protocol.data_link import WorkerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Bounds and times of the core. Times in seconds."""

    max_queued_requests: int = 1024
    """Requests accepted and not started; the bound that credits are made of."""
    max_queued_tokens: int = 4 << 20
    """Tokens to prefill of those requests together. No single prompt may be longer."""
    max_num_seqs: int = 256
    """Rows of a decode batch at most."""
    gateway_grace_s: float = 5.0
    """From a gateway's silence until its requests are aborted."""
    ticket_deadline_s: float = 60.0
    """Longest time at the head of a lane before the device counts as wedged. A multiple of the
    longest launch; time in which the worker itself stood still does not count."""
    max_launch_errors: int = 3
    """Failed launches in a row after which the device counts as broken."""
    ended_requests: int = 4096
    """Terminal requests remembered for a resync or a repeated submit."""
    ended_tokens: int = 4 << 20
    """Output tokens remembered of them."""

    def __post_init__(self) -> None:
        """Refuse what can never work."""
        for name in ("max_queued_requests", "max_queued_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, at least 1 is needed")

    @property
    def limits(self) -> WorkerLimits:
        """As peers are told."""
        return WorkerLimits(
            max_queued_requests=self.max_queued_requests,
            max_queued_tokens=self.max_queued_tokens,
            max_num_seqs=self.max_num_seqs,
        )
