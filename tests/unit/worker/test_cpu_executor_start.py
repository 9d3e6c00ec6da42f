"""A CPU executor from a worker's settings: what is asked for is what is realized."""

import json
from pathlib import Path

import pytest

from protocol.model_files import LoadFormat, ModelFiles
from worker.executors.cpu import start as starting
from worker.executors.cpu.start import CpuUnfit, start
from worker.settings import DType, WorkerSettings

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PAGE_BYTES = 2 * 2 * 2 * 8 * 16 * 4
"""Layers, keys and values, heads, head size, tokens, bytes of a float32."""


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return ModelFiles("hf", tmp_path, "tiny")


def chosen(**changes: object) -> WorkerSettings:
    values = {"run_dir": "unused", "load_format": LoadFormat.DUMMY, **changes}
    return WorkerSettings(**values)  # type: ignore[arg-type]


def test_pool_slots_and_limits_come_from_the_settings(files: ModelFiles) -> None:
    stages: list[str] = []
    executor = start(
        chosen(cpu_kv_cache_gib=100 * PAGE_BYTES / 2**30, max_num_seqs=7, max_model_len=50),
        "served",
        files,
        lambda stage, *_: stages.append(stage),
    )
    executor.close()
    info = executor.info
    assert (info.num_pages, info.max_slots, info.page_size) == (100, 7, 16)
    assert (info.models[0].name, info.models[0].max_model_len) == ("served", 50)
    assert stages[0] == "loading weights"
    assert stages[-1] == "starting lanes"


def test_pages_can_be_given_as_a_number(files: ModelFiles) -> None:
    executor = start(chosen(num_pages=9), "served", files, lambda *_: None)
    executor.close()
    assert executor.info.num_pages == 9
    assert executor.info.models[0].max_model_len == 64


def test_pool_without_room_for_two_pages_is_refused(files: ModelFiles) -> None:
    with pytest.raises(ValueError, match=f"{PAGE_BYTES} bytes"):
        start(chosen(cpu_kv_cache_gib=1e-9), "served", files, lambda *_: None)


def test_bfloat16_is_refused_where_it_kills_a_process(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "_PROBE", "import os; os.abort()")
    with pytest.raises(CpuUnfit, match="use float32"):
        start(chosen(dtype=DType.BFLOAT16), "served", files, lambda *_: None)


def test_bfloat16_is_taken_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_PROBE", "pass")
    starting.check_bfloat16()
