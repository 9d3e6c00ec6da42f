"""Every figure of a run equals its definition, on timelines that are written out by hand."""

from collections.abc import Callable

import msgspec
import pytest

from ops.bench.metrics import (
    LATE_S,
    Limits,
    Outcome,
    Spread,
    grew,
    over_time,
    running,
    summarize,
    waiting,
)

LIMITS = Limits(tbt_s=0.050, ttft_s=1.0, ttft_per_token_s=0.001, gap_share=1.0)


def outcome(*chunks: float, scheduled: float = 0.0, **more: object) -> Outcome:
    """A finished request whose pieces came at these times, one token each."""
    given = {
        "sent": scheduled,
        "ended": chunks[-1] if chunks else scheduled,
        "status": "finished",
        "input_tokens": 100,
        "wanted_tokens": len(chunks),
        "output_tokens": len(chunks),
    }
    return Outcome(scheduled=scheduled, chunks=chunks, **(given | more))


def summary(*outcomes: Outcome, limits: Limits = LIMITS, lags: tuple[float, ...] = ()):
    return summarize(outcomes, limits, lags)


def test_ttft_counts_from_the_scheduled_arrival_and_not_from_sending():
    late = outcome(3.5, 3.6, scheduled=1.0, sent=3.0)
    assert late.ttft == 2.5
    assert summary(late).ttft.max == 2.5


def test_e2e_ends_with_the_last_token_and_not_with_the_connection():
    assert outcome(1.5, 4.0, scheduled=1.0, ended=9.0).e2e == 3.0


def test_tpot_is_the_time_after_the_first_token_by_the_tokens_after_it():
    assert outcome(1.0, 1.5, 2.0, 4.0).tpot == 1.0
    assert outcome(1.0, 4.0, output_tokens=7).tpot == 0.5  # several tokens in a piece
    assert outcome(1.0).tpot is None


def test_requests_of_one_token_have_no_part_in_tpot_and_tbt():
    found = summary(outcome(1.0), outcome(1.0, 1.25))
    assert (found.tpot.count, found.tpot.mean) == (1, 0.25)
    assert (found.tbt.count, found.tbt.mean) == (1, 0.25)
    assert found.ttft.count == 2


def test_tbt_pools_the_gaps_of_all_requests():
    found = summary(outcome(0.0, 1.0, 3.0), outcome(0.0, 3.0, 7.0))
    assert found.tbt == Spread(mean=2.5, p50=2.0, p90=4.0, p99=4.0, max=4.0, count=4)


def test_pooled_p99_hides_what_the_p99_of_each_request_shows():
    steady = outcome(*(float(i) for i in range(1001)))
    stalled = outcome(0.0, 100.0)
    found = summary(steady, stalled)
    assert found.tbt.p99 == 1.0
    assert found.tbt.max == 100.0
    assert found.tbt_p99_of_requests.max == 100.0
    assert found.tbt_p99_of_requests.p50 == 1.0


def test_percentiles_are_by_nearest_rank():
    found = Spread.of([float(value) for value in range(200, 0, -1)])
    assert (found.p50, found.p90, found.p99, found.max) == (100.0, 180.0, 198.0, 200.0)
    assert found.mean == 100.5


