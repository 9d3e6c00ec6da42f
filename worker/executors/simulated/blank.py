"""No model at all: launches take time and every token is 0.

For load without a worker's core behind it (the profiler), whose contexts nobody has written, where
the fake model of `forward.py` would rightly refuse them.
"""

from worker.executors.base import DecodeBatch, Launch, PrefillQuantum, SampledToken


class BlankForward:
    """Takes any launch; remembers which batches are parked."""

    def __init__(self, layers: dict[str, int]) -> None:
        """`layers`: of each model."""
        self._layers = layers
        self._parked: set[int] = set()

    @property
    def parked(self) -> list[int]:
        """Batches with parked hidden states."""
        return sorted(self._parked)

    def discard(self, batch: int) -> None:
        """Drop a parked batch."""
        self._parked.discard(batch)

    def begin(self, work: Launch) -> None:
        """Nothing to read."""

    def fail(self, work: Launch) -> None:
        """Nothing is lost."""

    def end(self, work: Launch) -> tuple[SampledToken, ...]:
        """Draw a 0 for whoever samples."""
        if isinstance(work, DecodeBatch):
            rows = (row.slot for row in work.chunks if row.sample)
            return tuple(SampledToken(slot, 0) for slot in (*work.slots, *rows))
        return self._end_quantum(work)

    def _end_quantum(self, work: PrefillQuantum) -> tuple[SampledToken, ...]:
        if work.layer_end < self._layers[work.model]:
            self._parked.add(work.batch)
            return ()
        self._parked.discard(work.batch)
        return tuple(SampledToken(row.slot, 0) for row in work.rows if row.sample)
