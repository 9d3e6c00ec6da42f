"""Greedy output of the real model equals transformers', however the work was cut up.

Our tokens are generated first; then one teacher-forced forward of transformers for each distinct
stream says at every position what it would have chosen. A difference counts only where its two best
logits are more than TIE apart; the number of ties is printed. All ways of prefilling run in a mixed
batch; decoding alone runs once for each prompt, the ways taking turns (TANDEM_FULL=1: each way for
each prompt, in minutes).
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from protocol.model_files import resolve
from tests.unit.worker.cpu_driver import Driver, Sequence, greedy
from tokenizer_service import assets
from worker.executors.cpu import topology
from worker.executors.cpu.executor import CpuExecutor, CpuSettings
from worker.loaders import load_model, silent
from worker.models.weights import Model

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

TOKENS = 64
TIE = 1e-3
CHUNK = 48
LAYERS = 7
"""Layers of a quantum: 30 are not a multiple of it."""
WAYS = ("whole", "quanta", "chunks")
FULL = os.environ.get("TANDEM_FULL") == "1"

SYSTEM = "You are a careful assistant who answers briefly and never invents facts."
LONG = (
    "The harbour town had two clocks. One stood on the church and was slow, the other hung in the "
    "window of a shop that sold rope, lamp oil and tinned fruit, and was fast. Between them the "
    "people of the town had agreed, without ever saying so, on a third time, which no clock showed "
    "and everybody kept. Ferries left by it. Children were called in by it. When a surveyor came "
    "from the capital to set both clocks right, "
)
CODE = """def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
"""
PLAIN = (
    "A",
    "Once upon a time",
    "The three largest planets of the solar system are",
    CODE,
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++)",
    "SELECT name, count(*) FROM orders JOIN customers ON",
    '{"name": "tandem", "version": "0.1.0", "dependencies": {',
    "La capitale de la France est Paris, et la capitale de l'Italie est",
    "Der Zug nach München fährt um acht Uhr ab. Wir sollten",
    "日本の首都は東京です。フランスの首都は",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Ingredients:\n- 2 eggs\n- 200 g flour\n- a pinch of salt\n\nMethod:\n1.",
    LONG,
    LONG + LONG[:200],
)
CHATS = (
    "What is the capital of France?",
    "Write a haiku about two rivers that meet.",
    "Explain in two sentences why the sky is blue.",
    "Translate 'good morning' into Spanish, French and German.",
    "A train travels 120 km in 1.5 hours. What is its average speed?",
    "Summarize this text in one sentence:\n" + LONG,
)


def encoded_prompts() -> list[tuple[int, ...]]:
    loaded = assets.load(resolve("demo"))
    prompts = [tuple(loaded.tokenizer.encode_prompt(text)) for text in PLAIN]
    assert loaded.template is not None
    for text in CHATS:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        prompts.append(tuple(loaded.tokenizer.encode_chat(loaded.template.render(messages))))
    return prompts


class Streams:
    """What was generated: distinct outputs of each prompt, and by which ways."""

    def __init__(self) -> None:
        self.prompts = encoded_prompts()
        self.found: dict[tuple[int, tuple[int, ...]], list[str]] = {}

    def add(self, prompt: int, sequence: Sequence, way: str) -> None:
        assert len(sequence.output) == TOKENS
        self.found.setdefault((prompt, tuple(sequence.output)), []).append(way)


@pytest.fixture(scope="module")
def model() -> Model:
    files = resolve("demo")
    return Model(*load_model(files, torch.device("cpu"), torch.float32, silent))


@contextmanager
def driving(model: Model, cores: tuple[int, ...]) -> Iterator[Driver]:
    settings = CpuSettings(
        cores=cores,
        page_size=16,
        num_pages=1000,
        max_slots=64,
        max_model_len=1024,
        max_prefill_tokens=4096,
    )
    executor = CpuExecutor({"smollm2": model}, settings)
    yield Driver(executor, "smollm2")
    executor.close()


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams()


def prefill(driver: Driver, sequences: list[Sequence], way: str) -> None:
    """Prefill in the prefill lane; chunks one prompt at a time, the others all together."""
    if way == "chunks":
        for s in sequences:
            driver.prefill_chunks(s, CHUNK)
    else:
        driver.prefill(sequences, LAYERS if way == "quanta" else 0)


def prefill_fused(driver: Driver, sequences: list[Sequence]) -> None:
    """Chunks ride in the decode lane, beside rows of the prompts before."""
    for number, s in enumerate(sequences):
        for start in range(0, len(s.prompt), CHUNK):
            decoding = [other for other in sequences[:number] if len(other.output) < TOKENS]
            driver.decode(decoding, [(s, start, min(start + CHUNK, len(s.prompt)))])


def decode_to_end(driver: Driver, sequences: list[Sequence]) -> None:
    while running := [s for s in sequences if len(s.output) < TOKENS]:
        driver.decode(running)


@pytest.mark.parametrize("way", WAYS)
def test_in_a_mixed_batch_with_and_without_prefix_reuse(
    model: Model, streams: Streams, way: str
) -> None:
    """Each prompt twice in one batch: computed whole, and on top of the first one's pages."""
    begun = time.monotonic()
    with driving(model, topology.available_cores()) as driver:
        first = [driver.sequence(p, greedy(), TOKENS) for p in streams.prompts]
        again = [
            driver.sequence(p, greedy(), TOKENS, like=s)
            for p, s in zip(streams.prompts, first, strict=True)
        ]
        assert sum(s.cached > 0 for s in again) >= len(again) // 2
        if way == "chunks":
            prefill_fused(driver, first)
        else:
            prefill(driver, first, way)
        prefill(driver, again, way)
        decode_to_end(driver, [*first, *again])
    for index, (one, two) in enumerate(zip(first, again, strict=True)):
        streams.add(index, one, f"{way}, mixed")
        streams.add(index, two, f"{way}, mixed, {two.cached} tokens reused")
    print(f"\n{way}, mixed batch of {len(first) + len(again)}: {time.monotonic() - begun:.1f} s")


