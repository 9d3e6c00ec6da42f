"""A checkpoint's configuration is read in every spelling, or refused by name."""

import math
from typing import Any

import pytest
import torch

from worker.models.config import (
    RopeConfig,
    UnsupportedModelError,
    config_from_gguf,
    config_from_hf,
)
from worker.models.rope import rope_frequencies, rope_table

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 576,
    "llama.block_count": 30,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 8192,
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.eos_token_id": 2,
}


def test_missing_key_value_heads_are_the_query_heads() -> None:
    config = config_from_hf(LLAMA, {})
    assert (config.num_kv_heads, config.head_dim) == (32, 128)


def test_end_ids_of_both_files_are_merged_in_order() -> None:
    config = config_from_hf({**LLAMA, "eos_token_id": 7}, {"eos_token_id": [8, 7, 9]})
    assert config.eos_token_ids == (7, 8, 9)


def test_both_spellings_of_rope_mean_the_same() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = config_from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": scaling}, {})
    new = config_from_hf({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 5e5}}, {})
    assert old.rope == new.rope == RopeConfig(5e5, "linear", 2.0)


def test_rope_type_under_its_oldest_name_is_read() -> None:
    config = config_from_hf({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, {})
    assert config.rope.kind == "linear"


def test_mistral_is_served_up_to_its_window() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    config = config_from_hf(
        {**mistral, "max_position_embeddings": 32768, "sliding_window": 4096}, {}
    )
    assert config.max_model_len == 4096
    unlimited = {**mistral, "max_position_embeddings": 32768, "sliding_window": None}
    assert config_from_hf(unlimited, {}).max_model_len == 32768


def test_qwen_window_counts_only_when_switched_on() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    qwen = {**qwen, "max_position_embeddings": 32768, "sliding_window": 4096}
    off = config_from_hf({**qwen, "use_sliding_window": False}, {})
    on = config_from_hf({**qwen, "use_sliding_window": True}, {})
    assert (off.max_model_len, on.max_model_len) == (32768, 4096)
    assert off.qkv_bias


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "SequenceClassification"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_key_value_heads": 5}, "5"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_layers"),
    ],
)
def test_what_the_decoder_lacks_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        config_from_hf({**LLAMA, **change}, {})


def test_unsupported_architecture_says_what_is_supported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"LlamaForCausalLM.*Qwen3ForCausalLM"):
        config_from_hf({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, {})
    with pytest.raises(UnsupportedModelError, match=r"'bert'.*llama, qwen2, qwen3"):
        config_from_gguf({"general.architecture": "bert"}, vocab_size=1, tied=True)


def test_gguf_metadata_gives_the_same_shape() -> None:
    config = config_from_gguf(GGUF, vocab_size=49152, tied=True)
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (30, 3, 64)
    assert config.rope == RopeConfig(100000.0)
    assert config.eos_token_ids == (2,)
    assert config.max_model_len == 8192


def test_gguf_without_a_needed_key_is_refused_by_name() -> None:
    broken = {k: v for k, v in GGUF.items() if k != "llama.block_count"}
    with pytest.raises(UnsupportedModelError, match="block_count"):
        config_from_gguf(broken, vocab_size=49152, tied=True)


def test_gguf_divisors_scale_frequencies() -> None:
    config = config_from_gguf(
        {**GGUF, "llama.attention.key_length": 4}, vocab_size=8, tied=True, rope_divisors=(1.0, 8.0)
    )
    plain = rope_frequencies(RopeConfig(100000.0), 4)
    scaled = rope_frequencies(config.rope, 4)
    assert scaled.tolist() == [plain[0].item(), plain[1].item() / 8]


def test_rope_table_is_cosines_then_sines() -> None:
    table = rope_table(RopeConfig(10000.0), head_dim=4, positions=3)
    assert table.dtype == torch.float32
    angle = 2 * 10000.0**-0.5
    wanted = [math.cos(2), math.cos(angle), math.sin(2), math.sin(angle)]
    assert table[2].tolist() == pytest.approx(wanted, abs=1e-6)


def test_llama3_keeps_fast_rotations_and_divides_slow_ones() -> None:
    rope = RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    plain = rope_frequencies(RopeConfig(500000.0), 128)
    scaled = rope_frequencies(rope, 128)
    assert scaled[0] == plain[0]
    assert scaled[-1].item() == pytest.approx(plain[-1].item() / 8)
    ratio = plain / scaled
    assert bool((ratio[1:] >= ratio[:-1] - 1e-12).all())
