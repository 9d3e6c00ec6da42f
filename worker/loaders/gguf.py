"""GGUF files: llama.cpp's container of metadata and (quantized) tensors, memory-mapped.

Tensors are dequantized one at a time into the executor's type. Files of architecture `llama` hold
query and key rows in the order of an interleaved rotary embedding; they are put back into Hugging
Face's half-split order here, so that one decoder serves both kinds of files.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from worker.loaders.assemble import LoadError
from worker.models.config import ModelConfig, UnsupportedModelError, config_from_gguf

_OUTER = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROPE_DIVISORS = "rope_freqs.weight"
_WANTED = ("general.", "llama.", "qwen2.", "qwen3.", "tokenizer.ggml.eo")
"""Prefixes of the metadata that a model's shape is read from; the vocabulary is not."""


def gguf_name(name: str) -> str:
    """Translate a name: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight` there."""
    stem, _, suffix = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{suffix}"
    _, _, index, inner = stem.split(".", 3)
    return f"blk.{index}.{_LAYER[inner]}.{suffix}"


def half_split(rows: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of query or key rows (or biases).

    Within each head, row 2i + h there is row i + h · head_dim / 2 here.
    """
    grouped = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return grouped.transpose(1, 2).reshape(rows.shape)


class GgufSource:
    """Tensors and configuration of a file. Implements TensorSource."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises LoadError when it is broken, UnsupportedModelError."""
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, LookupError) as error:
            raise LoadError(f"{path} cannot be read: {error}") from error
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise LoadError(f"{path} has no tensor token_embd.weight")
        metadata = {
            key: field.contents() for key, field in reader.fields.items() if key.startswith(_WANTED)
        }
        self.config: ModelConfig = config_from_gguf(
            metadata,
            vocab_size=int(embedding.shape[-1]),
            tied="output.weight" not in self._tensors,
            rope_divisors=self._divisors(),
        )

    def _divisors(self) -> tuple[float, ...]:
        if _ROPE_DIVISORS not in self._tensors:
            return ()
        return tuple(self._dequantize(_ROPE_DIVISORS).flatten().tolist())

    def shape(self, name: str) -> tuple[int, ...] | None:
        """See TensorSource. GGUF writes dimensions in the opposite order."""
        tensor = self._tensors.get(gguf_name(name))
        return None if tensor is None else tuple(int(n) for n in reversed(tensor.shape))

    def read(self, name: str) -> Tensor:
        """See TensorSource. Raises UnsupportedModelError for a quantization that gguf lacks."""
        tensor = self._dequantize(gguf_name(name))
        if self.config.family == "llama" and ".self_attn.q_proj." in name:
            return half_split(tensor, self.config.num_heads)
        if self.config.family == "llama" and ".self_attn.k_proj." in name:
            return half_split(tensor, self.config.num_kv_heads)
        return tensor

    def _dequantize(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"tensor {name} has quantization {tensor.tensor_type.name}, "
                "which the package gguf cannot dequantize"
            ) from error
        return torch.from_numpy(np.require(values, requirements="W"))
