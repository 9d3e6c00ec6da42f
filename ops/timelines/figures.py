"""What a recording says in numbers: bubbles, gaps, the time in which both lanes ran.

Bubble ratio as MuxWise 4.4.2 defines it: the share of a lane's time, from its first launch to the
end of its last, in which none of its launches runs; reported for each lane, and their mean. A lane
without work has bubbles too: the ratio tells of load as much as of the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ops.bench.engine_metrics import percentile
from ops.timelines.trace import Recording
from protocol.control_link import DeviceWork, Lane


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """Of one lane. Seconds."""

    launches: int
    busy_s: float
    span_s: float
    beside_s: float
    """Part of `busy_s` in which the other lane ran too."""
    mean_units: float
    """Over `busy_s`, as realized."""
    gap_p50_s: float
    """Between the end of a launch and the start of the next that was queued by then."""
    gap_p99_s: float

    @property
    def bubble_ratio(self) -> float:
        """Share of the lane's span in which it ran nothing."""
        return 1 - self.busy_s / self.span_s if self.span_s else 0.0


def lane_figures(recording: Recording, lane: Lane) -> LaneFigures | None:
    """Return a lane's figures; None when it completed nothing."""
    works = [work for work, _ in recording.works if work.lane is lane]
    if not works:
        return None
    works.sort(key=lambda work: work.started)
    busy = sum(work.seconds for work in works)
    gaps = _gaps(works) or [0.0]
    return LaneFigures(
        launches=len(works),
        busy_s=busy,
        span_s=works[-1].started + works[-1].seconds - works[0].started,
        beside_s=sum(work.overlap_s for work in works),
        mean_units=sum(work.units * work.seconds for work in works) / busy if busy else 0.0,
        gap_p50_s=percentile(gaps, 0.5),
        gap_p99_s=percentile(gaps, 0.99),
    )


def _gaps(works: Sequence[DeviceWork]) -> list[float]:
    """Return gaps before launches that waited: before others the lane had nothing to do."""
    return [
        max(0.0, after.started - before.started - before.seconds)
        for before, after in pairwise(works)
        if after.started - after.queued_s < before.started + before.seconds
    ]


def lines(recording: Recording) -> list[str]:
    """Return the figures for a terminal."""
    told, bubbles = [], []
    for lane in (Lane.PREFILL, Lane.DECODE):
        found = lane_figures(recording, lane)
        if found is None:
            told.append(f"{lane.value:8} nothing ran")
            continue
        bubbles.append(found.bubble_ratio)
        told.append(
            f"{lane.value:8} {found.launches} launches, bubble ratio {found.bubble_ratio:.1%}, "
            f"gap P50/P99 {found.gap_p50_s * 1e6:.0f}/{found.gap_p99_s * 1e6:.0f} µs, "
            f"beside the other lane {found.beside_s / (found.busy_s or 1):.0%} of its time, "
            f"on {found.mean_units:.1f} {recording.snapshot.unit}s in the mean"
        )
    if bubbles:
        told.append(
            f"bubbles  {sum(bubbles) / len(bubbles):.1%}, mean of the lanes (MuxWise 4.4.2)"
        )
    return told
