"""The decoder's kernels on CUDA: flashinfer's, partition-aware products, and paged attention.

Every output goes to a buffer made at start, one for each role, so that quanta allocate nothing and
graphs hold nothing of their own. A role's buffer is free again when the next layer writes it: the
decoder reads each output before then, and what must outlive a quantum its owner copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flashinfer.activation import silu_and_mul
from flashinfer.norm import fused_add_rmsnorm, rmsnorm
from flashinfer.page import append_paged_kv_cache
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace
from torch import Tensor

from worker.executors.cuda.attention import Attention, DevicePages, Plan
from worker.executors.cuda.pool import KvPool
from worker.executors.cuda.product import Product
from worker.models.weights import Model

ALIGN = 8
"""Rows start at a multiple of this many elements (16 bytes), also of an odd vocabulary."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of a batch that one attention call serves."""

    start: int
    end: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a batch's new keys and values go, and what its queries attend to."""

    row_of: Tensor
    """[tokens], int32: row of `pages` that each token belongs to."""
    positions: Tensor
    """[tokens], int32"""
    pages: DevicePages
    segments: Sequence[Segment]
    sms: int
    """That the kernels are to plan for."""


class CudaOps:
    """`worker.models.ops.Ops` of one lane and model."""

    def __init__(
        self,
        model: Model,
        rope_table: Tensor,
        attention: Attention,
        product: Product,
        *,
        max_tokens: int,
        max_logits: int,
    ) -> None:
        """`max_logits`: rows whose logits have a buffer; more are allocated as they come."""
        self._model, self._rope, self.attention = model, rope_table, attention
        self._eps = model.config.norm_eps
        self._product, self._max_tokens, self._max_logits = product, max_tokens, max_logits
        self._buffers: dict[tuple[object, ...], Tensor] = {}
        self._pool: KvPool | None = None
        self._placed: Placement | None = None

    def bind(self, pool: KvPool) -> None:
        """Give the lane its pool, which is sized after everything else."""
        self._pool = pool

    def place(self, placement: Placement) -> None:
        """Run what follows for this batch."""
        self._placed = placement

    def reserve(self) -> None:
        """Make all buffers now, so that the memory plan sees them."""
        config, weights = self._model.config, self._model.weights.layers[0]
        for weight in (weights.qkv, weights.o, weights.gate_up, weights.down):
            self._out(("linear", *weight.shape), self._max_tokens, weight.shape[0])
        self._out(("norm", config.hidden_size), self._max_tokens, config.hidden_size)
        self._out(("silu",), self._max_tokens, config.intermediate_size)
        self._out(("attend",), self._max_tokens, config.q_size)
        self._out(("logits",), self._max_logits, config.vocab_size)
        if config.qk_norm:
            self._out(("norm", config.num_heads), self._max_tokens, config.q_size)
            self._out(("norm", config.num_kv_heads), self._max_tokens, config.kv_size)

    def _out(self, role: tuple[object, ...], rows: int, width: int) -> Tensor:
        """Return the first `rows` rows of a role's buffer."""
        limit = self._max_logits if role[0] == "logits" else self._max_tokens
        weight = self._model.weights.embed
        stride = -(-width // ALIGN) * ALIGN
        if rows > limit:
            late = torch.empty((rows, stride), dtype=weight.dtype, device=weight.device)
            return late[:, :width]
        if role not in self._buffers:
            made = torch.empty((limit, stride), dtype=weight.dtype, device=weight.device)
            self._buffers[role] = made[:, :width]
        return self._buffers[role][:rows]

    @property
    def placement(self) -> Placement:
        """The batch that runs."""
        assert self._placed is not None
        return self._placed

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        is_head = weight is self._model.weights.lm_head
        role = ("logits",) if is_head else ("linear", *weight.shape)
        out = self._out(role, x.shape[0], weight.shape[0])
        return self._product(x, weight, bias, out, self.placement.sms)

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Ops."""
        width = x.shape[1] * x.shape[2] if x.dim() == 3 else x.shape[1]
        out = self._out(("norm", x.shape[1]), x.shape[0], width).view(x.shape)
        rmsnorm(x, weight, self._eps, out)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops. Both in place."""
        fused_add_rmsnorm(x, residual, weight, self._eps)
        return x, residual

    def rope(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops. In place."""
        apply_rope_with_cos_sin_cache_inplace(positions, q, k, q.shape[-1], self._rope, True)
        return q, k

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        out = self._out(("silu",), gate_up.shape[0], gate_up.shape[1] // 2)
        silu_and_mul(gate_up, out)
        return out

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Ops."""
        assert self._pool is not None
        at = self.placement
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        pages = at.pages
        append_paged_kv_cache(
            k, v, at.row_of, at.positions, (keys, values), pages.indices, pages.indptr, pages.last
        )
        out = self._out(("attend",), q.shape[0], q.shape[1] * q.shape[2])
        heads = out.view(q.shape)
        for part in at.segments:
            rows = slice(part.start, part.end)
            self.attention.run(part.plan, q[rows], keys, values, heads[rows])
        return out
