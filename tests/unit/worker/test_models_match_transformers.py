"""Logits of tiny random checkpoints, written by transformers and read by our loader, are the same.

Every family and rope scaling, computed whole, by single layers and by chunks over the paged pool.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from protocol.model_files import resolve
from worker.executors.cpu.attention import PagedAttention, Span
from worker.executors.cpu.pool import KvView, PageTables, common_page_bytes
from worker.executors.cpu.runner import CpuOps
from worker.loaders import load_model, silent
from worker.models import decoder
from worker.models.rope import rope_table, rotation_tables
from worker.models.weights import Model

TOLERANCE = 1e-3
LENGTH = 45
PAGE = 8
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


@dataclass(frozen=True)
class Case:
    kind: str
    changes: dict[str, Any]
    shard: str = "1GB"


CASES = {
    "llama, grouped queries, tied": Case("Llama", {"tie_word_embeddings": True}),
    "llama, untied, in shards": Case("Llama", {"tie_word_embeddings": False}, shard="20KB"),
    "llama, every head its own": Case("Llama", {"num_key_value_heads": 6}),
    "llama, one key-value head": Case("Llama", {"num_key_value_heads": 1}),
    "llama3 rope": Case("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": Case("Llama", {"rope_parameters": LINEAR}),
    "large rope base": Case(
        "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    ),
    "heads wider than hidden": Case("Llama", {"head_dim": 16}),
    "mistral": Case("Mistral", {"sliding_window": None}),
    "mistral, window as long as the text": Case("Mistral", {"sliding_window": 50}),
    "qwen2, biases": Case("Qwen2", {}),
    "qwen2, tied": Case("Qwen2", {"tie_word_embeddings": True}),
    "qwen3, head norms": Case("Qwen3", {"head_dim": 16}),
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def checkpoint(folder: Path, case: Case) -> Any:
    """Write a random model of the case; return transformers' own."""
    torch.manual_seed(7)
    config = getattr(transformers, f"{case.kind}Config")(**{**SHAPE, **case.changes})
    model = getattr(transformers, f"{case.kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        spread = 0.2 if parameter.dim() > 1 else 0.5
        parameter.data.normal_(0.0, spread).add_(0.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder, max_shard_size=case.shard)
    return model


class Sequences:
    """Sequences over a small pool whose pages are taken in no order."""

    def __init__(self, model: Model, count: int) -> None:
        self.model, config = model, model.config
        stride = common_page_bytes([config], PAGE, torch.float32)
        pages = -(-LENGTH // PAGE)
        buffer = torch.zeros(stride * pages * count, dtype=torch.uint8)
        self._view = KvView(buffer, stride, config, PAGE, torch.float32)
        self._tables = PageTables(count, pages)
        shuffled = torch.randperm(pages * count, generator=torch.Generator().manual_seed(3))
        for slot in range(count):
            self._tables.update(slot, 0, shuffled[slot * pages : (slot + 1) * pages].tolist())
        table = rope_table(config.rope, config.head_dim, LENGTH)
        self._rotations = rotation_tables(table)

    def forward(self, ids: Tensor, spans: list[Span], quantum: int) -> Tensor:
        """Logits of all rows: [tokens, vocab]."""
        attention = PagedAttention(self._view, self._tables, spans, torch.float32)
        ops = CpuOps(self.model.config.norm_eps, self._rotations, attention)
        layers = self.model.config.num_layers
        hidden, residual = decoder.embed(ops, self.model, ids), None
        for first in range(0, layers, quantum):
            end = min(first + quantum, layers)
            hidden, residual = decoder.run_layers(
                ops, self.model, hidden, residual, attention.positions, first, end
            )
        return decoder.logits(ops, self.model, hidden, residual, None)


@pytest.mark.parametrize("name", CASES)
def test_logits_match_whole_by_layers_and_by_chunks(name: str, tmp_path: Path) -> None:
    reference = checkpoint(tmp_path, CASES[name])
    config, weights = load_model(resolve(str(tmp_path)), torch.device("cpu"), torch.float32, silent)
    model = Model(config, weights)
    ids = torch.randint(3, 97, (3, LENGTH), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        wanted = reference(ids).logits
        spread = wanted.std()
        assert spread > 1.0, "logits this flat would agree whatever was wrong"
        whole = [Span(slot, 0, LENGTH) for slot in range(3)]
        for quantum in (3, 1):
            got = Sequences(model, 3).forward(ids.flatten(), whole, quantum)
            torch.testing.assert_close(got.view_as(wanted), wanted, atol=TOLERANCE, rtol=0)
        chunked = Sequences(model, 3)
        cuts = [0, 20, 21, 22, 40, LENGTH]
        for start, end in itertools.pairwise(cuts):
            spans = [Span(slot, start, end - start) for slot in range(3)]
            got = chunked.forward(ids[:, start:end].flatten(), spans, 2)
            torch.testing.assert_close(
                got.view(3, end - start, -1), wanted[:, start:end], atol=TOLERANCE, rtol=0
            )


def test_sharded_checkpoint_is_in_several_files(tmp_path: Path) -> None:
    checkpoint(tmp_path, CASES["llama, untied, in shards"])
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2


def test_sequences_of_different_lengths_in_one_batch_equal_each_alone(tmp_path: Path) -> None:
    reference = checkpoint(tmp_path, CASES["llama, grouped queries, tied"])
    model = Model(*load_model(resolve(str(tmp_path)), torch.device("cpu"), torch.float32, silent))
    ids = torch.randint(3, 97, (3, LENGTH), generator=torch.Generator().manual_seed(6))
    with torch.inference_mode():
        wanted = reference(ids).logits
        pool = Sequences(model, 3)
        before = [3, 17, 40]
        spans = [Span(slot, 0, length) for slot, length in enumerate(before)]
        flat = torch.cat([ids[slot, :length] for slot, length in enumerate(before)])
        pool.forward(flat, spans, 3)
        mixed = [Span(1, 17, 1), Span(0, 3, 1), Span(2, 40, 5)]
        flat = torch.cat([ids[1, 17:18], ids[0, 3:4], ids[2, 40:45]])
        got = pool.forward(flat, mixed, 3)
    expected = torch.cat([wanted[1, 17:18], wanted[0, 3:4], wanted[2, 40:45]])
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