def test_nothing_measured_is_zeros():
    assert Spread.of([]) == Spread(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def test_attainment_needs_ttft_and_the_gaps():
    good = outcome(1.1, 1.125)
    slow_start = outcome(1.125, 1.15)
    slow_gap = outcome(0.5, 0.5625)
    assert LIMITS.ttft_of(good) == pytest.approx(1.1)
    assert [LIMITS.kept(o) for o in (good, slow_start, slow_gap)] == [True, False, False]
    assert summary(good, slow_start, slow_gap, good).slo_attainment == 0.5


def test_a_request_at_its_limits_keeps_them():
    exact = Limits(tbt_s=0.5, ttft_s=2.0, ttft_per_token_s=0.0, gap_share=1.0)
    assert exact.kept(outcome(2.0, 2.5, 3.0))


def test_tokens_that_were_cached_do_not_widen_the_limit_of_ttft():
    assert LIMITS.ttft_of(outcome(1.0, cached_tokens=40)) == pytest.approx(1.06)


def test_a_share_of_the_gaps_may_be_exempt():
    gaps = [0.25] * 99 + [4.0]
    times = [sum(gaps[:i]) for i in range(101)]
    loose = Limits(tbt_s=0.25, ttft_s=1.0, ttft_per_token_s=0.0, gap_share=0.99)
    assert loose.kept(outcome(*times))
    assert not loose.kept(outcome(*times, times[-1] + 4.0))
    assert not msgspec.structs.replace(loose, gap_share=1.0).kept(outcome(*times))


def test_what_was_rejected_failed_or_never_ended_is_a_miss():
    good = outcome(0.5, 0.51)
    missed = [
        outcome(status="rejected"),
        outcome(0.5, 0.51, status="failed"),
        outcome(0.5, 0.51, status="unfinished"),
        outcome(status="finished"),  # without a token
    ]
    found = summary(good, *missed)
    assert found.slo_attainment == 0.2
    assert (found.finished, found.rejected, found.failed, found.unfinished) == (1, 1, 1, 2)
    assert found.e2e.count == 1


def test_gaps_of_requests_that_did_not_finish_count():
    found = summary(outcome(0.0, 0.01), outcome(0.0, 9.0, status="unfinished"))
    assert found.tbt.max == 9.0


def test_goodput_is_good_requests_by_the_time_from_the_first_arrival_to_the_last_end():
    found = summary(
        outcome(2.25, 2.26, scheduled=2.0),
        outcome(3.25, 3.26, scheduled=3.0),
        outcome(scheduled=4.0, status="rejected", ended=6.0),
    )
    assert found.duration == 4.0
    assert found.goodput_rps == 0.5


def test_rates_are_by_the_mean_gap_of_what_was_to_be_sent_and_what_was():
    found = summary(*(outcome(9.0, scheduled=t, sent=2 * t) for t in (0.0, 1.0, 2.0)))
    assert found.scheduled_rps == 1.0
    assert found.offered_rps == 0.5


def test_throughput_counts_tokens_by_the_server_and_tokens_per_piece_are_reported():
    found = summary(outcome(1.0, 2.0, output_tokens=6, cached_tokens=25))
    assert found.output_tokens_per_s == 3.0
    assert found.input_tokens_per_s == 50.0
    assert found.tokens_per_chunk == 3.0
    assert found.cached_share == 0.25


@pytest.mark.parametrize(("late", "behind"), [(LATE_S / 2, False), (LATE_S * 2, True)])
def test_a_generator_that_sends_late_says_so(late, behind):
    found = summary(outcome(1.0, sent=late), outcome(1.0, scheduled=0.5, sent=0.5 + late))
    assert found.lateness.max == pytest.approx(late)
    assert found.fell_behind is behind


def test_a_generator_that_notices_late_says_so():
    assert summary(outcome(1.0), lags=(0.0, LATE_S * 2)).fell_behind
    assert not summary(outcome(1.0), lags=(0.0, LATE_S / 2)).fell_behind


def test_who_waits_and_who_runs_is_told_from_the_times():
    one = outcome(2.0, 3.0, scheduled=1.0)
    lost = outcome(scheduled=1.0, status="rejected", ended=4.0)
    assert [waiting([one, lost], t) for t in (0.5, 1.0, 1.9, 2.0, 4.0)] == [0, 2, 2, 1, 0]
    assert [running([one, lost], t) for t in (1.9, 2.0, 2.9, 3.0)] == [0, 1, 1, 0]
    assert over_time(waiting, [one, lost], 4.0, 2) == [(2.0, 1), (4.0, 0)]


def arriving(wait_of: Callable[[float], float]) -> list[Outcome]:
    return [outcome(t + wait_of(t), scheduled=float(t)) for t in range(300)]


def test_a_queue_that_grows_is_told_from_one_that_is_long_and_from_one_that_waits_shortly():
    assert grew(arriving(lambda t: max(0.0, t - 150.0)))
    assert not grew(arriving(lambda t: 40.0))
    assert not grew(arriving(lambda t: 0.1))
    assert not grew([])


def test_a_queue_with_steady_growth_grows():
    # Twice the load that can be served: one waits for as long as others have come.
    assert grew(arriving(lambda t: t))
