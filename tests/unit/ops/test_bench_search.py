"""The search finds the highest rate that is kept, fairly, once, and goes on where it was."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.bench.bisection import Bisection, why_missed
from ops.bench.metrics import Limits, Outcome, summarize
from ops.bench.result import FORMAT, Result
from ops.bench.search import AS_IT_IS, SearchSettings, of_run, search
from ops.bench.serve_settings import BenchSettings, CannotBench

LIMITS = Limits(tbt_s=0.05, ttft_s=1.0, ttft_per_token_s=0.0, gap_share=0.99)


def outcome(at: float, *, gap: float = 0.03, wait: float = 0.5, status="finished") -> Outcome:
    first = at + wait
    return Outcome(
        scheduled=at,
        sent=at,
        chunks=(first, first + gap),
        ended=first + gap,
        status=status,
        input_tokens=10,
        wanted_tokens=2,
        output_tokens=2,
    )


def judged(*outcomes: Outcome) -> str:
    return why_missed(summarize(outcomes, LIMITS, ()), LIMITS)


# --- what is kept ---


def test_a_run_within_its_objectives_is_kept():
    assert judged(*(outcome(float(t)) for t in range(100))) == ""


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        ([outcome(0.0, gap=0.06), outcome(1.0, gap=0.06)], "TBT P99 60.0 ms over 50 ms"),
        ([outcome(0.0, status="rejected")], "1 of 101 did not finish"),
        ([outcome(0.0, wait=1.5), outcome(1.0, wait=1.5)], "TTFT kept by 98.0%"),
    ],
)
def test_a_run_that_misses_says_what(spoiled, why):
    found = judged(*(outcome(float(t)) for t in range(101 - len(spoiled))), *spoiled)
    assert why in found


def test_one_gap_and_one_first_token_in_a_hundred_may_be_late():
    most = [outcome(float(t)) for t in range(99)]
    assert judged(*most, outcome(99.0, gap=9.0)) == ""
    assert judged(*most, outcome(99.0, wait=1.5)) == ""


def test_a_queue_that_grows_is_a_miss_however_good_the_percentiles_are():
    wide = msgspec.structs.replace(LIMITS, ttft_s=1e6)
    growing = [outcome(float(t), wait=t + 0.5) for t in range(300)]
    assert why_missed(summarize(growing, wide, ()), wide) == "the queue grew"


# --- which rate is asked ---


@given(st.floats(0.05, 500.0), st.floats(0.1, 100.0), st.floats(0.01, 0.3))
def test_the_search_ends_within_its_precision_of_the_true_limit(limit, start, precision):
    bisection = Bisection(start, precision, least=0.001)
    asked = 0
    while (rate := bisection.ask()) is not None:
        bisection.take(rate, rate <= limit)
        asked += 1
        assert asked < 60
    assert bisection.kept <= limit < bisection.missed
    assert bisection.missed / bisection.kept <= 1 + precision


def test_nothing_is_looked_for_below_the_least_rate():
    bisection = Bisection(1.0, 0.05, least=0.2)
    while (rate := bisection.ask()) is not None:
        assert rate >= 0.2
        bisection.take(rate, False)
    assert bisection.kept == 0.0


def test_a_rate_that_was_kept_above_one_that_was_missed_does_not_count():
    bisection = Bisection(1.0, 0.05, least=0.1)
    bisection.take(4.0, True)
    bisection.take(2.0, False)
    assert (bisection.kept, bisection.missed) == (0.0, 2.0)
    bisection.take(3.0, True)
    assert bisection.kept == 0.0


# --- whole searches ---

TRUE_LIMITS = {"fast": 3.0, "slow opt=1": 1.2, AS_IT_IS: 2.0}


class Bench:
    """Runs that keep their objectives up to each scheduler's limit; takes a minute for each."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, BenchSettings]] = []
        self.now = 0.0

    def run(self, scheduler: str, one: BenchSettings) -> Result:
        self.asked.append((scheduler, one))
        self.now += 60.0
        assert one.rate is not None
        gap = 0.03 if one.rate <= TRUE_LIMITS[scheduler] else 0.3
        return Result(
            format=FORMAT,
            label=one.label,
            created="",
            machine={},
            note="",
            settings=msgspec.to_builtins(one),
            limits=LIMITS,
            lags=(),
            outcomes=tuple(outcome(float(t), gap=gap) for t in range(20)),
        )

    def clock(self) -> float:
        return self.now


def settings(folder: Path, **more: object) -> SearchSettings:
    given = {"schedulers": ("fast", "slow opt=1"), "rate": 1.0, "folder": str(folder)}
    return SearchSettings(**(given | more))


def test_every_scheduler_gets_its_highest_rate(tmp_path):
    bench = Bench()
    *_, fast, slow = search(settings(tmp_path), bench.run, bench.clock)
    for line, name in ((fast, "fast"), (slow, "slow opt=1")):
        found = float(line.split("SLO ")[1].split("/s")[0])
        assert line.startswith(f"{name}: max rate")
        assert TRUE_LIMITS[name] / 1.05 <= found <= TRUE_LIMITS[name]


def test_schedulers_take_turns(tmp_path):
    bench = Bench()
    list(search(settings(tmp_path), bench.run, bench.clock))
    names = [name for name, _ in bench.asked]
    assert names[:6] == ["fast", "slow opt=1"] * 3


def test_runs_have_equal_lengths_and_contents_of_their_own(tmp_path):
    bench = Bench()
    list(search(settings(tmp_path), bench.run, bench.clock))
    assert len({one.salt for _, one in bench.asked}) == len(bench.asked)
    assert {one.seed for _, one in bench.asked} == {0}


def test_without_a_name_the_server_is_measured_as_it_is(tmp_path):
    bench = Bench()
    *_, line = search(settings(tmp_path, schedulers=()), bench.run, bench.clock)
    assert line.startswith(f"{AS_IT_IS}: max rate at SLO ")


def test_a_search_that_was_cut_off_goes_on_where_it_was(tmp_path):
    bench = Bench()
    cut = list(search(settings(tmp_path, budget_s=100.0), bench.run, bench.clock))
    assert len(bench.asked) == 2
    assert "no run was begun after 100 s" in cut
    assert "fast: max rate at SLO 1/s; none was missed" in cut
    rest = list(search(settings(tmp_path), bench.run, bench.clock))
    whole, fresh = Bench(), tmp_path / "fresh"
    assert rest == list(search(settings(fresh), whole.run, whole.clock))
    assert len(bench.asked) == len(whole.asked)


def test_runs_of_other_settings_are_not_taken_for_ones_own(tmp_path):
    bench = Bench()
    list(search(settings(tmp_path), bench.run, bench.clock))
    with pytest.raises(CannotBench, match="seed 0, not 5"):
        list(search(settings(tmp_path, seed=5), bench.run, bench.clock))


def test_a_search_needs_a_server_and_a_rate_to_begin_with(tmp_path):
    with pytest.raises(CannotBench, match="--rate"):
        list(search(settings(tmp_path, rate=None), Bench().run, Bench().clock))
    with pytest.raises(CannotBench, match="--demo"):
        list(search(settings(tmp_path, demo=True), Bench().run, Bench().clock))


def test_a_run_of_a_search_is_a_plain_run():
    one = of_run(settings(Path("x"), seed=4), "fast", 2.5)
    assert type(one) is BenchSettings
    assert (one.rate, one.seed, one.label) == (2.5, 4, "fast")
