"""Paged attention by flashinfer, planned for a partition's SMs and not for the whole device.

flashinfer's wrapper classes copy their arguments once more and own one host buffer each; here the
same modules are called directly, so that host plan buffers can be as many as launches in flight.
Two kernels: FA2 (packs the heads of a group into a tile: right for single tokens and short chunks,
may split long sequences over SMs) and FA3 (Hopper's own: right for long rows of new tokens), which
may also run over pieces of a long reused context (kernels/split.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flashinfer.prefill import get_batch_prefill_module
from torch import Tensor

from worker.executors.cuda.kernels.attention_choice import Heads
from worker.executors.cuda.kernels.merge import merge_pieces
from worker.executors.cuda.kernels.split import Rows, Split
from worker.executors.cuda.layout import Pages
from worker.executors.cuda.staging import Ints

Kernel = Literal["fa2", "fa3"]

FULL, CAUSAL = 0, 1
"""flashinfer's MaskMode."""
NHD = 0
"""flashinfer's layout of a page: token, head, dimension."""
INT_WORKSPACE = 8 << 20
"""Bytes of a plan: flashinfer's own size."""
FLOAT_WORKSPACE = 256 << 20
"""Bytes for partial outputs of split sequences."""


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
    pieces: "Pieces | None" = None
    """What was cut off this plan's rows, to be attended to apart and merged."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of the reused context of a batch, as a batch of their own."""

    plan: Plan
    gather: Tensor
    """[partial rows], int32: the query that each repeats."""
    index: tuple[Tensor, Tensor, Tensor]
    """Where a query's partial rows are: see kernels.merge."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Device memory for the partial rows of a split batch."""

    queries: Tensor
    values: Tensor
    sums: Tensor
    tail_sums: Tensor


class Attention:
    """Attention of one lane: its own workspaces, since the lanes run at the same time."""

    def __init__(
        self, heads: Heads, page_size: int, device: torch.device, plans: int, partial_rows: int
    ) -> None:
        """`plans`: how many plans one launch may need at once; `partial_rows`: rows of all pieces
        of a split batch at most (0: batches are never split).
        """
        self._heads = heads
        self._page_size = page_size
        self._partial = torch.empty(FLOAT_WORKSPACE, dtype=torch.uint8, device=device)
        self._work = [
            torch.empty(INT_WORKSPACE, dtype=torch.uint8, device=device) for _ in range(plans)
        ]
        self._modules: dict[Kernel, Any] = {}
        rows = (partial_rows, heads.query, heads.size)
        self._scratch = Scratch(
            torch.empty(rows, dtype=torch.bfloat16, device=device),
            torch.empty(rows, dtype=torch.bfloat16, device=device),
            torch.empty(rows[:2], device=device),
            torch.empty(rows[:2], device=device),
        )

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

    def plan_split(
        self,
        split: Split,
        pages: DevicePages,
        staged: tuple[Tensor, Tensor],
        index: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> Plan:
        """Cut a split batch into work for FA3: its tails, and its pieces. Takes two plans' space.

        `index` is the split's gather, first, step and count on the device.
        """
        parts = self._plan_rows(split.pieces, staged[1], self._work[1], causal=False)
        tails = self._plan_rows(split.tails, staged[0], self._work[0], causal=True)
        pieces = Pieces(Plan("fa3", parts, pages, self._work[1]), index[0], index[1:])
        return Plan("fa3", tails, pages, self._work[0], pieces)

    def _plan_rows(self, rows: Rows, staged: Tensor, workspace: Tensor, *, causal: bool) -> Any:
        heads = self._heads
        return self.module("fa3").plan(
            self._partial,
            workspace,
            staged,
            *(torch.from_numpy(part) for part in (rows.qo_indptr, rows.indptr, rows.lengths)),
            int(rows.qo_indptr[-1]),
            len(rows.lengths),
            *(heads.query, heads.key_value, self._page_size, False, heads.size, heads.size),
            *(causal, -1),
        )

    def run(self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Attend from q [tokens, nq, hd] to strided pages [pages, page size, nk, hd] into `out`."""
        if plan.pieces is None:
            self._attend(plan, q, (keys, values), out, None, CAUSAL)
        else:
            self._run_split(plan, plan.pieces, q, (keys, values), out)

    def _run_split(
        self, plan: Plan, pieces: Pieces, q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor
    ) -> None:
        """Attend to the pieces, then to the tails, and merge in place."""
        count, scratch = len(pieces.gather), self._scratch
        queries, values = scratch.queries[:count], scratch.values[:count]
        sums, tail_sums = scratch.sums[:count], scratch.tail_sums[: len(q)]
        torch.index_select(q, 0, pieces.gather, out=queries)
        self._attend(pieces.plan, queries, cache, values, sums, FULL)
        self._attend(plan, q, cache, out, tail_sums, CAUSAL)
        merge_pieces((out, tail_sums), (values, sums), pieces.index, out)

    def _attend(
        self,
        plan: Plan,
        q: Tensor,
        cache: tuple[Tensor, Tensor],
        out: Tensor,
        sums: Tensor | None,
        mask: int,
    ) -> None:
        """Launch the planned kernel; `sums` [tokens, nq] takes the log2-sum-exps."""
        pages, size = plan.pages, self._heads.size
        keys, values = cache
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
            sums,
            mask,
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
