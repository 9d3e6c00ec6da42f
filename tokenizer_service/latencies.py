"""Latencies of the last seconds as quantiles, for those who look at a server now.

Histograms that only grow, as Prometheus wants them, say nothing of now without a second scrape.
Values fall into buckets of 5 %, so an observation costs one addition, whatever the load.
"""

import math
from collections import deque

from msgspec import Struct

SHORTEST_S = 1e-4
LONGEST_S = 1e4
STEP = math.log(1.05)
BUCKETS = math.ceil(math.log(LONGEST_S / SHORTEST_S) / STEP) + 1
SPAN_S = 10.0
PART_S = 0.5
"""Old observations leave in parts of the span."""


class Summary(Struct, frozen=True, kw_only=True):
    """The observations of the last `SPAN_S` seconds. Seconds, right to 5 %; 0: there are none."""

    count: int
    p50_s: float = 0.0
    p99_s: float = 0.0
    within: int = 0
    """Those that kept their objective."""


class _Part:
    __slots__ = ("begins", "count", "counts", "within")

    def __init__(self, begins: float) -> None:
        self.begins = begins
        self.counts: dict[int, int] = {}
        self.count = self.within = 0


class Window:
    """One kind of latency. Times on the caller's clock."""

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()

    def observe(self, seconds: float, objective_s: float, now: float) -> None:
        """Count one."""
        if not self._parts or now - self._parts[-1].begins >= PART_S:
            self._parts.append(_Part(now))
            self._forget(now)
        part = self._parts[-1]
        bucket = _bucket(seconds)
        part.counts[bucket] = part.counts.get(bucket, 0) + 1
        part.count += 1
        part.within += seconds <= objective_s

    def summary(self, now: float) -> Summary:
        """Return what the last seconds were like."""
        self._forget(now)
        counts = [0] * BUCKETS
        for part in self._parts:
            for bucket, count in part.counts.items():
                counts[bucket] += count
        total = sum(part.count for part in self._parts)
        return Summary(
            count=total,
            p50_s=_quantile(counts, total, 0.5),
            p99_s=_quantile(counts, total, 0.99),
            within=sum(part.within for part in self._parts),
        )

    def _forget(self, now: float) -> None:
        while self._parts and now - self._parts[0].begins > SPAN_S:
            self._parts.popleft()


class Latencies:
    """Both kinds, of all requests of a gateway."""

    def __init__(self) -> None:
        self.ttft = Window()
        self.tbt = Window()


def _bucket(seconds: float) -> int:
    within = min(max(seconds, SHORTEST_S), LONGEST_S)
    return math.floor(math.log(within / SHORTEST_S) / STEP)


def _quantile(counts: list[int], total: int, share: float) -> float:
    """Return the middle of the bucket that holds the value of rank ceil(share · total)."""
    rank = math.ceil(share * total)
    for bucket, count in enumerate(counts):
        rank -= count
        if count and rank <= 0:
            return SHORTEST_S * math.exp((bucket + 0.5) * STEP)
    return 0.0
