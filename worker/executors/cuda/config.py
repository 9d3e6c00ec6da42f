"""Configuration of the CUDA executor: one frozen value, made by whoever starts the worker.

Separate from the executor so that memory planning and bucket choice are testable without a GPU.
"""

from dataclasses import dataclass

PREFILL_SMS = (112, 104, 96, 80, 64, 48, 32)
"""SMs of the prefill side, the first group of each split of 132; decode takes the remainder.

Why this way round, and why multiples of 8: docs/benchmarks/engine-h200/README.md.
"""

DECODE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class CudaConfig:
    """What the executor is asked for. Nothing here has a default that the callee invents."""

    device: int
    """CUDA ordinal."""
    max_slots: int
    """Rows of a decode batch, and requests with device state, at most."""
    max_model_len: int
    """Tokens of one sequence at most."""
    max_prefill_tokens: int
    """New tokens of one forward at most, in either lane."""
    page_size: int
    """Tokens."""
    num_pages: int | None
    """Pages of the KV pool; None: what memory allows."""
    memory_utilization: float
    """Share of the device's memory that weights, graphs, activations and pool may take."""
    require_partitions: bool
    """Refuse to start where green contexts are missing, in place of falling back to streams."""
    prefill_sms: tuple[int, ...] = PREFILL_SMS
    """Splits to make, by the SMs of their prefill side; those that do not fit are left out."""
    graph_rows: tuple[int, ...] = DECODE_BUCKETS
    """Rows for which decode graphs are captured; empty: decode runs eagerly."""
    parked_batches: int = 4
    """Suspended prefill batches whose activations the memory plan has room for."""

    @property
    def pages_per_slot(self) -> int:
        """Entries of a page table."""
        return -(-self.max_model_len // self.page_size)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Graph sizes in ascending order, up to the first that holds `max_slots` rows."""
        if not self.graph_rows:
            return ()
        kept = [rows for rows in sorted(set(self.graph_rows)) if rows < self.max_slots]
        return (*kept, self.max_slots)


def bucket_for(buckets: tuple[int, ...], rows: int) -> int | None:
    """Return the smallest bucket that holds `rows`; None when no bucket does."""
    return next((bucket for bucket in buckets if bucket >= rows), None)
