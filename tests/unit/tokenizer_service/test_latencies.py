"""Latencies of the last seconds: right to a bucket's width, and forgotten in time."""

import random

import pytest

from tokenizer_service.latencies import LONGEST_S, SHORTEST_S, SPAN_S, Window


def test_without_observations_there_is_nothing_to_tell():
    summary = Window().summary(5.0)
    assert (summary.count, summary.p50_s, summary.p99_s, summary.within) == (0, 0.0, 0.0, 0)


def test_quantiles_are_those_of_the_observations_within_five_percent():
    window = Window()
    values = [random.Random(3).lognormvariate(-3, 1.2) for _ in range(5000)]
    for at, value in enumerate(values):
        window.observe(value, 0.05, at * 1e-3)
    summary = window.summary(5.0)
    ordered = sorted(values)
    assert summary.count == 5000
    assert summary.p50_s == pytest.approx(ordered[2499], rel=0.05)
    assert summary.p99_s == pytest.approx(ordered[4949], rel=0.05)
    assert summary.within == sum(value <= 0.05 for value in values)


@pytest.mark.parametrize("value", [0.0, SHORTEST_S / 10, LONGEST_S * 10])
def test_what_is_out_of_range_counts_at_its_end(value):
    window = Window()
    window.observe(value, 1.0, 0.0)
    ends = (SHORTEST_S, LONGEST_S)
    assert any(window.summary(0.0).p50_s == pytest.approx(end, rel=0.1) for end in ends)


def test_old_observations_leave():
    window = Window()
    window.observe(1.0, 2.0, 0.0)
    window.observe(3.0, 2.0, 6.0)
    assert window.summary(9.0).count == 2
    late = window.summary(SPAN_S + 1.0)
    assert (late.count, late.within) == (1, 0)
    assert window.summary(SPAN_S + 7.0).count == 0
