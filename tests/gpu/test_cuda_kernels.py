"""The partition-aware kernels, on a GPU: right in every partition, while captured, and when cut."""

# ruff: noqa: E402  (the build environment is set before flashinfer is imported)

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from worker.executors.cuda.kernels import build

build.apply_environment()

from worker.executors.cuda.attention import INT_WORKSPACE, Attention, DevicePages
from worker.executors.cuda.kernels.attention_choice import Heads
from worker.executors.cuda.kernels.gemm import Gemm, GemmPlans
from worker.executors.cuda.kernels.gemm_library import GemmError, open_library
from worker.executors.cuda.kernels.gemm_plans import GemmChoice, GemmKey, GemmStore
from worker.executors.cuda.kernels.gemm_search import SearchSettings, tune
from worker.executors.cuda.kernels.sm_count import planned_for
from worker.executors.cuda.kernels.split import cut
from worker.executors.cuda.kernels.verify import plans_for_partition
from worker.executors.cuda.partitions import PartitionTable, Side, make_table

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda:0")
PAGE = 16
BF16_ERROR = 4e-3
"""Relative, L2: rounding of inputs' products to bfloat16."""


@pytest.fixture(scope="module")
def table() -> PartitionTable:
    torch.cuda.set_device(DEVICE)
    return make_table(0, (112, 64), require=True)


@pytest.fixture(scope="module")
def sides(table: PartitionTable) -> list[Side]:
    return [side for pair in table.pairs for side in (pair.prefill, pair.decode)]


