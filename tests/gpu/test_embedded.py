"""The embedded real model on the GPU: real text, real weights, by the same measure as the others.

Its weights are rounded to bfloat16 here and by transformers alike, when they are dequantized.
"""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from protocol.model_files import ModelNotFound, resolve
from tests.gpu import families
from tests.gpu.harness import Harness, Sequence_
from tests.gpu.test_logits import MODES, PAGE, check, decode_all, start_prompts
from tokenizer_service import assets
from worker.executors.cuda.config import CudaConfig
from worker.executors.cuda.start import start
from worker.loaders import load_model, silent
from worker.models.weights import Model

pytestmark = [pytest.mark.gpu, pytest.mark.model, pytest.mark.timeout(600)]

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a harbour town with two clocks, and neither of them was right.",
    "def merge(left, right):\n    result = []\n    while left and right:\n" * 12,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Harness, families.Reference]]:
    try:
        files = resolve("demo")
    except ModelNotFound as error:
        pytest.skip(str(error))
    folder, name = str(files.path.parent), files.path.name
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=dtype).eval().cuda()
        for dtype in (torch.float32, torch.bfloat16)
    )
    model = Model(*load_model(files, torch.device("cuda", 0), torch.bfloat16, silent))
    config = CudaConfig(
        device=0,
        max_slots=16,
        max_model_len=4096,
        max_prefill_tokens=4096,
        page_size=PAGE,
        num_pages=2048,
        memory_utilization=0.9,
        require_partitions=True,
        graph_rows=(2, 4),
    )
    executor = start("demo", model, config, lambda *_: None)
    yield Harness(executor, "demo"), families.Reference(exact, rounded)
    executor.close()


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    tokenizer = assets.load(resolve("demo")).tokenizer
    return [tuple(tokenizer.encode_prompt(text)) for text in TEXTS]


@pytest.mark.parametrize("mode", MODES)
def test_the_real_models_logits_match_float32_as_well_as_transformers_bfloat16(
    engine: tuple[Harness, families.Reference], prompts: list[tuple[int, ...]], mode: str
) -> None:
    harness, reference = engine
    for row in harness.executor.info.partitions:
        harness.rewind()
        sequences = [Sequence_(slot, prompt) for slot, prompt in enumerate(prompts)]
        start_prompts(harness, sequences, mode, row.index)
        decode_all(harness, sequences, mode, row.index)
        check(sequences, reference)
