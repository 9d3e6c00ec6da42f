"""Solo-run predictors and their fit: exact where the law is linear, and what never may happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.estimator import fitting, solo
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import DecodeSample, Piece, UnitsFit
from tests.unit.scheduler.profiles import (
    DECODE_SIDES,
    PREFILL_SIDES,
    decode_law,
    decode_samples,
    prefill_law,
    prefill_samples,
)

FIT = fitting.fit(prefill_samples(), decode_samples())


def test_a_linear_law_is_found_again_between_the_samples():
    decode, prefill = solo.decode_lane(FIT.decode), solo.prefill_lane(FIT.prefill)
    for units in DECODE_SIDES:
        found = decode.seconds(units, DecodeLoad(100, 100 * 3000))
        assert found == pytest.approx(decode_law(units, 100, 100 * 3000), rel=0.02)
    for units in PREFILL_SIDES:
        prompts = ((1000, 10_000), (3000, 0))
        found = prefill.seconds(units, PrefillLoad.of_prompts(prompts))
        assert found == pytest.approx(prefill_law(units, prompts), rel=0.02)


def test_the_error_is_that_of_samples_the_fit_has_not_seen():
    exact, noisy = FIT.decode_deviation, fitting.fit(prefill_samples(), decode_samples(0.1))
    assert exact.samples >= 10
    assert exact.largest < 0.001
    assert 0.01 < noisy.decode_deviation.largest < 0.15
    used, held = fitting.split_samples(decode_samples(), lambda s: s.rows)
    assert sorted(map(id, (*used, *held))) == sorted({id(s) for s in (*used, *held)})
    assert {1, 256} & {s.rows for s in held} == set(), "ends stay in the fit"


def test_a_law_with_a_step_is_fitted_in_pieces():
    def law(rows, context):
        return (0.01 if rows <= 32 else 0.03) + 1e-8 * context

    samples = [
        DecodeSample(units=16, rows=rows, context=rows * each, seconds=law(rows, rows * each))
        for rows in (1, 2, 4, 8, 16, 24, 32, 33, 40, 48, 64, 96, 128)
        for each in (256, 4096)
    ]
    pieces = fitting.fit_pieces(samples, lambda s: s.rows, lambda s: solo.decode_terms(s.load))
    assert [piece.upto for piece in pieces] == [32, 128]
    for sample in samples:
        assert solo.decode_s(pieces, sample.load) == pytest.approx(sample.seconds, rel=0.03)


def test_with_nothing_to_fit_it_says_how_much_is_missing():
    with pytest.raises(fitting.TooFewSamplesError, match="decode: 0 samples on 0 partition sizes"):
        fitting.fit(prefill_samples(), ())


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(4, 30))
@settings(deadline=None)
def test_the_subset_search_is_the_nonnegative_least_squares_optimum(seed, terms, samples):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(samples, terms)), rng.normal(size=samples)
    found = fitting.nonnegative(matrix, target)
    assert found.min() >= 0
    # Karush-Kuhn-Tucker: no term can be raised, and none in use lowered, for the better.
    gradient = matrix.T @ (matrix @ found - target)
    assert gradient.min() >= -1e-8
    assert np.abs(gradient * found).max() < 1e-8


piece_lists = st.lists(
    st.tuples(st.integers(1, 300), *(st.floats(0, 1e-3) for _ in range(3))),
    min_size=1,
    max_size=4,
    unique_by=lambda item: item[0],
).map(lambda items: tuple(Piece(float(upto), tuple(theta)) for upto, *theta in sorted(items)))
fits = st.dictionaries(st.integers(1, 132), piece_lists, min_size=1, max_size=6).map(
    lambda found: tuple(UnitsFit(units, pieces) for units, pieces in found.items())
)
EPSILON = 1 + 1e-9


@given(fits, st.integers(1, 400), st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 50))
@settings(deadline=None, max_examples=300)
def test_more_context_or_rows_never_predict_faster_and_more_units_never_slower(
    found, rows, context, more_context, more_rows
):
    lane = solo.decode_lane(found)
    base = DecodeLoad(rows, context)
    for units in (1, 8, 16, 50, 132, 200):
        now = lane.seconds(units, base)
        assert now > 0
        assert lane.seconds(units, DecodeLoad(rows, context + more_context)) * EPSILON >= now
        assert lane.seconds(units, DecodeLoad(rows + more_rows, context)) * EPSILON >= now
        assert lane.seconds(units + 10, base) <= now * EPSILON


prefill_fits = st.dictionaries(
    st.integers(1, 132),
    st.lists(
        st.tuples(st.integers(1, 9000), *(st.floats(0, 1e-6) for _ in range(4))),
        min_size=1,
        max_size=4,
        unique_by=lambda item: item[0],
    ).map(lambda items: tuple(Piece(float(upto), tuple(theta)) for upto, *theta in sorted(items))),
    min_size=1,
    max_size=6,
).map(lambda found: tuple(UnitsFit(units, pieces) for units, pieces in found.items()))


@given(
    prefill_fits,
    st.integers(1, 20_000),
    st.integers(0, 10**5),
    st.integers(0, 5000),
    st.integers(0, 5000),
)
@settings(deadline=None, max_examples=300)
def test_a_longer_prompt_or_prefix_never_predicts_faster(found, new, reused, more_new, more_reused):
    lane = solo.prefill_lane(found)

    def seconds(units, n, r):
        return lane.seconds(units, PrefillLoad.of_prompts([(n, r)]))

    for units in (4, 70, 132):
        now = seconds(units, new, reused)
        assert seconds(units, new + more_new, reused) * EPSILON >= now
        assert seconds(units, new, reused + more_reused) * EPSILON >= now
        assert seconds(units + 20, new, reused) <= now * EPSILON
