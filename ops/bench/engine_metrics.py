"""Rates and gaps of an engine benchmark, from completions. Pure arithmetic.

TBT is the gap between the ends of consecutive decode iterations. Rates are taken over the window
from the end of the last warm-up iteration to the end of the last one; a prefill quantum counts for
the part of it that lies inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.executors.base import Completion


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run came to. Seconds, and tokens per second."""

    tbt_p50: float
    tbt_p99: float
    prefill_rate: float
    decode_rate: float
    gap_p99: float
    """From the end of an iteration to the start of the next one's kernels."""
    overlap: float
    """Share of the decode lane's time during which the prefill lane ran too."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * int(share * 1000) // 1000) - 1)]


def layer_tokens(
    quanta: Sequence[tuple[Completion, int]], begin: float, end: float, tokens: int
) -> float:
    """Return tokens × layers that quanta did between two times."""
    total = 0.0
    for done, layers in quanta:
        inside = min(done.finished, end) - max(done.started, begin)
        if inside > 0:
            total += layers * tokens * inside / (done.finished - done.started)
    return total


def measure(
    decode: Sequence[Completion],
    quanta: Sequence[tuple[Completion, int]],
    *,
    warm: int,
    rows: int,
    tokens: int,
    layers: int,
    chunk: int,
) -> Measured:
    """Measure a run. `tokens`: of a prompt in the prefill lane; `chunk`: fused per iteration."""
    counted = decode[warm:]
    ends = [done.finished for done in counted]
    gaps = [b - a for a, b in pairwise(ends)]
    window = ends[-1] - ends[0]
    steps = len(ends) - 1
    computed = layer_tokens(quanta, ends[0], ends[-1], tokens) / layers
    idle = [b.started - a.finished for a, b in pairwise(counted)]
    busy = sum(done.finished - done.started for done in counted)
    return Measured(
        tbt_p50=percentile(gaps, 0.5),
        tbt_p99=percentile(gaps, 0.99),
        prefill_rate=(computed + steps * chunk) / window,
        decode_rate=rows * steps / window,
        gap_p99=percentile(idle, 0.99),
        overlap=sum(done.overlap_s for done in counted) / busy,
    )


def prefill_rate(
    quanta: Sequence[tuple[Completion, int]], tokens: int, layers: int, warm: int
) -> float:
    """Return prompt tokens per second of a run of quanta alone."""
    counted = quanta[warm:]
    begin, end = counted[0][0].started, counted[-1][0].finished
    return layer_tokens(counted, begin, end, tokens) / layers / (end - begin)
