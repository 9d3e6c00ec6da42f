"""Kernels of the decoder in plain torch, everything but attention: the CPU executor's, and the
reading of the interface that device kernels are compared with.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class TorchOps:
    """`worker.models.ops.Ops` without `attend`, for one model, on any device."""

    def __init__(self, norm_eps: float, rotations: tuple[Tensor, Tensor]) -> None:
        """`rotations` are `rotation_tables()`'s, on the model's device."""
        self._eps = norm_eps
        self._cos, self._sin = rotations
        self._positions: Tensor | None = None
        self._rotation: tuple[Tensor, Tensor] = (self._cos[:0], self._sin[:0])

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """See Ops."""
        return F.rms_norm(x, weight.shape, weight, self._eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops."""
        total = x.add_(residual)
        return F.rms_norm(total, weight.shape, weight, self._eps), total

    def rope(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Ops. A position's rotation is looked up once, not once per layer."""
        if positions is not self._positions:
            self._rotation = (self._cos[positions, None], self._sin[positions, None])
            self._positions = positions
        return self._rotate(q), self._rotate(k)

    def _rotate(self, x: Tensor) -> Tensor:
        """(a, b) turns to (a cos - b sin, b cos + a sin), in float32."""
        cos, sin = self._rotation
        wide = x.float()
        swapped = torch.roll(wide, wide.shape[-1] // 2, dims=-1)
        return (wide * cos).addcmul_(swapped, sin).to(x.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
