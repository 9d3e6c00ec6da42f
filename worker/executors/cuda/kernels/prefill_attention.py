"""Attention of prefill batches over the paged pool, planned for the SMs of a partition.

A plan is made once per batch and partition, and run once per layer. It decides between FA3, FA3 over
pieces of the reused context, and FA2 (attention_choice.py says why). flashinfer's wrappers keep one
pinned buffer each, that `plan` writes and an asynchronous copy reads, so plans rotate through several
wrappers: at most `depth` plans of a lane may be in use at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import flashinfer
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.executors.cuda.kernels.attention_choice import (
    Heads,
    KernelCosts,
    PrefillChoice,
    prefill_backend,
)
from worker.executors.cuda.kernels.merge import merge_pieces
from worker.executors.cuda.kernels.sm_count import planned_for

_Wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper

FLOAT_WORKSPACE_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """New tokens of one sequence at positions start .. start + new - 1, and the sequence's pages."""

    new: int
    start: int
    pages: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a flashinfer wrapper is planned with, on the host."""

    query_lengths: list[int]
    key_lengths: list[int]
    pages: list[NDArray[np.int32]]


class PrefillPlan:
    """A planned batch: `run` attends for one layer. For the stream that was current when planned."""

    def __init__(self, choice: PrefillChoice, sm_count: int, whole: _Wrapper) -> None:
        self.choice = choice
        self.sm_count = sm_count
        self._whole = whole
        self._prefix: _Wrapper | None = None
        self._gather: Tensor | None = None
        self._index: tuple[Tensor, Tensor, Tensor] | None = None

    def add_prefix(
        self, prefix: _Wrapper, gather: Tensor, index: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Attend to the pieces that `prefix` was planned for too, and merge."""
        self._prefix, self._gather, self._index = prefix, gather, index

    def run(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor) -> None:
        """Attend from q [tokens, heads, dim] to this layer's pages; write out, of q's shape.

        The caches are [pages, page size, key heads, dim] with the same strides; the new tokens'
        keys and values have been written.
        """
        cache = (k_cache, v_cache)
        with planned_for(self.sm_count):
            if self._prefix is None:
                self._whole.run(q, cache, out=out)
                return
            assert self._gather is not None
            assert self._index is not None
            spread = q.index_select(0, self._gather)
            partial = self._prefix.run(
                spread, cache, out=torch.empty_like(spread), return_lse=True
            )
            tail = self._whole.run(q, cache, out=torch.empty_like(out), return_lse=True)
            merge_pieces(tail, partial, self._index, out)


class PrefillAttention:
    """Plans for one lane of one model. Calls come from one thread, on the lane's current stream."""

    def __init__(
        self, heads: Heads, page_size: int, device: torch.device, depth: int, costs: KernelCosts
    ) -> None:
        self._heads, self._page_size, self._device = heads, page_size, device
        self._costs = costs
        self._workspace = torch.empty(FLOAT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._slots = [self._make_slot() for _ in range(depth)]
        self._next = 0

    def plan(
        self, spans: Sequence[PrefillSpan], sm_count: int, choice: PrefillChoice | None = None
    ) -> PrefillPlan:
        """Plan a batch for `sm_count` SMs. `choice` overrides the decision (for measurements).

        Raises ValueError when a span's pages do not reach its end.
        """
        for span in spans:
            held = len(span.pages) * self._page_size
            if span.start + span.new > held:
                raise ValueError(f"{span.start + span.new} tokens in pages for {held}")
        if choice is None:
            rows = [(span.new, span.start) for span in spans]
            choice = prefill_backend(rows, sm_count, self._heads, self._costs)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        with planned_for(sm_count):
            plan = PrefillPlan(choice, sm_count, slot[choice.backend])
            cut = [self._cut(span, n) for span, n in zip(spans, choice.pieces, strict=True)]
            tail = _Batch(
                [span.new for span in spans],
                [span.start + span.new - at for span, at in zip(spans, cut, strict=True)],
                [span.pages[at // self._page_size :] for span, at in zip(spans, cut, strict=True)],
            )
            self._plan_wrapper(slot[choice.backend], tail, causal=True)
            if choice.split:
                self._plan_prefix(plan, slot["prefix"], spans, cut)
        return plan

    def _cut(self, span: PrefillSpan, pieces: int) -> int:
        """Return how many tokens the pieces hold: whole pages, and nothing when not split."""
        return span.start // self._page_size * self._page_size if pieces else 0

    def _plan_prefix(
        self,
        plan: PrefillPlan,
        wrapper: _Wrapper,
        spans: Sequence[PrefillSpan],
        cut: Sequence[int],
    ) -> None:
        """Plan the pieces: one pseudo-sequence each, whose queries are its row's, repeated."""
        batch = _Batch([], [], [])
        gather, first, step, count = [], [], [], []
        row = rows = 0
        for span, tokens, wanted in zip(spans, cut, plan.choice.pieces, strict=True):
            pages = tokens // self._page_size
            edges = [pages * i // wanted for i in range(wanted + 1)] if wanted and pages else [0]
            pieces = [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b > a]
            for begin, end in pieces:
                batch.query_lengths.append(span.new)
                batch.key_lengths.append((end - begin) * self._page_size)
                batch.pages.append(span.pages[begin:end])
            gather.append(np.tile(np.arange(row, row + span.new), len(pieces)))
            first.append(np.arange(rows, rows + span.new))
            step.append(np.full(span.new, span.new))
            count.append(np.full(span.new, len(pieces)))
            row += span.new
            rows += span.new * len(pieces)
        if not batch.pages:
            return
        self._plan_wrapper(wrapper, batch, causal=False)
        index = [self._upload(np.concatenate(part)) for part in (gather, first, step, count)]
        plan.add_prefix(wrapper, index[0], (index[1], index[2], index[3]))

    def _plan_wrapper(self, wrapper: _Wrapper, batch: _Batch, *, causal: bool) -> None:
        used = [-(-length // self._page_size) for length in batch.key_lengths]
        pages = [part[:n] for part, n in zip(batch.pages, used, strict=True)]
        last = [(length - 1) % self._page_size + 1 for length in batch.key_lengths]
        wrapper.plan(
            torch.tensor([0, *np.cumsum(batch.query_lengths)], dtype=torch.int32),
            torch.tensor([0, *np.cumsum(used)], dtype=torch.int32),
            self._upload(np.concatenate(pages)),
            torch.tensor(last, dtype=torch.int32),
            self._heads.query,
            self._heads.key,
            self._heads.dim,
            self._page_size,
            causal=causal,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )

    def _upload(self, values: NDArray[np.integer]) -> Tensor:
        """Copy int32 values to the device without waiting for it (pinned, held until copied)."""
        host = torch.from_numpy(values.astype(np.int32)).pin_memory()
        return host.to(self._device, non_blocking=True)

    def _make_slot(self) -> dict[str, _Wrapper]:
        return {
            name: flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "NHD", backend=backend
            )
            for name, backend in (("fa3", "fa3"), ("prefix", "fa3"), ("fa2", "fa2"))
        }
