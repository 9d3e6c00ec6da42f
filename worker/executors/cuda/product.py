"""x · weightᵀ for one lane: cuBLASLt planned for the partition's SMs where it is there, else torch.

A lane has its own: a workspace may not be shared by products that run at the same time.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from protocol.control_link import Lane
from worker.executors.cuda import driver
from worker.executors.cuda.kernels.build import BuildError, cache_dir
from worker.executors.cuda.kernels.gemm import Gemm, GemmPlans
from worker.executors.cuda.kernels.gemm_library import GemmError, GemmLibrary, open_library
from worker.executors.cuda.kernels.gemm_plans import (
    M_BUCKETS,
    GemmKey,
    GemmStore,
    bucket_of,
    file_name,
)
from worker.executors.cuda.kernels.gemm_search import SearchSettings, tune
from worker.executors.cuda.kernels.gemm_tuning import decode_keys, prefill_keys
from worker.executors.cuda.partitions import PartitionTable
from worker.models.weights import Model

MOST_DRAWN_ROWS = 512
"""Rows of logits that products are planned for before they first come."""


class Product(Protocol):
    """A matrix product into a given output."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, sms: int
    ) -> Tensor:
        """Return `out` = x · weightᵀ + bias, planned for `sms` SMs. Never waits for the device."""
        ...


class TorchProduct:
    """What torch does by default: planned for the whole device."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, sms: int
    ) -> Tensor:
        """See Product."""
        if bias is None:
            return torch.mm(x, weight.t(), out=out)
        return torch.addmm(bias, x, weight.t(), out=out)


class PartitionProduct:
    """cuBLASLt told how many SMs it has (kernels/gemm.py)."""

    def __init__(self, gemm: Gemm) -> None:
        self.gemm = gemm

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, sms: int
    ) -> Tensor:
        """See Product."""
        return self.gemm(x, weight, bias, sm_count=sms, out=out)


def make_products(
    model: Model,
    table: PartitionTable,
    decode_rows: tuple[int, ...],
    max_tokens: int,
    progress: Callable[[str, int, int], None],
) -> tuple[tuple[Product, Product], tuple[str, ...]]:
    """Return the products of (prefill, decode), planned for every partition, and notes."""
    device = model.weights.embed.device
    try:
        library = open_library()
    except (BuildError, GemmError, OSError) as error:
        note = f"products are planned for the whole device, whatever the partition ({error})"
        return (TorchProduct(), TorchProduct()), (note,)
    remainders = {pair.decode.sms for pair in table.pairs if pair.decode.context is not None}
    plans = GemmPlans(library, _store(library), remainders)
    prefill, decode = Gemm(plans, device), Gemm(plans, device)
    _prepare((prefill, decode), model, table, decode_rows, max_tokens, progress)
    _tune((prefill, decode), model, table, max(decode_rows, default=1), progress)
    _load_all(prefill, model)
    return (PartitionProduct(prefill), PartitionProduct(decode)), ()


def _matrices(model: Model) -> list[Tensor]:
    """One matrix of each role in a layer."""
    layer = model.weights.layers[0]
    return [layer.qkv, layer.o, layer.gate_up, layer.down]


def _prepare(
    gemms: tuple[Gemm, Gemm],
    model: Model,
    table: PartitionTable,
    decode_rows: tuple[int, ...],
    max_tokens: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Plan every product that (prefill, decode) may need, so that none is planned in service."""
    rows = [*decode_rows, *(m for m in M_BUCKETS if m <= bucket_of(max_tokens))]
    drawn = [m for m in rows if m <= MOST_DRAWN_ROWS]
    head = model.weights.lm_head
    biased = model.weights.layers[0].qkv_bias is not None
    for gemm, lane in zip(gemms, (Lane.PREFILL, Lane.DECODE), strict=True):
        sms = [pair.side(lane).sms for pair in table.pairs]

        def step(done: int, total: int, name: str = f"{lane} products") -> None:
            progress(name, done, total)

        shapes = [(matrix.shape[0], matrix.shape[1]) for matrix in _matrices(model)]
        gemm.prepare(shapes, sms, rows, step)
        gemm.prepare([(head.shape[0], head.shape[1])], sms, drawn, step)
        if biased:
            gemm.prepare(shapes[:1], sms, rows, step, bias=(True,))


def _load_all(gemm: Gemm, model: Model) -> None:
    """Launch each algorithm once: CUDA loads a kernel's code at its first launch, and while it
    does, nothing else is launched (an iteration of a running decode lane came 30 ms late).
    """
    plans, loaded = gemm.plans, set()
    matrices = {tuple(each.shape): each for each in (*_matrices(model), model.weights.lm_head)}
    for m, n, k, sms, bias in sorted(plans.addresses, key=lambda index: index[0]):
        choice = plans.store.get(GemmKey(m, n, k, sms, bias))
        if choice is None or (choice.algorithm, bias) in loaded:
            continue
        loaded.add((choice.algorithm, bias))
        weight = matrices[n, k]
        gemm(weight.new_zeros(m, k), weight, weight.new_zeros(n) if bias else None, sm_count=sms)
    torch.cuda.synchronize()


def _tune(
    gemms: tuple[Gemm, Gemm],
    model: Model,
    table: PartitionTable,
    decode_rows: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Time what is worth it and was not timed before, on both sides of every partition."""
    head = model.weights.lm_head
    matrices: dict[tuple[int, int], list[Tensor]] = {(head.shape[0], head.shape[1]): [head]}
    for layer in model.weights.layers[:8]:
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
            matrices.setdefault((matrix.shape[0], matrix.shape[1]), []).append(matrix)
    shapes = list(matrices)
    lanes = (Lane.PREFILL, Lane.DECODE)
    sides = [
        {pair.side(lane).sms: pair.side(lane).stream for pair in table.pairs} for lane in lanes
    ]
    keys = (
        prefill_keys(shapes[1:], sides[0]),
        decode_keys(shapes[1:], shapes[0], sides[1], decode_rows),
    )
    for gemm, wanted, streams in zip(gemms, keys, sides, strict=True):
        tune(
            gemm,
            [(key, matrices[key.n, key.k], streams[key.sm_count]) for key in wanted],
            SearchSettings(),
            lambda done, total: progress("timing matrix products", done, total),
        )


def _store(library: GemmLibrary) -> GemmStore:
    """Open the kept choices of this GPU, cuBLASLt and driver."""
    version = str(driver.version())
    name = file_name(torch.cuda.get_device_name(), library.version(), version)
    return GemmStore(cache_dir() / name)
