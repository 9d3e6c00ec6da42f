"""The profiler on a simulated device in virtual time, whose law is known."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ops import profile
from ops.profiling.grid import (
    DecodeCell,
    PairCell,
    PrefillCell,
    cells,
    coarse_first,
    limits_of,
    pages,
    sizes,
)
from ops.profiling.launches import PROMPTS, Driver, LaunchFailed
from ops.profiling.session import Session
from protocol.control_link import Partition
from protocol.settings import arguments, build
from scheduler.estimator import solo
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import ProfileError, load
from worker.executors.base import DeviceInfo, ModelShape
from worker.executors.simulated.executor import SimulatedExecutor
from worker.executors.simulated.latency import LatencyModel

TABLE = (Partition(0, 132, 132), Partition(1, 116, 16), Partition(2, 100, 32), Partition(3, 68, 64))
INFO = DeviceInfo(
    unit="core",
    units=132,
    partitions=TABLE,
    models=(ModelShape("m", 32, 1000, 32_768, (7,)),),
    num_pages=20_000,
    page_size=16,
    max_slots=72,
    max_prefill_tokens=8192,
    device="device",
)
LAW = LatencyModel(
    prefill_launch_s=1e-5,
    prefill_token_s=1 / 42_000,
    prefill_pair_s=2.5e-10,
    decode_launch_s=5e-3,
    decode_row_s=2e-5,
    decode_context_s=2e-8,
    saturation=0.42,
    prefill_slowdown=1.1,
    decode_slowdown=1.25,
)


class Bench:
    """An executor in virtual time, with a driver on it."""

    def __init__(self, info=INFO, fault=None):
        self.executor = SimulatedExecutor(info, LAW, verify=False, blank=True, fault=fault)
        self.now = 0.0
        self.driver = Driver(self.executor, self.wait)

    def wait(self):
        self.now = self.executor.next_completion()
        self.executor.advance(self.now)

    def clock(self):
        return self.now

    def session(self, base=None):
        info = self.executor.info
        return Session(info, self.driver, base or profile.empty(info), self.clock)


def quiet():
    return Console(file=io.StringIO())


# --- the grid ---


@given(st.integers(0, 40))
def test_every_value_has_a_round_and_the_ends_are_first(count):
    ranked = coarse_first(list(range(count)))
    assert [value for _, value in ranked] == list(range(count))
    if count:
        assert ranked[0][0] == ranked[-1][0] == 0
        rounds = {number for number, _ in ranked}
        assert rounds == set(range(len(rounds)))


def test_sizes_go_up_to_the_last_itself():
    assert sizes(2048, 100_000) == [2048, 8192, 32768, 100_000]
    assert sizes(2048, 2048) == [2048]
    assert sizes(2048, 500) == [500]


def test_cells_fit_the_device_and_each_is_there_once():
    limits = limits_of(INFO, PROMPTS)
    found = cells(INFO, limits)
    assert len(set(found)) == len(found)
    for cell in found:
        match cell:
            case PrefillCell(prompts=prompts):
                assert sum(new for new, _ in prompts) <= INFO.max_prefill_tokens
                assert max(new + reused for new, reused in prompts) < 32_768
                assert sum(pages(sum(each), limits) for each in prompts) <= INFO.num_pages
            case DecodeCell(rows=rows, context=context):
                assert rows <= 64
                assert rows * pages(context, limits) <= INFO.num_pages
            case PairCell(partition=partition):
                assert partition in (1, 2, 3)


def test_the_first_tenth_of_the_cells_spans_both_lanes_and_all_of_their_range():
    found = cells(INFO, limits_of(INFO, PROMPTS))
    first = found[: len(found) // 10]
    new = [n for c in first if isinstance(c, PrefillCell) for n, _ in c.prompts]
    rows = [c.rows for c in first if isinstance(c, DecodeCell)]
    assert (min(new), max(new)) == (64, 8192)
    assert (min(rows), max(rows)) == (1, 64)
    assert {c.partition for c in first if isinstance(c, DecodeCell)} == {0, 1, 2, 3}


# --- measuring ---


def test_a_solo_iteration_and_a_solo_prefill_take_what_the_device_says():
    driver = Bench().driver
    iteration = (5e-3 + 64 * 2e-5 + 64 * 2048 * 2e-8) * 0.42 / (16 / 132)
    assert driver.iterations(1, (2048,) * 64, 3) == pytest.approx([iteration] * 3)
    prefill = 4e-5 + (4096 / 42_000 + 2.5e-10 * 4096 * (1000 + 2048)) * 132 / 116
    assert driver.prefills(1, [(4096, 1000)], 2) == pytest.approx([prefill] * 2)


def test_beside_a_prefill_iterations_are_slower_and_say_so():
    done = Bench().driver.both(1, (2048, 0), (2048,) * 64, 10)
    assert len(done) == 10
    solo = (5e-3 + 64 * 2e-5 + 64 * 2048 * 2e-8) * 0.42 / (16 / 132)
    inner = [c for c in done[1:-1] if c.overlap_s > 0.99 * (c.finished - c.started)]
    assert len(inner) >= 7
    assert [c.finished - c.started for c in inner] == pytest.approx([1.25 * solo] * len(inner))


def test_nothing_stays_parked_between_cells():
    bench = Bench()
    for _ in range(3):
        bench.driver.both(1, (8192, 0), (128,), 4)
    assert bench.executor.parked == []


def test_a_launch_that_fails_is_told():
    bench = Bench(fault=lambda work: "lost" if work.ticket > 2 else None)
    with pytest.raises(LaunchFailed, match="launch 3: lost"):
        bench.driver.iterations(0, (128,), 5)


# --- sessions ---


def test_a_profile_predicts_the_device_that_it_was_taken_of(tmp_path):
    bench, path = Bench(), tmp_path / "p.json"
    profile.take(bench.session(), 1e9, path, quiet())
    found = profile.refit(path)
    assert load(path) == found
    assert found.fit is not None
    assert found.fit.decode_deviation.largest < 0.01
    assert found.fit.prefill_deviation.largest < 0.05
    lane = solo.DecodeLane(found.fit)
    law = (5e-3 + 20 * 2e-5 + 20 * 3000 * 2e-8) * 0.42 / (32 / 132)
    assert lane.seconds(32, DecodeLoad(20, 20 * 3000)) == pytest.approx(law, rel=0.01)
    prefill = solo.PrefillLane(found.fit)
    law = (5000 / 42_000 + 2.5e-10 * 5000 * (700 + 2500)) * 132 / 100
    found_s = prefill.seconds(100, PrefillLoad.of_prompts([(5000, 700)]))
    assert found_s == pytest.approx(law, rel=0.03)
    assert {round(s.slowdown, 2) for s in found.corun if s.repeats > 4} == {1.25}
    assert "off by at most" in profile.summary(found)


def test_a_budget_is_kept_and_a_second_session_goes_on(tmp_path):
    bench, path = Bench(), tmp_path / "p.json"
    first = profile.take(bench.session(), 5.0, path, quiet())
    assert 5.0 <= first.seconds <= 15.0
    second = profile.take(bench.session(load(path)), 5.0, path, quiet())
    for name in ("prefill", "decode", "corun"):
        one, two = getattr(first, name), getattr(second, name)
        assert two[: len(one)] == one
    assert second.seconds >= first.seconds + 5.0
    keys = [(s.units, s.rows, s.context) for s in second.decode]
    assert len(set(keys)) == len(keys)


def test_when_all_is_measured_there_is_nothing_to_do(tmp_path):
    small = DeviceInfo(**{f: getattr(INFO, f) for f in INFO.__slots__} | {"max_slots": 10})
    bench, path = Bench(small), tmp_path / "p.json"
    complete = profile.take(bench.session(), 1e9, path, quiet())
    assert list(bench.session(complete).run(1e9)) == []


def test_too_short_a_budget_has_samples_and_no_fit_yet(tmp_path):
    found = profile.take(Bench().session(), 1e-3, tmp_path / "p.json", quiet())
    assert len(found.prefill) + len(found.decode) == 1
    assert found.fit is None
    assert "too few for a fit" in profile.summary(found)


def test_what_was_measured_is_kept_when_the_operator_stops_it(tmp_path):
    class Stopped(Session):
        def run(self, budget_s):
            yield from itertools.islice(super().run(budget_s), 3)
            raise KeyboardInterrupt

    bench, path = Bench(), tmp_path / "p.json"
    session = Stopped(INFO, bench.driver, profile.empty(INFO), bench.clock)
    profile.take(session, 1e9, path, quiet())
    kept = load(path)
    assert len(kept.prefill) + len(kept.decode) + len(kept.corun) == 3


def test_a_profile_of_another_device_is_not_gone_on_with():
    other = DeviceInfo(**{f: getattr(INFO, f) for f in INFO.__slots__} | {"partitions": TABLE[:2]})
    with pytest.raises(ProfileError, match=r"4 partitions.*2 partitions"):
        Bench(other).session(profile.empty(INFO))


# --- the command ---


@pytest.mark.parametrize(
    ("text", "seconds"), [("8m", 480), ("90s", 90), ("1.5h", 5400), ("30", 30)]
)
def test_budgets_have_units(text, seconds):
    assert profile.seconds_of(text) == seconds


def test_what_the_device_and_the_software_are_is_noted():
    empty = profile.empty(INFO)
    assert empty.hardware.name == "device"
    assert {"python", "torch"} <= set(empty.software)


def test_a_model_that_is_not_there_is_a_wrong_configuration(tmp_path, capsys):
    chosen = build(profile.ProfileSettings, {"output": "x", "model": str(tmp_path / "no")}, {})
    assert profile.main(arguments(chosen)) == 2
    assert "tandem profile:" in capsys.readouterr().err
