"""Finds the highest rate that keeps the objectives, one question at a time. No I/O.

Answers may come from an earlier search: what is asked next follows from the highest rate that was
kept and the lowest that was missed.
"""

from dataclasses import dataclass

from ops.bench.metrics import Limits, Summary

STRETCH = 2.0
"""Factor between rates until one is kept and one is missed."""


@dataclass
class Bisection:
    """Between `kept` and `missed`, requests a second; ends when they are within `precision`."""

    start: float
    precision: float
    """missed / kept - 1 at which the search is over."""
    least: float
    """A rate below which nothing is looked for."""
    kept: float = 0.0
    missed: float = float("inf")

    def take(self, rate: float, kept: bool) -> None:
        """Take an answer. A rate that was kept above one that was missed does not count: a load
        that is missed once is too much.
        """
        if not kept:
            self.missed = min(self.missed, rate)
        elif rate < self.missed:
            self.kept = max(self.kept, rate)
        if self.kept >= self.missed:
            self.kept = 0.0

    def ask(self) -> float | None:
        """Return the rate to try next; None when there is nothing left to find out."""
        if self.kept and self.missed < float("inf"):
            near = self.missed / self.kept - 1 <= self.precision
            return None if near else (self.kept * self.missed) ** 0.5
        if self.kept:
            return self.kept * STRETCH
        if self.missed < float("inf"):
            lower = self.missed / STRETCH
            return lower if lower >= self.least else None
        return self.start


TTFT_SHARE = 0.99
"""Share of requests whose TTFT must be kept."""


def why_missed(summary: Summary, limits: Limits) -> str:
    """Return why a run does not keep the objectives, empty when it does: P99 of all gaps within
    the objective (MuxWise's goodput), every request finished, the queue stable, and TTFT kept by
    99 % of requests.
    """
    if summary.finished < summary.requests:
        return f"{summary.requests - summary.finished} of {summary.requests} did not finish"
    if summary.tbt.p99 > limits.tbt_s:
        return f"TBT P99 {1e3 * summary.tbt.p99:.1f} ms over {1e3 * limits.tbt_s:g} ms"
    if summary.ttft_attainment < TTFT_SHARE:
        return f"TTFT kept by {summary.ttft_attainment:.1%}, not {TTFT_SHARE:.0%}"
    return "the queue grew" if summary.queue_grew else ""
