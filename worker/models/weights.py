"""The tensors of a dense decoder, in the layout that the decoder multiplies with.

Projections that share their input are fused at load time (query-key-value, gate-up), so that an
executor makes one large product of each. Matrices are [out, in], as in the checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from worker.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `nq`, `nk` are query and key-value heads, `hd` the head size, `ff` the MLP's."""

    input_norm: Tensor
    """[hidden]"""
    qkv: Tensor
    """[(nq + 2 nk) hd, hidden]: all queries, then all keys, then all values."""
    qkv_bias: Tensor | None
    """[(nq + 2 nk) hd], or None."""
    q_norm: Tensor | None
    """[hd], or None."""
    k_norm: Tensor | None
    """[hd], or None."""
    o: Tensor
    """[hidden, nq hd]"""
    post_norm: Tensor
    """[hidden]: before the MLP."""
    gate_up: Tensor
    """[2 ff, hidden]: gate, then up."""
    down: Tensor
    """[hidden, ff]"""


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model, on one device and of one dtype."""

    embed: Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    """[hidden]"""
    lm_head: Tensor
    """[vocab, hidden]; the same tensor as `embed` when they are tied."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: what the decoder runs."""

    config: ModelConfig
    weights: Weights
