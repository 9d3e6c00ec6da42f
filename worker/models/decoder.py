"""The dense decoder (Llama, Mistral, Qwen2, Qwen3, SmolLM2) as three functions over an `Ops`.

Cut so that a caller can run layers [a, b) and park what lies between: prefill in layer quanta
(MuxWise 3.2, DRIFT 4.2) is the same code as a whole forward. No device, no batch, no cache here.

What travels between layers is a pair: `hidden`, the last block's output, and `residual`, the sum
before it; they are added inside the next norm, so that one fused kernel does both.
"""

import torch
from torch import Tensor

from worker.models.ops import Ops
from worker.models.weights import LayerWeights, Model


def embed(ops: Ops, model: Model, token_ids: Tensor) -> Tensor:
    """Look up token ids [tokens]: [tokens, hidden]. The residual of the first layer is None."""
    del ops  # a lookup is the same everywhere; here for a vocabulary split over devices
    return model.weights.embed[token_ids]


def run_layers(
    ops: Ops,
    model: Model,
    hidden: Tensor,
    residual: Tensor | None,
    positions: Tensor,
    layer_start: int,
    layer_end: int,
) -> tuple[Tensor, Tensor | None]:
    """Run layers [layer_start, layer_end) over a flat batch of new tokens.

    `hidden` [tokens, hidden] and `residual` (the same; None before layer 0) are those that the
    layers before returned, and may be overwritten; `positions` [tokens] count from 0 in each
    sequence. Returns the pair for the layers that follow.
    """
    for index in range(layer_start, layer_end):
        layer = model.weights.layers[index]
        normed, residual = _norm(ops, hidden, residual, layer.input_norm)
        hidden = _attention(ops, model, index, normed, positions)
        normed, residual = ops.add_rms_norm(hidden, residual, layer.post_norm)
        hidden = ops.linear(ops.silu_mul(ops.linear(normed, layer.gate_up, None)), layer.down, None)
    return hidden, residual


def logits(
    ops: Ops, model: Model, hidden: Tensor, residual: Tensor | None, rows: Tensor | None
) -> Tensor:
    """Return next-token logits [rows, vocab] of the given rows of a finished batch (None: all)."""
    if rows is not None:
        hidden = hidden[rows]
        residual = None if residual is None else residual[rows]
    normed, _ = _norm(ops, hidden, residual, model.weights.final_norm)
    return ops.linear(normed, model.weights.lm_head, None)


def _norm(
    ops: Ops, hidden: Tensor, residual: Tensor | None, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Add the residual, where there is one yet, and norm: (normed, new residual)."""
    if residual is None:
        return ops.rms_norm(hidden, weight), hidden
    return ops.add_rms_norm(hidden, residual, weight)


def _attention(ops: Ops, model: Model, index: int, x: Tensor, positions: Tensor) -> Tensor:
    layer: LayerWeights = model.weights.layers[index]
    config = model.config
    qkv = ops.linear(x, layer.qkv, layer.qkv_bias)
    q, k, v = torch.split(qkv, [config.q_size, config.kv_size, config.kv_size], dim=-1)
    q = q.view(-1, config.num_heads, config.head_dim)
    k = k.view(-1, config.num_kv_heads, config.head_dim)
    v = v.view(-1, config.num_kv_heads, config.head_dim)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = ops.rms_norm(q, layer.q_norm), ops.rms_norm(k, layer.k_norm)
    q, k = ops.rope(q, k, positions)
    return ops.linear(ops.attend(index, q, k, v), layer.o, None)