@pytest.fixture
def plans(table: PartitionTable, tmp_path: Path) -> GemmPlans:
    remainders = [pair.decode.sms for pair in table.pairs[1:]]
    return GemmPlans(open_library(), GemmStore(tmp_path / "gemm.json"), remainders)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def expect(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x.double() @ weight.double().t()
    return product if bias is None else product + bias.double()


def no_progress(done: int, total: int) -> None:
    """Say nothing."""


@pytest.mark.parametrize("rows", [1, 7, 64, 200, 513, 3000])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_are_right_in_every_partition(
    sides: list[Side], plans: GemmPlans, rows: int, with_bias: bool
) -> None:
    gemm = Gemm(plans, DEVICE)
    for side in sides:
        x, weight = random(rows, 2048), random(1536, 2048)
        bias = random(1536) if with_bias else None
        out = torch.full((rows, 1536), math.nan, device=DEVICE, dtype=torch.bfloat16)
        torch.cuda.synchronize()
        with torch.cuda.stream(side.stream):
            gemm(x, weight, bias, sm_count=side.sms, out=out)
        torch.cuda.synchronize()
        assert error(out, expect(x, weight, bias)) < BF16_ERROR, side.sms


def test_rows_may_be_strided(plans: GemmPlans) -> None:
    x, weight = random(64, 4096)[:, :2048], random(1024, 2048)
    assert error(Gemm(plans, DEVICE)(x, weight, sm_count=132), expect(x, weight, None)) < BF16_ERROR


@pytest.mark.parametrize("rows", [1, 33, 300])
def test_an_output_width_that_is_no_multiple_of_eight_is_right(
    sides: list[Side], plans: GemmPlans, rows: int
) -> None:
    x, weight = random(rows, 576), random(1003, 576)
    for side in sides:
        result = Gemm(plans, DEVICE)(x, weight, sm_count=side.sms)
        assert error(result, expect(x, weight, None)) < BF16_ERROR, side.sms


def test_a_captured_product_reads_what_its_input_holds_at_replay(
    table: PartitionTable, plans: GemmPlans
) -> None:
    side, gemm = table.pairs[1].decode, Gemm(plans, DEVICE)
    x, weight, out = random(48, 2048), random(1024, 2048), random(48, 1024)
    gemm.prepare([(1024, 2048)], [side.sms], [48], no_progress)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(side.stream):
        graph.capture_begin(capture_error_mode="thread_local")
        gemm(x, weight, sm_count=side.sms, out=out)
        graph.capture_end()
    x.copy_(random(48, 2048))
    out.fill_(math.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(side.stream):
        graph.replay()
    torch.cuda.synchronize()
    assert error(out, expect(x, weight, None)) < BF16_ERROR


def test_a_shape_that_was_not_prepared_is_refused_inside_a_capture(plans: GemmPlans) -> None:
    gemm, stream = Gemm(plans, DEVICE), torch.cuda.Stream()
    x, weight, out = random(8, 1024), random(1024, 1024), random(8, 1024)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        with pytest.raises(GemmError, match="not prepared"):
            gemm(x, weight, sm_count=132, out=out)
        torch.zeros(1, device=DEVICE)
        graph.capture_end()


def test_a_searched_choice_is_right_and_is_used_after_a_restart(
    table: PartitionTable, plans: GemmPlans
) -> None:
    side, gemm = table.pairs[1].decode, Gemm(plans, DEVICE)
    key = GemmKey(64, 4096, 4096, side.sms, False)
    weights = [random(4096, 4096) for _ in range(8)]
    wanted = [(key, weights, side.stream)]
    settings = SearchSettings(sustained_s=0.003)
    assert tune(gemm, wanted, settings, no_progress) == 1
    assert tune(gemm, wanted, settings, no_progress) == 0
    restarted = GemmPlans(plans.library, GemmStore(plans.store.path), plans.remainders)
    x = random(60, 4096)
    result = Gemm(restarted, DEVICE)(x, weights[0], sm_count=side.sms)
    kept = restarted.store.get(key)
    assert kept is not None
    assert kept.source == "search"
    assert error(result, expect(x, weights[0], None)) < BF16_ERROR


def test_a_kept_choice_that_the_library_refuses_is_replaced(plans: GemmPlans) -> None:
    key = GemmKey(64, 1024, 1024, 132, False)
    plans.store.put(key, GemmChoice("ff" * 64, 132, "search"))
    x, weight = random(64, 1024), random(1024, 1024)
    result = Gemm(plans, DEVICE)(x, weight, sm_count=132)
    kept = plans.store.get(key)
    assert kept is not None
    assert kept.source == "heuristic"
    assert error(result, expect(x, weight, None)) < BF16_ERROR


@pytest.mark.parametrize("key_heads", [8, 32])
def test_attention_is_planned_for_the_partition(key_heads: int) -> None:
    assert plans_for_partition(Heads(32, key_heads, 128), DEVICE)


@pytest.mark.parametrize(
    ("new", "reused", "pieces"),
    [
        ([512], [8192], [4]),
        ([300, 64, 130], [5003, 0, 2050], [3, 0, 2]),
        ([17], [20], [2]),
    ],
)
def test_a_split_batch_attends_to_all_of_its_context(
    sides: list[Side], new: list[int], reused: list[int], pieces: list[int]
) -> None:
    heads = Heads(32, 8, 128)
    attention = Attention(heads, PAGE, DEVICE, plans=2, partial_rows=4096)
    counts = [-(-(n + r) // PAGE) for n, r in zip(new, reused, strict=True)]
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    cache = random(2, int(indptr[-1]) + 1, PAGE, 8, 128)
    indices = torch.randperm(int(indptr[-1]) + 1, device=DEVICE)[: int(indptr[-1])].int()
    pages = DevicePages(*(torch.zeros(1, dtype=torch.int32, device=DEVICE),) * 2, indices, indices)
    split = cut(new, reused, pieces, indptr, PAGE)
    assert split is not None
    index = [
        torch.from_numpy(part).to(DEVICE)
        for part in (split.gather, split.first, split.step, split.count)
    ]
    q = random(sum(new), 48, 128)[:, :32]
    expected = reference(q, cache, indices.long(), new, reused, indptr)
    for side in sides:
        out = torch.full((sum(new), 32, 128), math.nan, device=DEVICE, dtype=torch.bfloat16)
        staged = [torch.empty(INT_WORKSPACE, dtype=torch.uint8).pin_memory() for _ in range(2)]
        torch.cuda.synchronize()
        with torch.cuda.stream(side.stream), planned_for(side.sms):
            plan = attention.plan_split(split, pages, (staged[0], staged[1]), tuple(index))
            attention.run(plan, q, cache[0], cache[1], out)
        torch.cuda.synchronize()
        assert error(out, expected) < BF16_ERROR, side.sms


def reference(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    new: list[int],
    reused: list[int],
    indptr: np.ndarray,
) -> Tensor:
    """Attention in float32, row by row."""
    outs, at = [], 0
    for row, (tokens, held) in enumerate(zip(new, reused, strict=True)):
        mine = indices[int(indptr[row]) : int(indptr[row + 1])]
        keys, values = (part[mine].reshape(-1, 8, 128)[: tokens + held].float() for part in cache)
        queries = q[at : at + tokens].float().view(tokens, 8, 4, 128)
        scores = torch.einsum("tkgd,lkd->tkgl", queries, keys) / math.sqrt(128)
        last = torch.arange(held, held + tokens, device=DEVICE)
        future = torch.arange(tokens + held, device=DEVICE) > last[:, None]
        weights = scores.masked_fill(future[:, None, None], -math.inf).softmax(-1)
        outs.append(torch.einsum("tkgl,lkd->tkgd", weights, values).reshape(tokens, 32, 128))
        at += tokens
    return torch.cat(outs)
