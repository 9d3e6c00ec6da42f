"""Rates and gaps from made-up completions."""

import pytest

from ops.bench.engine_load import Case, Load, Mode, drive
from ops.bench.engine_metrics import layer_tokens, measure, percentile, prefill_rate
from protocol.control_link import Lane, Partition
from worker.executors.base import Completion, DecodeBatch, DeviceInfo, ModelShape, PrefillQuantum


def done(lane: Lane, started: float, finished: float) -> Completion:
    return Completion(0, lane, started, finished, 1)


def test_percentiles_are_values_that_occurred():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(i) for i in range(1, 201)], 0.99) == 198.0


def test_a_quantum_counts_for_the_part_inside_the_window():
    quanta = [(done(Lane.PREFILL, 0.0, 2.0), 4)]
    assert layer_tokens(quanta, 1.0, 5.0, 100) == pytest.approx(200.0)
    assert layer_tokens(quanta, 2.0, 5.0, 100) == 0.0


def test_measure_reports_gaps_rates_and_fused_tokens():
    decode = [done(Lane.DECODE, i + 0.1, i + 1.0) for i in range(5)]
    quanta = [(done(Lane.PREFILL, float(i), i + 1.0), 2) for i in range(5)]
    found = measure(decode, quanta, warm=1, rows=8, tokens=100, layers=4, chunk=10)
    assert found.tbt_p50 == pytest.approx(1.0)
    assert found.decode_rate == pytest.approx(8.0)
    assert found.prefill_rate == pytest.approx(50.0 + 10.0)
    assert found.gap_p99 == pytest.approx(0.1)


def test_prefill_alone_counts_whole_prompts_per_second():
    quanta = [(done(Lane.PREFILL, float(i), i + 1.0), 2) for i in range(4)]
    assert prefill_rate(quanta, tokens=100, layers=2, warm=1) == pytest.approx(100.0)


INFO = DeviceInfo(
    unit="SM",
    units=132,
    partitions=(Partition(0, 132, 132), Partition(1, 104, 28)),
    models=(ModelShape("m", 5, 100, 4096, ()),),
    num_pages=64,
    page_size=16,
    max_slots=8,
    max_prefill_tokens=64,
)


class Instant:
    """An executor whose launches are done at the next poll; it checks what it is given."""

    info = INFO

    def __init__(self) -> None:
        self.flying: list[DecodeBatch | PrefillQuantum] = []
        self.most = {Lane.DECODE: 0, Lane.PREFILL: 0}
        self.layers: dict[int, int] = {}

    def launch(self, work: DecodeBatch | PrefillQuantum) -> None:
        self.flying.append(work)
        flying = sum(other.lane is work.lane for other in self.flying)
        self.most[work.lane] = max(self.most[work.lane], flying)
        if isinstance(work, PrefillQuantum):
            assert self.layers.get(work.batch, 0) == work.layer_start
            self.layers[work.batch] = work.layer_end

    def poll(self) -> list[Completion]:
        if not self.flying:
            return []
        work = self.flying.pop(0)
        return [Completion(work.ticket, work.lane, 0.0, 1.0, 1)]


def test_the_load_keeps_depth_one_and_two_quanta_and_continues_prompts():
    executor, load = Instant(), Load(INFO, Case(32, 16, 4, 20), layers=2, seed=0)
    trace = drive(executor, load, Mode(1), 20, 0)
    assert executor.most == {Lane.DECODE: 2, Lane.PREFILL: 2}
    assert len(trace.decode) >= 20
    assert not executor.flying
    drive(executor, load, Mode(0), 5, 0)
    assert set(executor.layers.values()) <= {2, 4, 5}


def test_lanes_in_turn_are_never_in_flight_together():
    executor, load = Instant(), Load(INFO, Case(32, 16, 4, 20), layers=2, seed=0)
    trace = drive(executor, load, Mode(0, in_turn=True), 6, 0)
    assert executor.most == {Lane.DECODE: 1, Lane.PREFILL: 1}
    assert len(trace.prefill) in (5, 6, 7)


def test_chunks_walk_through_the_prompt_and_sample_at_its_end():
    load = Load(INFO, Case(24, 16, 4, 20), layers=2, seed=0)
    steps = [load.iteration(0, 10) for _ in range(4)]
    rows = [step.chunks[0] for step in steps]
    assert [(row.start, len(row.token_ids), row.sample) for row in rows] == [
        (16, 10, False),
        (26, 10, False),
        (36, 4, True),
        (16, 10, False),
    ]
    assert [len(step.inits) for step in steps] == [1, 0, 0, 1]


def test_no_two_slots_share_a_page():
    load = Load(INFO, Case(32, 16, 4, 20), layers=2, seed=0)
    pages = [page for table in load.setup().tables for page in table.pages]
    assert len(pages) == len(set(pages)) == 4 * 2 + 3 * 3


def test_a_switch_takes_effect_without_waiting_for_what_is_in_flight():
    executor, load = Instant(), Load(INFO, Case(32, 16, 4, 20), layers=2, seed=0)
    seen: list[int] = []
    launch = executor.launch

    def watch(work: DecodeBatch | PrefillQuantum) -> None:
        seen.append(work.partition)
        launch(work)

    executor.launch = watch  # type: ignore[method-assign]
    drive(executor, load, Mode(0, then=1, switch_at=5), 10, 0)
    assert seen == sorted(seen)
    assert set(seen) == {0, 1}
    assert executor.most == {Lane.DECODE: 2, Lane.PREFILL: 2}
