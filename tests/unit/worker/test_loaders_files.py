"""Loaders refuse files that do not hold their model, by name, and hold nothing twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from protocol.model_files import ModelFiles, resolve
from worker.loaders import LoadError, load_config, load_dummy, load_model, silent
from worker.loaders.assemble import assemble, tensor_names
from worker.loaders.gguf import GgufSource, gguf_name, half_split
from worker.loaders.progress import TerminalProgress
from worker.models.config import ModelConfig, UnsupportedModelError, config_from_hf

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def random_tensors(config: ModelConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in tensor_names(config)}


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] = CONFIG) -> ModelFiles:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return ModelFiles("hf", folder, "tiny")


@pytest.fixture
def config() -> ModelConfig:
    return config_from_hf(CONFIG, {})


def test_projections_are_fused_in_order(tmp_path: Path, config: ModelConfig) -> None:
    tensors = random_tensors(config)
    _, weights = load_model(write(tmp_path, tensors), CPU, torch.float32, silent)
    parts = [tensors[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv"]
    assert torch.equal(weights.layers[1].qkv, torch.cat(parts))
    parts = [tensors[f"model.layers.0.mlp.{x}_proj.weight"] for x in ("gate", "up")]
    assert torch.equal(weights.layers[0].gate_up, torch.cat(parts))


def test_tied_output_is_the_embedding_itself(tmp_path: Path, config: ModelConfig) -> None:
    _, weights = load_model(write(tmp_path, random_tensors(config)), CPU, torch.float32, silent)
    assert weights.lm_head is weights.embed


def test_weights_are_converted_to_the_wanted_type(tmp_path: Path, config: ModelConfig) -> None:
    tensors = random_tensors(config)
    _, weights = load_model(write(tmp_path, tensors), CPU, torch.bfloat16, silent)
    assert torch.equal(weights.embed, tensors["model.embed_tokens.weight"].bfloat16())


def test_missing_tensors_are_named_before_anything_is_read(
    tmp_path: Path, config: ModelConfig
) -> None:
    tensors = random_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    reported: list[int] = []
    with pytest.raises(LoadError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight$"):
        load_model(
            write(tmp_path, tensors), CPU, torch.float32, lambda done, _: reported.append(done)
        )
    assert not reported


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    files = write(tmp_path, {"model.norm.weight": torch.ones(32)})
    with pytest.raises(LoadError, match="and 14 more"):
        load_model(files, CPU, torch.float32, silent)


def test_tensor_of_another_shape_is_named_with_both_shapes(
    tmp_path: Path, config: ModelConfig
) -> None:
    tensors = {**random_tensors(config), "model.norm.weight": torch.ones(31)}
    with pytest.raises(LoadError, match=r"model\.norm\.weight is \(31,\).*\(32,\)"):
        load_model(write(tmp_path, tensors), CPU, torch.float32, silent)


def test_folder_without_safetensors_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(LoadError, match=r"model\.safetensors.*safetensors only"):
        load_model(ModelFiles("hf", tmp_path, "tiny"), CPU, torch.float32, silent)


def test_missing_shard_is_named(tmp_path: Path, config: ModelConfig) -> None:
    files = write(tmp_path, random_tensors(config))
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LoadError, match="model-00002-of-00002"):
        load_model(files, CPU, torch.float32, silent)


def test_index_cannot_point_outside_its_folder(tmp_path: Path, config: ModelConfig) -> None:
    files = write(tmp_path, random_tensors(config))
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LoadError, match="outside"):
        load_model(files, CPU, torch.float32, silent)


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_broken_config_is_a_load_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(LoadError, match=r"config\.json"):
        load_config(ModelFiles("hf", tmp_path, "tiny"))


def test_broken_safetensors_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nothing.")
    with pytest.raises(LoadError, match="cannot be read"):
        load_model(ModelFiles("hf", tmp_path, "tiny"), CPU, torch.float32, silent)


def test_progress_runs_from_nothing_to_everything(tmp_path: Path, config: ModelConfig) -> None:
    seen: list[tuple[int, int]] = []
    load_model(
        write(tmp_path, random_tensors(config)),
        CPU,
        torch.float32,
        lambda done, total: seen.append((done, total)),
    )
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


def test_progress_in_a_log_is_a_few_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TerminalProgress("tiny")
    for done in range(1001):
        progress(done * 2**20, 1000 * 2**20)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "tiny: 1000 of 1000 MiB"


def test_source_is_read_one_tensor_at_a_time(config: ModelConfig) -> None:
    """Every tensor that was handed out is gone before the next one is asked for."""
    import weakref

    tensors = random_tensors(config)
    alive: list[Any] = []

    class Source:
        def shape(self, name: str) -> tuple[int, ...] | None:
            return tuple(tensors[name].shape) if name in tensors else None

        def read(self, name: str) -> Tensor:
            assert all(ref() is None for ref in alive)
            copy = tensors[name].clone()
            alive.append(weakref.ref(copy))
            return copy

    assemble(config, Source(), CPU, torch.float32, silent)
    assert len(alive) == len(tensors)


def test_dummy_weights_depend_on_the_seed_alone(config: ModelConfig) -> None:
    one, two, other = (load_dummy(config, seed, CPU, torch.float32, silent) for seed in (1, 1, 2))
    assert torch.equal(one.layers[1].qkv, two.layers[1].qkv)
    assert not torch.equal(one.layers[1].qkv, other.layers[1].qkv)
    assert not torch.equal(one.layers[0].qkv, one.layers[1].qkv)


# --- GGUF ---


def permuted(rows: Tensor, heads: int) -> Tensor:
    """llama.cpp's order: row i + h · half of a head is its row 2 i + h there."""
    out = torch.empty_like(rows)
    size = rows.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            for h in range(2):
                out[head * size + 2 * i + h] = rows[head * size + i + h * (size // 2)]
    return out


def write_gguf(path: Path, tensors: dict[str, Tensor], **changes: Any) -> None:
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48 if "quantization" not in changes else 64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    for name, tensor in tensors.items():
        rows = tensor
        if ".self_attn.q_proj." in name:
            rows = permuted(tensor, 4)
        if ".self_attn.k_proj." in name:
            rows = permuted(tensor, 2)
        kind = changes.get("quantization")
        if kind is not None and tensor.dim() > 1:
            data = gguf.quants.quantize(rows.numpy(), kind)
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), rows.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def small_gguf(tmp_path: Path, config: ModelConfig) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    tensors = random_tensors(config)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tensors)
    return path, tensors


