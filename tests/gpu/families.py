"""Tiny random models of each family, as transformers writes them, and its own logits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SHAPE = {
    "vocab_size": 1003,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "initializer_range": 0.05,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama2": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 8}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"hidden_size": 1024}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"hidden_size": 640, "tie_word_embeddings": True}),
    "smollm2": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 576,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
    ),
}


@dataclass
class Reference:
    """transformers' logits for whole sequences, in two precisions."""

    exact: Any
    rounded: Any

    def logits(self, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return float32 logits [tokens, vocab] of (float32, bfloat16) arithmetic."""
        ids = torch.tensor([tokens], device="cuda")
        with torch.inference_mode():
            return tuple(m(ids).logits[0].float().cpu() for m in (self.exact, self.rounded))


def write(family: str, folder: Path, **more: Any) -> Reference:
    """Write a model's files to `folder` (bfloat16), and return the reference for it.

    `more` changes the family's configuration.
    """
    config_class, model_class, changes = FAMILIES[family]
    torch.manual_seed(7)
    model = model_class(config_class(**{**SHAPE, **changes, **more}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.2)
            elif "norm" in name:
                parameter.normal_(1.0, 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    # Loaded, not converted: converting a model rounds its rotary frequencies too.
    exact, rounded = (
        model_class.from_pretrained(folder, dtype=dtype).eval().cuda()
        for dtype in (torch.float32, torch.bfloat16)
    )
    return Reference(exact, rounded)
