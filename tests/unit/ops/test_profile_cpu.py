"""The profiler's launches on a real executor: contexts that nobody wrote, slots used again."""

import pytest
import torch

from ops import profile
from ops.profiling.launches import PROMPTS, Driver
from ops.profiling.session import Session
from worker.executors.cpu import topology
from worker.executors.cpu.executor import CpuExecutor, CpuSettings
from worker.loaders import load_dummy, silent
from worker.models.config import ModelConfig, RopeConfig
from worker.models.weights import Model

ROWS = 4


@pytest.fixture(scope="module")
def executor():
    config = ModelConfig(
        family="llama",
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        norm_eps=1e-5,
        rope=RopeConfig(1e4),
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_ids=(2,),
    )
    weights = load_dummy(config, 4, torch.device("cpu"), torch.float32, silent)
    made = CpuExecutor(
        {"tiny": Model(config, weights)},
        CpuSettings(
            cores=topology.available_cores(),
            page_size=8,
            num_pages=200,
            max_slots=ROWS + PROMPTS,
            max_model_len=200,
            max_prefill_tokens=150,
        ),
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def driver(executor):
    return Driver(executor, profile.waiting(executor))


def test_iterations_and_prefills_of_every_size_run_and_take_time(driver):
    for rows, context in ((1, 8), (ROWS, 199), (2, 100)):
        times = driver.iterations(0, (context,) * rows, 3)
        assert len(times) == 3
        assert min(times) > 0
    for prompts in ([(1, 0)], [(150, 0)], [(30, 100)] * 4, [(50, 149)]):
        assert min(driver.prefills(0, prompts, 2)) > 0


@pytest.mark.skipif(len(topology.available_cores()) < 2, reason="one core has no partitions")
def test_both_lanes_run_together(driver, executor):
    for _ in range(2):
        done = driver.both(1, (140, 50), (150,) * ROWS, 20)
        assert len(done) == 20
        assert sum(c.overlap_s for c in done) > 0
    assert executor.poll() == []


def test_a_short_session_has_samples_of_both_lanes(driver, executor):
    ticks = iter(range(10**6))
    session = Session(executor.info, driver, profile.empty(executor.info), lambda: next(ticks))
    *_, last = session.run(60)
    assert last.profile.prefill
    assert last.profile.decode
    assert all(sample.seconds > 0 for sample in (*last.profile.prefill, *last.profile.decode))
    assert last.profile.hardware.unit == "core"