def test_query_and_key_rows_come_back_in_half_split_order(
    small_gguf: tuple[Path, dict[str, Tensor]],
) -> None:
    path, tensors = small_gguf
    config, weights = load_model(ModelFiles("gguf", path, "tiny"), CPU, torch.float32, silent)
    parts = [tensors[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv"]
    assert torch.equal(weights.layers[1].qkv, torch.cat(parts))
    assert config.tie_word_embeddings
    assert torch.equal(weights.lm_head, tensors["model.embed_tokens.weight"])


def test_half_split_undoes_the_permutation_of_biases_too() -> None:
    rows = torch.arange(24.0)
    assert torch.equal(half_split(permuted(rows, 3), 3), rows)
    assert not torch.equal(permuted(rows, 3), rows)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1])
def test_quantized_tensors_equal_the_packages_own_reading(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    config = config_from_hf({**CONFIG, "intermediate_size": 64}, {})
    path = tmp_path / "quantized.gguf"
    write_gguf(path, random_tensors(config), quantization=kind)
    source = GgufSource(path)
    raw = {t.name: t for t in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    wanted = gguf.quants.dequantize(np.array(raw.data), raw.tensor_type)
    got = source.read("model.layers.1.mlp.down_proj.weight")
    assert got.shape == (32, 64)
    assert torch.equal(got, torch.from_numpy(wanted))


def test_gguf_of_another_architecture_is_refused(tmp_path: Path, config: ModelConfig) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, random_tensors(config), architecture="gpt2")
    with pytest.raises(UnsupportedModelError, match=r"'gpt2'.*supported: llama"):
        GgufSource(path)


def test_truncated_gguf_is_a_load_error(small_gguf: tuple[Path, dict[str, Tensor]]) -> None:
    path, _ = small_gguf
    path.write_bytes(path.read_bytes()[:64])
    with pytest.raises(LoadError, match="cannot be read"):
        GgufSource(path)


@pytest.mark.model
def test_embedded_model_is_read_as_the_package_dequantizes_it() -> None:
    from protocol.model_files import resolve

    source = GgufSource(resolve("demo").path)
    tensors = {t.name: t for t in gguf.GGUFReader(resolve("demo").path).tensors}
    assert source.config.num_layers == 30
    for ours, theirs, heads in (
        ("model.layers.7.mlp.gate_proj.weight", "blk.7.ffn_gate.weight", 0),
        ("model.layers.29.self_attn.q_proj.weight", "blk.29.attn_q.weight", 9),
        ("model.layers.29.self_attn.k_proj.weight", "blk.29.attn_k.weight", 3),
        ("model.norm.weight", "output_norm.weight", 0),
    ):
        raw = tensors[theirs]
        wanted = torch.from_numpy(np.array(gguf.quants.dequantize(raw.data, raw.tensor_type)))
        got = source.read(ours)
        assert torch.equal(permuted(got, heads) if heads else got, wanted)


def test_a_shape_has_no_weights_to_load_and_says_what_to_give() -> None:
    with pytest.raises(LoadError, match="--load-format dummy"):
        load_model(resolve("qwen3-8b"), CPU, torch.float32, silent)
