"""The choice of attention kernel follows what was measured on an H200 (32 query, 8 key heads)."""

import pytest

from worker.executors.cuda.kernels.attention_choice import (
    H200_COSTS,
    AttentionChoice,
    Heads,
    prefill_backend,
)

HEADS = Heads(32, 8, 128)


def choose(*rows: tuple[int, int], sms: int, partial: int = 8192) -> AttentionChoice:
    return prefill_backend(rows, sms, HEADS, H200_COSTS, partial)


@pytest.mark.parametrize(
    ("new", "reused", "sms", "milliseconds"),
    [
        (8192, 0, 112, 1.119),
        (8192, 0, 64, 1.861),
        (2048, 16384, 112, 1.176),
        (2048, 16384, 64, 1.882),
        (1024, 4096, 96, 0.210),
        (512, 65536, 64, 1.745),
        (512, 2048, 112, 0.076),
    ],
)
def test_full_rounds_run_whole_on_fa3_and_take_as_long_as_measured(
    new: int, reused: int, sms: int, milliseconds: float
) -> None:
    choice = choose((new, reused), sms=sms)
    assert (choice.kernel, choice.split) == ("fa3", False)
    assert choice.seconds * 1e3 == pytest.approx(milliseconds, rel=0.06)


@pytest.mark.parametrize(
    ("new", "reused", "sms", "milliseconds"),
    [(512, 65536, 112, 1.137), (512, 65536, 96, 1.288), (256, 65536, 112, 0.603)],
)
def test_few_tiles_on_a_long_context_are_split_and_take_as_long_as_measured(
    new: int, reused: int, sms: int, milliseconds: float
) -> None:
    choice = choose((new, reused), sms=sms)
    assert choice.kernel == "fa3"
    assert choice.split
    assert choice.seconds * 1e3 == pytest.approx(milliseconds, rel=0.06)


@pytest.mark.parametrize(("new", "reused"), [(1, 2048), (32, 16384), (64, 16384), (64, 65536)])
def test_a_handful_of_tokens_goes_to_the_kernel_that_packs_heads(new: int, reused: int) -> None:
    for sms in (64, 96, 112):
        assert choose((new, reused), sms=sms).kernel == "fa2"


def test_partial_rows_never_exceed_their_limit() -> None:
    for limit in (0, 511, 1024, 4096):
        choice = choose((512, 65536), sms=112, partial=limit)
        assert 512 * choice.pieces[0] <= limit


def test_only_rows_with_a_long_context_are_cut() -> None:
    choice = choose((256, 65536), (128, 0), sms=112)
    assert choice.pieces[0] > 1
    assert choice.pieces[1] == 0


def test_more_sms_never_make_a_batch_slower() -> None:
    for rows in (((512, 65536),), ((64, 2048), (2000, 100)), ((8192, 0),)):
        seconds = [choose(*rows, sms=sms).seconds for sms in (16, 32, 48, 64, 80, 96, 112, 132)]
        assert seconds == sorted(seconds, reverse=True)


def test_a_head_that_fa3_is_not_built_for_goes_to_fa2() -> None:
    odd = prefill_backend([(8192, 65536)], 112, Heads(32, 8, 80), H200_COSTS, 8192)
    assert (odd.kernel, odd.split) == ("fa2", False)


def test_a_smaller_head_takes_less_time() -> None:
    small = prefill_backend([(8192, 0)], 112, Heads(32, 8, 64), H200_COSTS, 0)
    assert small.seconds < choose((8192, 0), sms=112).seconds


@pytest.mark.parametrize(
    ("rows", "sms"), [([], 112), ([(0, 5)], 112), ([(5, -1)], 112), ([(5, 5)], 0)]
)
def test_impossible_batches_are_refused(rows: list[tuple[int, int]], sms: int) -> None:
    with pytest.raises(ValueError, match="rows of"):
        prefill_backend(rows, sms, HEADS, H200_COSTS, 8192)
