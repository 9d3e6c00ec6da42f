"""Which products are worth timing at the first start of a model on a GPU.

Decode sides are remainder groups, where the guess is far off, so all of their row counts are timed:
all products of an 8B iteration of 64 rows take 6.8 ms on 36 SMs in place of torch's 8.4, and 9.8 in
place of 18.9 on 20. First groups gain little, at large row counts. Small matrices are left to the
heuristic: they take no time worth saving, and test models have many.
"""

from collections.abc import Iterable

from worker.executors.cuda.kernels.gemm_plans import M_BUCKETS, GemmKey, bucket_of

LEAST_ELEMENTS = 4 << 20
"""Of a weight matrix that is worth timing."""

MOST_FUSED_ROWS = 384
"""Rows of a fused iteration on a decode side, up to which products are timed."""

PREFILL_ROWS = (8192,)
"""Where timing gained 4 to 5 % (Llama-3.1-8B); with fewer rows nothing beyond clocks' drift."""


def decode_keys(
    shapes: Iterable[tuple[int, int]], head: tuple[int, int], sm_counts: Iterable[int], rows: int
) -> list[GemmKey]:
    """Return keys for layer matrices `shapes` (n, k) and the output matrix `head`, without bias.

    `rows`: requests that decode at most, and so the rows that have logits.
    """
    fused = [m for m in M_BUCKETS if m <= max(MOST_FUSED_ROWS, bucket_of(rows))]
    drawn = [m for m in fused if m <= bucket_of(rows)]
    counts = list(dict.fromkeys(sm_counts))
    keys = [
        GemmKey(m, n, k, sms, False) for sms in counts for n, k in _large(shapes) for m in fused
    ]
    keys += [
        GemmKey(m, n, k, sms, False) for sms in counts for n, k in _large([head]) for m in drawn
    ]
    return list(dict.fromkeys(keys))


def prefill_keys(shapes: Iterable[tuple[int, int]], sm_counts: Iterable[int]) -> list[GemmKey]:
    """Return keys for layer matrices `shapes` (n, k), without bias."""
    counts = list(dict.fromkeys(sm_counts))
    return [
        GemmKey(m, n, k, sms, False)
        for sms in counts
        for n, k in _large(shapes)
        for m in PREFILL_ROWS
    ]


def _large(shapes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(n, k) for n, k in dict.fromkeys(shapes) if n * k >= LEAST_ELEMENTS]
