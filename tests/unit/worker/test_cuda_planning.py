"""What the CUDA executor decides before it touches the device: buckets, memory, nesting."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protocol.model_files import ModelFiles
from worker.executors.cuda.config import CudaConfig, bucket_for
from worker.executors.cuda.nesting import PartitionError, fitting, verify
from worker.executors.cuda.pool import MemoryPlan, PoolTooSmall, make_pool, page_bytes
from worker.executors.cuda.start import CudaUnfit, start_from_settings
from worker.models.config import ModelConfig, RopeConfig
from worker.settings import DType, WorkerSettings

CONFIG = CudaConfig(
    device=0,
    max_slots=48,
    max_model_len=1000,
    max_prefill_tokens=8192,
    page_size=16,
    num_pages=None,
    memory_utilization=0.9,
    require_partitions=False,
    graph_rows=(1, 2, 4, 8, 16, 32, 64),
)
MODEL = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    rope=RopeConfig(1e4),
    max_position_embeddings=1000,
    tie_word_embeddings=False,
)


def test_buckets_end_with_the_largest_batch():
    assert CONFIG.buckets == (1, 2, 4, 8, 16, 32, 48)
    assert bucket_for(CONFIG.buckets, 33) == 48
    assert bucket_for(CONFIG.buckets, 32) == 32
    assert bucket_for(CONFIG.buckets, 49) is None


def test_no_graphs_means_no_buckets():
    assert dataclasses.replace(CONFIG, graph_rows=()).buckets == ()


def test_a_page_table_holds_the_longest_sequence():
    assert CONFIG.pages_per_slot == 63


@pytest.mark.parametrize("by_page", [False, True])
def test_pages_of_the_pool_are_disjoint_and_cover_it(by_page: bool):
    pool = make_pool(MODEL, 4, 8, torch.device("cpu"), by_page)
    views = [view for pair in zip(pool.keys, pool.values, strict=True) for view in pair]
    assert all(view.shape == (5, 8, 2, 16) for view in views)
    for number, view in enumerate(views):
        for page in range(5):
            view[page] = number * 5 + page + 1
    for number, view in enumerate(views):
        for page in range(5):
            assert (view[page] == number * 5 + page + 1).all()
    assert pool.scratch_page == 4
    assert sum(view.nbytes for view in views) == 5 * page_bytes(MODEL, 8)


def test_keys_and_values_have_the_same_strides():
    pool = make_pool(MODEL, 4, 8, torch.device("cpu"), by_page=True)
    assert {view.stride() for view in (*pool.keys, *pool.values)} == {pool.keys[0].stride()}


def test_the_pool_takes_what_is_left_of_the_share():
    plan = MemoryPlan(total=1000, used=300, parked=100, utilization=0.9, page=50)
    assert plan.num_pages(1) == 9


def test_a_pool_that_holds_no_sequence_is_refused_with_the_figures():
    plan = MemoryPlan(total=1 << 30, used=1 << 30, parked=0, utilization=0.9, page=1 << 20)
    with pytest.raises(PoolTooSmall, match=r"1024 MiB × 0.9 less 1024 MiB.*0 pages.*at least 5"):
        plan.num_pages(5)


def test_splits_leave_each_side_eight_sms():
    assert fitting((112, 128, 32, 32, 4), 132) == [112, 32]


def ids(first: int, end: int) -> frozenset[int]:
    return frozenset(range(first, end))


def test_a_nested_disjoint_table_is_accepted():
    verify([ids(0, 24), ids(0, 16)], [ids(24, 32), ids(16, 32)])


def test_sides_that_share_an_sm_are_refused():
    with pytest.raises(PartitionError, match=r"row 1: both sides run on SMs \[23\]"):
        verify([ids(0, 24)], [ids(23, 32)])


def test_rows_that_are_not_nested_are_refused():
    with pytest.raises(PartitionError, match="row 2 is not nested in row 1"):
        verify([ids(0, 24), ids(8, 24)], [ids(24, 32), ids(0, 8)])


def test_float32_on_a_gpu_is_refused_before_anything_is_loaded():
    settings = WorkerSettings(run_dir="/nowhere", dtype=DType.FLOAT32)
    files = ModelFiles("hf", Path("/nowhere"), "m")
    with pytest.raises(CudaUnfit, match="--dtype float32"):
        start_from_settings(settings, "m", files, lambda *_: None)
