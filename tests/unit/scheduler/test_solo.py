"""Solo-run predictors and their fit: exact where the law is linear, and what never may happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.estimator import fitting, solo
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.profile import DecodeSample, Line, UnitsFit
from tests.unit.scheduler.profiles import (
    DECODE_SIDES,
    PREFILL_SIDES,
    decode_law,
    decode_samples,
    prefill_law,
    profile,
)

PROFILE = profile()
FIT = PROFILE.fit


def test_a_linear_law_is_found_again_between_the_samples():
    decode, prefill = solo.DecodeLane(FIT), solo.PrefillLane(FIT)
    for units in DECODE_SIDES:
        found = decode.seconds(units, DecodeLoad(100, 100 * 3000))
        assert found == pytest.approx(decode_law(units, 100, 100 * 3000), rel=0.02)
    for units in PREFILL_SIDES:
        for prompts in (((3072, 10_000),), ((1024, 10_000), (3072, 10_000))):
            found = prefill.seconds(units, PrefillLoad.of_prompts(prompts))
            assert found == pytest.approx(prefill_law(units, prompts), rel=0.03)


def test_a_prompt_longer_than_what_was_profiled_goes_in_chunks_of_that():
    prefill = solo.PrefillLane(FIT)
    for new, reused in ((50_000, 0), (100_000, 20_000)):
        chunks = [(min(16384, new - at), reused + at) for at in range(0, new, 16384)]
        law = sum(prefill_law(116, [chunk]) for chunk in chunks)
        found = prefill.seconds(116, PrefillLoad.of_prompts([(new, reused)]))
        assert found == pytest.approx(law, rel=0.03)


def test_the_error_is_that_of_samples_the_fit_has_not_seen():
    noisy = profile(noise=0.1).fit
    assert FIT.decode_deviation.samples >= 10
    assert FIT.decode_deviation.largest < 0.02
    assert 0.01 < noisy.decode_deviation.largest < 0.15
    samples = decode_samples()
    used, held = fitting.split_samples(samples)
    assert sorted(map(id, (*used, *held))) == sorted(map(id, samples))
    marked = [replace(s, held_out=s.rows == 16) for s in samples]
    used, held = fitting.split_samples(marked)
    assert {s.rows for s in held} == {16}
    assert 16 not in {s.rows for s in used}


def test_rows_take_as_long_as_the_next_size_that_is_captured():
    def law(rows):
        return 0.01 if rows <= 32 else 0.03

    samples = tuple(
        DecodeSample(
            units=16, rows=rows, context=rows * each, seconds=law(rows) + 1e-8 * rows * each
        )
        for rows in (1, 8, 32, 48, 128)
        for each in (256, 4096)
    )
    found = fitting.fit(replace(PROFILE, decode=samples, row_sizes=(1, 8, 32, 48, 128)))
    lane = solo.DecodeLane(found)
    for rows in (2, 20, 32, 33, 47, 90):
        seconds = lane.seconds(16, DecodeLoad(rows, 10_000))
        assert seconds == pytest.approx(law(rows) + 1e-8 * 10_000, rel=0.03)


def test_a_prefill_takes_whole_tiles():
    assert [solo.tiled(new, 128) for new in (1, 64, 65, 512, 513, 1000)] == [
        64, 64, 128, 512, 640, 1024
    ]  # fmt: skip
    assert solo.tiled(1000, 1) == 1000
    prefill = solo.PrefillLane(FIT)
    one, same, more = (
        prefill.seconds(116, PrefillLoad.of_prompts([(n, 0)])) for n in (1030, 1150, 1153)
    )
    assert same == pytest.approx(one, rel=0.01)
    assert more > 1.05 * same


def test_with_nothing_to_fit_it_says_how_much_is_missing():
    with pytest.raises(fitting.TooFewSamplesError, match="decode: 0 samples on 0 partition sizes"):
        fitting.fit(replace(PROFILE, decode=()))


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(4, 30))
@settings(deadline=None)
def test_nonnegative_is_the_least_squares_optimum(seed, terms, samples):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(samples, terms)), rng.normal(size=samples)
    found = fitting.nonnegative(matrix, target)
    assert found.min() >= 0
    # Karush-Kuhn-Tucker: no term can be raised, and none in use lowered, for the better.
    gradient = matrix.T @ (matrix @ found - target)
    assert gradient.min() >= -1e-8
    assert np.abs(gradient * found).max() < 1e-8


def test_rises_make_a_line_through_its_knots_that_goes_on():
    knots = np.array([2.0, 4.0, 8.0])
    columns = fitting.rises(np.array([1.0, 2, 3, 4, 6, 8, 12]), knots)
    assert (columns @ np.array([5.0, 2.0, 4.0])).tolist() == [5, 5, 6, 7, 9, 11, 15]


def lines(largest):
    """Any rising line up to about `largest`."""
    return st.lists(
        st.tuples(st.integers(1, largest), st.floats(1e-6, 1.0)),
        min_size=1,
        max_size=6,
        unique_by=lambda point: point[0],
    ).map(
        lambda points: Line(
            tuple(float(x) for x, _ in sorted(points)), tuple(sorted(y for _, y in points))
        )
    )


def unit_fits(largest, terms):
    theta = st.tuples(*(st.floats(0, 1e-6) for _ in range(terms)))
    return st.dictionaries(
        st.integers(1, 132), st.tuples(lines(largest), theta), min_size=1, max_size=6
    ).map(lambda found: tuple(UnitsFit(units, *each) for units, each in found.items()))


EPSILON = 1 + 1e-9


@given(
    unit_fits(300, solo.DECODE_TERMS),
    st.sampled_from([(), (1, 8, 32, 64, 256)]),
    st.integers(1, 400),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 50),
)
@settings(deadline=None, max_examples=300)
def test_more_context_or_rows_never_predict_faster_and_more_units_never_slower(
    found, sizes, rows, context, more_context, more_rows
):
    lane = solo.DecodeLane(replace(FIT, decode=found, row_sizes=sizes))
    base = DecodeLoad(rows, context)
    for units in (1, 8, 16, 50, 132, 200):
        now = lane.seconds(units, base)
        assert now > 0
        assert lane.seconds(units, DecodeLoad(rows, context + more_context)) * EPSILON >= now
        assert lane.seconds(units, DecodeLoad(rows + more_rows, context)) * EPSILON >= now
        assert lane.seconds(units + 10, base) <= now * EPSILON


@given(
    unit_fits(9000, solo.PREFILL_TERMS),
    st.sampled_from([(1, 0), (128, 32), (128, 0)]),
    st.integers(1, 9000),
    st.integers(1, 20_000),
    st.integers(0, 10**5),
    st.integers(0, 5000),
    st.integers(0, 5000),
)
@settings(deadline=None, max_examples=300)
def test_a_longer_prompt_or_prefix_never_predicts_faster(
    found, steps, most, new, reused, more_new, more_reused
):
    tile, heads = steps
    lane = solo.PrefillLane(replace(FIT, prefill=found, tile=tile, heads=heads, most_new=most))

    def seconds(units, n, r):
        return lane.seconds(units, PrefillLoad.of_prompts([(n, r)]))

    for units in (4, 70, 132):
        now = seconds(units, new, reused)
        assert seconds(units, new + more_new, reused) * EPSILON >= now
        assert seconds(units, new, reused + more_reused) * EPSILON >= now
        assert seconds(units + 20, new, reused) <= now * EPSILON
