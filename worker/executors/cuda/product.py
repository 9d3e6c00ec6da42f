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
from worker.executors.cuda.kernels.gemm_plans import M_BUCKETS, GemmStore, file_name
from worker.executors.cuda.kernels.gemm_search import SearchSettings, tune
from worker.executors.cuda.kernels.gemm_tuning import decode_keys, prefill_keys
from worker.executors.cuda.partitions import Pair, PartitionTable
from worker.models.weights import Model

LEAST_PREFILL_ROWS = 128
"""Products of fewer rows are planned when they first come, in the prefill lane."""


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
    layer = model.weights.layers[0]
    matrices = (layer.qkv, layer.o, layer.gate_up, layer.down, model.weights.lm_head)
    shapes = [(matrix.shape[0], matrix.shape[1]) for matrix in matrices]
    rows = [m for m in M_BUCKETS if LEAST_PREFILL_ROWS <= m <= max_tokens]
    step = lambda done, total: progress("matrix products", done, total)  # noqa: E731
    prefill.prepare(shapes, [pair.prefill.sms for pair in table.pairs], rows, step)
    decode.prepare(shapes, [pair.decode.sms for pair in table.pairs], decode_rows, step)
    split = [pair for pair in table.pairs if pair.decode.context is not None]
    _tune((prefill, decode), model, split, max(decode_rows, default=1), progress)
    return (PartitionProduct(prefill), PartitionProduct(decode)), ()


def _tune(
    gemms: tuple[Gemm, Gemm],
    model: Model,
    split: list[Pair],
    decode_rows: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Time what is worth it and was not timed before, on (prefill, decode) sides of real splits."""
    head = model.weights.lm_head
    matrices: dict[tuple[int, int], list[Tensor]] = {(head.shape[0], head.shape[1]): [head]}
    for layer in model.weights.layers[:8]:
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
            matrices.setdefault((matrix.shape[0], matrix.shape[1]), []).append(matrix)
    shapes = list(matrices)
    lanes = (Lane.PREFILL, Lane.DECODE)
    sides = [{pair.side(lane).sms: pair.side(lane).stream for pair in split} for lane in lanes]
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
    version = str(driver.call(driver.driver.cuDriverGetVersion))
    name = file_name(torch.cuda.get_device_name(), library.version(), version)
    return GemmStore(cache_dir() / name)
