"""What a lane is given, as the predictors see it: the sums of MuxWise's eq. 1 and 2.

Apart from the estimators, because policies make them from a view, learning makes them from device
works and the profiler from its own grid, and all three must mean the same.
"""

from collections.abc import Iterable
from typing import NamedTuple

from protocol.control_link import DeviceWork, RequestView
from scheduler.view import to_prefill


class DecodeLoad(NamedTuple):
    """One decode iteration."""

    rows: int
    """Batch size (bs)."""
    context: int
    """Tokens attended to, over all rows (Σr)."""

    @classmethod
    def of_work(cls, work: DeviceWork) -> "DecodeLoad":
        """Return what an iteration that has run was given."""
        return cls(work.batch_size, work.context_tokens)


class PrefillLoad(NamedTuple):
    """One prefill batch through all layers."""

    new: int
    """Tokens to compute (Σn)."""
    squared: int
    """Σn²."""
    times_reused: int
    """Σn·r."""
    reused: int
    """Tokens attended to and not computed (Σr)."""
    rows: int = 1
    """Prompts."""

    @classmethod
    def of_prompts(cls, prompts: Iterable[tuple[int, int]]) -> "PrefillLoad":
        """Return the load of prompts, each given as (new, reused) tokens."""
        new = squared = times_reused = reused = rows = 0
        for n, r in prompts:
            rows += 1
            new += n
            squared += n * n
            times_reused += n * r
            reused += r
        return cls(new, squared, times_reused, reused, rows)

    @classmethod
    def of_work(cls, work: DeviceWork) -> "PrefillLoad":
        """Return what a quantum that has run was given."""
        return cls(
            work.new_tokens,
            work.new_squared,
            work.new_times_reused,
            work.reused_tokens,
            work.batch_size,
        )

    @classmethod
    def of_requests(cls, requests: Iterable[RequestView]) -> "PrefillLoad":
        """Return what is left to compute of `requests`, each at least one token."""
        new = squared = times_reused = reused = rows = 0
        for request in requests:  # written out: asked for many prompts at a decision
            n = to_prefill(request) or 1
            r = request.prompt_tokens - n
            new += n
            squared += n * n
            if r > 0:
                times_reused += n * r
                reused += r
        return cls(new, squared, times_reused, reused, rows)


NOTHING = PrefillLoad(0, 0, 0, 0, 0)
"""No prefill beside decode."""
