"""Paged attention by flashinfer, planned for a partition's SMs and not for the whole device.

flashinfer's wrapper classes copy their arguments once more and own one host buffer each; here the
same modules are called directly, so that host plan buffers can be as many as launches in flight.
Two kernels: FA2 (packs the heads of a group into a tile: right for single tokens and short chunks,
may split long sequences over SMs) and FA3 (Hopper's own: right for long rows of new tokens).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flashinfer.prefill import get_batch_prefill_module
from torch import Tensor

from worker.executors.cuda.layout import Pages
from worker.executors.cuda.staging import Ints

Kernel = Literal["fa2", "fa3"]

CAUSAL = 1
"""flashinfer's MaskMode."""
NHD = 0
"""flashinfer's layout of a page: token, head, dimension."""
INT_WORKSPACE = 8 << 20
"""Bytes of a plan: flashinfer's own size."""
FLOAT_WORKSPACE = 256 << 20
"""Bytes for partial outputs of split sequences."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Head counts and size of a model's attention."""

    query: int
    key_value: int
    size: int


@dataclass(frozen=True, slots=True)
class DevicePages:
    """`Pages` on the device, and where each row's queries start."""

    qo_indptr: Tensor
    indptr: Tensor
    indices: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """How one batch's attention is cut into work. Valid until its workspace is planned again."""

    kernel: Kernel
    info: Any
    pages: DevicePages
    workspace: Tensor


class Attention:
    """Attention of one lane: its own workspaces, since the lanes run at the same time."""

    def __init__(self, heads: Heads, page_size: int, device: torch.device, plans: int) -> None:
        """`plans`: how many plans one launch may need at once."""
        self._heads = heads
        self._page_size = page_size
        self._partial = torch.empty(FLOAT_WORKSPACE, dtype=torch.uint8, device=device)
        self._work = [
            torch.empty(INT_WORKSPACE, dtype=torch.uint8, device=device) for _ in range(plans)
        ]
        self._modules: dict[Kernel, Any] = {}

    def module(self, kernel: Kernel) -> Any:
        """Return flashinfer's module for this model, compiled at first use (about a minute)."""
        if kernel not in self._modules:
            self._modules[kernel] = load(kernel, self._heads.size)
        return self._modules[kernel]

    def plan(
        self,
        kernel: Kernel,
        qo_indptr: Ints,
        host: Pages,
        pages: DevicePages,
        staged: Tensor,
        *,
        use: int = 0,
        graph: bool = False,
        split: bool = True,
    ) -> Plan:
        """Cut a batch into work, and queue the copy of the result to the device.

        The SM count is what `kernels.sm_count` was last set to. `staged` is host memory that stays
        as it is until the launch has completed. `graph`: every row has one token, and the result's
        layout depends on the number of rows only, so that a captured graph can read it. `split`:
        a sequence may be cut over several SMs (FA2; costs one more kernel per layer).
        """
        heads, rows = self._heads, len(host.last)
        arguments = [
            self._partial,
            self._work[use],
            staged,
            torch.from_numpy(qo_indptr),
            torch.from_numpy(host.indptr),
            torch.from_numpy(_lengths(host, self._page_size)),
            int(qo_indptr[-1]),
            rows,
            heads.query,
            heads.key_value,
            self._page_size,
            graph,
            heads.size,
            heads.size,
            True,
            -1,
        ]
        if kernel == "fa2":
            arguments += [-1, not split, 0, 1 if graph else 0]
        info = self.module(kernel).plan(*arguments)
        return Plan(kernel, info, pages, self._work[use])

    def run(self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Attend from q [tokens, nq, hd] to strided pages [pages, page size, nk, hd] into `out`."""
        pages, size = plan.pages, self._heads.size
        self.module(plan.kernel).paged_run(
            self._partial,
            plan.workspace,
            plan.info,
            q,
            keys,
            values,
            pages.qo_indptr,
            pages.indptr,
            pages.indices,
            pages.last,
            out,
            None,
            CAUSAL,
            NHD,
            -1,
            True,
            *(None, None, None, None, None, None),
            0.0,
            1.0 / math.sqrt(size),
            *(None, None, None),
            *(1.0, 1e4),
            0,
            0,
        )


def load(kernel: Kernel, head_size: int) -> Any:
    """Load flashinfer's module for bfloat16 and a head size, compiling it when it is not cached."""
    bf16 = torch.bfloat16
    return get_batch_prefill_module(
        kernel, bf16, bf16, bf16, torch.int32, head_size, head_size, 0, False, False, False
    )


def loaders(head_size: int) -> list[Callable[[], object]]:
    """Return what compiles each module that the executor needs; they may run side by side."""
    from flashinfer.activation import get_act_and_mul_module
    from flashinfer.norm import get_norm_module
    from flashinfer.page import get_page_module
    from flashinfer.rope import get_rope_module

    return [
        lambda: load("fa2", head_size),
        lambda: load("fa3", head_size),
        lambda: get_act_and_mul_module("silu"),
        get_norm_module,
        get_page_module,
        get_rope_module,
    ]


def _lengths(host: Pages, page_size: int) -> Ints:
    """Tokens of each row's sequence."""
    return (host.indptr[1:] - host.indptr[:-1] - 1) * page_size + host.last


def kernel_for(new_tokens: int, rows: int, head_size: int) -> Kernel:
    """Choose the kernel for rows of new tokens: FA3's tiles of 128 queries want long rows."""
    long_rows = new_tokens >= LONG_ROW * rows
    return "fa3" if long_rows and head_size in (64, 128, 256) else "fa2"


LONG_ROW = 128
"""New tokens per row, on average, from which FA3 is faster (docs/benchmarks/engine-h200)."""
