"""When each lane computes, and for how long of that the other one did too. No clock inside."""

from dataclasses import dataclass

from protocol.control_link import Lane

OTHER = {Lane.PREFILL: Lane.DECODE, Lane.DECODE: Lane.PREFILL}


@dataclass(slots=True)
class _Run:
    started: float
    overlap_s: float = 0.0


class BusyTimes:
    """Running launches of both lanes, at most one each. Times are seconds that never go back."""

    def __init__(self) -> None:
        self._running: dict[Lane, _Run] = {}

    def begin(self, lane: Lane, now: float) -> None:
        """`lane` starts a launch. Raises ValueError when it has one running."""
        if lane in self._running:
            raise ValueError(f"lane {lane} starts a launch before its last one has ended")
        self._running[lane] = _Run(now)

    def end(self, lane: Lane, now: float) -> tuple[float, float]:
        """`lane` ends its launch. Returns (started, seconds that the other lane was busy too)."""
        run = self._running.pop(lane)
        other = self._running.get(OTHER[lane])
        if other is not None:
            both = now - max(run.started, other.started)
            run.overlap_s += both
            other.overlap_s += both
        return run.started, run.overlap_s
