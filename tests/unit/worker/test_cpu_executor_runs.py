"""The CPU executor as the core sees it: order, overlap, split changes, errors, equal tokens."""

import itertools
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from protocol.control_link import WHOLE, Lane
from protocol.sampling import Sampling
from tests.unit.worker.cpu_driver import Driver, Sequence, greedy
from worker.executors.base import Completion, DecodeBatch, PrefillQuantum, PrefillRow
from worker.executors.cpu import topology
from worker.executors.cpu.executor import CpuExecutor, CpuSettings, pages_in
from worker.loaders import load_dummy, silent
from worker.models import decoder
from worker.models.config import ModelConfig, RopeConfig
from worker.models.weights import Model

PATIENCE_S = 30.0
VOCAB = 300
PAGE = 8

needs_two_cores = pytest.mark.skipif(
    len(topology.available_cores()) < 2, reason="one core has no partitions"
)


def tiny(layers: int = 3, head_dim: int = 8, seed: int = 4) -> Model:
    config = ModelConfig(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        norm_eps=1e-5,
        rope=RopeConfig(1e4),
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_ids=(2,),
    )
    return Model(config, load_dummy(config, seed, torch.device("cpu"), torch.float32, silent))


def settings(**changes: Any) -> CpuSettings:
    values: dict[str, Any] = {
        "cores": topology.available_cores(),
        "page_size": PAGE,
        "num_pages": 200,
        "max_slots": 16,
        "max_model_len": 200,
        "max_prefill_tokens": 150,
    }
    return CpuSettings(**{**values, **changes})


@pytest.fixture
def executor() -> Iterator[CpuExecutor]:
    made = CpuExecutor({"tiny": tiny()}, settings())
    yield made
    made.close()


@pytest.fixture
def driver(executor: CpuExecutor) -> Driver:
    return Driver(executor, "tiny")


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def generate(driver: Driver, s: Sequence, count: int) -> list[int]:
    driver.prefill([s])
    while len(s.output) < count:
        driver.decode([s])
    return s.output


# --- what it says of itself ---


def test_info_is_what_was_realized(executor: CpuExecutor) -> None:
    info = executor.info
    assert (info.unit, info.units) == ("core", len(topology.available_cores()))
    assert (info.num_pages, info.page_size, info.max_slots) == (200, PAGE, 16)
    assert info.models[0].max_model_len == 200
    assert info.models[0].eos_token_ids == (2,)


def test_model_keeps_its_own_length_limit() -> None:
    made = CpuExecutor({"tiny": tiny()}, settings(max_model_len=10_000))
    assert made.info.models[0].max_model_len == 256
    made.close()


def test_cores_of_others_are_refused() -> None:
    with pytest.raises(ValueError, match="9999"):
        CpuExecutor({"tiny": tiny()}, settings(cores=(9999,)))


def test_pool_size_is_in_pages_and_has_a_least() -> None:
    config = tiny().config
    each = 3 * 2 * 2 * 8 * PAGE * 4
    assert pages_in(10 * each + 5, [config], PAGE, torch.float32) == 10
    with pytest.raises(ValueError, match=f"{each} bytes are the least"):
        pages_in(each, [config], PAGE, torch.float32)


# --- the two lanes ---


