"""What a run came to, from times alone: definitions, no clock, no I/O.

All times are seconds from the start of the run. TTFT counts from the *scheduled* arrival: a
generator or a server that makes a request wait before it is sent does not thereby look faster. TBT
is every gap between pieces of a stream, all requests pooled; TPOT, attainment and goodput are the
request's. docs/benchmarks/README.md says how other tools name them.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from msgspec import Struct

from ops.bench.engine_metrics import percentile

LATE_S = 0.010
"""P99 of the generator's own delays beyond which a run is not what it says."""
GREW, CHANCE = 1.4, 2.0
"""A queue grows if it is GREW times as long in the last third of the arrivals as in the middle one
(5/3 when it grows steadily from nothing, 1 when it does not), and by more than CHANCE requests.
"""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one request."""

    scheduled: float
    sent: float
    chunks: tuple[float, ...]
    """When each piece of output came."""
    ended: float
    status: str
    """finished, rejected (a status other than 200), failed (an error later), or unfinished."""
    input_tokens: int
    wanted_tokens: int
    """Output tokens that were asked for."""
    output_tokens: int
    """Output tokens by the server's own count; without one, the pieces."""
    cached_tokens: int = 0
    """Input tokens that the server says it had."""
    tag: str = ""
    detail: str = ""
    """What the server said, when it did not finish."""

    @property
    def ttft(self) -> float:
        """Time to first token, from the scheduled arrival. There must be a chunk."""
        return self.chunks[0] - self.scheduled

    @property
    def e2e(self) -> float:
        """Time to the last token, from the scheduled arrival. There must be a chunk."""
        return self.chunks[-1] - self.scheduled

    @property
    def gaps(self) -> list[float]:
        """Times between tokens."""
        return [b - a for a, b in pairwise(self.chunks)]

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two."""
        if self.output_tokens < 2 or not self.chunks:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)


class Limits(Struct, frozen=True, kw_only=True):
    """Objectives of a request, seconds."""

    tbt_s: float
    ttft_s: float
    ttft_per_token_s: float
    """Added to `ttft_s` for each input token that the server had to compute."""
    gap_share: float
    """Share of a request's gaps that must be within `tbt_s`."""

    def ttft_of(self, outcome: Outcome) -> float:
        """Return the limit of one request's TTFT."""
        new = outcome.input_tokens - outcome.cached_tokens
        return self.ttft_s + self.ttft_per_token_s * new

    def in_time(self, outcome: Outcome) -> bool:
        """Whether a request had its first token within its limit."""
        return bool(outcome.chunks) and outcome.ttft <= self.ttft_of(outcome)

    def kept(self, outcome: Outcome) -> bool:
        """Whether a request finished with its objectives kept."""
        if outcome.status != "finished" or not outcome.chunks:
            return False
        gaps = outcome.gaps
        within = sum(gap <= self.tbt_s for gap in gaps)
        return self.in_time(outcome) and within >= self.gap_share * len(gaps)


class Spread(Struct, frozen=True):
    """A distribution in five numbers; all 0 when it is empty. Percentiles by nearest rank."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of `values`."""
        if not values:
            return cls()
        p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(fmean(values), p50, p90, p99, max(values), len(values))


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one run. Seconds, and per second."""

    requests: int
    finished: int
    rejected: int
    failed: int
    unfinished: int
    duration: float
    """From the first scheduled arrival to the last end."""
    ttft: Spread
    tbt: Spread
    """Gaps of all requests, pooled."""
    tbt_p99_of_requests: Spread
    """Of each request's own P99 gap."""
    tpot: Spread
    e2e: Spread
    """Of finished requests."""
    slo_attainment: float
    """Requests that kept their objectives, of all that were scheduled."""
    ttft_attainment: float
    """Requests whose first token was in time, of all that were scheduled."""
    goodput_rps: float
    """The same requests per second of `duration`."""
    scheduled_rps: float
    offered_rps: float
    """Rates at which requests were to be sent and were sent, by the mean gap."""
    output_tokens_per_s: float
    input_tokens_per_s: float
    tokens_per_chunk: float
    """1: every gap is one token's. More: the server sent several at once, and says so by usage."""
    cached_share: float
    """Of finished requests' input tokens, those that the server had."""
    queue_grew: bool
    lateness: Spread
    """From the scheduled time to the moment before sending: the generator's own fault."""
    loop_lag: Spread
    """How late the generator noticed what had come."""
    fell_behind: bool
    """P99 of either was over LATE_S: the figures are the generator's as much as the server's."""


