"""A prompt of 128K tokens, in chunks on different partitions: right at its end, and decoded on."""

from pathlib import Path

import pytest
import torch

from protocol.model_files import ModelFiles
from tests.gpu import families
from tests.gpu.harness import Harness
from tests.gpu.test_logits import OUTPUT, PAGE, check, decode_all, make_sequences
from worker.executors.base import PrefillRow
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.start import start
from worker.loaders import load_model, silent
from worker.models.weights import Model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

CONTEXT = 131_072
CHUNK = 8192


def test_a_prompt_of_128k_tokens_is_prefilled_in_chunks_and_decoded(tmp_path: Path) -> None:
    reference = families.write(
        "llama3", tmp_path, max_position_embeddings=CONTEXT, num_hidden_layers=2
    )
    files = ModelFiles("hf", tmp_path, "long")
    model = Model(*load_model(files, torch.device("cuda", 0), torch.bfloat16, silent))
    config = CudaConfig(
        device=0,
        max_slots=4,
        max_model_len=CONTEXT,
        max_prefill_tokens=CHUNK,
        page_size=PAGE,
        num_pages=CONTEXT // PAGE + 64,
        memory_utilization=0.9,
        require_partitions=True,
        graph_rows=(1, 2),
    )
    executor = start("long", model, config, lambda *_: None)
    harness = Harness(executor, "long")
    (sequence,) = make_sequences((CONTEXT - OUTPUT - 100,), seed=9)
    tables = [harness.pages(0, CONTEXT // PAGE)]
    count = len(executor.info.partitions)
    for number, at in enumerate(range(0, len(sequence.prompt), CHUNK)):
        part = sequence.prompt[at : at + CHUNK]
        row = PrefillRow(0, at, part, sample=at + CHUNK >= len(sequence.prompt))
        done = harness.prefill([row], tables, partition=number % count, layers=1)
        harness.take(done[-1], {0: sequence})
    decode_all(harness, [sequence], "whole", 1)
    assert len(sequence.logits) == OUTPUT
    check([sequence], reference)
    executor.close()