def alone(driver: Driver, streams: Streams, index: int, way: str) -> None:
    """One prompt with the device to itself, without reuse or with it (or both)."""
    driver.reset()
    prompt = streams.prompts[index]
    s = driver.sequence(prompt, greedy(), TOKENS)
    prefill(driver, [s], way)
    reuse = (index // len(WAYS)) % 2 == 1
    if FULL or not reuse:
        decode_to_end(driver, [s])
        streams.add(index, s, f"{way}, alone")
    if FULL or reuse:
        again = driver.sequence(prompt, greedy(), TOKENS, like=s)
        prefill(driver, [again], way)
        decode_to_end(driver, [again])
        streams.add(index, again, f"{way}, alone, {again.cached} tokens reused")


def test_alone(model: Model, streams: Streams) -> None:
    """A device for each core: an iteration of one row has little for two cores to share."""
    begun = time.monotonic()
    cores = topology.available_cores()[:4]
    indices = range(len(streams.prompts))

    def share(number: int) -> None:
        with driving(model, cores[number : number + 1]) as driver:
            for index in indices[number :: len(cores)]:
                for way in WAYS if FULL else (WAYS[index % len(WAYS)],):
                    alone(driver, streams, index, way)

    with ThreadPoolExecutor(len(cores)) as pool:
        list(pool.map(share, range(len(cores))))
    print(f"\nalone: {time.monotonic() - begun:.1f} s")


def test_every_token_is_what_transformers_would_choose(streams: Streams) -> None:
    """Runs last: it judges what the tests before it generated."""
    from transformers import AutoModelForCausalLM

    assert len(streams.found) >= len(streams.prompts), "the tests before this one must run too"
    begun = time.monotonic()
    path = resolve("demo").path
    reference = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    ).eval()
    loaded = time.monotonic() - begun
    ties, wrong = 0, []
    for (index, output), ways in streams.found.items():
        ids = torch.tensor([[*streams.prompts[index], *output[:-1]]])
        with torch.inference_mode():
            logits = reference(ids, logits_to_keep=TOKENS).logits[0]
        for position, token in enumerate(output):
            best = logits[position].max().item()
            behind = best - logits[position, token].item()
            top_two = logits[position].topk(2).values
            if int(logits[position].argmax()) == token:
                continue
            if (top_two[0] - top_two[1]).item() <= TIE and behind <= TIE:
                ties += 1
            else:
                wrong.append((index, position, token, behind, ways))
    print(
        f"\n{len(streams.prompts)} prompts, {sum(map(len, streams.found.values()))} runs, "
        f"{len(streams.found)} distinct streams, ties: {ties}; "
        f"loading {loaded:.1f} s, judging {time.monotonic() - begun - loaded:.1f} s"
    )
    assert not wrong
