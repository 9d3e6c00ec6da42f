import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.control_link import WHOLE, Lane, PoolState, StepDone
from scheduler.estimator.loads import DecodeLoad, PrefillLoad
from scheduler.estimator.table import FORGET_S, SEED_DECODE, SplitTable, bucket
from tests.unit.scheduler.world import (
    H200,
    LAYERS,
    TWO_CORES,
    quantum,
    snapshot,
    stepped,
    view,
    work,
)


def tokens(count):
    return PrefillLoad(count, 0, 0, 0)


def learnt(*events, partitions=H200, now=0.0):
    mirror = view(partitions=partitions)
    table = SplitTable()
    for event in events:
        mirror.apply(event)
        table.learn(mirror, now)
    return table, mirror


def test_before_anything_is_measured_time_is_inverse_to_the_units():
    table, mirror = learnt()
    whole = table.decode_s(mirror, WHOLE, DecodeLoad(1, 0), 0.0)
    assert whole == pytest.approx(SEED_DECODE["SM"] / 132)
    assert table.decode_s(mirror, 1, DecodeLoad(1, 0), 0.0) == pytest.approx(whole * 132 / 16)
    ratio = table.prefill_s(mirror, 4, tokens(1000), LAYERS, 0.0) / table.prefill_s(
        mirror, WHOLE, tokens(1000), LAYERS, 0.0
    )
    assert ratio == pytest.approx(132 / 68)


def test_a_measured_split_is_predicted_as_measured():
    table, mirror = learnt(*(stepped(n, 2, 0.018, rows=64) for n in range(1, 30)))
    assert table.decode_s(mirror, 2, DecodeLoad(64, 0), 0.0) == pytest.approx(0.018)


def test_it_follows_a_change_and_forgets_what_was():
    slow = [stepped(n, 2, 0.04, rows=8) for n in range(1, 30)]
    fast = [stepped(n, 2, 0.01, rows=8) for n in range(30, 60)]
    table, mirror = learnt(*slow, *fast)
    assert table.decode_s(mirror, 2, DecodeLoad(8, 0), 0.0) == pytest.approx(0.01, rel=0.05)


def test_an_unmeasured_split_is_scaled_from_the_nearest_measured_one():
    table, mirror = learnt(stepped(1, 4, 0.012, rows=8), stepped(2, 2, 0.02, rows=8))
    assert table.decode_s(mirror, 1, DecodeLoad(8, 0), 0.0) == pytest.approx(0.02 * 32 / 16)


def test_more_rows_than_measured_are_guessed_slower_and_fewer_not_faster():
    table, mirror = learnt(stepped(1, 2, 0.02, rows=8))
    assert table.decode_s(mirror, 2, DecodeLoad(32, 0), 0.0) > 0.02
    assert table.decode_s(mirror, 2, DecodeLoad(2, 0), 0.0) == pytest.approx(0.02)


def test_one_row_more_is_not_another_world_at_the_border_of_a_bucket():
    table, mirror = learnt(stepped(1, 2, 0.02, rows=16))
    assert table.decode_s(mirror, 2, DecodeLoad(17, 0), 0.0) < 0.021


def test_an_old_measurement_says_nothing_any_more():
    table, mirror = learnt(stepped(1, 1, 9.0, rows=8))
    assert table.decode_s(mirror, 1, DecodeLoad(8, 0), FORGET_S) == pytest.approx(9.0)
    assert table.decode_s(mirror, 1, DecodeLoad(8, 0), FORGET_S + 1) == pytest.approx(
        SEED_DECODE["SM"] / 16
    )


def test_prefill_is_learnt_per_token_and_layer():
    table, mirror = learnt(quantum(1, 2, 0.05, tokens=1000, layers=8))
    assert table.prefill_s(mirror, 2, tokens(2000), 32, 0.0) == pytest.approx(0.05 * 2 * 4)
    assert table.prefill_s(mirror, 4, tokens(1000), 8, 0.0) == pytest.approx(0.05 * 100 / 68)


def test_an_iteration_with_a_fused_chunk_is_no_decode_measurement():
    done = work(Lane.DECODE, 2, 5.0, batch_size=8, new_tokens=256)
    table, mirror = learnt(StepDone(1, done, (), PoolState(1, 1, 0)))
    assert table.decode_s(mirror, 2, DecodeLoad(8, 0), 0.0) < 1.0


def test_each_work_is_taken_once_however_often_it_learns():
    table, mirror = learnt(stepped(1, 2, 0.02, rows=8))
    for _ in range(5):
        table.learn(mirror, 0.0)
    assert table.decode[2, 8].count == 1


def test_works_between_two_calls_are_all_taken():
    mirror, table = view(), SplitTable()
    for number in range(1, 6):
        mirror.apply(stepped(number, 2, 0.02, rows=8))
    table.learn(mirror, 0.0)
    assert table.decode[2, 8].count == 5


def test_a_new_boot_starts_from_nothing():
    table, mirror = learnt(stepped(1, 2, 0.02, rows=8))
    mirror.restore(snapshot(boot="second", partitions=TWO_CORES))
    table.learn(mirror, 0.0)
    assert not table.decode
    mirror.apply(stepped(1, 1, 0.03, rows=1))
    table.learn(mirror, 0.0)
    assert table.decode_s(mirror, 1, DecodeLoad(1, 0), 0.0) == pytest.approx(0.03)


@given(st.integers(1, 5000))
def test_a_bucket_is_the_next_power_of_two(rows):
    size = bucket(rows)
    assert size >= rows > size // 2
    assert size & (size - 1) == 0


@given(st.integers(0, 4), st.integers(0, 300), st.floats(1e-4, 1.0), st.integers(1, 300))
def test_predictions_are_positive_and_fewer_units_never_predict_faster(
    measured, rows, seconds, measured_rows
):
    table, mirror = learnt(stepped(1, measured, seconds, rows=measured_rows))
    times = [table.decode_s(mirror, p.index, DecodeLoad(rows, 0), 0.0) for p in H200[1:]]
    assert all(time > 0 for time in times)
    assert times == sorted(times, reverse=True)
