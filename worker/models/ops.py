"""The kernels that a dense decoder needs, as an interface: what separates it from every device.

An `Ops` belongs to one model (it knows its norm epsilon and rotary table) and, where `attend` is
concerned, to one batch at a time (it knows the page tables and where new keys and values go).
"""

from typing import Protocol

from torch import Tensor


class Ops(Protocol):
    """Kernels over a flat batch: row i is one token of some sequence, whatever the sequence."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x · weightᵀ + bias: [tokens, in] and [out, in] to [tokens, out]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm over the last dimension, in a new tensor.

        x is [tokens, hidden], or [tokens, heads, hd] (a strided view) for norms of single heads.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rms_norm(x + residual), x + residual). May overwrite both of its inputs."""
        ...

    def rope(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q [tokens, nq, hd] and k [tokens, nk, hd] by positions [tokens].

        Both are strided views of one tensor that nobody else reads: in place is allowed.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up of [tokens, 2 ff] (gate first): [tokens, ff]."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k, v [tokens, nk, hd] to the batch's pages, then attend, causally, from q.

        q is [tokens, nq, hd]; returns [tokens, nq hd]. The inputs may be strided.
        """
        ...
