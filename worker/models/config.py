"""What a dense decoder is, in numbers: read once from a Hugging Face config or GGUF metadata.

One frozen description for every family that the decoder runs, so that nothing behind the loaders
asks for a model's name. What a checkpoint wants and the decoder lacks is refused here, by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HF_FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""`model_type` of config.json, and the architecture that goes with it."""
GGUF_FAMILIES = ("llama", "qwen2", "qwen3")
"""`general.architecture`; Mistral and SmolLM2 call themselves llama there."""
ROPE_TYPES = ("default", "linear", "llama3")


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something that no code here does. The message names what is there."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base, and how its frequencies are scaled for longer contexts."""

    theta: float
    kind: str = "default"
    """One of ROPE_TYPES."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    divisors: tuple[float, ...] = ()
    """Divides frequency i by divisors[i] besides: llama3 scaling as GGUF files carry it."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a dense decoder of the Llama kind, and what its family adds."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head, before the rotary embedding (Qwen3)."""
    sliding_window: int | None = None
    """Tokens that a position attends to at most, itself included; None: all before it."""
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """Of the checkpoint; what the executor computes in is its own choice."""

    @property
    def max_model_len(self) -> int:
        """Tokens of one sequence at most.

        Attention here is always full, which is the same as a sliding window up to its length: a
        model with a window is served up to there, and not beyond.
        """
        return min(self.max_position_embeddings, self.sliding_window or 2**31 - 1)

    @property
    def q_size(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads (and of all value heads)."""
        return self.num_kv_heads * self.head_dim

    def __post_init__(self) -> None:
        """Refuse shapes that no kernel here runs. Raises UnsupportedModelError."""
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(
                    f"{name} is {getattr(self, name)}; at least 1 is needed"
                )
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise UnsupportedModelError(
                f"head_dim is {self.head_dim}; rotary embedding needs it even"
            )


def config_from_hf(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Read `config.json` and `generation_config.json` (empty when there is none).

    Raises UnsupportedModelError for a family, activation, bias or rope scaling that is not here.
    """
    family = _hf_family(config)
    _refuse_extras(config, family)
    hidden, heads = int(_need(config, "hidden_size")), int(_need(config, "num_attention_heads"))
    return ModelConfig(
        family=family,
        vocab_size=int(_need(config, "vocab_size")),
        hidden_size=hidden,
        intermediate_size=int(_need(config, "intermediate_size")),
        num_layers=int(_need(config, "num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_hf_rope(config),
        max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=_hf_window(config, family),
        eos_token_ids=_ids(config.get("eos_token_id"), generation.get("eos_token_id")),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab_size: int,
    tied: bool,
    rope_divisors: tuple[float, ...] = (),
) -> ModelConfig:
    """Read GGUF metadata (plain values by key).

    `tied`: the file has no output matrix; `rope_divisors`: its tensor `rope_freqs`, if any.

    Raises UnsupportedModelError for an architecture or rope scaling that is not here.
    """
    family = metadata.get("general.architecture")
    if family not in GGUF_FAMILIES:
        raise UnsupportedModelError(
            f"GGUF architecture {family!r} is not supported; supported: {', '.join(GGUF_FAMILIES)}"
        )
    fields = {key[len(family) + 1 :]: v for key, v in metadata.items() if key.startswith(family)}
    hidden = int(_need(fields, "embedding_length"))
    heads = int(_need(fields, "attention.head_count"))
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=int(_need(fields, "feed_forward_length")),
        num_layers=int(_need(fields, "block_count")),
        num_heads=heads,
        num_kv_heads=int(fields.get("attention.head_count_kv", heads)),
        head_dim=int(fields.get("attention.key_length", hidden // heads)),
        norm_eps=float(_need(fields, "attention.layer_norm_rms_epsilon")),
        rope=_gguf_rope(fields, rope_divisors),
        max_position_embeddings=int(_need(fields, "context_length")),
        tie_word_embeddings=tied,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=fields.get("attention.sliding_window") or None,
        eos_token_ids=_ids(
            metadata.get("tokenizer.ggml.eos_token_id"), metadata.get("tokenizer.ggml.eot_token_id")
        ),
    )


def _need(values: Mapping[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise UnsupportedModelError(f"the model's configuration lacks {key!r}")
    return values[key]


def _ids(*given: int | list[int] | None) -> tuple[int, ...]:
    """Merge ids given one by one or in lists, in order, each once."""
    merged: dict[int, None] = {}
    for item in given:
        for value in item if isinstance(item, list) else [] if item is None else [item]:
            merged[int(value)] = None
    return tuple(merged)


def _hf_family(config: Mapping[str, Any]) -> str:
    family = config.get("model_type")
    named = config.get("architectures") or [HF_FAMILIES.get(str(family))]
    if family not in HF_FAMILIES or HF_FAMILIES[family] not in named:
        raise UnsupportedModelError(
            f"architecture {', '.join(map(str, named))} (model_type {family!r}) is not supported; "
            f"supported: {', '.join(HF_FAMILIES.values())}"
        )
    return str(family)


def _refuse_extras(config: Mapping[str, Any], family: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; supported: silu")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise UnsupportedModelError(
                f"{key} is not supported for {family}: only Qwen2's qkv bias is"
            )
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise UnsupportedModelError(f"quantization {method!r} is not supported for safetensors")


def _hf_window(config: Mapping[str, Any], family: str) -> int | None:
    """Window of a family that has one switched on (Qwen's is off unless it says otherwise)."""
    if family == "llama" or not config.get("use_sliding_window", family == "mistral"):
        return None
    return config.get("sliding_window") or None


def _hf_rope(config: Mapping[str, Any]) -> RopeConfig:
    """Read both spellings: rope_theta with rope_scaling, and (newer) rope_parameters."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    _check_rope(kind)
    partial = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModelError(
            f"partial_rotary_factor {partial} is not supported; supported: 1"
        )
    if kind == "default":
        return RopeConfig(theta)
    factor = float(_need(scaling, "factor"))
    if kind == "linear":
        return RopeConfig(theta, kind, factor)
    return RopeConfig(
        theta,
        kind,
        factor,
        float(_need(scaling, "low_freq_factor")),
        float(_need(scaling, "high_freq_factor")),
        int(_need(scaling, "original_max_position_embeddings")),
    )


def _gguf_rope(fields: Mapping[str, Any], divisors: tuple[float, ...]) -> RopeConfig:
    kind = fields.get("rope.scaling.type") or "default"
    kind = "default" if kind == "none" else kind
    theta = float(fields.get("rope.freq_base", 10000.0))
    _check_rope(kind)
    if kind == "llama3":
        raise UnsupportedModelError("GGUF rope scaling 'llama3' is a tensor, never a type")
    factor = float(fields.get("rope.scaling.factor", 1.0))
    return RopeConfig(theta, kind, factor, divisors=divisors)


def _check_rope(kind: str) -> None:
    if kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"rope scaling {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