def rate(times: Sequence[float]) -> float:
    """Return events per second by the mean gap; 0 for fewer than two, or all at once."""
    span = max(times) - min(times) if times else 0.0
    return (len(times) - 1) / span if span else 0.0


def waiting(outcomes: Sequence[Outcome], at: float) -> int:
    """Return how many requests had arrived at a time and had no token yet, nor ended."""

    def served(outcome: Outcome) -> float:
        return outcome.chunks[0] if outcome.chunks else outcome.ended

    return sum(o.scheduled <= at < served(o) for o in outcomes)


def running(outcomes: Sequence[Outcome], at: float) -> int:
    """Return how many requests had a token at a time and were not over."""
    return sum(bool(o.chunks) and o.chunks[0] <= at < o.ended for o in outcomes)


def over_time(
    count: Callable[[Sequence[Outcome], float], int],
    outcomes: Sequence[Outcome],
    end: float,
    points: int,
) -> list[tuple[float, int]]:
    """Return (time, count) at `points` evenly spaced times up to `end`."""
    times = [end * (i + 1) / points for i in range(points)]
    return [(time, count(outcomes, time)) for time in times]


def grew(outcomes: Sequence[Outcome]) -> bool:
    """Whether the queue of requests without a token grew while requests came: the load is more than
    the server takes, however good the percentiles of a run that ended early look.
    """
    end = max((o.scheduled for o in outcomes), default=0.0)
    lengths = [length for _, length in over_time(waiting, outcomes, end, 90)]
    middle, last = fmean(lengths[30:60]), fmean(lengths[60:])
    return last > GREW * middle and last > middle + CHANCE


def summarize(outcomes: Sequence[Outcome], limits: Limits, lags: Sequence[float]) -> Summary:
    """Return the figures of a run; `outcomes` in any order, at least one. `lags`: what the
    generator's heartbeat measured, seconds.
    """
    done = [o for o in outcomes if o.status == "finished" and o.chunks]
    spoke = [o for o in outcomes if o.chunks]
    gaps = [o.gaps for o in spoke]
    good = sum(map(limits.kept, outcomes))
    duration = max(o.ended for o in outcomes) - min(o.scheduled for o in outcomes)
    lateness, lag = Spread.of([o.sent - o.scheduled for o in outcomes]), Spread.of(lags)
    chunks = sum(len(o.chunks) for o in done)
    inputs = sum(o.input_tokens for o in done)

    def count(status: str) -> int:
        return sum(o.status == status for o in outcomes)

    return Summary(
        requests=len(outcomes),
        finished=len(done),
        rejected=count("rejected"),
        failed=count("failed"),
        unfinished=len(outcomes) - len(done) - count("rejected") - count("failed"),
        duration=duration,
        ttft=Spread.of([o.ttft for o in spoke]),
        tbt=Spread.of([gap for own in gaps for gap in own]),
        tbt_p99_of_requests=Spread.of([percentile(own, 0.99) for own in gaps if own]),
        tpot=Spread.of([o.tpot for o in done if o.tpot is not None]),
        e2e=Spread.of([o.e2e for o in done]),
        slo_attainment=good / len(outcomes),
        ttft_attainment=sum(map(limits.in_time, outcomes)) / len(outcomes),
        goodput_rps=good / duration if duration else 0.0,
        scheduled_rps=rate([o.scheduled for o in outcomes]),
        offered_rps=rate([o.sent for o in outcomes]),
        output_tokens_per_s=sum(o.output_tokens for o in spoke) / duration if duration else 0.0,
        input_tokens_per_s=inputs / duration if duration else 0.0,
        tokens_per_chunk=sum(o.output_tokens for o in done) / chunks if chunks else 0.0,
        cached_share=sum(o.cached_tokens for o in done) / inputs if inputs else 0.0,
        queue_grew=grew(outcomes),
        lateness=lateness,
        loop_lag=lag,
        fell_behind=max(lateness.p99, lag.p99) > LATE_S,
    )
