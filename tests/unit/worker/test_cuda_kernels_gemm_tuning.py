"""What is timed at a first start: every product that a lane meets and that is worth it, once."""

from worker.executors.cuda.kernels.gemm_plans import bucket_of
from worker.executors.cuda.kernels.gemm_tuning import (
    MOST_FUSED_ROWS,
    PREFILL_ROWS,
    decode_keys,
    prefill_keys,
)

LAYER = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
HEAD = (128256, 4096)


def test_every_row_count_of_a_decode_side_meets_a_timed_product() -> None:
    keys = {(key.m, key.n, key.k, key.sm_count) for key in decode_keys(LAYER, HEAD, [20, 36], 64)}
    for rows in range(1, MOST_FUSED_ROWS + 1):
        for n, k in LAYER:
            assert (bucket_of(rows), n, k, 36) in keys


def test_logits_are_timed_for_as_many_rows_as_may_be_drawn() -> None:
    heads = [key.m for key in decode_keys(LAYER, HEAD, [20], 64) if (key.n, key.k) == HEAD]
    assert max(heads) == 64


def test_a_large_decode_batch_raises_what_is_timed() -> None:
    assert max(key.m for key in decode_keys(LAYER, HEAD, [20], 500)) == 512


def test_nothing_is_timed_twice() -> None:
    keys = decode_keys([*LAYER, *LAYER, HEAD], HEAD, [20, 20, 36], 64)
    assert len(keys) == len(set(keys))


def test_small_models_are_left_to_the_heuristic() -> None:
    assert decode_keys([(960, 576)], (49152, 64), [20], 64) == []
    assert prefill_keys([(960, 576)], [112]) == []


def test_prefill_sides_are_timed_for_large_batches_only() -> None:
    keys = prefill_keys(LAYER, [112, 96])
    assert {key.m for key in keys} == set(PREFILL_ROWS)
    assert len(keys) == 2 * len(LAYER) * len(PREFILL_ROWS)