def test_both_lanes_compute_at_the_same_time(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch waits inside its layers until the other lane is inside too."""
    s, other = (driver.sequence(prompt(9, seed), greedy(), 8) for seed in (1, 2))
    driver.prefill([s])
    meeting = threading.Barrier(2)
    layers = decoder.run_layers

    def run_layers(*arguments: Any) -> Any:
        meeting.wait(PATIENCE_S)
        out = layers(*arguments)
        meeting.wait(PATIENCE_S)
        return out

    monkeypatch.setattr(decoder, "run_layers", run_layers)
    row = driver.row(other, 0, 9)
    prefill = driver.quantum([other], [row], 77, 0, 3)
    decode = DecodeBatch(driver.next_ticket(), "tiny", WHOLE, (s.slot,), (s.written,))
    for work in (prefill, decode):
        driver.executor.launch(work)
    done = [driver.wait(work.ticket) for work in (prefill, decode)]
    assert [c.error for c in done] == [None, None]
    assert done[0].overlap_s == pytest.approx(done[1].overlap_s)
    assert done[0].overlap_s > 0


def common(a: Completion, b: Completion) -> float:
    return max(0.0, min(a.finished, b.finished) - max(a.started, b.started))


def test_completions_tell_order_and_overlap(driver: Driver) -> None:
    decoding = [driver.sequence(prompt(5, i), greedy(), 40) for i in range(4)]
    driver.prefill(decoding)
    tickets = []
    for i in range(30):
        positions = tuple(s.written + i for s in decoding)
        slots = tuple(s.slot for s in decoding)
        work = DecodeBatch(driver.next_ticket(), "tiny", WHOLE, slots, positions)
        driver.executor.launch(work)
        tickets.append(work.ticket)
    for i in range(6):
        s = driver.sequence(prompt(60, 100 + i), greedy(), 0)
        quantum = driver.quantum([s], [driver.row(s, 0, 60)], 500 + i, 0, 3)
        driver.executor.launch(quantum)
        tickets.append(quantum.ticket)
    done = [driver.wait(ticket) for ticket in tickets]
    assert all(c.error is None for c in done)
    by_lane = {lane: [c for c in done if c.lane is lane] for lane in Lane}
    for lane in Lane:
        for one, next_one in itertools.pairwise(by_lane[lane]):
            assert one.started <= one.finished <= next_one.started
    for lane, other in ((Lane.DECODE, Lane.PREFILL), (Lane.PREFILL, Lane.DECODE)):
        for c in by_lane[lane]:
            assert c.overlap_s == pytest.approx(sum(common(c, o) for o in by_lane[other]))


@needs_two_cores
def test_split_changes_with_both_lanes_in_flight_and_drains_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decode lane passes through both rows while a prefill quantum is held on its row."""
    s, other = (driver.sequence(prompt(9, seed), greedy(), 20) for seed in (1, 2))
    driver.prefill([s])
    begun, release = threading.Event(), threading.Event()
    layers = decoder.run_layers

    def run_layers(*arguments: Any) -> Any:
        if threading.current_thread().name.startswith("prefill"):
            begun.set()
            assert release.wait(PATIENCE_S)
        return layers(*arguments)

    monkeypatch.setattr(decoder, "run_layers", run_layers)
    held = driver.quantum([other], [driver.row(other, 0, 9)], 77, 0, 3)
    driver.executor.launch(held)
    assert begun.wait(PATIENCE_S)
    units = []
    for partition in (1, WHOLE, 1):
        ticket = driver.next_ticket()
        driver.executor.launch(DecodeBatch(ticket, "tiny", partition, (s.slot,), (s.written,)))
        done = driver.wait(ticket)
        s.output.append(done.tokens[0].token)
        units.append(done.units)
    release.set()
    prefilled = driver.wait(held.ticket)
    table = driver.executor.info.partitions
    assert units == [table[1].decode_units, table[0].decode_units, table[1].decode_units]
    assert prefilled.units == table[WHOLE].prefill_units
    plain = driver.sequence(s.prompt, greedy(), 20)
    assert generate(driver, plain, len(s.output)) == s.output


def test_depth_feeds_sampled_tokens_on_the_device(driver: Driver) -> None:
    """Iterations launched without waiting give what iterations one by one give."""
    one, ahead = (driver.sequence(prompt(11), greedy(), 16) for _ in range(2))
    wanted = generate(driver, one, 10)
    driver.prefill([ahead])
    tickets = []
    for i in range(9):
        work = DecodeBatch(driver.next_ticket(), "tiny", WHOLE, (ahead.slot,), (ahead.written + i,))
        driver.executor.launch(work)
        tickets.append(work.ticket)
    got = [driver.wait(ticket).tokens[0].token for ticket in tickets]
    assert ahead.output + got == wanted


# --- equal tokens ---


def test_all_ways_of_prefilling_give_the_same_tokens(driver: Driver) -> None:
    ids = prompt(37)
    wanted = generate(driver, driver.sequence(ids, greedy(), 16), 12)
    by_layers = driver.sequence(ids, greedy(), 16)
    driver.prefill([by_layers], layers=1)
    by_chunks = driver.sequence(ids, greedy(), 16)
    driver.prefill_chunks(by_chunks, 10)
    reused = driver.sequence(ids, greedy(), 16, like=by_chunks)
    assert reused.cached == 32
    driver.prefill([reused])
    together = [by_layers, by_chunks, reused]
    while len(reused.output) < 12:
        driver.decode(together)
    assert [s.output for s in together] == [wanted] * 3


def test_fused_batch_equals_separate_runs(driver: Driver) -> None:
    ids = [prompt(length, seed) for seed, length in enumerate((7, 30, 21))]
    wanted = [generate(driver, driver.sequence(i, greedy(), 16), 9) for i in ids]
    first, second, third = (driver.sequence(i, greedy(), 16) for i in ids)
    driver.prefill([first])
    driver.decode([first], [(second, 0, 16)])
    driver.decode([first], [(second, 16, 30), (third, 0, 5)])
    driver.decode([first, second], [(third, 5, 21)])
    for s in (first, second, third):
        while len(s.output) < 9:
            driver.decode([s])
    assert [first.output[:9], second.output, third.output] == wanted


def test_batch_of_chunks_alone_completes(driver: Driver) -> None:
    s = driver.sequence(prompt(20), greedy(), 4)
    assert driver.decode([], [(s, 0, 8)]).tokens == ()
    assert len(driver.decode([], [(s, 8, 20)]).tokens) == 1


def test_seed_gives_the_same_tokens_in_any_batch(driver: Driver) -> None:
    wish = Sampling(max_tokens=64, seed=1234, temperature=1.0, top_p=0.9, logprobs=1)
    ids = prompt(13)
    wanted = generate(driver, driver.sequence(ids, wish, 24), 20)
    assert len(set(wanted)) > 5
    crowd = [driver.sequence(prompt(9 + i, i), greedy(), 40) for i in range(3)]
    driver.prefill(crowd)
    again = driver.sequence(ids, wish, 24)
    driver.prefill_chunks(again, 5)
    while len(again.output) < 20:
        driver.decode([crowd[0], again, *crowd[1:]])
    assert again.output == wanted


def test_two_models_share_the_pool_and_do_not_meet() -> None:
    models = {"one": tiny(seed=1), "two": tiny(layers=2, head_dim=12, seed=2)}
    alone = []
    for name, model in models.items():
        single = CpuExecutor({name: model}, settings())
        alone.append(
            generate(
                Driver(single, name), Driver(single, name).sequence(prompt(12), greedy(), 12), 10
            )
        )
        single.close()
    both = CpuExecutor(models, settings())
    drivers = [Driver(both, name) for name in models]
    drivers[1]._free = drivers[0]._free
    sequences = [d.sequence(prompt(12), greedy(), 12) for d in drivers]
    drivers[1]._ticket = 1000
    for d, s in zip(drivers, sequences, strict=True):
        d.prefill([s])
    for _ in range(9):
        for d, s in zip(drivers, sequences, strict=True):
            d.decode([s])
    both.close()
    assert [s.output for s in sequences] == alone


# --- what goes wrong ---


def failed(driver: Driver, work: DecodeBatch | PrefillQuantum) -> str:
    driver.executor.launch(work)
    error = driver.wait(work.ticket).error
    assert error is not None
    return error


def test_discarded_batch_leaves_nothing_and_cannot_go_on(driver: Driver) -> None:
    s = driver.sequence(prompt(9), greedy(), 4)
    rows = [driver.row(s, 0, 9)]
    driver.run(driver.quantum([s], rows, 5, 0, 1))
    runner = driver.executor._runners["tiny"]
    assert list(runner._parked) == [5]
    driver.executor.discard(5)
    assert "batch 5 is not parked at layer 1" in failed(driver, driver.quantum([s], rows, 5, 1, 3))
    assert not runner._parked
    again = driver.sequence(prompt(9), greedy(), 4)
    assert len(generate(driver, again, 3)) == 3


def test_quanta_out_of_order_are_refused(driver: Driver) -> None:
    s = driver.sequence(prompt(9), greedy(), 4)
    rows = [driver.row(s, 0, 9)]
    driver.run(driver.quantum([s], rows, 5, 0, 1))
    assert "not parked at layer 2" in failed(driver, driver.quantum([s], rows, 5, 2, 3))


def test_error_is_told_in_its_completion_and_the_lane_goes_on(driver: Driver) -> None:
    s = driver.sequence(prompt(9), greedy(), 4)
    ticket = driver.next_ticket
    cases = {
        "model 'other'": PrefillQuantum(ticket(), "other", WHOLE, 1, 0, 3, ()),
        "partition 99": PrefillQuantum(ticket(), "tiny", 99, 2, 0, 3, ()),
        "at most 150": driver.quantum([s], [PrefillRow(s.slot, 0, (5,) * 151, True)], 3, 0, 3),
        "has 2 pages, and needs 3": driver.quantum(
            [s], [PrefillRow(s.slot, 0, (5,) * 17, True)], 4, 0, 3
        ),
        "token id 300 is outside": driver.quantum(
            [s], [PrefillRow(s.slot, 0, (VOCAB,), True)], 5, 0, 3
        ),
        "at most 200": driver.quantum([s], [PrefillRow(s.slot, 199, (5, 5), True)], 6, 0, 3),
        "KeyError": DecodeBatch(ticket(), "tiny", WHOLE, (15,), (0,)),
    }
    for named, work in cases.items():
        error = failed(driver, work)
        if named != "KeyError":
            assert named in error
    assert len(generate(driver, s, 3)) == 3


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_descriptor_is_readable_exactly_while_completions_wait(driver: Driver) -> None:
    executor = driver.executor
    assert not readable(executor.fileno())
    assert executor.poll() == []
    s = driver.sequence(prompt(9), greedy(), 4)
    work = driver.quantum([s], [driver.row(s, 0, 9)], 1, 0, 3)
    executor.launch(work)
    assert select.select([executor.fileno()], [], [], PATIENCE_S)[0]
    assert [c.ticket for c in executor.poll()] == [work.ticket]
    assert not readable(executor.fileno())


def test_close_finishes_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = CpuExecutor({"tiny": tiny()}, settings())
    driver = Driver(executor, "tiny")
    ran = []
    layers = decoder.run_layers

    def run_layers(*arguments: Any) -> Any:
        ran.append(threading.current_thread().name)
        return layers(*arguments)

    monkeypatch.setattr(decoder, "run_layers", run_layers)
    s = driver.sequence(prompt(9), greedy(), 4)
    for layer in range(3):
        executor.launch(driver.quantum([s], [driver.row(s, 0, 9)], 1, layer, layer + 1))
    executor.close()
    assert len(ran) == 3
    assert not any(t.name in set(ran) for t in threading.enumerate())
