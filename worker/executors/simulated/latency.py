"""How long a launch takes on the simulated device.

The shapes are MuxWise's (section 3.2): prefill is compute, so its time goes with new tokens and
attended pairs and inversely with its units; decode is memory traffic, so its time goes with rows
and context and stops falling once its units draw the whole bandwidth.
"""

from dataclasses import dataclass

from worker.executors.base import DecodeBatch, PrefillQuantum, PrefillRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Seconds on the whole device, all layers, when the lane runs solo."""

    prefill_launch_s: float
    """Per quantum."""
    prefill_token_s: float
    prefill_pair_s: float
    """Per pair of a new token and one that it attends to."""
    decode_launch_s: float
    """Per iteration: weights are read once."""
    decode_row_s: float
    decode_context_s: float
    """Per token of context."""
    saturation: float
    """Share of the units from which on decode is as fast as on all of them, above 0."""
    prefill_slowdown: float
    """Factor on prefill while decode runs beside it, 1 or more."""
    decode_slowdown: float

    def prefill_s(self, work: PrefillQuantum, num_layers: int, share: float) -> float:
        """Return the solo time of a quantum on `share` (0..1] of the units."""
        layers = (work.layer_end - work.layer_start) / num_layers
        return self.prefill_launch_s + layers * self._rows_s(work.rows) / share

    def decode_s(self, work: DecodeBatch, share: float) -> float:
        """Return the solo time of an iteration; fused chunks are computed on top."""
        memory = (
            self.decode_launch_s
            + self.decode_row_s * len(work.slots)
            + self.decode_context_s * sum(work.positions)
        )
        return memory * max(1.0, self.saturation / share) + self._rows_s(work.chunks) / share

    def _rows_s(self, rows: tuple[PrefillRow, ...]) -> float:
        tokens = sum(len(row.token_ids) for row in rows)
        pairs = sum(len(row.token_ids) * (row.start + len(row.token_ids) / 2) for row in rows)
        return self.prefill_token_s * tokens + self.prefill_pair_s * pairs
